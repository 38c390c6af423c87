//! Stores, whatever arrives in whatever order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::contents::{ArrayInfo, Contents, Shard};
use super::region::Region;
use super::snapshot::{Description, Phase, Snapshot};
use super::store::Store;
use crate::abi::{Status, sys};
use crate::wire::arena::{Arena, ArenaOptions, Block};

const PATIENCE: Duration = Duration::from_secs(60);

fn arena() -> Arc<Arena> {
    Arena::new(ArenaOptions { step: 1 << 20, ahead: 0, slack: u64::MAX, ..ArenaOptions::new(8 << 20) }).unwrap()
}

fn block(arena: &Arc<Arena>, len: u64, fill: u8) -> Block {
    let mut block = arena.allocate(len).unwrap();
    // SAFETY: nobody else knows of the block.
    unsafe { block.as_mut_slice() }.fill(fill);
    block
}

/// So many arrays of 16 bytes, one shard each.
fn description(step: i64, arrays: usize) -> Description {
    let shard = |array| Shard {
        array,
        region: Region { start: [0].as_slice().into(), size: [16].as_slice().into() },
        bytes: 16,
    };
    let info = |index| ArrayInfo {
        element_type: sys::PJRT_Buffer_Type_U8,
        dims: [16].as_slice().into(),
        shards: index..index + 1,
    };
    let contents = Contents::new((0..arrays).map(info).collect(), (0..arrays).map(shard).collect());
    Description { step, contents: Arc::new(contents), ..Description::default() }
}

#[derive(Clone, Debug)]
enum Step {
    Begin(usize),
    /// The next value of one of the snapshots that wait for values.
    Arrive(prop::sample::Index),
    Lose(prop::sample::Index),
    Drop(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0usize..4).prop_map(Step::Begin),
        9 => any::<prop::sample::Index>().prop_map(Step::Arrive),
        1 => any::<prop::sample::Index>().prop_map(Step::Lose),
        1 => any::<prop::sample::Index>().prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Exactly the newest of the whole ones are kept, in order, and everything else is free.
    #[test]
    fn the_newest_whole_ones_are_kept(steps in steps(), size in 1usize..4, checksums: bool) {
        let (arena, store) = (arena(), Store::new(size, checksums));
        let mut all: Vec<(Arc<Snapshot>, usize)> = Vec::new();
        let mut expected: Vec<i64> = Vec::new();
        for step in steps {
            match step {
                Step::Begin(arrays) => {
                    let number = all.len() as i64;
                    let snapshot = Snapshot::new(&store, description(number, arrays));
                    if arrays == 0 {
                        snapshot.complete();
                        expected.push(number);
                    }
                    all.push((snapshot, 0));
                }
                Step::Arrive(index) => {
                    let mut waiting: Vec<_> =
                        all.iter_mut().filter(|(snapshot, next)| *next < snapshot.contents.shards.len()).collect();
                    if waiting.is_empty() {
                        continue;
                    }
                    let at = index.index(waiting.len());
                    let (snapshot, next) = &mut *waiting[at];
                    let was_copying = snapshot.phase() == Phase::Copying;
                    snapshot.add_done(16);
                    snapshot.take_in(*next, Ok(block(&arena, 16, 7)));
                    *next += 1;
                    if was_copying && *next == snapshot.contents.shards.len() {
                        prop_assert_ne!(snapshot.wait(PATIENCE), Phase::Copying);
                        expected.push(snapshot.step);
                    }
                }
                Step::Lose(index) if !all.is_empty() => {
                    let (snapshot, next) = &all[index.index(all.len())];
                    if *next < snapshot.contents.shards.len() {
                        snapshot.take_in(*next, Err(Status::failed_precondition("lost")));
                    }
                }
                Step::Drop(index) if !all.is_empty() => {
                    let (snapshot, _) = &all[index.index(all.len())];
                    snapshot.discard();
                    expected.retain(|step| *step != snapshot.step);
                }
                _ => {}
            }
            // What newer ones took the place of does not come back when those are dropped.
            expected.sort_unstable();
            let excess = expected.len().saturating_sub(size);
            expected.drain(..excess);
            let kept: Vec<i64> = store.list().iter().map(|snapshot| snapshot.step).collect();
            prop_assert_eq!(&kept, &expected);
            prop_assert_eq!(store.latest().map(|snapshot| snapshot.step), expected.last().copied());
            for snapshot in store.list() {
                prop_assert_eq!(snapshot.phase(), Phase::Whole);
                prop_assert_eq!(snapshot.progress().done, snapshot.progress().total);
                prop_assert_eq!(snapshot.verify().is_ok(), checksums || snapshot.contents.shards.is_empty());
            }
        }
        for (snapshot, _) in &all {
            snapshot.discard();
        }
        // A helper thread may still be about to let go of a value that came too late.
        let until = Instant::now() + PATIENCE;
        while arena.stats().blocks > 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        prop_assert_eq!(arena.stats().blocks, 0);
    }
}

#[test]
fn damage_is_found() {
    let (arena, store) = (arena(), Store::new(1, true));
    let (first, second) = (block(&arena, 16, 1), block(&arena, 16, 2));
    let snapshot = store.keep(description(3, 2), vec![first, second.clone()]);
    assert_eq!(snapshot.wait(PATIENCE), Phase::Whole);
    snapshot.verify().unwrap();
    // SAFETY: within the block, and nobody reads it now.
    unsafe { second.as_ptr().add(5).write(99) };
    let error = snapshot.verify().unwrap_err();
    assert!(error.message.contains("the snapshot of step 3 is damaged"), "{error}");
}

#[test]
fn a_store_that_goes_frees_what_it_has() {
    let (arena, store) = (arena(), Store::new(2, true));
    let snapshot = store.keep(description(1, 1), vec![block(&arena, 16, 1)]);
    assert_eq!(snapshot.wait(PATIENCE), Phase::Whole);
    drop(store);
    // The thread that made it whole may be about to let go of the store.
    let until = Instant::now() + PATIENCE;
    while snapshot.phase() == Phase::Whole && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(snapshot.phase(), Phase::Dropped);
    assert_eq!(arena.stats().blocks, 0);
    assert!(snapshot.values(0..1).err().unwrap().message.contains("is gone"));
}
