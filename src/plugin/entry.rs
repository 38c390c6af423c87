//! The boundary of every entry point: reads the caller's struct, keeps panics in, hands errors out.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::error::ErrorHandle;
use super::handle::Handle;
use crate::abi::{Code, Status, StructSize, sys, with_args};

/// Runs an entry point on a copy of the caller's struct, which is written back if it succeeds.
///
/// # Safety
/// As [`with_args`].
pub unsafe fn enter<A: StructSize>(
    given: *mut A,
    body: impl FnOnce(&mut A) -> Result<(), Status>,
) -> *mut sys::PJRT_Error {
    // SAFETY: as promised to this function.
    guard(A::NAME, || unsafe { with_args(given, body) })
}

/// Runs a body whose panic must not leave the library.
pub fn guard(name: &str, body: impl FnOnce() -> Result<(), Status>) -> *mut sys::PJRT_Error {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Status::new(Code::Unknown, format!("a bug in Mainstay: {name} panicked: {}", words.unwrap_or("no words"))))
    });
    match outcome {
        Ok(()) => std::ptr::null_mut(),
        Err(status) => Handle::into_raw(ErrorHandle::new(status)),
    }
}

/// Runs a callback's or deleter's body; its panic, a bug that is reported on stderr, must not leave the library.
pub fn quietly<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Defines entry points: `name(args) { body }`, where the body is a `Result<(), Status>` and sees the caller's struct.
macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident($args:ident: $type:ident) $body:block)*) => {$(
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the name is the interface's own")]
        pub(super) unsafe extern "C" fn $name(given: *mut $crate::abi::sys::$type) -> *mut $crate::abi::sys::PJRT_Error {
            let body = |$args: &mut $crate::abi::sys::$type| -> Result<(), $crate::abi::Status> { $body };
            // SAFETY: the interface makes callers pass a struct of this type, for the time of the call.
            unsafe { $crate::plugin::entry::enter(given, body) }
        }
    )*};
}
pub(super) use entries;

/// Defines entry points that Mainstay does not serve, each with the reason.
macro_rules! refusals {
    ($($name:ident($type:ident) $why:literal)*) => {$(
        #[doc = concat!("Not served: ", $why)]
        #[allow(non_snake_case, reason = "the name is the interface's own")]
        pub(super) unsafe extern "C" fn $name(_: *mut $crate::abi::sys::$type) -> *mut $crate::abi::sys::PJRT_Error {
            $crate::plugin::entry::guard(stringify!($name), || {
                Err($crate::abi::Status::unimplemented(concat!(stringify!($name), " is not served by Mainstay: ", $why)))
            })
        }
    )*};
}
pub(super) use refusals;

/// The bytes that a pointer and a size name; none for a null pointer.
///
/// # Safety
/// The interface's promise: `size` bytes at `data`, unchanged during the call.
pub unsafe fn bytes<'a>(data: *const std::ffi::c_char, size: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { list(data.cast::<u8>(), size) }
}

/// The text that a pointer and a size name; what is no UTF-8 is replaced.
///
/// # Safety
/// As [`bytes`].
pub unsafe fn text(data: *const std::ffi::c_char, size: usize) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { bytes(data, size) }).into_owned()
}

/// The elements that a pointer and a count name; none for a null pointer.
///
/// # Safety
/// The interface's promise: `count` elements at `data`, unchanged during the call.
pub unsafe fn list<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if data.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, count) }
}
