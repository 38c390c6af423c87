//! `struct_size` discipline: how much of a struct the other side knows, in both directions.
//!
//! A caller may be older than Mainstay (its structs end earlier) or newer (they go on). Neither is read or written past
//! its own size: an entry point works on a copy, in which fields that the caller does not know are zero, and the copy is
//! written back as far as the caller's struct goes.

use std::mem::MaybeUninit;

use super::{Status, sys};

/// A struct of the interface that begins with its own size in bytes.
///
/// # Safety
/// The struct is `repr(C)`, its first field is a `usize` that holds its size, and all zeros are a value of it.
pub unsafe trait StructSize: Copy {
    /// The struct's name in the interface.
    const NAME: &'static str;
    /// What its size field says where it is made with our header: where the last field ends.
    const STRUCT_SIZE: usize;
    /// What its size field said when the struct was new (or at 0.57, the oldest version served): a smaller one is no
    /// struct of this kind.
    const FIRST_SIZE: usize;
}

macro_rules! sized {
    ($name:ident, $size:ident, $first:ident) => {
        // SAFETY: the build script lists structs whose first field is `struct_size`, or a base that begins with it;
        // bindgen makes them `repr(C)`, of integers, pointers, flags and optional functions.
        unsafe impl StructSize for sys::$name {
            const NAME: &'static str = stringify!($name);
            const STRUCT_SIZE: usize = sys::$size as usize;
            const FIRST_SIZE: usize = sys::$first as usize;
        }

        const _: () = {
            assert!(sys::$first >= size_of::<usize>() as u32 && sys::$first <= sys::$size);
            assert!(sys::$size as usize <= size_of::<sys::$name>());
            assert!(align_of::<sys::$name>() == align_of::<usize>());
        };
    };
}
include!(concat!(env!("OUT_DIR"), "/abi_structs.rs"));

/// A struct to send: its size is set, everything else is zero.
pub fn new_args<T: StructSize>() -> T {
    let mut args = MaybeUninit::<T>::zeroed();
    // SAFETY: `StructSize` promises that the struct begins with a size, and that zeros are a value of it.
    unsafe {
        args.as_mut_ptr().cast::<usize>().write(T::STRUCT_SIZE);
        args.assume_init()
    }
}

/// Runs `body` on a copy of the caller's struct; if it succeeds, writes back what the caller's version has room for.
///
/// # Errors
/// INVALID_ARGUMENT for a null pointer or a size below [`StructSize::FIRST_SIZE`]; what `body` returns.
///
/// # Safety
/// `caller` is null or points to a struct of this kind, as long as its size field says, that nobody else uses meanwhile.
pub unsafe fn with_args<T: StructSize, R>(
    caller: *mut T,
    body: impl FnOnce(&mut T) -> Result<R, Status>,
) -> Result<R, Status> {
    // SAFETY: as promised to this function.
    let (mut args, size) = unsafe { copy_in(caller)? };
    // SAFETY: zeroed, then filled from the caller. A flag that is an output may hold anything until it is written: it is
    // not read before.
    let result = body(unsafe { args.assume_init_mut() })?;
    // SAFETY: `size` fits the caller's struct and ours.
    unsafe { args.as_ptr().cast::<u8>().copy_to_nonoverlapping(caller.cast(), size) };
    Ok(result)
}

/// Runs `body` on a copy of a struct that only carries values in, such as one that an argument points to.
///
/// # Errors
/// As [`with_args`].
///
/// # Safety
/// As [`with_args`], but others may read the struct meanwhile.
pub unsafe fn with_struct<T: StructSize, R>(
    given: *const T,
    body: impl FnOnce(&T) -> Result<R, Status>,
) -> Result<R, Status> {
    // SAFETY: as promised to this function.
    let (args, _) = unsafe { copy_in(given)? };
    // SAFETY: see `with_args`.
    body(unsafe { args.assume_init_ref() })
}

/// A copy whose fields are zero where the other side does not know them, and how many bytes of it are theirs.
///
/// # Safety
/// As [`with_struct`].
unsafe fn copy_in<T: StructSize>(given: *const T) -> Result<(MaybeUninit<T>, usize), Status> {
    if given.is_null() {
        return Err(Status::invalid(format!("a null pointer was given for {}", T::NAME)));
    }
    // SAFETY: every struct of the interface begins with its size.
    let size = unsafe { given.cast::<usize>().read() };
    if size < T::FIRST_SIZE {
        return Err(Status::invalid(format!(
            "{} has struct_size {size}, but needs at least {} bytes: the caller was built for another interface, or left \
             struct_size unset",
            T::NAME,
            T::FIRST_SIZE
        )));
    }
    let size = size.min(T::STRUCT_SIZE);
    let mut args = MaybeUninit::<T>::zeroed();
    // SAFETY: the other side's struct has `size` bytes, by its own word; ours has at least `STRUCT_SIZE`.
    unsafe { given.cast::<u8>().copy_to_nonoverlapping(args.as_mut_ptr().cast(), size) };
    Ok((args, size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Code;

    #[test]
    fn a_new_struct_is_zero_but_for_its_size() {
        let args = new_args::<sys::PJRT_Client_Create_Args>();
        assert_eq!(args.struct_size, sys::PJRT_Client_Create_Args_STRUCT_SIZE as usize);
        assert!(args.create_options.is_null() && args.client.is_null());
        assert!(args.kv_get_callback.is_none());
    }

    /// Calls with a struct of `size` bytes, in memory that holds the byte 0xAA beyond it.
    fn call_with_size(size: usize) -> (Result<(), Status>, Vec<u8>, bool) {
        type Args = sys::PJRT_Executable_DeserializeAndLoad_Args;
        let mut memory = vec![0xAAAA_AAAA_AAAA_AAAA_u64; 16];
        memory[..size / 8].fill(0);
        memory[0] = size as u64;
        let mut unknown_was_zero = false;
        // SAFETY: the memory is aligned and longer than any size that the tests use.
        let result = unsafe {
            with_args(memory.as_mut_ptr().cast::<Args>(), |args| {
                unknown_was_zero = args.load_options.is_null();
                args.loaded_executable = std::ptr::dangling_mut();
                args.overridden_serialized_compile_options_size = 7;
                args.load_options = std::ptr::dangling_mut();
                Ok(())
            })
        };
        (result, bytemuck::cast_slice(&memory).to_vec(), unknown_was_zero)
    }

    #[test]
    fn an_older_caller_is_neither_read_nor_written_past_its_end() {
        let (result, memory, unknown_was_zero) = call_with_size(48);
        result.unwrap();
        assert!(unknown_was_zero);
        assert_ne!(memory[40..48], [0; 8], "the output that the caller knows is written");
        assert!(memory[48..].iter().all(|byte| *byte == 0xAA));
    }

    #[test]
    fn a_newer_caller_keeps_what_we_do_not_know() {
        let (result, memory, _) = call_with_size(96);
        result.unwrap();
        assert_eq!(memory[0], 96);
        assert_eq!(memory[56], 7);
        assert_eq!(memory[72..96], [0; 24]);
        assert!(memory[96..].iter().all(|byte| *byte == 0xAA));
    }

    #[test]
    fn too_small_a_struct_is_refused_by_name() {
        let (result, _, _) = call_with_size(40);
        let status = result.unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument);
        assert!(status.message.contains("PJRT_Executable_DeserializeAndLoad_Args"), "{status}");
        assert!(status.message.contains("40") && status.message.contains("48"), "{status}");
    }

    #[test]
    fn a_failed_call_leaves_the_struct_alone() {
        let mut args = new_args::<sys::PJRT_Buffer_IsDeleted_Args>();
        // SAFETY: the struct is ours.
        let result = unsafe {
            with_args(&raw mut args, |args| {
                args.is_deleted = true;
                Err::<(), _>(Status::invalid("no"))
            })
        };
        assert!(result.is_err() && !args.is_deleted);
    }

    #[test]
    fn a_null_pointer_is_refused() {
        // SAFETY: null is allowed.
        let result = unsafe { with_struct(std::ptr::null::<sys::PJRT_Program>(), |_| Ok(())) };
        assert!(result.unwrap_err().message.contains("PJRT_Program"));
    }
}
