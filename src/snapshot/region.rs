//! Rectangular parts of arrays: where they overlap, and copying such an overlap from one dense part to another.

use crate::abi::{Status, element};
use crate::wire::message::Dims;
use crate::wire::stream;

/// A rectangular part of an array: where it begins and how long it is in each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The first index in each dimension.
    pub start: Dims,
    /// Elements in each dimension.
    pub size: Dims,
}

impl Region {
    /// The part of an array of `dims` that begins at `start`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where that is no part of such an array.
    pub fn within(dims: &[i64], start: &[i64], size: &[i64]) -> Result<Self, Status> {
        let fits = dims.len() == start.len()
            && dims.len() == size.len()
            && dims.iter().zip(start.iter().zip(size)).all(|(&dim, (&start, &size))| {
                start >= 0 && size >= 0 && start.checked_add(size).is_some_and(|end| end <= dim)
            });
        if !fits {
            return Err(Status::invalid(format!(
                "{size:?} elements from {start:?} on are no part of an array of {dims:?}"
            )));
        }
        Ok(Self { start: start.into(), size: size.into() })
    }

    /// Elements.
    pub fn count(&self) -> u64 {
        element::count(&self.size).unwrap_or(u64::MAX)
    }

    /// What two parts of the same array have in common; `None` where that is nothing.
    pub fn overlap(&self, other: &Self) -> Option<Self> {
        let mut common = Self { start: Dims::new(), size: Dims::new() };
        for dim in 0..self.start.len() {
            let start = self.start[dim].max(other.start[dim]);
            let end = (self.start[dim] + self.size[dim]).min(other.start[dim] + other.size[dim]);
            if end <= start {
                return None;
            }
            common.start.push(start);
            common.size.push(end - start);
        }
        Some(common)
    }

    /// The region cut along its first dimension into parts of at most about `elements`; dense parts of it, one after the
    /// other.
    pub fn slabs(&self, elements: u64) -> Vec<Self> {
        let Some(&rows) = self.size.first().filter(|rows| **rows > 1) else { return vec![self.clone()] };
        let row = (self.count() / rows.unsigned_abs()).max(1);
        let rows_each = i64::try_from((elements / row).max(1)).unwrap_or(rows).min(rows);
        (0..rows)
            .step_by(rows_each as usize)
            .map(|first| {
                let mut slab = self.clone();
                slab.start[0] += first;
                slab.size[0] = rows_each.min(rows - first);
                slab
            })
            .collect()
    }

    /// The offset of an index of the array in the dense elements of this region.
    pub(super) fn position(&self, index: &[i64]) -> usize {
        let dims = self.size.iter().zip(index).zip(&self.start);
        dims.fold(0, |position, ((size, index), start)| position * size + (index - start)) as usize
    }
}

/// Copies the elements of `part`, which lies in both, from the dense elements of `source` to those of `target`. Elements
/// have `element` bytes.
///
/// # Panics
/// Where a slice is shorter than its region, or `part` does not lie in both: a bug of the caller's.
pub fn copy(part: &Region, source: &Region, from: &[u8], target: &Region, to: &mut [u8], element: usize) {
    let rank = part.size.len();
    // Trailing dimensions that all three share whole are one run with the dimension before them.
    let mut outer = rank;
    let mut run = element;
    while outer > 0 {
        outer -= 1;
        run *= part.size[outer] as usize;
        if part.size[outer] != source.size[outer] || part.size[outer] != target.size[outer] {
            break;
        }
    }
    let mut index = part.start.clone();
    loop {
        let (at, into) = (source.position(&index) * element, target.position(&index) * element);
        let (from, to) = (&from[at..at + run], &mut to[into..into + run]);
        // SAFETY: two slices of one length, one of which nobody else may have.
        unsafe { stream::copy(from.as_ptr(), to.as_mut_ptr(), run) };
        if !advance(&mut index, part, outer) {
            return;
        }
    }
}

/// Steps to the next index of the first `outer` dimensions, the last of them fastest; whether there is one.
fn advance(index: &mut Dims, part: &Region, outer: usize) -> bool {
    for dim in (0..outer).rev() {
        index[dim] += 1;
        if index[dim] < part.start[dim] + part.size[dim] {
            return true;
        }
        index[dim] = part.start[dim];
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region(start: &[i64], size: &[i64]) -> Region {
        Region { start: start.into(), size: size.into() }
    }

    /// The dense bytes of a region of an array whose elements are their own flat index.
    fn elements(dims: &[i64], region: &Region, element: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut index = region.start.clone();
        if region.count() == 0 {
            return bytes;
        }
        loop {
            let whole = Region { start: Dims::from_elem(0, dims.len()), size: dims.into() };
            let value = whole.position(&index) as u64 + 1;
            bytes.extend(std::iter::repeat_n(value.to_le_bytes(), element.div_ceil(8)).flatten().take(element));
            if !advance(&mut index, region, dims.len()) {
                return bytes;
            }
        }
    }

    fn part_of(dims: Vec<i64>) -> impl Strategy<Value = Region> {
        let parts: Vec<_> =
            dims.iter().map(|&dim| (0..dim).prop_flat_map(move |start| (Just(start), 1..=dim - start))).collect();
        parts.prop_map(|parts| {
            let (start, size): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            region(&start, &size)
        })
    }

    proptest! {
        /// Any part, put together from any cut of the array, has the array's elements.
        #[test]
        fn parts_are_put_together(
            (dims, target, cuts) in prop::collection::vec(1i64..7, 0..4).prop_flat_map(|dims| {
                let cuts: Vec<_> = dims.iter().map(|&dim| 1..=dim).collect();
                (Just(dims.clone()), part_of(dims), cuts)
            }),
            element in prop_oneof![Just(1usize), Just(2), Just(4), Just(8), Just(16)],
        ) {
            let mut sources = vec![Region { start: Dims::new(), size: Dims::new() }];
            for (&dim, &cut) in dims.iter().zip(&cuts) {
                sources = sources.iter().flat_map(|source| (0..dim).step_by(cut as usize).map(|start| {
                    let mut source = source.clone();
                    source.start.push(start);
                    source.size.push(cut.min(dim - start));
                    source
                })).collect();
            }
            let mut got = vec![0; target.count() as usize * element];
            let mut covered = 0;
            for source in &sources {
                if let Some(part) = source.overlap(&target) {
                    covered += part.count();
                    copy(&part, source, &elements(&dims, source, element), &target, &mut got, element);
                }
            }
            prop_assert_eq!(covered, target.count());
            prop_assert_eq!(got, elements(&dims, &target, element));
        }

        #[test]
        fn slabs_are_the_region(target in part_of(vec![9, 4, 3]), elements in 1u64..200) {
            let slabs = target.slabs(elements);
            prop_assert_eq!(slabs.iter().map(Region::count).sum::<u64>(), target.count());
            for slab in &slabs {
                prop_assert_eq!(slab.overlap(&target), Some(slab.clone()));
            }
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        assert!(Region::within(&[4, 4], &[0, 2], &[4, 2]).is_ok());
        assert!(Region::within(&[], &[], &[]).is_ok());
        assert!(Region::within(&[0], &[0], &[0]).is_ok());
        for (start, size) in [(&[0i64, 3][..], &[4i64, 2][..]), (&[-1, 0], &[1, 1]), (&[0, 0], &[4, -1]), (&[0], &[4])]
        {
            assert!(Region::within(&[4, 4], start, size).is_err());
        }
        assert!(Region::within(&[4], &[i64::MAX], &[1]).is_err());
    }
}
