//! Small programs, in StableHLO, and the options to compile them with.

use mainstay::program::proto::compile_options::CompileOptionsProto;
use mainstay::program::proto::shape::device_assignment_proto::ComputationDevice;
use protobuf::Message as _;

/// x · y + 1, for 2 × 2 matrices.
pub const MATMUL: &str = r#"
module @matmul {
  func.func public @main(%x: tensor<2x2xf32>, %y: tensor<2x2xf32>) -> tensor<2x2xf32> {
    %product = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %one = stablehlo.constant dense<1.0> : tensor<2x2xf32>
    %sum = stablehlo.add %product, %one : tensor<2x2xf32>
    return %sum : tensor<2x2xf32>
  }
}
"#;

/// x + 1 in the memory of x, and the sum of x and y, for 1024 numbers.
pub const STEP: &str = r#"
module @step {
  func.func public @main(%x: tensor<1024xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<1024xf32>)
      -> (tensor<1024xf32>, tensor<1024xf32>) {
    %one = stablehlo.constant dense<1.0> : tensor<1024xf32>
    %next = stablehlo.add %x, %one : tensor<1024xf32>
    %sum = stablehlo.add %x, %y : tensor<1024xf32>
    return %next, %sum : tensor<1024xf32>, tensor<1024xf32>
  }
}
"#;

/// x + y, for 4 numbers.
pub const ADD: &str = r#"
module @add {
  func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %x, %y : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}
"#;

/// The sum of x over two replicas, for 4 numbers.
pub const SUM_OVER_REPLICAS: &str = r#"
module @sum_over_replicas attributes {mhlo.num_replicas = 2 : i32} {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %total = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %total : tensor<4xf32>
  }
}
"#;

/// Counts for very long.
pub const ENDLESS: &str = r#"
module @endless {
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {
    %zero = stablehlo.constant dense<0> : tensor<i64>
    %many = stablehlo.constant dense<9000000000000000000> : tensor<i64>
    %one = stablehlo.constant dense<1> : tensor<i64>
    %result:2 = stablehlo.while(%i = %zero, %value = %x) : tensor<i64>, tensor<f32>
    cond {
      %more = stablehlo.compare LT, %i, %many : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %next = stablehlo.add %i, %one : tensor<i64>
      %wave = stablehlo.sine %value : tensor<f32>
      stablehlo.return %next, %wave : tensor<i64>, tensor<f32>
    }
    return %result#1 : tensor<f32>
  }
}
"#;

/// Compile options for the first devices, one replica on each.
pub fn options(replicas: i32) -> Vec<u8> {
    options_for(&(0..replicas).collect::<Vec<_>>())
}

/// Compile options for these devices, one replica on each.
pub fn options_for(devices: &[i32]) -> Vec<u8> {
    let replicas = devices.len() as i32;
    let mut options = CompileOptionsProto::new();
    let build = options.executable_build_options.mut_or_insert_default();
    build.device_ordinal = -1;
    build.num_replicas = replicas.into();
    build.num_partitions = 1;
    let assignment = build.device_assignment.mut_or_insert_default();
    assignment.replica_count = replicas;
    assignment.computation_count = 1;
    let replica_device_ids = devices.iter().map(|device| i64::from(*device)).collect();
    assignment.computation_devices = vec![ComputationDevice { replica_device_ids, ..Default::default() }];
    options.write_to_bytes().unwrap()
}
