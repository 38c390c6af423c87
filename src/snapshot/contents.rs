//! What arrays a snapshot has and of which stored parts they are made. Snapshot after snapshot of a training has the same,
//! and shares it.

use std::ops::Range;
use std::sync::Arc;

use super::region::Region;
use crate::abi::{Status, element};
use crate::runtime::buffer::Buffer;
use crate::wire::message::Dims;

/// An array of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayInfo {
    /// `PJRT_Buffer_Type`.
    pub element_type: u32,
    /// Dimensions of the whole array.
    pub dims: Dims,
    /// Its shards are these of the snapshot's.
    pub shards: Range<usize>,
}

impl ArrayInfo {
    /// Bytes of an element in host memory.
    pub fn element_bytes(&self) -> Result<usize, Status> {
        element::host_bytes(self.element_type)
    }
}

/// A stored part of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Index of the array.
    pub array: usize,
    /// Which part of it.
    pub region: Region,
    /// Bytes, dense.
    pub bytes: u64,
}

/// The arrays of a snapshot, and the parts of them that are stored, array by array.
#[derive(Debug, Default)]
pub struct Contents {
    /// The arrays.
    pub arrays: Vec<ArrayInfo>,
    /// Their parts.
    pub shards: Vec<Shard>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// What this was made from, if it was: see [`Contents::of`].
    layout: Vec<i64>,
}

impl Contents {
    /// Arrays with their parts.
    pub fn new(arrays: Vec<ArrayInfo>, shards: Vec<Shard>) -> Self {
        let bytes = shards.iter().map(|shard| shard.bytes).sum();
        Self { arrays, shards, bytes, layout: Vec::new() }
    }

    /// The arrays that `layout` describes, made up of the buffers, which are taken in their order. For each array the list
    /// has its rank and dimensions, the number of its parts, and where each part begins.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where the parts make up no array, or layout and buffers don't fit each other.
    pub fn of(layout: &[i64], buffers: &[&Arc<Buffer>]) -> Result<Self, Status> {
        let (mut numbers, mut buffers) = (Numbers::new(layout), buffers.iter());
        let (mut arrays, mut shards) = (Vec::new(), Vec::new());
        while !numbers.is_empty() {
            let dims: Dims = numbers.list()?.into();
            let parts = numbers.count()?;
            arrays.push(array_of(dims, parts, &mut numbers, &mut buffers, &mut shards)?);
        }
        if !buffers.as_slice().is_empty() {
            return Err(Status::invalid(format!("{} buffers are in no array of the layout", buffers.len())));
        }
        Ok(Self { layout: layout.into(), ..Self::new(arrays, shards) })
    }

    /// Whether `layout` and the buffers are what this was made from, but for the buffers' values.
    pub fn is_of(&self, layout: &[i64], buffers: &[&Arc<Buffer>]) -> bool {
        let fits = |(shard, buffer): (&Shard, &&Arc<Buffer>)| {
            buffer.shape.dims == shard.region.size && buffer.shape.element_type == self.arrays[shard.array].element_type
        };
        self.shards.len() == buffers.len() && self.layout == layout && self.shards.iter().zip(buffers).all(fits)
    }
}

/// One array; its parts are added to `shards`.
fn array_of<'a, 'b: 'a>(
    dims: Dims,
    parts: usize,
    starts: &mut Numbers<'_>,
    buffers: &mut impl Iterator<Item = &'a &'b Arc<Buffer>>,
    shards: &mut Vec<Shard>,
) -> Result<ArrayInfo, Status> {
    let (array, first) = (shards.last().map_or(0, |shard| shard.array + 1), shards.len());
    let mut element_type = None;
    let mut covered = 0_u64;
    for _ in 0..parts {
        let start = starts.take(dims.len())?;
        let buffer =
            buffers.next().ok_or_else(|| Status::invalid("the layout has more parts than there are buffers"))?;
        let region = Region::within(&dims, start, &buffer.shape.dims)?;
        if *element_type.get_or_insert(buffer.shape.element_type) != buffer.shape.element_type {
            return Err(Status::invalid(format!("the parts of array {array} have different element types")));
        }
        covered = covered.saturating_add(region.count());
        shards.push(Shard { array, region, bytes: buffer.shape.host_bytes()? });
    }
    let element_type =
        element_type.ok_or_else(|| Status::invalid(format!("array {array} has no buffers to take a snapshot of")))?;
    let whole = element::count(&dims)?;
    if covered != whole {
        return Err(Status::invalid(format!(
            "the parts of array {array} have {covered} elements; an array of {dims:?} has {whole}"
        )));
    }
    Ok(ArrayInfo { element_type, dims, shards: first..shards.len() })
}

/// Takes numbers from a caller's list.
pub struct Numbers<'a>(&'a [i64]);

impl<'a> Numbers<'a> {
    /// All of a list.
    pub fn new(list: &'a [i64]) -> Self {
        Self(list)
    }

    /// Whether all are taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many numbers.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where there are fewer.
    pub fn take(&mut self, count: usize) -> Result<&'a [i64], Status> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| Status::invalid(format!("a list of numbers ends where {count} more are needed")))?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number that counts something.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where there is none, or a negative one.
    pub fn count(&mut self) -> Result<usize, Status> {
        let number = self.take(1)?[0];
        usize::try_from(number).map_err(|_| Status::invalid(format!("{number} was given where a count is needed")))
    }

    /// A count and so many numbers.
    ///
    /// # Errors
    /// As above.
    pub fn list(&mut self) -> Result<&'a [i64], Status> {
        let count = self.count()?;
        self.take(count)
    }
}
