//! An array in the framework's memory, or in a block, that is to be copied.

use std::marker::PhantomData;

use crate::abi::Status;
use crate::wire::copy::Strided;

/// An array somewhere in this process's memory, dense or with strides.
pub struct HostArray<'a> {
    start: *const u8,
    strided: Strided,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> HostArray<'a> {
    /// The array of `dims` whose first element, of `element` bytes, is at `start`; dense without `strides` (in bytes).
    ///
    /// # Errors
    /// Dimensions and strides that no array in memory can have; a null pointer to an array that has bytes.
    ///
    /// # Safety
    /// The array's elements are at `start` and stay unchanged for `'a`.
    pub unsafe fn new(start: *const u8, element: usize, dims: &[i64], strides: Option<&[i64]>) -> Result<Self, Status> {
        let strided = Strided::new(dims, strides, element)?;
        if start.is_null() && !strided.is_empty() {
            return Err(Status::invalid("a null pointer was given for an array"));
        }
        Ok(Self { start, strided, memory: PhantomData })
    }

    /// Writes the elements, dense, major-to-minor, to where there is room for exactly them.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.strided.len(), "an array is copied to memory of its own size");
        if !into.is_empty() {
            // SAFETY: the elements are there, says who made this; `into` is ours and has room for them.
            unsafe { self.strided.gather(self.start, into.as_mut_ptr()) };
        }
    }
}
