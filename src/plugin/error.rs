//! `PJRT_Error`.

use std::ffi::{c_char, c_void};

use super::entry::{entries, guard, quietly};
use super::handle::Handle;
use crate::abi::{Code, Status, sys};

/// An error in a caller's hands. Begins with its table, as callers of 0.112 and newer expect.
#[repr(C)]
pub struct ErrorHandle {
    base: sys::PJRT_Error,
    status: Status,
}

impl Handle for ErrorHandle {
    type Raw = sys::PJRT_Error;
    const WHAT: &'static str = "error";
}

impl ErrorHandle {
    /// An error with this status.
    pub fn new(status: Status) -> Self {
        Self { base: sys::PJRT_Error { vtable: &TABLE.0 }, status }
    }
}

/// The status that a caller describes by a code and words.
pub fn from_parts(code: sys::PJRT_Error_Code, message: String) -> Status {
    Status::new(Code::from_raw(code), message)
}

struct Table(sys::PJRT_Error_FunctionTable);

// SAFETY: constant function pointers and null.
unsafe impl Sync for Table {}

static TABLE: Table = Table(sys::PJRT_Error_FunctionTable {
    struct_size: size_of::<sys::PJRT_Error_FunctionTable>(),
    instance_size: size_of::<ErrorHandle>(),
    extension_start: std::ptr::null_mut(),
    destroy: Some(destroy),
    message: Some(message),
    get_code: Some(get_code),
    for_each_payload: Some(for_each_payload),
});

unsafe extern "C" fn destroy(error: *mut sys::PJRT_Error) {
    // SAFETY: the caller gives up an error of ours, or null.
    quietly((), || drop(unsafe { ErrorHandle::take(error) }));
}

unsafe extern "C" fn message(error: *const sys::PJRT_Error, message: *mut *const c_char, size: *mut usize) {
    // SAFETY: a live error of ours.
    let text: &str = quietly("", || unsafe { ErrorHandle::borrow(error) }.map_or("", |error| &error.status.message));
    // SAFETY: both are the caller's to be written to.
    unsafe {
        message.write(text.as_ptr().cast());
        size.write(text.len());
    }
}

unsafe extern "C" fn get_code(error: *const sys::PJRT_Error) -> sys::PJRT_Error_Code {
    // SAFETY: a live error of ours.
    quietly(0, || unsafe { ErrorHandle::borrow(error) }.map_or(0, |error| error.status.code as u32))
}

unsafe extern "C" fn for_each_payload(
    error: *const sys::PJRT_Error,
    visitor: sys::PJRT_Error_PayloadVisitor,
    argument: *mut c_void,
) {
    quietly((), || {
        // SAFETY: a live error of ours.
        let (Ok(error), Some(visitor)) = (unsafe { ErrorHandle::borrow(error) }, visitor) else { return };
        for (key, value) in error.status.payloads.iter() {
            // SAFETY: the visitor takes two strings, for the time of the call, and its own argument.
            unsafe { visitor(key.as_ptr().cast(), key.len(), value.as_ptr().cast(), value.len(), argument) };
        }
    });
}

pub(super) unsafe extern "C" fn error_destroy(args: *mut sys::PJRT_Error_Destroy_Args) {
    // SAFETY: callers pass a struct of this type, with an error of ours or null.
    unsafe {
        if let Some(args) = args.as_ref() {
            destroy(args.error);
        }
    }
}

pub(super) unsafe extern "C" fn error_message(args: *mut sys::PJRT_Error_Message_Args) {
    // SAFETY: callers pass a struct of this type, with an error of ours or null.
    unsafe {
        if let Some(args) = args.as_mut() {
            message(args.error, &mut args.message, &mut args.message_size);
        }
    }
}

entries! {
    PJRT_Error_GetCode(args: PJRT_Error_GetCode_Args) {
        // SAFETY: a live error of ours, or null.
        args.code = unsafe { get_code(args.error) };
        Ok(())
    }

    PJRT_Error_ForEachPayload(args: PJRT_Error_ForEachPayload_Args) {
        // SAFETY: a live error of ours, or null, and the caller's visitor.
        unsafe { for_each_payload(args.error, args.visitor, args.user_arg) };
        Ok(())
    }
}

/// A status for a callback of the caller's; null for success.
pub fn optional(outcome: Result<(), Status>) -> *mut sys::PJRT_Error {
    guard("a callback", || outcome)
}
