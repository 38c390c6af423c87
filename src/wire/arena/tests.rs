//! Blocks are disjoint and accounted for; memory is committed before use and given back.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::abi::Code;

const MIB: u64 = 1 << 20;

/// Nothing ahead: what is committed is a function of what is allocated.
fn options(capacity: u64) -> ArenaOptions {
    ArenaOptions {
        capacity,
        step: 16 * PAGE,
        ahead: 0,
        slack: u64::MAX,
        rest: Duration::ZERO,
        placement: Placement::Auto,
    }
}

fn eventually(what: &str, arena: &Arena, condition: impl Fn(ArenaStats) -> bool) {
    let start = Instant::now();
    while !condition(arena.stats()) {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: {:?}", arena.stats());
        std::thread::yield_now();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every block keeps its bytes while others come and go, and is committed; all is free at the end.
    #[test]
    fn blocks_are_disjoint_and_accounted_for(
        steps in prop::collection::vec((any::<bool>(), 1u64..200_000, any::<prop::sample::Index>()), 1..60)
    ) {
        let arena = Arena::new(options(4 * MIB)).unwrap();
        let view = ArenaView::new(arena.fd()).unwrap();
        let mut blocks: Vec<(Block, u8)> = Vec::new();
        for (number, (allocate, len, index)) in steps.into_iter().enumerate() {
            if allocate || blocks.is_empty() {
                let commit = if number % 2 == 0 { Commit::Now } else { Commit::Later };
                let Ok(mut block) = arena.allocate_when(len, commit) else { continue };
                // Some go again without having had all their memory.
                block.commit(len / 2, len - len / 2).unwrap();
                if number % 7 == 3 {
                    continue;
                }
                block.commit(0, len).unwrap();
                let alignment = if len >= PAGE_ALIGNED_FROM { PAGE } else { ALIGNMENT };
                prop_assert!(block.extent().offset.is_multiple_of(alignment));
                prop_assert_eq!(block.extent().len, len);
                // SAFETY: no other process has this arena.
                unsafe { block.as_mut_slice() }.fill(number as u8);
                blocks.push((block, number as u8));
            } else {
                let (block, value) = blocks.swap_remove(index.index(blocks.len()));
                // SAFETY: as above.
                let intact = unsafe { block.as_slice() }.iter().all(|byte| *byte == value);
                // SAFETY: the view gave the address of `len` mapped bytes.
                let seen = unsafe { *view.at(block.extent()).unwrap().as_ptr() };
                prop_assert!(intact && seen == value);
            }
            let stats = arena.stats();
            prop_assert_eq!(stats.used, blocks.iter().map(|(block, _)| reserved(block.len)).sum::<u64>());
            prop_assert_eq!(stats.blocks, blocks.len() as u64);
            prop_assert!(stats.committed >= stats.used);
            let committed = arena.committed();
            for (block, _) in &blocks {
                let Extent { offset, len } = block.extent();
                let inside = |part: &Extent| part.offset <= offset && offset + len <= part.offset + part.len;
                prop_assert!(committed.iter().any(inside));
            }
        }
        drop(blocks);
        let stats = arena.stats();
        prop_assert_eq!((stats.used, stats.blocks, stats.largest_free), (0, 0, 4 * MIB));
    }
}

#[test]
fn threads_allocate_and_free_at_once() {
    let arena = Arena::new(ArenaOptions { ahead: MIB, slack: 2 * MIB, ..options(32 * MIB) }).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let arena = &arena;
            scope.spawn(move || {
                let mut kept = std::collections::VecDeque::new();
                for number in 0..2000u64 {
                    let mut block = arena.allocate(1 + (number * 7919 + u64::from(thread) * 131) % 100_000).unwrap();
                    // SAFETY: no other process has this arena.
                    unsafe { block.as_mut_slice() }.fill(thread);
                    kept.push_back(block);
                    if kept.len() > 20 {
                        let block = kept.pop_front().unwrap();
                        // SAFETY: as above.
                        assert!(unsafe { block.as_slice() }.iter().all(|byte| *byte == thread));
                    }
                }
            });
        }
    });
    eventually("all is free", &arena, |stats| stats.used == 0 && stats.largest_free == 32 * MIB);
}

#[test]
fn the_budget_is_refused_in_words() {
    let arena = Arena::new(options(MIB)).unwrap();
    let _block = arena.allocate(700 << 10).unwrap();
    let error = arena.allocate(500 << 10).unwrap_err();
    assert_eq!(error.code, Code::ResourceExhausted);
    for part in ["500.0 KiB asked for", "700.0 KiB of 1.0 MiB in use", "324.0 KiB", "MAINSTAY_HOST_MEMORY"] {
        assert!(error.message.contains(part), "{error}");
    }
    assert!(arena.allocate(u64::MAX).is_err());
    assert!(Arena::new(options(100)).is_err());
}

#[test]
fn more_than_the_machine_has_is_refused_in_words() {
    let memory = machine::memory().unwrap();
    let arena = Arena::new(options(memory.total * 4)).unwrap();
    let error = arena.allocate(memory.total * 2).unwrap_err();
    assert_eq!(error.code, Code::ResourceExhausted);
    assert!(error.message.contains("no more memory to share"), "{error}");
    assert_eq!(arena.stats().used, 0);
    assert_eq!(arena.stats().committed, 0);
    assert!(arena.allocate(MIB).is_ok());
}

#[test]
fn nothing_is_allocated_for_no_bytes() {
    let arena = Arena::new(options(MIB)).unwrap();
    let block = arena.allocate(0).unwrap();
    assert!(block.is_empty());
    // SAFETY: no bytes, no writers.
    assert!(unsafe { block.as_slice() }.is_empty());
    assert_eq!(arena.stats().used, 0);
    drop(block);
    assert_eq!(arena.stats().blocks, 0);
}

#[test]
fn memory_is_committed_ahead_announced_and_given_back() {
    let arena = Arena::new(ArenaOptions { ahead: MIB, slack: 4 * MIB, ..options(64 * MIB) }).unwrap();
    eventually("ahead", &arena, |stats| stats.committed >= MIB);
    let block = arena.allocate(20 * MIB).unwrap();
    eventually("ahead again", &arena, |stats| stats.committed >= 21 * MIB);
    let announced: u64 = arena.take_newly_committed().iter().map(|extent| extent.len).sum();
    let committed: u64 = arena.committed().iter().map(|extent| extent.len).sum();
    assert_eq!((announced, committed), (arena.stats().committed, arena.stats().committed));
    assert!(arena.take_newly_committed().is_empty());
    let (offset, file) = (block.extent().offset, rustix::fs::fstat(arena.fd()).unwrap().st_blocks);
    drop(block);
    eventually("given back", &arena, |stats| stats.committed <= 4 * MIB);
    assert!(rustix::fs::fstat(arena.fd()).unwrap().st_blocks < file / 2);
    let mut again = arena.allocate(20 * MIB).unwrap();
    // SAFETY: no other process has this arena.
    unsafe { again.as_mut_slice() }.fill(1);
    assert!(again.extent().offset <= offset + 4 * MIB);
}

#[test]
fn what_has_memory_is_used_first() {
    let arena = Arena::new(options(64 * MIB)).unwrap();
    let (first, second) = (arena.allocate(48 * MIB).unwrap(), arena.allocate(6 * MIB).unwrap());
    let committed = arena.stats().committed;
    drop(first);
    // Ten MiB at the end are a shorter stretch, and have none.
    let blocks = [5 * MIB, 20 * MIB, MIB].map(|len| arena.allocate(len).unwrap());
    assert_eq!(arena.stats().committed, committed);
    assert_eq!(blocks.map(|block| block.extent().offset), [0, 5 * MIB, 25 * MIB]);
    drop(second);
    // Where too little lies together, there is more.
    assert_eq!(arena.allocate(60 * MIB).unwrap().extent().offset, 0);
}

#[test]
fn what_is_left_of_a_free_stretch_stays_in_one_piece() {
    let arena = Arena::new(ArenaOptions { slack: 0, ..options(64 * MIB) }).unwrap();
    let blocks = [30 * MIB, 10 * MIB, 24 * MIB].map(|len| arena.allocate(len).unwrap());
    let [first, second, _third] = blocks;
    drop(first);
    eventually("given back", &arena, |stats| stats.committed <= 34 * MIB);
    // Forty MiB lie free now, and the last ten have memory, for a moment at least.
    drop(second);
    let small = arena.allocate(4 * MIB).unwrap();
    assert!([0, 36 * MIB].contains(&small.extent().offset), "{:?}", small.extent());
    assert!(arena.allocate(36 * MIB).is_ok());
}

#[test]
fn free_memory_is_given_back_once_it_has_rested() {
    let rest = Duration::from_millis(300);
    let arena = Arena::new(ArenaOptions { ahead: 0, slack: 0, rest, ..options(64 * MIB) }).unwrap();
    let block = arena.allocate(20 * MIB).unwrap();
    let begin = Instant::now();
    drop(block);
    eventually("given back", &arena, |stats| stats.committed == 0);
    assert!(begin.elapsed() >= rest || machine::is_short());
    // What is used again and again keeps its memory.
    let begin = Instant::now();
    while begin.elapsed() < 3 * rest {
        drop(arena.allocate(20 * MIB).unwrap());
        let freed = Instant::now();
        std::thread::yield_now();
        let committed = arena.stats().committed;
        assert!(committed >= 20 * MIB || freed.elapsed() >= rest || machine::is_short());
    }
    eventually("given back", &arena, |stats| stats.committed == 0);
}

#[test]
fn extents_outside_are_refused() {
    let arena = Arena::new(options(MIB)).unwrap();
    let view = ArenaView::new(arena.fd()).unwrap();
    assert!(view.at(Extent { offset: MIB - 1, len: 1 }).is_ok());
    for (offset, len) in [(MIB, 1), (0, MIB + 1), (u64::MAX, 1), (1, u64::MAX)] {
        assert_eq!(view.at(Extent { offset, len }).unwrap_err().code, Code::OutOfRange);
    }
}

#[test]
fn sizes_read_well() {
    let texts: Vec<_> = [0, 1023, 1024, 1_610_612_736, u64::MAX].map(|size| Bytes(size).to_string()).to_vec();
    assert_eq!(texts, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 GiB", "16777216.0 TiB"]);
}

#[test]
fn parts_keep_the_whole() {
    let arena = Arena::new(ArenaOptions { step: PAGE, ..options(MIB) }).unwrap();
    let whole = arena.allocate(1000).unwrap();
    let part = whole.part(100, 900).unwrap();
    assert_eq!(part.extent(), Extent { offset: whole.extent().offset + 100, len: 900 });
    assert!(whole.part(100, 901).is_none() && whole.part(u64::MAX, 2).is_none());
    drop(whole);
    assert_eq!(arena.stats().blocks, 1);
    drop(part);
    assert_eq!(arena.stats().blocks, 0);
}

#[test]
fn what_is_expected_is_ready_and_is_kept() {
    let options = ArenaOptions { step: MIB, slack: 0, ..options(64 * MIB) };
    let arena = Arena::new(options).unwrap();
    let expectation = arena.expect(16 * MIB);
    eventually("made ready", &arena, |stats| stats.committed >= 16 * MIB);
    expectation.suspend();
    // Used, nothing more is committed for it; freed, it is kept for the next time.
    let block = arena.allocate(16 * MIB).unwrap();
    assert!(arena.stats().committed < 18 * MIB);
    drop(block);
    let next = arena.expect(16 * MIB);
    drop(expectation);
    eventually("kept ready", &arena, |stats| stats.committed >= 16 * MIB);
    drop(next);
    eventually("given back", &arena, |stats| stats.committed < MIB);
}

#[test]
fn memory_is_locked_where_that_is_allowed() {
    let arena = Arena::new(options(MIB)).unwrap();
    // Where little is allowed, other tests' arenas may have it.
    let large = shm::create("mainstay-test", 1 << 40).unwrap();
    if !Mapping::new(large.as_fd()).unwrap().lock(0, 1 << 40) {
        return;
    }
    let first = format!("{:x}-", arena.shared.mapping.address());
    let locked = || {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let line = maps[maps.find(&first).unwrap()..].lines().find_map(|line| line.strip_prefix("Locked:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    };
    let (now, later) = (arena.allocate(MIB / 2), arena.allocate_when(MIB / 4, Commit::Later));
    later.as_ref().unwrap().commit(0, MIB / 4).unwrap();
    eventually("locked", &arena, |_| locked() >= MIB / 2 + MIB / 4);
    drop((now, later));
}

#[test]
fn what_has_memory_is_not_committed_again() {
    let arena = Arena::new(options(MIB)).unwrap();
    let first = arena.allocate(PAGE - ALIGNMENT).unwrap();
    let next = arena.allocate(ALIGNMENT).unwrap();
    assert_eq!(next.extent().offset, PAGE - ALIGNMENT);
    drop(first);
    // Their page is the other block's.
    let step = arena.shared.options.step;
    let state = arena.shared.lock();
    assert_eq!((state.behind(0, step), state.lacking((0, PAGE))), (0, vec![]));
    assert_eq!(state.behind(ALIGNMENT, step), PAGE - 2 * ALIGNMENT);
    assert_eq!((state.behind(PAGE, MIB), state.lacking((ALIGNMENT, MIB))), (MIB - PAGE, vec![(step, MIB)]));
}

#[test]
fn a_row_is_one_stretch_of_blocks_that_are_freed_one_by_one() {
    let arena = Arena::new(options(2 * MIB)).unwrap();
    let lens = [100_000, 65_536, 900_000];
    let mut row = arena.allocate_row(&lens, Commit::Now).unwrap();
    for (pair, len) in row.windows(2).zip(lens) {
        assert_eq!(pair[0].extent().len, len);
        assert_eq!(pair[1].extent().offset, pair[0].extent().offset + len.next_multiple_of(PAGE));
    }
    assert_eq!(arena.stats().blocks, 3);
    assert!(arena.allocate_row(&[MIB, MIB], Commit::Now).is_err());
    drop(row.remove(1));
    assert_eq!(arena.stats().blocks, 2);
    drop(row);
    let stats = arena.stats();
    assert_eq!((stats.blocks, stats.used, stats.largest_free), (0, 0, 2 * MIB));
    assert!(arena.allocate_row(&[], Commit::Now).unwrap().is_empty());
}

#[test]
fn what_is_for_later_gets_its_memory_part_by_part() {
    let arena = Arena::new(options(8 * MIB)).unwrap();
    let books = || {
        let state = arena.shared.lock();
        (arena.shared.options.capacity - state.uncommitted.total(), state.pending, state.ready(8 * MIB))
    };
    let block = arena.allocate_when(3 * MIB, Commit::Later).unwrap();
    assert_eq!((arena.stats().used, books()), (3 * MIB, (0, 3 * MIB, 0)));
    block.part(MIB, MIB).unwrap().commit(5, 10).unwrap();
    assert_eq!(books(), (COMMITTED_AT_ONCE, 3 * MIB - COMMITTED_AT_ONCE, 0));
    std::thread::scope(|scope| {
        for quarter in 0..4 {
            let block = block.clone();
            scope.spawn(move || block.commit(quarter * 3 * MIB / 4, 3 * MIB / 4).unwrap());
        }
    });
    assert_eq!(books(), (3 * MIB, 0, 0));
    assert!(!block.stretch.is_fresh.load(Ordering::Relaxed));
    drop(block);
    // One that goes again before it has any.
    let again = arena.allocate_when(6 * MIB, Commit::Later).unwrap();
    assert_eq!(books(), (3 * MIB, 3 * MIB, 0));
    drop(again);
    assert_eq!(books(), (3 * MIB, 0, 3 * MIB));
    let committed = arena.take_newly_committed();
    assert_eq!(committed, [Extent { offset: 0, len: 3 * MIB }], "told in one piece");
    // A small one may share its page with others.
    let arena = Arena::new(options(MIB)).unwrap();
    let small = arena.allocate_when(100, Commit::Later).unwrap();
    assert!(arena.stats().committed > 0 && small.commit(0, 100).is_ok());
    assert!(arena.allocate_when(2 * MIB, Commit::Later).is_err());
}

#[test]
fn what_was_given_back_is_not_told_of() {
    let arena = Arena::new(ArenaOptions { slack: 0, ..options(32 * MIB) }).unwrap();
    let memory = || rustix::fs::fstat(&arena.shared.fd).unwrap().st_blocks as u64 * 512;
    drop(arena.allocate(8 * MIB).unwrap());
    eventually("given back", &arena, |stats| stats.committed == 0);
    assert_eq!((arena.take_newly_committed(), memory()), (vec![], 0));
}

#[test]
fn what_was_promised_is_told_of_once_it_is_there() {
    let arena = Arena::new(options(32 * MIB)).unwrap();
    let promised = arena.allocate_when(4 * MIB, Commit::Later).unwrap();
    promised.commit(0, 4 * MIB).unwrap();
    assert_eq!(arena.take_newly_committed(), [Extent { offset: 0, len: 4 * MIB }]);
}

#[test]
fn memory_lies_in_huge_pages() {
    let arena = Arena::new(ArenaOptions { step: 4 * MIB, ..options(32 * MIB) }).unwrap();
    let now = arena.allocate(3 * MIB).unwrap();
    let later = arena.allocate_when(8 * MIB, Commit::Later).unwrap();
    // One huge page holds the end of the one and the start of the other: it came with the first, as the rest of a step.
    assert_eq!((now.extent().offset, later.extent().offset), (0, 3 * MIB));
    later.commit(2 * MIB + 5, 1).unwrap();
    assert_eq!(arena.stats().committed, 6 * MIB);
    assert_eq!(arena.shared.mapping.in_huge_pages(), if shm::has_huge_pages() { 6 * MIB } else { 0 });
}

#[test]
fn free_memory_of_a_large_arena_is_not_kept_for_good() {
    let slack = |capacity| ArenaOptions::new(capacity).slack;
    let most = machine::memory().unwrap().total / 8;
    assert_eq!((slack(MIB), slack(u64::MAX / 2)), ((1 << 30).min(most), most));
}

#[test]
fn more_than_there_is_is_not_promised() {
    let memory = machine::memory().unwrap();
    let half = memory.available / 2 / PAGE * PAGE;
    let arena = Arena::new(options(2 * memory.total)).unwrap();
    let promised = arena.allocate_when(half + half / 2, Commit::Later).unwrap();
    for commit in [Commit::Later, Commit::Now] {
        let refused = arena.allocate_when(half, commit).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted, "{refused}");
    }
    drop(promised);
    drop(arena.allocate_when(half + half / 2, Commit::Later).unwrap());
    let state = arena.shared.lock();
    assert_eq!((state.pending, state.uncommitted.total()), (0, arena.shared.options.capacity));
}

#[test]
fn devices_get_what_nobody_will_miss() {
    let arena = Arena::new(options(64 * PAGE)).unwrap();
    // A fourth of the budget stays free.
    let first = arena.allocate_for_device(30 * PAGE).unwrap();
    assert!(arena.allocate_for_device(19 * PAGE).is_none());
    // What others may come to hold counts, whether they hold it or not.
    let claim = arena.claim(10 * PAGE);
    assert_eq!(claim.bytes(), 10 * PAGE);
    assert!(arena.allocate_for_device(9 * PAGE).is_none());
    let second = arena.allocate_for_device(8 * PAGE).unwrap();
    drop((first, claim));
    let third = arena.allocate_for_device(30 * PAGE).unwrap();
    drop((second, third));
    // Room that is in use by others counts too, and absurd claims harm nobody.
    let used = arena.allocate(40 * PAGE).unwrap();
    assert!(arena.allocate_for_device(9 * PAGE).is_none());
    drop(used);
    // What is held of a claim counts as that.
    let (claim, row) = (arena.claim(32 * PAGE), arena.allocate_row(&[16 * PAGE], Commit::Now).unwrap());
    let (others, more) = (arena.allocate(8 * PAGE).unwrap(), arena.allocate_for_device(8 * PAGE));
    assert!(more.is_some() && arena.allocate_for_device(PAGE).is_none());
    drop((claim, row, others, more));
    let everything = (arena.claim(u64::MAX), arena.claim(u64::MAX));
    assert!(arena.allocate_for_device(1).is_none());
    drop(everything);
    assert!(arena.allocate_for_device(48 * PAGE).is_some());
}
