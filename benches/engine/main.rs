//! The snapshot engine through the C interface alone, without Python or JAX, beside the real plugin's own ways and `memcpy`.
//!
//! `MAINSTAY_TEST_PLUGIN` is the path of the real plugin, which this process loads and Mainstay's workers load; it must be
//! one for CPUs. `MAINSTAY_BENCH_LARGEST` is the size of the largest array in MiB: 1024 unless given; 4096 needs 16 GiB of
//! free memory. `make bench ARGS='--only engine'` sets both, builds in a folder of its own and makes tables of the results.
//!
//! All that is measured of one size stands in one group: what else the machine does in these seconds falls on all of it, so
//! that ratios within a group mean more than times.

mod arrays;
mod measure;
mod plugins;
mod snapshots;

use std::cell::LazyCell;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput};
use mainstay::wire::machine;

use arrays::{Arrays, Subject};
use measure::{end, measure, sample_begins};
use plugins::Setup;
use snapshots::{Store, Tree};

const MIB: u64 = 1 << 20;
const SIZES: [u64; 6] = [MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB];
const SLICES: [usize; 2] = [1, 2];
/// How often a large array is there while it is measured: on devices, in two snapshots, and read or restored.
const COPIES: u64 = 4;

type Group<'c> = BenchmarkGroup<'c, WallTime>;

fn main() {
    let mut criterion = Criterion::default()
        .without_plots()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(700))
        .nresamples(10_000)
        .configure_from_args();
    let largest = largest();
    let host_memory = 3 * largest + 1024 * MIB;
    let small = Subject::new("1,000 arrays of 1 KiB", 1000, 1 << 10);
    for size in SIZES.into_iter().filter(|size| *size <= largest) {
        let subject = Subject::new(&size_name(size), 1, size);
        match machine::memory() {
            Some(memory) if memory.available < COPIES * size => {
                eprintln!("bench: no room to measure {}: {} MiB are free", subject.name, memory.available / MIB);
            }
            _ => both_ways(&mut criterion, host_memory, &subject),
        }
    }
    both_ways(&mut criterion, host_memory, &small);
    calls(&mut criterion, host_memory, &small);
    criterion.final_summary();
}

/// The largest array to measure, in bytes.
fn largest() -> u64 {
    let Ok(given) = std::env::var("MAINSTAY_BENCH_LARGEST") else { return 1024 * MIB };
    match given.parse::<u64>() {
        Ok(mib) if (1..=1 << 20).contains(&mib) => mib * MIB,
        _ => end(format!("MAINSTAY_BENCH_LARGEST is {given:?}; it must be a whole number of MiB, such as 1024")),
    }
}

fn size_name(size: u64) -> String {
    if size < 1024 * MIB { format!("{} MiB", size / MIB) } else { format!("{} GiB", size / (1024 * MIB)) }
}

/// To the host and to the device. Clients live for one number of slices in one group: Mainstay's keep some of what was
/// freed for later use.
fn both_ways(criterion: &mut Criterion, host_memory: u64, subject: &Subject) {
    let mut group = group(criterion, "snapshot", subject);
    memcpy(&mut group, subject);
    for setup in setups(host_memory) {
        snapshot(&mut group, &setup, subject);
        to_pinned_host(&mut group, &setup, subject);
        to_host(&mut group, &setup, subject);
    }
    group.finish();

    let mut group = self::group(criterion, "restore", subject);
    memcpy(&mut group, subject);
    for setup in setups(host_memory) {
        restore(&mut group, &setup, subject);
        from_pinned_host(&mut group, &setup, subject);
    }
    group.finish();
}

fn setups(host_memory: u64) -> impl Iterator<Item = Setup> {
    SLICES.into_iter().map(move |slices| Setup::new(slices, host_memory))
}

fn group<'c>(criterion: &'c mut Criterion, what: &str, subject: &Subject) -> Group<'c> {
    let mut group = criterion.benchmark_group(format!("{what}/{}", subject.name));
    group.throughput(Throughput::Bytes(subject.total()));
    // What takes longer than a sample's share of the time is done once for each.
    group.sampling_mode(SamplingMode::Flat);
    group
}

fn id(method: &str, setup: &Setup) -> BenchmarkId {
    BenchmarkId::new(method, if setup.slices == 1 { "1 slice".into() } else { format!("{} slices", setup.slices) })
}

/// One thread's copy into memory that is touched: the limit.
fn memcpy(group: &mut Group, subject: &Subject) {
    let bytes = subject.total() as usize;
    let set_up = || (vec![1_u8; bytes], vec![0_u8; bytes]);
    measure(group, BenchmarkId::from_parameter("memcpy"), set_up, |(source, target)| {
        std::hint::black_box(target).copy_from_slice(std::hint::black_box(source));
    });
}

/// What a snapshot is taken of, and where it goes.
fn tree_and_store<'s>(setup: &'s Setup, subject: &Subject) -> (Tree<'s>, Store<'s>) {
    (Tree::new(Arrays::make(setup.ours(), subject)), Store::new(setup.ours()))
}

/// A snapshot with checksums until it is whole, in place of the last one.
fn snapshot(group: &mut Group, setup: &Setup, subject: &Subject) {
    let set_up = || tree_and_store(setup, subject);
    measure(group, id("mainstay", setup), set_up, |(tree, store)| store.take(tree).wait());
}

/// Copies in the real plugin's pinned host memory; the last ones go when the new ones are there.
fn to_pinned_host(group: &mut Group, setup: &Setup, subject: &Subject) {
    let set_up = || (Arrays::make(setup.raw(), subject), None);
    measure(group, id("pinned_host", setup), set_up, |(arrays, last)| *last = Some(arrays.to_memory("pinned_host")));
}

/// The real plugin's copy to memory of the caller's, which is touched.
fn to_host(group: &mut Group, setup: &Setup, subject: &Subject) {
    let set_up = || (Arrays::make(setup.raw(), subject), vec![0; subject.total() as usize]);
    measure(group, id("to_host", setup), set_up, |(arrays, target)| arrays.read(target));
}

/// Arrays from a snapshot, until they are ready; those of the last time go before.
fn restore(group: &mut Group, setup: &Setup, subject: &Subject) {
    let set_up = || {
        let (tree, store) = tree_and_store(setup, subject);
        let snapshot = store.take(&tree);
        snapshot.wait();
        drop(tree);
        snapshot.restore().check();
        (store, snapshot, None)
    };
    measure(group, id("mainstay", setup), set_up, |(_, snapshot, back)| {
        *back = None;
        *back = Some(snapshot.restore());
    });
}

/// Copies in device memory of what is in the real plugin's pinned host memory.
fn from_pinned_host(group: &mut Group, setup: &Setup, subject: &Subject) {
    let set_up = || (Arrays::make(setup.raw(), subject).to_memory("pinned_host"), None);
    measure(group, id("pinned_host", setup), set_up, |(arrays, back)| {
        *back = None;
        *back = Some(arrays.to_memory("device"));
    });
}

/// The call that begins a snapshot, alone.
fn calls(criterion: &mut Criterion, host_memory: u64, subject: &Subject) {
    let mut group = criterion.benchmark_group(format!("take/{}", subject.name));
    for setup in setups(host_memory) {
        let held = LazyCell::new(|| tree_and_store(&setup, subject));
        group.bench_function(id("mainstay", &setup), |bencher| {
            sample_begins();
            let (tree, store) = &*held;
            bencher.iter_custom(|count| (0..count).map(|_| call(store, tree)).sum());
        });
    }
    group.finish();
}

fn call<'c>(store: &Store<'c>, tree: &Tree<'c>) -> Duration {
    let begin = Instant::now();
    let snapshot = store.take(tree);
    let took = begin.elapsed();
    snapshot.wait();
    took
}
