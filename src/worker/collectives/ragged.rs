//! Ragged all-to-all, out of everybody's operands.

use std::ptr::NonNull;

use crate::abi::{Status, sys};
use crate::program::spanning::types;

use super::plan::{Array, Plan};

/// Places of the operands.
const INPUT: usize = 0;
const OUTPUT: usize = 1;
const INPUT_OFFSETS: usize = 2;
const SEND_SIZES: usize = 3;
const OUTPUT_OFFSETS: usize = 4;

/// Puts together the results of the local ranks: each one's own `output` operand, with the rows over it that every rank
/// sends it.
///
/// `sources` are the starts of every rank's operands, `results` the local ranks and where their results begin; all have
/// the plan's sizes. An offset array may have several entries for each rank, the updates of one pair one after the other.
pub fn assemble(
    plan: &Plan,
    row: u64,
    sources: &[Vec<Option<NonNull<u8>>>],
    results: &[(usize, Option<NonNull<u8>>)],
) -> Result<(), Status> {
    let count = plan.ranks.len();
    let source = |rank: usize, operand: usize| {
        sources[rank][operand].ok_or_else(|| Status::failed_precondition("a rank's operand is missing"))
    };
    let row_bytes = row as usize * types::bits(plan.operands[INPUT].element as i32) as usize / 8;
    for &(rank, result) in results {
        let Some(result) = result else { continue };
        let bytes = plan.results[0].bytes;
        // SAFETY: a result has the size of the `output` operand, as the plan has checked, and they don't overlap.
        unsafe { result.copy_from_nonoverlapping(source(rank, OUTPUT)?, bytes) };
        for from in 0..count {
            let read = |operand: usize| indices(plan.operands[operand], source(from, operand)?);
            let (starts, sizes, places) = (read(INPUT_OFFSETS)?, read(SEND_SIZES)?, read(OUTPUT_OFFSETS)?);
            let updates = starts.len().min(sizes.len()).min(places.len()) / count;
            for update in rank * updates..(rank + 1) * updates {
                let range = |row: i64, limit: usize| {
                    let start = usize::try_from(row).ok()?.checked_mul(row_bytes)?;
                    let len = usize::try_from(sizes[update]).ok()?.checked_mul(row_bytes)?;
                    (start.checked_add(len)? <= limit).then_some((start, len))
                };
                let from_range = range(starts[update], plan.operands[INPUT].bytes);
                let to_range = range(places[update], bytes);
                let (Some((start, len)), Some((place, _))) = (from_range, to_range) else {
                    return Err(Status::invalid(format!(
                        "ragged all-to-all: {} rows from row {} of rank {from} don't fit at row {} of rank {rank}",
                        sizes[update], starts[update], places[update]
                    )));
                };
                // SAFETY: both ranges have been checked against the sizes; inputs and results don't overlap.
                unsafe { result.add(place).copy_from_nonoverlapping(source(from, INPUT)?.add(start), len) };
            }
        }
    }
    Ok(())
}

/// An operand of whole numbers.
fn indices(array: Array, start: NonNull<u8>) -> Result<Vec<i64>, Status> {
    // SAFETY: the operand has the array's size, and XLA and the gathered streams align elements.
    unsafe {
        match array.element {
            sys::XLA_FFI_DataType_S32 => Ok(numbers::<i32>(start, array.bytes)),
            sys::XLA_FFI_DataType_S64 => Ok(numbers::<i64>(start, array.bytes)),
            sys::XLA_FFI_DataType_U32 => Ok(numbers::<u32>(start, array.bytes)),
            sys::XLA_FFI_DataType_U64 => Ok(numbers::<u64>(start, array.bytes)),
            other => Err(Status::unimplemented(format!("offsets of XLA's type {other} in a ragged all-to-all"))),
        }
    }
}

/// # Safety
/// `start` is aligned for `T` and good for reading `bytes` bytes.
unsafe fn numbers<T: Copy + TryInto<i64>>(start: NonNull<u8>, bytes: usize) -> Vec<i64> {
    // SAFETY: as promised; `T` is one of the integers.
    let numbers = unsafe { std::slice::from_raw_parts(start.as_ptr().cast::<T>(), bytes / size_of::<T>()) };
    // What is too large for a place is one that no array has.
    numbers.iter().map(|&number| number.try_into().unwrap_or(i64::MAX)).collect()
}
