//! Sets of byte ranges: the arena's free space, found by size, and the part of it that has no memory yet.
//!
//! Plain data without locks or memory of its own; everything is logarithmic in the number of ranges.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges, joined where they touch. Takes the smallest that fits.
#[derive(Debug)]
pub struct FreeSpace {
    /// Start to length.
    by_start: BTreeMap<u64, u64>,
    /// Length and start.
    by_len: BTreeSet<(u64, u64)>,
    free: u64,
}

impl FreeSpace {
    /// All of `0 … len` is free.
    pub fn new(len: u64) -> Self {
        let mut space = Self { by_start: BTreeMap::new(), by_len: BTreeSet::new(), free: 0 };
        space.give(0, len);
        space
    }

    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Length of the longest free range.
    pub fn largest(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// Takes `len` bytes whose start is a multiple of `align` (a power of two); the start.
    pub fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        // Ranges of about the right size may be misaligned: a few are tried, then one that is surely large enough.
        const TRIES: usize = 8;
        let start = self.by_len.range((len, 0)..).take(TRIES).find_map(|&range| Self::place(range, len, align));
        let start = start.or_else(|| {
            let sure = len.checked_add(align)?;
            self.by_len.range((sure, 0)..).next().and_then(|&range| Self::place(range, len, align))
        })?;
        self.take_at(start, len);
        Some(start)
    }

    /// Where in the range (length, start) an aligned allocation lies, if it fits.
    fn place((range_len, start): (u64, u64), len: u64, align: u64) -> Option<u64> {
        let aligned = start.checked_next_multiple_of(align)?;
        (aligned.checked_add(len)? <= start + range_len).then_some(aligned)
    }

    /// Bytes free from `start` on, without a gap.
    pub fn free_from(&self, start: u64) -> u64 {
        match self.by_start.range(..=start).next_back() {
            Some((first, len)) if first + len > start => first + len - start,
            _ => 0,
        }
    }

    /// Takes exactly this range.
    ///
    /// # Panics
    /// Unless all of it is free.
    pub fn take_at(&mut self, start: u64, len: u64) {
        assert!(len > 0 && self.free_from(start) >= len, "{len} bytes at {start} are not free");
        let (first, range_len) = self.by_start.range(..=start).next_back().map(|(a, b)| (*a, *b)).unwrap_or_default();
        self.remove(first, range_len);
        if start > first {
            self.insert(first, start - first);
        }
        if first + range_len > start + len {
            self.insert(start + len, first + range_len - start - len);
        }
    }

    /// Makes a range free that is not.
    pub fn give(&mut self, mut start: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back()
            && before + before_len == start
        {
            self.remove(before, before_len);
            (start, len) = (before, before_len + len);
        }
        if let Some(&after_len) = self.by_start.get(&(start + len)) {
            self.remove(start + len, after_len);
            len += after_len;
        }
        self.insert(start, len);
    }

    /// Free ranges (start, length) of at least `len` bytes, longest first.
    pub fn at_least(&self, len: u64) -> impl Iterator<Item = (u64, u64)> {
        self.by_len.range((len, 0)..).rev().map(|(len, start)| (*start, *len))
    }

    /// The same, shortest first.
    pub fn fitting(&self, len: u64) -> impl Iterator<Item = (u64, u64)> {
        self.by_len.range((len, 0)..).map(|(len, start)| (*start, *len))
    }

    fn insert(&mut self, start: u64, len: u64) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
        self.free += len;
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
        self.free -= len;
    }
}

/// A set of bytes, kept as disjoint ranges.
#[derive(Debug, Default)]
pub struct RangeSet {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// Bytes in the set.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The ranges, as start and end.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }

    /// The parts of `start … end` that are in the set.
    pub fn within(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let before = self.ranges.range(..start).next_back();
        let touching = before.into_iter().chain(self.ranges.range(start..end.max(start)));
        touching.map(|(a, b)| (start.max(*a), end.min(*b))).filter(|(a, b)| a < b).collect()
    }

    /// Adds a range.
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.remove(start, end);
        let (mut first, mut last) = (start, end);
        if let Some((&before, &before_end)) = self.ranges.range(..start).next_back()
            && before_end == start
        {
            first = before;
        }
        if let Some(after_end) = self.ranges.remove(&end) {
            last = after_end;
        }
        self.ranges.insert(first, last);
        self.total += end - start;
    }

    /// Removes what of a range is in the set.
    pub fn remove(&mut self, start: u64, end: u64) {
        for (a, b) in self.within(start, end) {
            let (first, last) = match self.ranges.range(..=a).next_back() {
                Some((first, last)) => (*first, *last),
                None => continue,
            };
            self.ranges.remove(&first);
            if first < a {
                self.ranges.insert(first, a);
            }
            if b < last {
                self.ranges.insert(b, last);
            }
            self.total -= b - a;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: u64 = 4096;

    proptest! {
        /// No overlap, exact accounting, alignment, refusal only where nothing fits, and one range at the end.
        #[test]
        fn free_space_agrees_with_a_naive_model(
            steps in prop::collection::vec((any::<bool>(), 1u64..600, 0u32..8, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut space = FreeSpace::new(LEN);
            let mut used = vec![false; LEN as usize];
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, len, align, index) in steps {
                if take || taken.is_empty() {
                    let align = 1u64 << align;
                    let fits = |start: &u64| used[*start as usize..(*start + len) as usize].iter().all(|byte| !byte);
                    match space.take(len, align) {
                        Some(start) => {
                            prop_assert!(start.is_multiple_of(align));
                            prop_assert!(fits(&start));
                            used[start as usize..(start + len) as usize].fill(true);
                            taken.push((start, len));
                        }
                        None => {
                            let sure = len + align;
                            let whole = |start: &u64| used[*start as usize..(*start + sure) as usize].iter().all(|byte| !byte);
                            prop_assert!(!(0..=LEN.saturating_sub(sure)).any(|start| whole(&start)));
                        }
                    }
                } else {
                    let (start, len) = taken.swap_remove(index.index(taken.len()));
                    used[start as usize..(start + len) as usize].fill(false);
                    space.give(start, len);
                }
                let free = used.iter().filter(|byte| !**byte).count() as u64;
                prop_assert_eq!(space.free(), free);
                let longest = used.split(|byte| *byte).map(<[bool]>::len).max().unwrap_or(0) as u64;
                prop_assert_eq!(space.largest(), longest);
            }
            for (start, len) in taken {
                space.give(start, len);
            }
            prop_assert_eq!(space.at_least(1).collect::<Vec<_>>(), vec![(0, LEN)]);
        }

        #[test]
        fn range_sets_agree_with_a_naive_model(
            steps in prop::collection::vec((any::<bool>(), 0u64..200, 0u64..200), 1..100)
        ) {
            let mut set = RangeSet::default();
            let mut model = [false; 200];
            for (insert, a, b) in steps {
                let (start, end) = (a.min(b), a.max(b));
                if insert { set.insert(start, end) } else { set.remove(start, end) }
                model[start as usize..end as usize].fill(insert);
                let mut flat = [false; 200];
                for (start, end) in set.iter() {
                    flat[start as usize..end as usize].fill(true);
                }
                prop_assert_eq!(flat, model);
                prop_assert_eq!(set.total(), model.iter().filter(|byte| **byte).count() as u64);
                let part: u64 = set.within(50, 120).iter().map(|(start, end)| end - start).sum();
                prop_assert_eq!(part, model[50..120].iter().filter(|byte| **byte).count() as u64);
                let ends: Vec<_> = set.iter().collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }
}
