//! Programs over the workers of several slices give the bits that one client of all devices gives.
//!
//! The programs are a few of our own, and those in the folder `MAINSTAY_SPANNING_PROGRAMS` where it is set:
//! `tests/python/spanning/programs.py` makes a hundred with JAX. `MAINSTAY_SPANNING_ONLY` names one to run alone.

#[path = "worker/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of the worker")]
mod harness;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::{Worker, cpu_options, default_plugin};
use mainstay::abi::{Status, element, sys};
use mainstay::program::spanning::{Place, Placement};
use mainstay::wire::message::{
    BufferId, BufferSpec, Command, CompileJob, CompiledSpanning, Dims, ExecutableInfo, Execute, Ids, NamedValue,
    Payload, Query, Reply, Report, SpanningJob, SpanningPart, Start, Urgent,
};
use mainstay::worker::collectives::create_region;
use protobuf::{Message, MessageField};

/// A program for eight devices.
struct Source {
    name: String,
    code: Vec<u8>,
    options: Vec<u8>,
}

/// Sums over all devices, over groups that no slice holds, and in a loop; a gather along the second dimension, a
/// permutation, and where each device is.
const OWN: &str = r#"
module @own attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<32x6xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"})
      -> (tensor<32x6xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}, tensor<6xf32> {mhlo.sharding = "{replicated}"},
          tensor<32x6xf32> {mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}) {
    %sine = stablehlo.sine %x : tensor<32x6xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%sine init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<32x6xf32>, tensor<f32>) -> tensor<6xf32>
    %wide = stablehlo.broadcast_in_dim %sum, dims = [1] : (tensor<6xf32>) -> tensor<32x6xf32>
    %first = stablehlo.multiply %wide, %x : tensor<32x6xf32>
    %reversed = stablehlo.reverse %x, dims = [0] : tensor<32x6xf32>
    return %first, %sum, %reversed : tensor<32x6xf32>, tensor<6xf32>, tensor<32x6xf32>
  }
}
"#;

/// The program for another number of devices, a power of two from 4 on.
fn own_for(devices: usize) -> String {
    let half = devices / 2;
    OWN.replace("num_partitions = 8", &format!("num_partitions = {devices}"))
        .replace("[8,1]<=[8]", &format!("[{devices},1]<=[{devices}]"))
        .replace("[1,2,4]<=[4,2]", &format!("[1,2,{half}]<=[{half},2]"))
}

fn own_options(devices: i64) -> Vec<u8> {
    use mainstay::program::proto::compile_options::CompileOptionsProto;
    use mainstay::program::proto::shape::DeviceAssignmentProto;
    use mainstay::program::proto::shape::device_assignment_proto::ComputationDevice;
    let mut options = CompileOptionsProto::new();
    let build = options.executable_build_options.mut_or_insert_default();
    (build.device_ordinal, build.num_replicas, build.num_partitions) = (-1, 1, devices);
    build.use_spmd_partitioning = true;
    let one = |id| ComputationDevice { replica_device_ids: vec![id], ..Default::default() };
    build.device_assignment = MessageField::some(DeviceAssignmentProto {
        replica_count: 1,
        computation_count: devices as i32,
        computation_devices: (0..devices).map(one).collect(),
        ..Default::default()
    });
    options.write_to_bytes().unwrap()
}

fn sources() -> Vec<Source> {
    let mut sources = vec![Source { name: "own".into(), code: OWN.into(), options: own_options(8) }];
    if let Some(folder) = std::env::var_os("MAINSTAY_SPANNING_PROGRAMS").map(PathBuf::from) {
        let mut names: Vec<PathBuf> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "mlir"))
            .collect();
        names.sort();
        sources.extend(names.iter().map(|path| Source {
            name: path.file_stem().unwrap().to_string_lossy().into(),
            code: std::fs::read(path).unwrap(),
            options: std::fs::read(path.with_extension("options")).unwrap(),
        }));
    }
    let only = std::env::var("MAINSTAY_SPANNING_ONLY").ok();
    sources.retain(|source| only.as_ref().is_none_or(|only| *only == source.name));
    sources
}

/// Content for a parameter of a device, the same each time.
fn content(element_type: u32, dims: &[i64], seed: u64) -> Vec<u8> {
    let bytes = element::dense_bytes(element_type, dims).unwrap() as usize;
    let count = element::count(dims).unwrap();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut content = Vec::with_capacity(bytes);
    while content.len() < bytes {
        let number = (next() % 4001) as f64 / 1000.0 - 2.0;
        match element_type {
            sys::PJRT_Buffer_Type_F32 | sys::PJRT_Buffer_Type_C64 => content.extend((number as f32).to_le_bytes()),
            sys::PJRT_Buffer_Type_F64 | sys::PJRT_Buffer_Type_C128 => content.extend(number.to_le_bytes()),
            sys::PJRT_Buffer_Type_BF16 => content.extend(&(number as f32).to_le_bytes()[2..]),
            // A half between -2 and 2: sign, small exponent, any fraction.
            sys::PJRT_Buffer_Type_F16 => content.extend((0x3800 ^ (next() as u16 & 0x87ff)).to_le_bytes()),
            sys::PJRT_Buffer_Type_PRED => content.push((next() & 1) as u8),
            // Bytes: integers, and 8-bit floats that are none too large.
            _ if bytes as u64 == count => content.push(next() as u8 & 0xbf),
            _ => content.extend(&next().to_le_bytes()[..bytes / count as usize]),
        }
    }
    content.truncate(bytes);
    content
}

/// A loaded program on one worker, and which of its devices run it.
struct Loaded {
    executable: u64,
    /// Local device and logical device, in the order of the executable's devices.
    devices: Vec<(u32, u32)>,
}

/// Loads a serialized program.
fn load(worker: &mut Worker, executable: u64, serialized: Arc<[u8]>, donated: &[u32]) -> Result<(), Status> {
    worker.send(Command::Load { executable, serialized, options: Arc::from([]), donated: donated.into() });
    worker.wait_for(|report| match report {
        Report::Loaded { executable: of, result } if *of == executable => Some(result.clone()),
        _ => None,
    })
}

/// Uploads a worker's arguments and launches; the first output.
fn launch(worker: &mut Worker, loaded: &Loaded, launch: u64, info: &ExecutableInfo, round: u64) -> BufferId {
    let arguments = upload(worker, loaded, info, round);
    let first_output = execute(worker, loaded, launch, info, &arguments);
    worker.send(Command::Destroy { buffers: arguments });
    first_output
}

/// Destroys the outputs of so many devices of a program with one.
fn free(worker: &Worker, first_output: BufferId, count: u64) {
    worker.send(Command::Destroy { buffers: (first_output..first_output + count).collect() });
}

/// What a device gets for an argument.
fn argument(element_type: u32, dims: &[i64], round: u64, logical: u32, number: usize) -> Vec<u8> {
    content(element_type, dims, 1 + round * 1000 + u64::from(logical) * 50 + number as u64)
}

/// Declares the arguments of all devices of a worker; the commands that give them their values. For small ones.
fn declare(worker: &mut Worker, loaded: &Loaded, info: &ExecutableInfo, round: u64) -> (Ids, Vec<Command>) {
    let mut values = Vec::new();
    for &(device, logical) in &loaded.devices {
        let memory = worker.memory(device as usize, "device");
        for (number, (element_type, dims)) in info.parameters.iter().enumerate() {
            let spec = BufferSpec { element_type: *element_type, dims: dims.clone(), memory, layout: None };
            let data = Payload::Inline(argument(*element_type, dims, round, logical, number));
            values.push((worker.declare(), spec, data));
        }
    }
    let buffers = values.iter().map(|(buffer, ..)| *buffer).collect();
    let upload = |(buffer, spec, data)| Command::Upload { buffer, spec, data, quiet: false };
    (buffers, values.into_iter().map(upload).collect())
}

/// Uploads the arguments of all devices of a worker.
fn upload(worker: &mut Worker, loaded: &Loaded, info: &ExecutableInfo, round: u64) -> Ids {
    let mut arguments = Ids::new();
    for &(device, logical) in &loaded.devices {
        let memory = worker.memory(device as usize, "device");
        for (number, (element_type, dims)) in info.parameters.iter().enumerate() {
            let buffer = worker.id();
            let content = argument(*element_type, dims, round, logical, number);
            let spec = BufferSpec { element_type: *element_type, dims: dims.clone(), memory, layout: None };
            if content.len() < 100_000 {
                worker.send(Command::Upload { buffer, spec, data: Payload::Inline(content), quiet: false });
            } else {
                let mut block = worker.arena.allocate(content.len() as u64).unwrap();
                // SAFETY: the block is new: no worker knows of it.
                unsafe { block.as_mut_slice() }.copy_from_slice(&content);
                let (extent, loan) = (block.extent(), worker.id());
                let data = Payload::Arena { extent, loan, mutable: false };
                worker.send(Command::Upload { buffer, spec, data, quiet: false });
                worker.returned(loan);
            }
            arguments.push(buffer);
        }
    }
    arguments
}

fn execute(worker: &mut Worker, loaded: &Loaded, launch: u64, info: &ExecutableInfo, arguments: &Ids) -> BufferId {
    let first_output = worker.ids(loaded.devices.len() as u64 * u64::from(info.num_outputs));
    worker.send(Command::Execute(Execute {
        launch,
        executable: loaded.executable,
        launch_id: 0,
        num_devices: loaded.devices.len() as u32,
        execute_device: None,
        arguments: arguments.clone(),
        first_output,
        num_outputs: info.num_outputs,
        non_donatable: Default::default(),
    }));
    first_output
}

/// What each device of a launch gave, or the error of the first that failed.
fn outcomes(
    worker: &mut Worker,
    loaded: &Loaded,
    launch: u64,
    info: &ExecutableInfo,
    first_output: BufferId,
    into: &mut HashMap<u32, Vec<Vec<u8>>>,
) -> Result<(), Status> {
    let mut result = Ok(());
    for (place, (_, logical)) in loaded.devices.iter().enumerate() {
        result = result.and(worker.executed(launch, place as u32));
        let mut outputs = Vec::new();
        for output in 0..info.num_outputs as usize {
            let buffer = first_output + (place * info.num_outputs as usize + output) as u64;
            if result.is_ok() {
                outputs.push(download(worker, buffer, info.output_types[output], &info.output_dims[output]));
            }
            worker.send(Command::Destroy { buffers: Ids::from_slice(&[buffer]) });
        }
        into.insert(*logical, outputs);
    }
    result
}

fn download(worker: &mut Worker, buffer: BufferId, element_type: u32, dims: &Dims) -> Vec<u8> {
    let bytes = element::dense_bytes(element_type, dims).unwrap();
    if bytes == 0 {
        return Vec::new();
    }
    let block = worker.arena.allocate(bytes).unwrap();
    let request = worker.id();
    worker.send(Command::Download { request, buffer, minor_to_major: Default::default(), to: block.extent() });
    assert_eq!(worker.reply(request), Ok(Reply::Done));
    // SAFETY: the worker has said that it is done with the block.
    let written = unsafe { block.as_slice() };
    written[..bytes as usize].to_vec()
}

/// Workers of some slices with an exchange between them.
struct World {
    placement: Placement,
    workers: Vec<Worker>,
    _region: OwnedFd,
    launches: u64,
}

impl World {
    /// As many slices as the placement names, with as many devices as it needs of each.
    fn start(placement: Placement) -> Self {
        Self::with_threads(placement, 8)
    }

    /// The same, with so many threads for programs in each worker.
    fn with_threads(placement: Placement, threads: usize) -> Self {
        let slices = placement.places.iter().map(|place| place.slice).max().unwrap() as usize + 1;
        let region = create_region(slices, 16 << 20).unwrap();
        let devices = |slice: usize| {
            let of = placement.places.iter().filter(|place| place.slice as usize == slice);
            of.map(|place| i64::from(place.device) + 1).max().unwrap_or(1)
        };
        let plugin = default_plugin();
        let start = |slice: usize| {
            let start = Start {
                plugin: plugin.clone(),
                options: cpu_options(devices(slice)),
                create_client: true,
                heap_slack: 0,
            };
            Worker::spawn_in(start, Some(region.as_fd()), threads)
        };
        let mut workers: Vec<Worker> = (0..slices).map(start).collect();
        for (slice, worker) in workers.iter_mut().enumerate() {
            worker.description = worker.started().unwrap().map(|description| *description);
            worker.send(Command::Join { slice: slice as u32, incarnation: 1 });
        }
        Self { placement, workers, _region: region, launches: 0 }
    }

    fn options_of(&self, slice: u32) -> Vec<NamedValue> {
        cpu_options(self.workers[slice as usize].description.as_ref().unwrap().devices.len() as i64)
    }

    fn participants(&self) -> Vec<(u32, u32)> {
        self.placement.shares().unwrap().into_iter().map(|(slice, _)| (slice, 1)).collect()
    }

    fn compile(&self, compiler: &mut Worker, source: &Source) -> Result<CompiledSpanning, Status> {
        let request = compiler.id();
        let parts = self.placement.shares()?.into_iter().map(|(slice, share)| SpanningPart {
            client_options: self.options_of(slice),
            devices: share.ordinals().into_iter().map(i64::from).collect(),
        });
        let job = SpanningJob { program: job(source), parts: parts.collect() };
        compiler.send(Command::CompileSpanning { request, job });
        match compiler.reply(request)? {
            Reply::Spanning(compiled) => Ok(*compiled),
            other => panic!("{other:?}"),
        }
    }

    /// Loads the parts; a loaded program for each participating slice.
    fn load(&mut self, compiled: &CompiledSpanning) -> Result<Vec<(u32, Loaded)>, Status> {
        let places: Arc<[(u32, u32)]> = self.placement.places.iter().map(|place| (place.slice, place.device)).collect();
        let shares = self.placement.shares()?;
        let mut programs = Vec::new();
        for ((slice, share), part) in shares.into_iter().zip(&compiled.parts) {
            let worker = &mut self.workers[slice as usize];
            let executable = worker.id();
            let partitions = self.placement.partitions;
            worker.send(Command::Spans { executable, partitions, places: places.clone() });
            load(worker, executable, part.serialized.clone()?, &part.info.donated)?;
            programs.push((slice, Loaded { executable, devices: share.devices }));
        }
        Ok(programs)
    }

    /// Begins and executes on the slices named; launch and first outputs.
    fn start_launch(&mut self, programs: &[(u32, Loaded)], info: &ExecutableInfo, round: u64) -> (u64, Vec<BufferId>) {
        self.launches += 1;
        // Far from the ids that the workers give otherwise.
        let number = 1_000_000 + self.launches;
        let participants = self.participants();
        let outputs = programs
            .iter()
            .map(|(slice, loaded)| {
                let worker = &mut self.workers[*slice as usize];
                let (executable, participants) = (loaded.executable, participants.as_slice().into());
                worker.send(Command::Begin { launch: number, executable, participants });
                launch(worker, loaded, number, info, round)
            })
            .collect();
        (number, outputs)
    }

    fn run(
        &mut self,
        programs: &[(u32, Loaded)],
        info: &ExecutableInfo,
        round: u64,
    ) -> Result<HashMap<u32, Vec<Vec<u8>>>, Status> {
        let (number, firsts) = self.start_launch(programs, info, round);
        let mut outputs = HashMap::new();
        let mut result = Ok(());
        for ((slice, loaded), first) in programs.iter().zip(firsts) {
            let worker = &mut self.workers[*slice as usize];
            result = result.and(outcomes(worker, loaded, number, info, first, &mut outputs));
        }
        result.map(|()| outputs)
    }
}

fn job(source: &Source) -> CompileJob {
    CompileJob {
        format: "mlir".into(),
        code: source.code.as_slice().into(),
        options: source.options.as_slice().into(),
        client_options: cpu_options(8),
    }
}

/// One client of eight devices.
struct Reference {
    worker: Worker,
    known: HashMap<String, Result<Known, Status>>,
}

/// What the one client makes of a program.
#[derive(Clone)]
struct Known {
    info: ExecutableInfo,
    executable: u64,
    outputs: HashMap<u32, Vec<Vec<u8>>>,
    compile: Duration,
}

const ROUND: u64 = 3;

impl Reference {
    fn start() -> Self {
        Self { worker: Worker::start(&default_plugin(), 8), known: HashMap::new() }
    }

    fn of(&mut self, source: &Source) -> Result<Known, Status> {
        if !self.known.contains_key(&source.name) {
            let known = self.run(source);
            self.known.insert(source.name.clone(), known);
        }
        self.known[&source.name].clone()
    }

    fn run(&mut self, source: &Source) -> Result<Known, Status> {
        let start = Instant::now();
        let request = self.worker.id();
        self.worker.send(Command::Compile { request, job: job(source) });
        let Reply::Compiled(compiled) = self.worker.reply(request)? else { panic!("no program") };
        let compile = start.elapsed();
        let executable = self.worker.id();
        load(&mut self.worker, executable, compiled.serialized.clone()?, &compiled.info.donated)?;
        let loaded = Loaded { executable, devices: (0..8).map(|device| (device, device)).collect() };
        let number = self.worker.id();
        let first = launch(&mut self.worker, &loaded, number, &compiled.info, ROUND);
        let mut outputs = HashMap::new();
        outcomes(&mut self.worker, &loaded, number, &compiled.info, first, &mut outputs)?;
        Ok(Known { info: compiled.info, executable, outputs, compile })
    }
}

/// Eight devices over slices, by the slice of each; within a slice in the order given by `reversed`.
fn placement(source: &Source, slices: &[u32; 8], reversed: bool) -> Placement {
    let extents = mainstay::program::spanning::options::extents(&source.options).unwrap();
    let mut used = HashMap::<u32, u32>::new();
    let totals = slices.iter().fold(HashMap::<u32, u32>::new(), |mut totals, slice| {
        *totals.entry(*slice).or_default() += 1;
        totals
    });
    let places = slices
        .iter()
        .map(|&slice| {
            let next = used.entry(slice).or_default();
            let device = if reversed { totals[&slice] - 1 - *next } else { *next };
            *next += 1;
            Place { slice, device }
        })
        .collect();
    Placement { replicas: extents.replicas, partitions: extents.partitions, places }
}

/// Runs all programs over a placement and compares; the names of those that differ or fail where the one client
/// does not.
fn compare(slices: &[u32; 8], reversed: bool) {
    let sources = sources();
    let mut reference = Reference::start();
    let mut compiler = Worker::start_compiler(&default_plugin());
    let mut world = World::start(placement(&sources[0], slices, reversed));
    let mut bad = Vec::new();
    let (mut plain, mut spanning) = (Duration::ZERO, Duration::ZERO);
    for source in &sources {
        let known = reference.of(source);
        world.placement = placement(source, slices, reversed);
        let start = Instant::now();
        let compiled = world.compile(&mut compiler, source);
        let took = start.elapsed();
        let got = compiled.and_then(|compiled| {
            let programs = world.load(&compiled)?;
            let outputs = world.run(&programs, &compiled.info, ROUND)?;
            for (slice, loaded) in &programs {
                world.workers[*slice as usize].send(Command::Unload { executable: loaded.executable });
            }
            Ok((compiled.info, outputs))
        });
        match (known, got) {
            (Ok(known), Ok((info, outputs))) => {
                plain += known.compile;
                spanning += took;
                if let Some(difference) = difference(&known, &info, &outputs) {
                    bad.push(format!("{}: {difference}", source.name));
                }
            }
            (Ok(_), Err(status)) => bad.push(format!("{}: {status}", source.name)),
            (Err(status), got) => {
                let fate = got.map_or_else(|status| status.to_string(), |_| "fine".into());
                println!("{}: the one client says {status}, the slices: {fate}", source.name);
            }
        }
    }
    println!("{} programs compiled in {plain:?} for one client, in {spanning:?} for slices", sources.len());
    assert!(bad.is_empty(), "{} of {}:\n{}", bad.len(), sources.len(), bad.join("\n"));
}

fn difference(known: &Known, info: &ExecutableInfo, outputs: &HashMap<u32, Vec<Vec<u8>>>) -> Option<String> {
    let told = |info: &ExecutableInfo| {
        (
            (info.name.clone(), info.num_replicas, info.num_partitions, info.num_outputs),
            (info.output_types.clone(), info.output_dims.clone(), info.parameters.clone(), info.donated.clone()),
            (info.output_layouts.clone(), info.parameter_layouts.clone()),
            (info.output_memory_kinds.clone(), info.parameter_memory_kinds.clone()),
        )
    };
    // A plugin without the extension tells no shardings; ours are the partitioned program's.
    let shardings = |info: &ExecutableInfo| (info.output_shardings.clone(), info.parameter_shardings.clone());
    if known.info.output_shardings.is_ok() && shardings(&known.info) != shardings(info) {
        return Some(format!("has the shardings\n{:?}\nnot\n{:?}", shardings(info), shardings(&known.info)));
    }
    if told(&known.info) != told(info) {
        return Some(format!("described as\n{:?}\nnot\n{:?}", told(info), told(&known.info)));
    }
    for logical in 0..8 {
        for (output, (expected, got)) in known.outputs[&logical].iter().zip(&outputs[&logical]).enumerate() {
            if expected != got {
                let at = expected.iter().zip(got).position(|(a, b)| a != b).unwrap_or(0);
                let part = |bytes: &[u8]| bytes[at - at % 8..bytes.len().min(at - at % 8 + 8)].to_vec();
                return Some(format!(
                    "output {output} ({:?}) of device {logical} differs at byte {at}: {:02x?}, not {:02x?}",
                    info.output_dims[output],
                    part(got),
                    part(expected)
                ));
            }
        }
    }
    None
}

/// A worker killed while a collective waits for it: the others' devices fail at once with the loss, go on with programs
/// of their own, and with smaller spanning ones.
#[test]
fn a_killed_worker_fails_its_launches_and_nothing_else() {
    let source = Source { name: "own".into(), code: OWN.into(), options: own_options(8) };
    let mut compiler = Worker::start_compiler(&default_plugin());
    let mut world = World::start(placement(&source, &[0, 0, 0, 0, 1, 1, 2, 2], false));
    let compiled = world.compile(&mut compiler, &source).unwrap();
    let programs = world.load(&compiled).unwrap();
    world.run(&programs, &compiled.info, ROUND).unwrap();

    // Slice 1 is not told to execute: the others wait for it.
    let (first, rest) = programs.split_at(1);
    let waiting: Vec<&(u32, Loaded)> = first.iter().chain(&rest[1..]).collect();
    let participants = world.participants();
    let number = 2_000_000;
    for (slice, loaded) in &waiting {
        let worker = &mut world.workers[*slice as usize];
        let (executable, participants) = (loaded.executable, participants.as_slice().into());
        worker.send(Command::Begin { launch: number, executable, participants });
        launch(worker, loaded, number, &compiled.info, ROUND);
    }
    world.workers[1].child.kill().unwrap();
    world.workers[1].child.wait().unwrap();
    let loss = Status::new(mainstay::abi::Code::DataLoss, "slice 1 is lost: its worker was killed");
    let start = Instant::now();
    for (slice, _) in &waiting {
        let status = loss.clone();
        world.workers[*slice as usize]
            .end
            .send_urgent(&Urgent::FailSlice { slice: 1, incarnation: 1, status })
            .unwrap();
    }
    for (slice, loaded) in &waiting {
        for place in 0..loaded.devices.len() as u32 {
            let fate = world.workers[*slice as usize].executed(number, place).unwrap_err();
            assert!(fate.message.contains("slice 1 is lost"), "{fate}");
        }
    }
    println!("all devices failed {:?} after the word", start.elapsed());
    for (slice, _) in &waiting {
        world.workers[*slice as usize].end.send_urgent(&Urgent::Over { launch: number }).unwrap();
    }

    // A program that spans the survivors alone goes on at once; here each device of theirs twice as busy would not fit,
    // so it is one of four devices.
    let small = Source { name: "small".into(), code: own_for(4).into(), options: own_options(4) };
    let options = mainstay::program::spanning::options::extents(&small.options).unwrap();
    let places = [(0, 1), (2, 1), (0, 3), (2, 0)].map(|(slice, device)| Place { slice, device }).to_vec();
    world.placement = Placement { replicas: options.replicas, partitions: options.partitions, places };
    let compiled = world.compile(&mut compiler, &small).unwrap();
    let programs = world.load(&compiled).unwrap();
    let first = world.run(&programs, &compiled.info, ROUND).unwrap();
    assert_eq!(world.run(&programs, &compiled.info, ROUND).unwrap(), first);
}

/// A worker whose every thread is taken by launches that wait for a slice, its commands' too, hears of that slice's death.
#[test]
fn a_worker_that_is_blocked_in_the_plugin_hears_of_a_death() {
    let source = Source { name: "small".into(), code: own_for(4).into(), options: own_options(4) };
    let mut compiler = Worker::start_compiler(&default_plugin());
    let places = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(slice, device)| Place { slice, device }).to_vec();
    let placement = Placement { replicas: 1, partitions: 4, places };
    let mut world = World::with_threads(placement, 2);
    let compiled = world.compile(&mut compiler, &source).unwrap();
    let programs = world.load(&compiled).unwrap();
    world.run(&programs, &compiled.info, ROUND).unwrap();

    // Slice 1 is not told to execute. The first launch takes both threads, the second blocks the worker's main thread.
    let (participants, loaded) = (world.participants(), &programs[0].1);
    let worker = &mut world.workers[0];
    let launches = 3_000_000..3_000_004;
    for number in launches.clone() {
        let (executable, participants) = (loaded.executable, participants.as_slice().into());
        worker.send(Command::Begin { launch: number, executable, participants });
        launch(worker, loaded, number, &compiled.info, ROUND);
    }
    let ping = worker.id();
    worker.send(Command::Ask { request: ping, query: Query::Ping });
    assert!(!worker.replies_within(ping, Duration::from_millis(300)), "the worker should be blocked");

    world.workers[1].child.kill().unwrap();
    world.workers[1].child.wait().unwrap();
    let status = Status::new(mainstay::abi::Code::DataLoss, "slice 1 is lost: its worker was killed");
    let start = Instant::now();
    let worker = &mut world.workers[0];
    worker.end.send_urgent(&Urgent::FailSlice { slice: 1, incarnation: 1, status }).unwrap();
    for number in launches.clone() {
        for place in 0..2 {
            let fate = worker.executed(number, place).unwrap_err();
            assert!(fate.message.contains("slice 1 is lost"), "{fate}");
        }
    }
    println!("four launches failed {:?} after the word", start.elapsed());
    worker.reply(ping).unwrap();
    launches.for_each(|launch| worker.end.send_urgent(&Urgent::Over { launch }).unwrap());
}

/// One device on each slice: the plugin runs small programs inside its `Execute`. While slice 0 is in a launch whose
/// inputs come late on slice 1, slice 0 still does what those inputs depend on.
#[test]
fn a_launch_that_runs_inside_the_plugin_blocks_nothing_else() {
    let source = Source { name: "pair".into(), code: own_for(2).into(), options: own_options(2) };
    let mut compiler = Worker::start_compiler(&default_plugin());
    let places = [(0, 0), (1, 0)].map(|(slice, device)| Place { slice, device }).to_vec();
    let mut world = World::start(Placement { replicas: 1, partitions: 2, places });
    let compiled = world.compile(&mut compiler, &source).unwrap();
    let programs = world.load(&compiled).unwrap();
    let expected = world.run(&programs, &compiled.info, ROUND).unwrap();

    let participants = world.participants();
    let mut firsts = Vec::new();
    let mut values = Vec::new();
    let launches = 4_000_000..4_000_003;
    for (slice, loaded) in &programs {
        let worker = &mut world.workers[*slice as usize];
        for number in launches.clone() {
            let (executable, participants) = (loaded.executable, participants.as_slice().into());
            worker.send(Command::Begin { launch: number, executable, participants });
            if *slice == 1 && number == launches.start {
                let (arguments, late) = declare(worker, loaded, &compiled.info, ROUND);
                values = late;
                firsts.push(execute(worker, loaded, number, &compiled.info, &arguments));
            } else {
                firsts.push(launch(worker, loaded, number, &compiled.info, ROUND));
            }
        }
        // Neither worker is blocked, though nothing can be over yet.
        assert!(!worker.has_come(|report| matches!(report, Report::Executed { .. })));
    }
    values.into_iter().for_each(|value| world.workers[1].send(value));
    for (index, ((slice, loaded), number)) in
        programs.iter().flat_map(|p| launches.clone().map(move |n| (p, n))).enumerate()
    {
        let mut outputs = HashMap::new();
        let worker = &mut world.workers[*slice as usize];
        outcomes(worker, loaded, number, &compiled.info, firsts[index], &mut outputs).unwrap();
        assert!(outputs.iter().all(|(device, values)| expected[device] == *values));
    }
}

#[test]
#[ignore = "measures; needs MAINSTAY_SPANNING_PROGRAMS"]
fn how_long_sums_take() {
    let mut reference = Reference::start();
    let mut compiler = Worker::start_compiler(&default_plugin());
    for name in ["measure_small", "measure_large"] {
        let Some(source) = sources().into_iter().find(|source| source.name == name) else { continue };
        let rounds = if name == "measure_small" { 200 } else { 5 };
        let known = reference.of(&source).unwrap();
        let slices = [0, 0, 0, 0, 1, 1, 1, 1];
        let mut world = World::start(placement(&source, &slices, false));
        let compiled = world.compile(&mut compiler, &source).unwrap();
        let programs = world.load(&compiled).unwrap();
        world.run(&programs, &compiled.info, ROUND).unwrap();
        let one = Loaded { executable: known.executable, devices: (0..8).map(|device| (device, device)).collect() };
        for _ in 0..2 {
            let arguments = upload(&mut reference.worker, &one, &known.info, ROUND);
            let start = Instant::now();
            for _ in 0..rounds {
                let number = reference.worker.id();
                let output = execute(&mut reference.worker, &one, number, &known.info, &arguments);
                (0..8).for_each(|device| reference.worker.executed(number, device).unwrap());
                free(&reference.worker, output, 8);
            }
            let plain = start.elapsed() / rounds;
            let arguments: Vec<Ids> = programs
                .iter()
                .map(|(slice, loaded)| upload(&mut world.workers[*slice as usize], loaded, &compiled.info, ROUND))
                .collect();
            let start = Instant::now();
            for _ in 0..rounds {
                world.launches += 1;
                let number = 1_000_000 + world.launches;
                let mut outputs = Vec::new();
                for ((slice, loaded), arguments) in programs.iter().zip(&arguments) {
                    let participants = world.participants();
                    let worker = &mut world.workers[*slice as usize];
                    let (executable, participants) = (loaded.executable, participants.as_slice().into());
                    worker.send(Command::Begin { launch: number, executable, participants });
                    outputs.push(execute(worker, loaded, number, &compiled.info, arguments));
                }
                for ((slice, loaded), output) in programs.iter().zip(outputs) {
                    let worker = &mut world.workers[*slice as usize];
                    (0..loaded.devices.len() as u32).for_each(|place| worker.executed(number, place).unwrap());
                    free(worker, output, loaded.devices.len() as u64);
                }
            }
            let spanning = start.elapsed() / rounds;
            println!("{name}: {plain:?} on one client, {spanning:?} over slices");
        }
    }
}

#[test]
fn two_slices_of_four() {
    compare(&[0, 0, 0, 0, 1, 1, 1, 1], false);
}

#[test]
fn four_slices_of_two_interleaved() {
    compare(&[0, 1, 2, 3, 0, 1, 2, 3], false);
}

#[test]
fn uneven_slices_out_of_order() {
    compare(&[2, 0, 2, 2, 0, 2, 0, 2], true);
}

#[test]
fn one_device_on_some_slices() {
    compare(&[0, 1, 2, 3, 3, 3, 3, 4], true);
}
