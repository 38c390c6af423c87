//! Copying host arrays with strides into dense memory, in the order of the dimensions, the last varying fastest.
//!
//! A [`Strided`] is brought to its simplest form once: dimensions of one element go, neighbours that lie behind one
//! another become one, and a contiguous end becomes the *run*, the bytes that are copied at once. What remains is
//! copied run by run, or in square tiles where another dimension than the last is the nearest in memory.

use smallvec::SmallVec;

use crate::abi::Status;

/// The shape of a host array in memory. Strides may be negative, zero or overlapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strided {
    /// What remains to be iterated over, major first: each with its bytes from one step to the next.
    dims: SmallVec<[Dim; 6]>,
    /// Contiguous bytes at each position.
    run: usize,
    /// Bytes of the dense copy.
    len: usize,
    /// Bytes that the array reaches below and above its first element's first byte.
    reach: (usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dim {
    size: usize,
    stride: isize,
}

impl Strided {
    /// An array of `dims`, major first, with elements of `element` bytes and, from one to the next in each dimension,
    /// `strides` bytes (`None`: dense).
    ///
    /// # Errors
    /// INVALID_ARGUMENT for negative dimensions, another number of strides than dimensions, or sizes beyond what
    /// memory can be.
    pub fn new(dims: &[i64], strides: Option<&[i64]>, element: usize) -> Result<Self, Status> {
        let Some(sizes) = dims.iter().map(|size| usize::try_from(*size).ok()).collect::<Option<Vec<_>>>() else {
            return Err(Status::invalid(format!("dimensions {dims:?}: a dimension can't be negative")));
        };
        let too_large = || Status::invalid(format!("an array of {dims:?} with strides {strides:?} can't be in memory"));
        let fits = |len: usize| isize::try_from(len).is_ok();
        if sizes.contains(&0) {
            return Ok(Self { dims: SmallVec::new(), run: 0, len: 0, reach: (0, 0) });
        }
        let len = sizes.iter().try_fold(element, |len, size| len.checked_mul(*size)).filter(|len| fits(*len));
        let len = len.ok_or_else(too_large)?;
        let Some(strides) = strides else {
            return Ok(Self { dims: SmallVec::new(), run: len, len, reach: (0, len) });
        };
        if strides.len() != dims.len() {
            return Err(Status::invalid(format!("{} strides for {} dimensions", strides.len(), dims.len())));
        }
        let reach = reach(&sizes, strides, element).ok_or_else(too_large)?;
        let (dims, run) = simplify(&sizes, strides, element);
        Ok(Self { dims, run, len, reach })
    }

    /// Bytes of the dense copy.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the array is dense already: its copy is its memory.
    pub fn is_dense(&self) -> bool {
        self.dims.is_empty()
    }

    /// Bytes that the array reaches below and above the first byte of its first element.
    pub fn reach(&self) -> (usize, usize) {
        self.reach
    }

    /// Copies the array whose first element is at `from` to `to`, dense.
    ///
    /// # Safety
    /// [`Self::reach`] around `from` is readable and not written meanwhile, [`Self::len`] bytes at `to` are writable
    /// and used by nobody else, and the two don't overlap.
    pub unsafe fn gather(&self, from: *const u8, to: *mut u8) {
        // SAFETY: what the kernels need is what the caller promised; see there.
        unsafe {
            match self.run {
                1 => self.gather_runs::<1>(from, to),
                2 => self.gather_runs::<2>(from, to),
                4 => self.gather_runs::<4>(from, to),
                8 => self.gather_runs::<8>(from, to),
                16 => self.gather_runs::<16>(from, to),
                _ => self.gather_long_runs(from, to),
            }
        }
    }

    /// # Safety
    /// As [`Self::gather`].
    unsafe fn gather_long_runs(&self, from: *const u8, mut to: *mut u8) {
        let Some((last, outer)) = self.dims.split_last() else {
            // SAFETY: one run: all of the array.
            return unsafe { std::ptr::copy_nonoverlapping(from, to, self.run) };
        };
        for offset in Positions::new(outer) {
            // SAFETY: every position's run lies within the reach, and as many runs as positions within `len`.
            unsafe {
                let mut at = from.offset(offset);
                for _ in 0..last.size {
                    std::ptr::copy_nonoverlapping(at, to, self.run);
                    at = at.wrapping_offset(last.stride);
                    to = to.add(self.run);
                }
            }
        }
    }

    /// # Safety
    /// As [`Self::gather`]; `N` is the run.
    unsafe fn gather_runs<const N: usize>(&self, from: *const u8, mut to: *mut u8) {
        let Some((&last, outer)) = self.dims.split_last() else {
            // SAFETY: one run: all of the array.
            return unsafe { std::ptr::copy_nonoverlapping(from, to, N) };
        };
        if let Some(near) = self.nearer_than_last() {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.gather_tiles::<N>(near, from, to) };
        }
        for offset in Positions::new(outer) {
            // SAFETY: as in `gather_long_runs`.
            unsafe {
                let mut at = from.offset(offset);
                for _ in 0..last.size {
                    std::ptr::copy_nonoverlapping(at, to, N);
                    at = at.wrapping_offset(last.stride);
                    to = to.add(N);
                }
            }
        }
    }

    /// The dimension whose neighbours are nearest in memory, where that is not the last.
    fn nearer_than_last(&self) -> Option<usize> {
        let distance = |dim: &Dim| if dim.stride == 0 { usize::MAX } else { dim.stride.unsigned_abs() };
        let (near, _) = self.dims.iter().enumerate().min_by_key(|(_, dim)| distance(dim))?;
        (distance(&self.dims[near]) < self.dims.last()?.stride.unsigned_abs()).then_some(near)
    }

    /// Copies with the dimensions `near` and last in tiles, so that each cache line is used up while it is there.
    ///
    /// # Safety
    /// As [`Self::gather`]; `N` is the run and `near` not the last dimension.
    unsafe fn gather_tiles<const N: usize>(&self, near: usize, from: *const u8, to: *mut u8) {
        let side = (128 / N).clamp(16, 64);
        let dense = self.dense_strides();
        let (last, rows) = (self.dims[self.dims.len() - 1], self.dims[near]);
        let is_outer = |index: &usize| *index != near && *index + 1 != self.dims.len();
        let outer: SmallVec<[usize; 6]> = (0..self.dims.len()).filter(is_outer).collect();
        let sources: SmallVec<[Dim; 6]> = outer.iter().map(|index| self.dims[*index]).collect();
        let targets = outer.iter().map(|index| Dim { size: self.dims[*index].size, stride: dense[*index] });
        let targets: SmallVec<[Dim; 6]> = targets.collect();
        for (offset, target) in Positions::new(&sources).zip(Positions::new(&targets)) {
            for row_tile in (0..rows.size).step_by(side) {
                for tile in (0..last.size).step_by(side) {
                    for row in row_tile..rows.size.min(row_tile + side) {
                        let indices = tile..last.size.min(tile + side);
                        // SAFETY: each index is below its dimension's size, so each source is within the reach and
                        // each target within `len`.
                        unsafe {
                            let source = from.offset(offset + row as isize * rows.stride);
                            let target = to.offset(target + row as isize * dense[near]);
                            copy_row::<N>(source, last.stride, target, indices);
                        }
                    }
                }
            }
        }
    }

    /// Bytes from one step to the next in the dense copy.
    fn dense_strides(&self) -> SmallVec<[isize; 6]> {
        let mut strides = SmallVec::from_elem(0, self.dims.len());
        let mut stride = self.run as isize;
        for (dim, dense) in self.dims.iter().zip(strides.iter_mut()).rev() {
            *dense = stride;
            stride *= dim.size as isize;
        }
        strides
    }
}

/// Copies `N` bytes for each index, `stride` apart in the source and dense in the target.
///
/// # Safety
/// All of them are readable and writable.
unsafe fn copy_row<const N: usize>(from: *const u8, stride: isize, to: *mut u8, indices: std::ops::Range<usize>) {
    for index in indices {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from.offset(index as isize * stride), to.add(index * N), N) };
    }
}

/// How far an array reaches below and above its start; `None` where that is more than memory.
fn reach(sizes: &[usize], strides: &[i64], element: usize) -> Option<(usize, usize)> {
    let (mut below, mut above) = (0i128, element as i128);
    for (size, stride) in sizes.iter().zip(strides) {
        let span = (*size as i128 - 1).checked_mul(i128::from(*stride))?;
        if span < 0 { below = below.checked_sub(span)? } else { above = above.checked_add(span)? }
    }
    let whole = below.checked_add(above)?;
    (whole <= isize::MAX as i128).then_some((below as usize, above as usize))
}

/// The same array in as few dimensions as possible, and the run.
fn simplify(sizes: &[usize], strides: &[i64], element: usize) -> (SmallVec<[Dim; 6]>, usize) {
    let mut dims: SmallVec<[Dim; 6]> = SmallVec::new();
    for (&size, &stride) in sizes.iter().zip(strides).filter(|(size, _)| **size != 1) {
        // `reach` has seen that it fits: a stride that is used is below the reach.
        let dim = Dim { size, stride: stride as isize };
        match dims.last_mut() {
            Some(outer) if outer.stride as i128 == dim.stride as i128 * dim.size as i128 => {
                *outer = Dim { size: outer.size * dim.size, stride: dim.stride };
            }
            _ => dims.push(dim),
        }
    }
    let mut run = element;
    if let Some(last) = dims.last().copied()
        && last.stride == element as isize
    {
        run *= last.size;
        dims.pop();
    }
    (dims, run)
}

/// Offsets of all positions of some dimensions, the last varying fastest; one where there is no dimension.
struct Positions<'a> {
    dims: &'a [Dim],
    index: SmallVec<[usize; 6]>,
    next: Option<isize>,
}

impl<'a> Positions<'a> {
    fn new(dims: &'a [Dim]) -> Self {
        Self { dims, index: SmallVec::from_elem(0, dims.len()), next: Some(0) }
    }
}

impl Iterator for Positions<'_> {
    type Item = isize;

    fn next(&mut self) -> Option<isize> {
        let current = self.next?;
        let mut offset = current;
        for (dim, index) in self.dims.iter().zip(self.index.iter_mut()).rev() {
            *index += 1;
            offset += dim.stride;
            if *index < dim.size {
                self.next = Some(offset);
                return Some(current);
            }
            offset -= dim.size as isize * dim.stride;
            *index = 0;
        }
        self.next = None;
        Some(current)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Element by element, from the definition.
    fn naive(memory: &[u8], start: usize, dims: &[i64], strides: &[i64], element: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let count: i64 = dims.iter().product();
        for number in 0..count {
            let (mut rest, mut at) = (number, start as i64);
            for (size, stride) in dims.iter().zip(strides).rev() {
                at += rest % size * stride;
                rest /= size;
            }
            out.extend_from_slice(&memory[at as usize..at as usize + element]);
        }
        out
    }

    fn check(dims: &[i64], strides: &[i64], element: usize) -> Strided {
        let strided = Strided::new(dims, Some(strides), element).unwrap();
        let (below, above) = strided.reach();
        let memory: Vec<u8> = (0..below + above).map(|byte| (byte * 37 % 251) as u8).collect();
        let mut got = vec![0xaa; strided.len() + 8];
        // SAFETY: `memory` is the reach, `got` has room.
        unsafe { strided.gather(memory.as_ptr().add(below), got.as_mut_ptr()) };
        assert_eq!(got[strided.len()..], [0xaa; 8]);
        assert_eq!(
            got[..strided.len()],
            naive(&memory, below, dims, strides, element),
            "{dims:?} {strides:?} {element}"
        );
        strided
    }

    fn element() -> impl Strategy<Value = usize> {
        prop_oneof![Just(1usize), Just(2), Just(4), Just(8), Just(16), 1usize..40]
    }

    proptest! {
        #[test]
        fn any_strides(
            dims in prop::collection::vec((0i64..6, -50i64..50), 0..5),
            element in element(),
        ) {
            let (dims, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            check(&dims, &strides, element);
        }

        /// Dense arrays, transposed, with some dimensions backwards, spread or broadcast.
        #[test]
        fn views_of_dense_arrays(
            dims in prop::collection::vec((1i64..20, 0u8..6), 1..4),
            order in any::<prop::sample::Index>(),
            element in element(),
        ) {
            let permutations: &[&[usize]] = match dims.len() {
                1 => &[&[0]],
                2 => &[&[0, 1], &[1, 0]],
                _ => &[&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
            };
            let order = permutations[order.index(permutations.len())];
            let mut strides = vec![0; dims.len()];
            let mut stride = element as i64;
            for &dim in order {
                strides[dim] = match dims[dim].1 { 0 => -stride, 1 => 2 * stride, 2 => 0, _ => stride };
                stride *= dims[dim].0 * if dims[dim].1 == 1 { 2 } else { 1 };
            }
            let dims: Vec<_> = dims.iter().map(|(size, _)| *size).collect();
            check(&dims, &strides, element);
        }
    }

    #[test]
    fn large_transposes() {
        for element in [1, 2, 4, 8, 12, 16] {
            let size = element as i64;
            check(&[130, 70], &[size, 130 * size], element);
            check(&[3, 70, 66], &[70 * 66 * size, size, 70 * size], element);
            check(&[70, 3, 66], &[3 * size, size, 210 * size], element);
        }
    }

    #[test]
    fn simple_shapes_become_simple() {
        assert!(check(&[2, 1, 3], &[12, 777, 4], 4).is_dense());
        assert!(check(&[], &[], 4).is_dense());
        assert!(check(&[0, 5], &[1, 1], 4).is_empty());
        assert_eq!(check(&[4, 2, 3], &[100, 12, 4], 4).run, 24);
        assert_eq!(Strided::new(&[2, 3], None, 4).unwrap().len(), 24);
        assert!(Strided::new(&[2, 3], None, 4).unwrap().is_dense());
    }

    #[test]
    fn impossible_shapes_are_refused_in_words() {
        for (dims, strides) in [
            (&[-1i64][..], Some(&[4i64][..])),
            (&[2, 2], Some(&[4])),
            (&[i64::MAX, 8], None),
            (&[i64::MAX, 8], Some(&[0, 0])),
            (&[2, 2], Some(&[i64::MAX, i64::MAX])),
        ] {
            let error = Strided::new(dims, strides, 4).unwrap_err();
            assert_eq!(error.code, crate::abi::Code::InvalidArgument, "{error}");
        }
    }
}
