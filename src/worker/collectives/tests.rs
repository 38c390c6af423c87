//! The exchange with all its workers in one process: every kind of collective, over random placements and groups,
//! against what it should give; failures, replacements and floods.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;

use crate::abi::{Code, Status, sys};
use crate::program::spanning::spec::{Kind, Logical, Reduction, Spec};

use super::exchange::{Buffer, Call, Exchange, Program};
use super::plan::Array;
use super::shared::{Shared, create_region};
use super::transport::Slot;

/// Long enough for a loaded machine; only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory as XLA gives it: aligned to 64 bytes, of any length.
struct Memory {
    words: Vec<[u64; 8]>,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        Self { words: vec![[0xabab_abab_abab_abab; 8]; bytes.div_ceil(64).max(1)], bytes }
    }

    fn of(content: &[u8]) -> Self {
        let mut memory = Self::new(content.len());
        bytemuck::cast_slice_mut(&mut memory.words)[..content.len()].copy_from_slice(content);
        memory
    }

    fn content(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    fn buffer(&mut self, element: u32) -> Buffer {
        let start = NonNull::from(&mut self.words[..]).cast();
        Buffer { array: Array { element, bytes: self.bytes }, start }
    }
}

/// Workers, and a program that runs on all of them.
struct World {
    region: std::os::fd::OwnedFd,
    exchanges: Vec<Option<Exchange>>,
    incarnations: Vec<u32>,
    places: Vec<(Slot, u32)>,
    programs: Vec<Arc<Program>>,
    /// Run ids by launch and slot.
    runs: Mutex<HashMap<(u64, Slot), i32>>,
}

/// One device's part in a collective that is under way.
struct Device {
    logical: usize,
    /// Kept alive, since the exchange reads them until it is done.
    _operands: Vec<Memory>,
    results: Vec<Memory>,
}

struct Under {
    devices: Vec<Device>,
    done: Receiver<(usize, Result<(), Status>)>,
    expected: usize,
}

impl World {
    fn new(slots: usize, places: &[(Slot, u32)], arena: usize) -> Self {
        let region = create_region(slots, arena).unwrap();
        let mut world = Self {
            region,
            exchanges: Vec::new(),
            incarnations: vec![1; slots],
            places: places.to_vec(),
            programs: (0..slots as Slot).map(|slot| Arc::new(Program::new(u32::MAX, places, slot))).collect(),
            runs: Mutex::default(),
        };
        for slot in 0..slots {
            world.exchanges.push(Some(world.attach(slot as Slot)));
        }
        world
    }

    fn attach(&self, slot: Slot) -> Exchange {
        let fd = self.region.try_clone().unwrap();
        let shared = Shared::attach(fd, slot, self.incarnations[slot as usize]).unwrap();
        Exchange::start(Box::new(shared), 2).unwrap()
    }

    fn exchange(&self, slot: Slot) -> &Exchange {
        self.exchanges[slot as usize].as_ref().unwrap()
    }

    fn participants(&self) -> Vec<(Slot, u32)> {
        let mut slots: Vec<Slot> = self.places.iter().map(|(slot, _)| *slot).collect();
        slots.sort_unstable();
        slots.dedup();
        slots.into_iter().map(|slot| (slot, self.incarnations[slot as usize])).collect()
    }

    fn begin_on(&self, launch: u64, slot: Slot) {
        let run = self.exchange(slot).begin(launch, &self.programs[slot as usize], &self.participants());
        self.runs.lock().unwrap().insert((launch, slot), run);
    }

    fn begin(&self, launch: u64) {
        for (slot, _) in self.participants() {
            self.begin_on(launch, slot);
        }
    }

    fn end(&self, launch: u64) {
        for (slot, _) in self.participants() {
            self.exchange(slot).end(launch);
        }
    }

    /// Devices `order` come to a collective, in that order.
    #[allow(clippy::too_many_arguments, reason = "each test sets another few of them")]
    fn come(
        &self,
        launch: u64,
        key: u32,
        spec: &Spec,
        element: &[u32],
        operands: &[Vec<Vec<u8>>],
        results: &[usize],
        order: &[usize],
    ) -> Under {
        let text = serde_json::to_string(spec).unwrap();
        let (send, done) = channel();
        let mut devices = Vec::new();
        for &logical in order {
            let mut inputs: Vec<Memory> = operands[logical].iter().map(|bytes| Memory::of(bytes)).collect();
            let mut outputs: Vec<Memory> = results.iter().map(|&bytes| Memory::new(bytes)).collect();
            let (slot, ordinal) = self.places[logical];
            let run = self.runs.lock().unwrap()[&(launch, slot)];
            let operand_buffers: Vec<Buffer> = inputs
                .iter_mut()
                .enumerate()
                .map(|(i, memory)| memory.buffer(element[i.min(element.len() - 1)]))
                .collect();
            let result_buffers: Vec<Buffer> = outputs.iter_mut().map(|memory| memory.buffer(element[0])).collect();
            let call = Call {
                run: run.into(),
                ordinal,
                key,
                spec: &text,
                operands: &operand_buffers,
                results: &result_buffers,
            };
            let send: Sender<_> = send.clone();
            self.exchange(slot).arrive(
                &call,
                Box::new(move |result| {
                    let _ = send.send((logical, result));
                }),
            );
            devices.push(Device { logical, _operands: inputs, results: outputs });
        }
        Under { expected: devices.len(), devices, done }
    }
}

impl Under {
    /// Waits for all; the results by logical device.
    fn finish(self) -> HashMap<usize, Result<Vec<Vec<u8>>, Status>> {
        let mut fates = HashMap::new();
        for _ in 0..self.expected {
            let (logical, result) = self.done.recv_timeout(PATIENCE).expect("the collective has come to a stop");
            assert!(fates.insert(logical, result).is_none(), "completed twice");
        }
        self.devices
            .into_iter()
            .map(|device| {
                let results = device.results.iter().map(|memory| memory.content().to_vec()).collect();
                (device.logical, fates.remove(&device.logical).unwrap().map(|()| results))
            })
            .collect()
    }
}

/// A small generator of test data: the same everywhere, from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }

    /// Elements of a type, floats of moderate size.
    fn elements(&mut self, element: u32, count: usize) -> Vec<u8> {
        let float = |random: &mut Self| (random.next() as i32) as f32 / f32::powi(2.0, 20);
        let mut bytes = Vec::new();
        for _ in 0..count {
            match element {
                sys::XLA_FFI_DataType_PRED => bytes.push((self.next() & 1) as u8),
                // A half between 1 and 2.
                sys::XLA_FFI_DataType_F16 => bytes.extend(((self.next() & 0x3ff | 0x3c00) as u16).to_le_bytes()),
                sys::XLA_FFI_DataType_F32 => bytes.extend(float(self).to_le_bytes()),
                sys::XLA_FFI_DataType_F64 => bytes.extend(f64::from(float(self)).to_le_bytes()),
                sys::XLA_FFI_DataType_C64 => (0..2).for_each(|_| bytes.extend(float(self).to_le_bytes())),
                sys::XLA_FFI_DataType_C128 => (0..2).for_each(|_| bytes.extend(f64::from(float(self)).to_le_bytes())),
                other => bytes.extend(&self.next().to_le_bytes()[..size_of_element(other)]),
            }
        }
        bytes
    }
}

/// Elements out of unaligned bytes.
fn numbers<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn size_of_element(element: u32) -> usize {
    crate::program::spanning::types::bits(element as i32) as usize / 8
}

/// Devices over slices: `per_slice[s]` of slice s, in an order of their own.
fn places(per_slice: &[usize], random: &mut Random) -> Vec<(Slot, u32)> {
    let mut places: Vec<(Slot, u32)> =
        (0..).zip(per_slice).flat_map(|(slot, &count)| (0..count as u32).map(move |ordinal| (slot, ordinal))).collect();
    random.shuffle(&mut places);
    places
}

/// What a reduction gives, one element at a time, in plain arithmetic.
fn reduced(reduction: Reduction, element: u32, inputs: &[&[u8]]) -> Vec<u8> {
    macro_rules! integers {
        ($type:ty) => {{
            let start: $type = match reduction {
                Reduction::Add | Reduction::Or | Reduction::Xor => 0,
                Reduction::Multiply => 1,
                Reduction::Minimum => <$type>::MAX,
                Reduction::Maximum => <$type>::MIN,
                Reduction::And => !0,
            };
            each::<$type>(inputs, start, |acc, x| match reduction {
                Reduction::Add => acc.wrapping_add(x),
                Reduction::Multiply => acc.wrapping_mul(x),
                Reduction::Minimum => acc.min(x),
                Reduction::Maximum => acc.max(x),
                Reduction::And => acc & x,
                Reduction::Or => acc | x,
                Reduction::Xor => acc ^ x,
            })
        }};
    }
    macro_rules! floats {
        ($type:ty) => {{
            let (start, combine): ($type, fn($type, $type) -> $type) = match reduction {
                Reduction::Add => (0.0, |acc, x| acc + x),
                Reduction::Multiply => (1.0, |acc, x| acc * x),
                Reduction::Minimum => (<$type>::INFINITY, <$type>::min),
                _ => (<$type>::NEG_INFINITY, <$type>::max),
            };
            each::<$type>(inputs, start, combine)
        }};
    }
    macro_rules! complexes {
        ($type:ty) => {{
            let start: [$type; 2] = [if reduction == Reduction::Multiply { 1.0 } else { 0.0 }, 0.0];
            each::<[$type; 2]>(inputs, start, |[a, b], [c, d]| match reduction {
                Reduction::Multiply => [a * c - b * d, a * d + b * c],
                _ => [a + c, b + d],
            })
        }};
    }
    match element {
        sys::XLA_FFI_DataType_PRED => {
            each::<u8>(inputs, u8::from(identity_of_pred(reduction)), |acc, x| match reduction {
                Reduction::Add | Reduction::Maximum | Reduction::Or => acc | x,
                Reduction::Xor => acc ^ x,
                _ => acc & x,
            })
        }
        sys::XLA_FFI_DataType_S8 => integers!(i8),
        sys::XLA_FFI_DataType_S16 => integers!(i16),
        sys::XLA_FFI_DataType_S32 => integers!(i32),
        sys::XLA_FFI_DataType_S64 => integers!(i64),
        sys::XLA_FFI_DataType_U8 => integers!(u8),
        sys::XLA_FFI_DataType_U16 => integers!(u16),
        sys::XLA_FFI_DataType_U32 => integers!(u32),
        sys::XLA_FFI_DataType_U64 => integers!(u64),
        sys::XLA_FFI_DataType_F32 => floats!(f32),
        sys::XLA_FFI_DataType_F64 => floats!(f64),
        sys::XLA_FFI_DataType_C64 => complexes!(f32),
        sys::XLA_FFI_DataType_C128 => complexes!(f64),
        sys::XLA_FFI_DataType_F16 => halves(reduction, inputs),
        other => panic!("no reference for type {other}"),
    }
}

fn identity_of_pred(reduction: Reduction) -> bool {
    matches!(reduction, Reduction::Multiply | Reduction::Minimum | Reduction::And)
}

fn each<T: bytemuck::Pod>(inputs: &[&[u8]], start: T, combine: impl Fn(T, T) -> T) -> Vec<u8> {
    let size = size_of::<T>();
    (0..inputs[0].len() / size)
        .flat_map(|i| {
            let read = |input: &&[u8]| bytemuck::pod_read_unaligned(&input[i * size..(i + 1) * size]);
            let value = inputs.iter().map(read).fold(start, &combine);
            bytemuck::bytes_of(&value).to_vec()
        })
        .collect()
}

/// Halves between 1 and 2 add up, multiply and compare in double precision exactly; rounding is by search.
fn halves(reduction: Reduction, inputs: &[&[u8]]) -> Vec<u8> {
    let value = |bits: u16| {
        let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
        if exponent == 0 { fraction * f64::powi(2.0, -24) } else { (1024.0 + fraction) * f64::powi(2.0, exponent - 25) }
    };
    let round = |exact: f64| {
        // The values of positive halves rise with their bits.
        let above = (0..0x7c00_u16).collect::<Vec<_>>().partition_point(|&bits| value(bits) < exact) as u16;
        let (low, high) = (above.saturating_sub(1), above);
        let (below, over) = (exact - value(low), value(high) - exact);
        if over < below || over == below && high % 2 == 0 { high } else { low }
    };
    each::<u16>(
        inputs,
        match reduction {
            Reduction::Add => 0,
            Reduction::Multiply => 0x3c00,
            Reduction::Minimum => 0x7c00,
            _ => 0xfc00,
        },
        |acc, x| match reduction {
            Reduction::Add => round(value(acc) + value(x)),
            Reduction::Multiply => round(value(acc) * value(x)),
            Reduction::Minimum => acc.min(x),
            // Negative infinity is the one negative half here.
            _ => {
                if acc == 0xfc00 {
                    x
                } else {
                    acc.max(x)
                }
            }
        },
    )
}

/// What a collective gives each device of its groups, out of operands by device and operand.
fn expected(spec: &Spec, element: u32, operands: &[Vec<Vec<u8>>], results: &[usize]) -> Vec<Vec<Vec<u8>>> {
    let mut all: Vec<Vec<Vec<u8>>> =
        operands.iter().map(|_| results.iter().map(|&bytes| vec![0; bytes]).collect()).collect();
    for group in &spec.groups {
        let count = group.len();
        for (rank, &logical) in group.iter().enumerate() {
            for result in 0..results.len() {
                let of = |rank: usize, operand: usize| &operands[group[rank] as usize][operand][..];
                let part =
                    |bytes: &[u8], number: usize| bytes[bytes.len() / count * number..][..bytes.len() / count].to_vec();
                let column: Vec<&[u8]> = (0..count).map(|rank| of(rank, result.min(operands[0].len() - 1))).collect();
                all[logical as usize][result] = match spec.kind {
                    Kind::AllReduce(reduction) => reduced(reduction, element, &column),
                    Kind::ReduceScatter(reduction) => part(&reduced(reduction, element, &column), rank),
                    Kind::AllGather => column.concat(),
                    Kind::AllToAll => column.iter().flat_map(|bytes| part(bytes, rank)).collect(),
                    Kind::AllToAllTuple => of(result, rank).to_vec(),
                    Kind::Broadcast => of(0, result).to_vec(),
                    Kind::Permute => match spec.pairs.iter().find(|(_, target)| *target == logical) {
                        Some((source, _)) => operands[*source as usize][result].clone(),
                        None => vec![0; results[result]],
                    },
                    Kind::RaggedAllToAll { .. } => unreachable!("has a test of its own"),
                };
            }
        }
    }
    all
}

/// Random groups of equal size that hold all devices, or leave the last ones out where `partial`.
fn groups(devices: usize, random: &mut Random, partial: bool) -> Vec<Vec<Logical>> {
    let sizes: Vec<usize> = (1..=devices).filter(|size| partial || devices.is_multiple_of(*size)).collect();
    let size = sizes[random.below(sizes.len())];
    let mut order: Vec<Logical> = (0..devices as Logical).collect();
    random.shuffle(&mut order);
    order.chunks_exact(size).map(<[Logical]>::to_vec).collect()
}

/// Runs one collective on a fresh launch and compares.
fn check(world: &World, launch: u64, spec: &Spec, element: u32, counts: &[usize], random: &mut Random) {
    let devices = world.places.len();
    let group = spec.groups[0].len();
    let counts: Vec<usize> = match spec.kind {
        Kind::ReduceScatter(_) | Kind::AllToAll => counts.iter().map(|count| count * group).collect(),
        Kind::AllToAllTuple => vec![counts[0]; group],
        _ => counts.to_vec(),
    };
    let size = size_of_element(element);
    let operands: Vec<Vec<Vec<u8>>> =
        (0..devices).map(|_| counts.iter().map(|&count| random.elements(element, count)).collect()).collect();
    let results: Vec<usize> = counts
        .iter()
        .map(|count| match spec.kind {
            Kind::AllGather => count * size * group,
            Kind::ReduceScatter(_) => count * size / group,
            _ => count * size,
        })
        .collect();
    let mut order: Vec<usize> = (0..devices).collect();
    random.shuffle(&mut order);
    world.begin(launch);
    let fates = world.come(launch, launch as u32, spec, &[element], &operands, &results, &order).finish();
    world.end(launch);
    let expected = expected(spec, element, &operands, &results);
    for (logical, fate) in fates {
        assert!(
            fate.unwrap() == expected[logical],
            "device {logical} of {spec:?} with {counts:?} elements of {element}"
        );
    }
}

fn nothing_left(world: &World) {
    for exchange in world.exchanges.iter().flatten() {
        assert_eq!(exchange.census(), (0, 0, 0));
    }
}

const TYPES: [u32; 14] = [
    sys::XLA_FFI_DataType_PRED,
    sys::XLA_FFI_DataType_S8,
    sys::XLA_FFI_DataType_S16,
    sys::XLA_FFI_DataType_S32,
    sys::XLA_FFI_DataType_S64,
    sys::XLA_FFI_DataType_U8,
    sys::XLA_FFI_DataType_U16,
    sys::XLA_FFI_DataType_U32,
    sys::XLA_FFI_DataType_U64,
    sys::XLA_FFI_DataType_F16,
    sys::XLA_FFI_DataType_F32,
    sys::XLA_FFI_DataType_F64,
    sys::XLA_FFI_DataType_C64,
    sys::XLA_FFI_DataType_C128,
];

const REDUCTIONS: [Reduction; 7] = [
    Reduction::Add,
    Reduction::Multiply,
    Reduction::Minimum,
    Reduction::Maximum,
    Reduction::And,
    Reduction::Or,
    Reduction::Xor,
];

#[test]
fn every_reduction_of_every_type() {
    let mut random = Random(1);
    for places in [vec![(0, 0), (0, 1), (1, 0), (1, 1)], vec![(0, 0), (1, 0), (0, 1), (1, 1)], vec![(0, 0), (0, 1)]] {
        let world = World::new(2, &places, 8 << 20);
        let everyone = vec![(0..places.len() as Logical).collect::<Vec<_>>()];
        let mut launch = 0;
        for reduction in REDUCTIONS {
            for element in TYPES {
                if super::reduce::Reducer::new(reduction, element).is_err() {
                    continue;
                }
                // Small, and large enough to travel in a chain.
                for count in [5, 40_000] {
                    for kind in [Kind::AllReduce(reduction), Kind::ReduceScatter(reduction)] {
                        let count = if element == sys::XLA_FFI_DataType_F16 { count.min(200) } else { count };
                        launch += 1;
                        let spec = Spec { kind, groups: everyone.clone(), pairs: Vec::new() };
                        check(&world, launch, &spec, element, &[count], &mut random);
                    }
                }
            }
        }
        nothing_left(&world);
    }
}

fn any_kind() -> impl Strategy<Value = Kind> {
    let reduction = prop::sample::select(&[Reduction::Add, Reduction::Maximum][..]);
    prop_oneof![
        reduction.clone().prop_map(Kind::AllReduce),
        reduction.prop_map(Kind::ReduceScatter),
        Just(Kind::AllGather),
        Just(Kind::AllToAll),
        Just(Kind::AllToAllTuple),
        Just(Kind::Permute),
        Just(Kind::Broadcast),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any kind over any placement, groups and sizes, several collectives one after the other in one world with little
    /// memory.
    #[test]
    fn random_collectives(
        kinds in prop::collection::vec(any_kind(), 1..5),
        per_slice in prop::collection::vec(0_usize..4, 2..5),
        large in any::<bool>(),
        seed in any::<u64>(),
    ) {
        prop_assume!(per_slice.iter().any(|count| *count > 0));
        let mut random = Random(seed);
        let places = places(&per_slice, &mut random);
        let world = World::new(per_slice.len(), &places, 1 << 20);
        for (launch, kind) in (1..).zip(kinds) {
            let everyone: Vec<Logical> = (0..places.len() as Logical).collect();
            let mut spec = Spec { kind, groups: groups(places.len(), &mut random, kind == Kind::Broadcast), pairs: Vec::new() };
            if kind == Kind::Permute {
                let (mut sources, mut targets) = (everyone.clone(), everyone.clone());
                random.shuffle(&mut sources);
                random.shuffle(&mut targets);
                spec.pairs = sources.into_iter().zip(targets).take(random.below(places.len() + 1)).collect();
                spec.groups = vec![everyone];
            }
            let counts: Vec<usize> = (0..1 + random.below(3))
                .map(|_| if large { 10_000 + random.below(60_000) } else { random.below(300) })
                .collect();
            check(&world, launch, &spec, sys::XLA_FFI_DataType_F32, &counts, &mut random);
        }
        nothing_left(&world);
    }
}

#[test]
fn ragged_rows_go_where_they_are_sent() {
    let world = World::new(2, &[(0, 0), (1, 0), (0, 1)], 8 << 20);
    let s32 = |numbers: &[i32]| bytemuck::cast_slice::<i32, u8>(numbers).to_vec();
    // Rows of two; device d sends `sizes[d][r]` rows to rank r.
    let sizes = [[1, 2, 0], [0, 1, 1], [3, 0, 1]];
    let operands: Vec<Vec<Vec<u8>>> = (0..3)
        .map(|device: usize| {
            let input: Vec<i32> = (0..8).map(|i| 100 * device as i32 + i).collect();
            let row = sizes[device];
            let starts = [0, row[0], row[0] + row[1]];
            // Rows from device d lie after those from the devices before it.
            let places: Vec<i32> = (0..3).map(|to| (0..device).map(|from| sizes[from][to]).sum()).collect();
            let received: Vec<i32> = (0..3).map(|from| sizes[from][device]).collect();
            vec![s32(&input), s32(&[-1; 10]), s32(&starts), s32(&row), s32(&places), s32(&received)]
        })
        .collect();
    let spec = Spec { kind: Kind::RaggedAllToAll { row: 2 }, groups: vec![vec![0, 1, 2]], pairs: Vec::new() };
    world.begin(1);
    let fates = world.come(1, 0, &spec, &[sys::XLA_FFI_DataType_S32], &operands, &[40], &[2, 0, 1]).finish();
    world.end(1);
    let got = |device: usize| numbers::<i32>(&fates[&device].as_ref().unwrap()[0]);
    assert_eq!(got(0), [0, 1, 200, 201, 202, 203, 204, 205, -1, -1]);
    assert_eq!(got(1), [2, 3, 4, 5, 100, 101, -1, -1, -1, -1]);
    assert_eq!(got(2), [102, 103, 206, 207, -1, -1, -1, -1, -1, -1]);
}

/// Many launches, each with many independent collectives, that the devices come to in different orders from several
/// threads, in an arena that holds few of them.
#[test]
fn a_flood_in_any_order_comes_through() {
    let places = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)];
    let world = World::new(3, &places, 1 << 20);
    let spec = Spec {
        kind: Kind::AllReduce(Reduction::Add),
        groups: vec![(0..places.len() as Logical).collect()],
        pairs: Vec::new(),
    };
    const LAUNCHES: u64 = 12;
    const KEYS: u32 = 24;
    let elements = |key: u32| if key.is_multiple_of(4) { 30_000 } else { 16 };
    (1..=LAUNCHES).for_each(|launch| world.begin(launch));
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..places.len())
            .map(|device| {
                let (world, spec) = (&world, &spec);
                scope.spawn(move || {
                    let mut random = Random(device as u64);
                    let mut calls: Vec<(u64, u32)> =
                        (1..=LAUNCHES).flat_map(|launch| (0..KEYS).map(move |key| (launch, key))).collect();
                    random.shuffle(&mut calls);
                    let under: Vec<_> = calls
                        .into_iter()
                        .map(|(launch, key)| {
                            let value = (device + 1) as f32 * launch as f32;
                            let bytes: Vec<u8> =
                                std::iter::repeat_n(value.to_le_bytes(), elements(key)).flatten().collect();
                            let operands: Vec<Vec<Vec<u8>>> = (0..places.len()).map(|_| vec![bytes.clone()]).collect();
                            let result = bytes.len();
                            let f32 = [sys::XLA_FFI_DataType_F32];
                            (launch, world.come(launch, key, spec, &f32, &operands, &[result], &[device]))
                        })
                        .collect();
                    for (launch, under) in under {
                        let expected = launch as f32 * (1..=places.len()).sum::<usize>() as f32;
                        for fate in under.finish().into_values() {
                            let values = numbers::<f32>(&fate.unwrap()[0]);
                            assert!(values.iter().all(|value| *value == expected));
                        }
                    }
                })
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
    });
    (1..=LAUNCHES).for_each(|launch| world.end(launch));
    nothing_left(&world);
}

fn all_reduce(devices: usize) -> Spec {
    Spec { kind: Kind::AllReduce(Reduction::Add), groups: vec![(0..devices as Logical).collect()], pairs: Vec::new() }
}

/// A collective of so many floats to which `order` come.
fn come_with(world: &World, launch: u64, count: usize, order: &[usize]) -> Under {
    let devices = world.places.len();
    let operands: Vec<Vec<Vec<u8>>> = (0..devices).map(|_| vec![vec![0; 4 * count]]).collect();
    world.come(launch, 0, &all_reduce(devices), &[sys::XLA_FFI_DataType_F32], &operands, &[4 * count], order)
}

fn loss() -> Status {
    Status::new(Code::DataLoss, "slice 1 is lost")
}

#[test]
fn a_death_fails_what_waits_and_what_comes_but_nothing_else() {
    for count in [4, 100_000] {
        let mut world = World::new(3, &[(0, 0), (0, 1), (1, 0), (2, 0)], 4 << 20);
        world.begin(1);
        world.begin(2);
        let waiting = come_with(&world, 1, count, &[0, 1, 3]);
        let half = come_with(&world, 2, count, &[1]);
        // The worker of slice 1 dies: its end stops without a word.
        world.exchanges[1] = None;
        for slot in [0, 2] {
            world.exchange(slot).fail_slice(1, 1, &loss());
        }
        for fate in waiting.finish().into_values().chain(half.finish().into_values()) {
            assert_eq!(fate.unwrap_err(), loss());
        }
        for fate in come_with(&world, 2, count, &[0]).finish().into_values() {
            assert_eq!(fate.unwrap_err(), loss());
        }
        // A launch that was to begin with the dead one fails as well.
        world.begin_on(3, 0);
        assert_eq!(come_with(&world, 3, count, &[0]).finish().remove(&0).unwrap().unwrap_err(), loss());
        for launch in 1..=3 {
            for slot in [0, 2] {
                world.exchange(slot).end(launch);
                world.exchange(slot).over(launch);
            }
        }
        // Its successor takes part at once.
        world.incarnations[1] = 2;
        world.exchanges[1] = Some(world.attach(1));
        for launch in 4..20 {
            world.begin(launch);
            for fate in come_with(&world, launch, count, &[3, 2, 1, 0]).finish().into_values() {
                fate.unwrap();
            }
            world.end(launch);
        }
    }
}

#[test]
fn a_launch_that_failed_elsewhere_leaves_nothing() {
    let world = World::new(2, &[(0, 0), (1, 0)], 1 << 20);
    for launch in 1..200 {
        world.begin_on(launch, 0);
        let under = come_with(&world, launch, 8, &[0]);
        // It never begins on slice 1, where it arrives early, and fails before or after that.
        if launch % 2 == 0 {
            world.exchange(1).fail(launch, Status::failed_precondition("not loaded"));
        }
        world.exchange(0).fail(launch, Status::failed_precondition("not loaded"));
        assert!(under.finish().remove(&0).unwrap().is_err());
        world.exchange(1).fail(launch, Status::failed_precondition("not loaded"));
        world.exchange(0).end(launch);
        world.exchange(0).over(launch);
        world.exchange(1).over(launch);
    }
    // What is over is forgotten by the listening threads; they have nothing else to do.
    for _ in 0..600 {
        if world.exchanges.iter().flatten().all(|exchange| exchange.census() == (0, 0, 0)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    nothing_left(&world);
}

#[test]
fn sizes_that_differ_are_an_error_for_all() {
    let world = World::new(2, &[(0, 0), (1, 0)], 1 << 20);
    world.begin(1);
    let spec = all_reduce(2);
    let f32 = [sys::XLA_FFI_DataType_F32];
    let operands = vec![vec![vec![0; 16]], vec![vec![0; 16]]];
    let under = world.come(1, 0, &spec, &f32, &operands, &[32], &[0]);
    assert_eq!(under.finish().remove(&0).unwrap().unwrap_err().code, Code::InvalidArgument);
}

#[test]
#[ignore = "measures"]
fn how_long_a_large_sum_takes() {
    let places: Vec<(Slot, u32)> = (0..8).map(|device| (device / 4, device % 4)).collect();
    let world = World::new(2, &places, 32 << 20);
    for launch in 1..8 {
        world.begin(launch);
        let start = std::time::Instant::now();
        let under = come_with(&world, launch, 4 << 20, &[0, 1, 2, 3, 4, 5, 6, 7]);
        let came = start.elapsed();
        under.finish();
        println!("{:?}, of which {came:?} until all had come", start.elapsed());
        world.end(launch);
    }
}
