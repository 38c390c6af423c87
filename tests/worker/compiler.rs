//! The compiler process, and what it tells of a program and of the plugin.

use mainstay::abi::{Code, Status, sys};
use mainstay::wire::message::{Command, CompileJob, Layout, NamedValue, Query, Reply, TopologySource, Value};

use crate::harness::{Worker, all_plugins, cpu_options, default_plugin};
use crate::programs::{self, MATMUL, STEP, SUM_OVER_REPLICAS};

#[test]
fn a_program_is_compiled_once_and_runs_in_a_worker() {
    for plugin in all_plugins() {
        let mut compiler = Worker::start_compiler(&plugin);
        let compiled = compiler.compile(MATMUL, programs::options(1), cpu_options(2)).unwrap();
        let mut worker = Worker::start(&plugin, 2);
        let program = worker.load(&compiled);
        let x = worker.upload(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
        let y = worker.upload(&[1.0, 1.0, 0.0, 1.0], &[2, 2]);
        let (launch, output) = worker.execute(program, 1, &[x, y]);
        worker.executed(launch, 0).unwrap();
        assert_eq!(worker.download(output, 4).unwrap(), [2.0, 4.0, 4.0, 8.0]);
    }
}

#[test]
fn all_that_is_known_of_a_program_is_told() {
    for plugin in all_plugins() {
        let mut compiler = Worker::start_compiler(&plugin);
        let compiled = compiler.compile(STEP, programs::options(1), cpu_options(1)).unwrap();
        let info = &compiled.info;
        assert!(info.name.contains("step"), "{}", info.name);
        assert_eq!((info.num_replicas, info.num_partitions, info.num_outputs), (1, 1, 2));
        assert_eq!(info.output_types, [sys::PJRT_Buffer_Type_F32; 2]);
        assert!(info.output_dims.iter().all(|dims| dims.as_slice() == [1024]));
        assert_eq!(known(&info.output_memory_kinds).map_or(2, Vec::len), 2);
        assert_eq!(info.output_layouts.as_ref().unwrap(), &["{0}", "{0}"]);
        assert_eq!(info.parameter_layouts.as_ref().unwrap(), &["{0}", "{0}"]);
        assert_eq!(info.parameters.len(), 2);
        assert!(
            info.parameters
                .iter()
                .all(|(kind, dims)| { (*kind, dims.as_slice()) == (sys::PJRT_Buffer_Type_F32, &[1024]) })
        );
        assert_eq!(info.donated, [0]);
        assert!(!info.fingerprint.as_ref().unwrap().is_empty());
        let (format, code) = info.optimized_program.as_ref().unwrap();
        assert_eq!(format, "hlo_with_config");
        assert!(!code.is_empty());
        let properties = known(&info.cost_analysis);
        assert!(properties.is_none_or(|all| all.iter().any(|property| property.name == "flops")));
        assert_eq!(info.memory_stats.as_ref().unwrap()[1], 2 * 4096);
        assert!(!info.device_assignment.as_ref().unwrap().is_empty());
    }
}

/// The answer to a question that not every plugin has one to.
fn known<T>(answer: &Result<T, Status>) -> Option<&T> {
    answer.as_ref().inspect_err(|status| assert_eq!(status.code, Code::Unimplemented, "{status}")).ok()
}

#[test]
fn a_question_that_the_plugin_is_too_old_for_keeps_its_error() {
    let plugins = all_plugins();
    let mut compiler = Worker::start_compiler(plugins.last().unwrap());
    let compiled = compiler.compile(MATMUL, programs::options(1), cpu_options(1)).unwrap();
    match &compiled.info.compile_options {
        Ok(options) => assert!(!options.is_empty()),
        Err(status) => {
            assert_eq!(status.code, Code::Unimplemented);
            assert!(status.message.contains("PJRT_Executable_GetCompileOptions"), "{status}");
        }
    }
}

#[test]
fn an_old_program_is_described_without_compiling_it() {
    for plugin in all_plugins() {
        let mut compiler = Worker::start_compiler(&plugin);
        let compiled = compiler.compile(STEP, programs::options(1), cpu_options(1)).unwrap();
        let mut other = Worker::start_compiler(&plugin);
        let serialized = compiled.serialized.clone().unwrap();
        let query = Query::Inspect { serialized, options: Vec::new().into(), client_options: cpu_options(1) };
        let Reply::Compiled(inspected) = other.ask(query).unwrap() else { panic!("not a program") };
        assert_eq!(inspected.info.name, compiled.info.name);
        assert_eq!(inspected.info.output_dims, compiled.info.output_dims);
        assert_eq!(inspected.info.parameters, compiled.info.parameters);
        assert_eq!(inspected.info.donated, compiled.info.donated);
        assert_eq!(inspected.info.output_layouts, compiled.info.output_layouts);
    }
}

#[test]
fn a_program_that_makes_no_sense_is_the_compilers_error() {
    let mut compiler = Worker::start_compiler(&default_plugin());
    let status = compiler.compile("module @broken { nonsense }", programs::options(1), cpu_options(1)).unwrap_err();
    assert!(status.message.contains("nonsense"), "{status}");
    let again = compiler.compile(MATMUL, programs::options(1), cpu_options(1)).map(|_| ());
    assert_eq!(again, Ok(()), "the compiler goes on");
}

#[test]
fn many_compilations_run_side_by_side() {
    let mut compiler = Worker::start_compiler(&default_plugin());
    let requests: Vec<u64> = (0..12).map(|_| compiler.id()).collect();
    for request in &requests {
        let job = CompileJob {
            format: "mlir".into(),
            code: MATMUL.as_bytes().into(),
            options: programs::options(1).into(),
            client_options: cpu_options(1 + (request % 2) as i64),
        };
        compiler.send(Command::Compile { request: *request, job });
    }
    for request in requests {
        assert!(matches!(compiler.reply(request), Ok(Reply::Compiled(_))));
    }
    assert!(compiler.shut_down().success());
}

#[test]
fn the_plugin_answers_questions() {
    for plugin in all_plugins() {
        let mut compiler = Worker::start_compiler(&plugin);
        let Reply::Attributes(attributes) = compiler.ask(Query::PluginAttributes).unwrap() else { panic!() };
        assert!(attributes.iter().any(|attribute| attribute.name == "xla_version"));

        let query = Query::DefaultLayout {
            element_type: sys::PJRT_Buffer_Type_F32,
            dims: [2, 3].as_slice().into(),
            client_options: cpu_options(1),
        };
        let Reply::DefaultLayout(Layout::Tiled { minor_to_major, .. }, text) = compiler.ask(query).unwrap() else {
            panic!()
        };
        assert_eq!((minor_to_major.as_slice(), text.as_str()), ([1, 0].as_slice(), "{1,0}"));

        let query = Query::Topology(TopologySource::Client(cpu_options(3)));
        let Reply::Topology(topology) = compiler.ask(query).unwrap() else { panic!() };
        assert_eq!((topology.platform_name.as_str(), topology.devices.len()), ("cpu", 3));

        let query = Query::DefaultDeviceAssignment { replicas: 1, partitions: 1 };
        assert_eq!(compiler.ask(query).unwrap_err().code, Code::FailedPrecondition);
        let mut worker = Worker::start(&plugin, 2);
        let query = Query::DefaultDeviceAssignment { replicas: 2, partitions: 1 };
        assert_eq!(worker.ask(query).unwrap(), Reply::Assignment(vec![0, 1]));
    }
}

#[test]
fn a_topology_survives_serialization_where_the_plugin_has_it() {
    let mut compiler = Worker::start_compiler(&default_plugin());
    let query = Query::Topology(TopologySource::Client(cpu_options(2)));
    let Reply::Topology(topology) = compiler.ask(query).unwrap() else { panic!() };
    let Ok(serialized) = topology.serialized else { return };
    match compiler.ask(Query::Topology(TopologySource::Serialized(serialized))) {
        Ok(Reply::Topology(again)) => assert_eq!(again.devices.len(), 2),
        Ok(other) => panic!("{other:?}"),
        Err(status) => assert_eq!(status.code, Code::Unimplemented, "{status}"),
    }
}

#[test]
#[ignore = "needs libtpu (no TPU): MAINSTAY_TEST_LIBTPU=…/libtpu.so TPU_SKIP_MDS_QUERY=1 cargo test -- --ignored libtpu"]
fn libtpu_compiles_for_a_topology_of_one_slice_and_of_two() {
    let plugin = std::env::var_os("MAINSTAY_TEST_LIBTPU").expect("MAINSTAY_TEST_LIBTPU: the path of libtpu.so");
    let mut compiler = Worker::start_compiler(plugin.as_ref());
    for slices in [1, 2] {
        let options = vec![NamedValue { name: "num_slices".into(), value: Value::Int64(slices) }];
        let source = TopologySource::Name { name: "v5e:2x2".into(), options };
        let Reply::Topology(topology) = compiler.ask(Query::Topology(source.clone())).unwrap() else { panic!() };
        assert_eq!(topology.devices.len() as i64, 4 * slices);
        assert!(topology.devices.iter().all(|device| device.memory_descriptions.len() == 3));
        let ends = [topology.devices[0].id, topology.devices[topology.devices.len() - 1].id];
        let job = CompileJob {
            format: "mlir".into(),
            code: SUM_OVER_REPLICAS.as_bytes().into(),
            options: programs::options_for(&ends).into(),
            client_options: Vec::new(),
        };
        let query = Query::CompileForTopology { topology: source, job };
        let Reply::Compiled(compiled) = compiler.ask(query).unwrap() else { panic!() };
        assert!(!compiled.serialized.unwrap().is_empty());
        assert_eq!(compiled.info.output_layouts.unwrap(), ["{0:T(128)}"]);
    }
}
