//! Arrays on the devices of a client: made by a program, copied, read.

use mainstay::program::proto::compile_options::CompileOptionsProto;
use mainstay::worker::inner::{Buffer, Client, Event, LoadedExecutable, Memory, Program, RunArguments};
use protobuf::Message as _;

use super::measure::{OrEnd, end};

/// What is measured: so many arrays of 32-bit integers, of one dimension and equal size.
#[derive(Clone)]
pub struct Subject {
    /// For people.
    pub name: String,
    /// Arrays.
    pub count: usize,
    /// Bytes of each.
    bytes: u64,
}

impl Subject {
    /// `bytes` are those of one array.
    pub fn new(name: &str, count: usize, bytes: u64) -> Self {
        Self { name: name.to_owned(), count, bytes }
    }

    /// Bytes of all.
    pub fn total(&self) -> u64 {
        self.count as u64 * self.bytes
    }

    /// Elements of one array.
    pub fn elements(&self) -> i64 {
        (self.bytes / size_of::<i32>() as u64) as i64
    }
}

/// Arrays, each cut over all devices of a client.
pub struct Arrays<'c> {
    /// What they are.
    pub subject: Subject,
    client: &'c Client,
    /// Array by array, a part on each device.
    pub parts: Vec<Buffer>,
}

impl<'c> Arrays<'c> {
    /// Has a program make them, as arrays of a training are made: each part counts from 0.
    pub fn make(client: &'c Client, subject: &Subject) -> Self {
        let devices = client.devices().count();
        let program = counting(client, subject.elements() / devices as i64);
        let parts = (0..subject.count).flat_map(|_| client.devices()).map(|device| {
            let run = RunArguments {
                arguments: &[],
                num_devices: 1,
                execute_device: Some(device),
                launch_id: 0,
                non_donatable: &[],
            };
            let outputs = program.run(run).or_end().outputs;
            outputs.into_iter().next().unwrap_or_else(|| end("a program of one output gave none"))
        });
        Self::from_parts(client, subject, parts.collect())
    }

    /// Takes the parts over when they are ready.
    pub fn from_parts(client: &'c Client, subject: &Subject, parts: Vec<Buffer>) -> Self {
        for part in &parts {
            part.ready().or_end().wait().or_end();
        }
        Self { subject: subject.clone(), client, parts }
    }

    /// Copies in a memory of this kind of the same devices, when they are there.
    pub fn to_memory(&self, kind: &str) -> Self {
        let memories = memories(self.client, kind);
        let copies =
            self.parts.iter().zip(memories.iter().cycle()).map(|(part, memory)| part.copy_to(*memory).or_end());
        Self::from_parts(self.client, &self.subject, copies.collect())
    }

    /// Copies all values, part after part, to where there is exactly room for them.
    pub fn read(&self, target: &mut [u8]) {
        assert_eq!(target.len() as u64, self.subject.total());
        let length = target.len() / self.parts.len();
        let read = |(part, to): (&Buffer, &mut [u8])| {
            // SAFETY: `target` is borrowed until all events have happened, each part's stretch for that part alone. An
            // error ends the process.
            unsafe { part.to_host(None, to.as_mut_ptr().cast(), to.len()) }.or_end()
        };
        let events: Vec<Event> = self.parts.iter().zip(target.chunks_exact_mut(length)).map(read).collect();
        for event in events {
            event.wait().or_end();
        }
    }

    /// Ends the bench where the values are not those that [`Self::make`] makes. Reads them piece by piece: there may be no
    /// room for one more copy of all.
    pub fn check(&self) {
        const PIECE: usize = 4 << 20;
        let length = self.subject.elements() as usize * self.subject.count / self.parts.len();
        let mut piece = vec![0_i32; PIECE.min(length)];
        for (part, start) in
            self.parts.iter().flat_map(|part| (0..length).step_by(PIECE).map(move |start| (part, start)))
        {
            let values = &mut piece[..PIECE.min(length - start)];
            let (offset, size) = ((start * size_of::<i32>()) as i64, size_of_val(values));
            // SAFETY: `values` is borrowed until the event has happened. An error ends the process.
            unsafe { part.raw_to_host(offset, values.as_mut_ptr().cast(), size) }.or_end().wait().or_end();
            if !values.iter().zip(start as i32..).all(|(value, expected)| *value == expected) {
                end(format!("{} have other values than they should", self.subject.name));
            }
        }
    }
}

/// A program that makes the numbers from 0 on, on whichever device it is run.
fn counting(client: &Client, elements: i64) -> LoadedExecutable {
    let code = format!(
        "module @counting {{
           func.func public @main() -> tensor<{elements}xi32> {{
             %numbers = stablehlo.iota dim = 0 : tensor<{elements}xi32>
             return %numbers : tensor<{elements}xi32>
           }}
         }}"
    );
    let mut options = CompileOptionsProto { compile_portable_executable: true, ..Default::default() };
    let build = options.executable_build_options.mut_or_insert_default();
    (build.device_ordinal, build.num_replicas, build.num_partitions) = (-1, 1, 1);
    let options = options.write_to_bytes().unwrap_or_else(|error| end(error));
    client.compile(Program { format: "mlir", code: code.as_bytes() }, &options).or_end()
}

/// The memory of this kind of each device.
fn memories<'c>(client: &'c Client, kind: &str) -> Vec<Memory<'c>> {
    let of = |memories: Vec<Memory<'c>>| memories.into_iter().find(|memory| memory.kind().or_end() == kind);
    let missing = || end(format!("a device has no memory of the kind {kind}"));
    client.devices().map(|device| of(device.memories().or_end()).unwrap_or_else(missing)).collect()
}
