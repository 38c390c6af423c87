//! What the library exports besides `GetPjrtApi`: for callers in the framework's process, such as the Python package.

use std::ffi::{CStr, CString, c_char};
use std::panic::catch_unwind;
use std::time::Duration;

use crate::runtime::status::process_status;
use crate::runtime::{fault, notice};

/// The state of this process's clients as JSON, in a string that the caller frees with [`mainstay_string_free`];
/// null where that cannot be had.
#[unsafe(no_mangle)]
pub extern "C" fn mainstay_status_json() -> *mut c_char {
    let json = catch_unwind(|| serde_json::to_string(&process_status()).ok().and_then(|json| CString::new(json).ok()));
    json.ok().flatten().map_or(std::ptr::null_mut(), CString::into_raw)
}

/// Waits until the slices of this process changed more than the first `seen` times, no longer than `timeout_ms`
/// milliseconds, a day at most; returns how often they have changed. Begin with 0 changes seen.
#[unsafe(no_mangle)]
pub extern "C" fn mainstay_wait_for_change(seen: u64, timeout_ms: u64) -> u64 {
    catch_unwind(|| notice::wait_for_change(seen, Duration::from_millis(timeout_ms))).unwrap_or(seen)
}

/// Does a fault to a slice, described as JSON (see `mainstay.fault`). Null where that went well, or what is wrong, in a
/// string that the caller frees with [`mainstay_string_free`].
///
/// # Safety
/// `description` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mainstay_fault(description: *const c_char) -> *mut c_char {
    // SAFETY: the caller's promise.
    let description = unsafe { CStr::from_ptr(description) }.to_bytes();
    let result = catch_unwind(|| {
        let fault = serde_json::from_slice(description).map_err(|error| error.to_string())?;
        fault::inject(fault)
    });
    match result.unwrap_or_else(|_| Err("a panic, which was reported where it happened".to_owned())) {
        Ok(()) => std::ptr::null_mut(),
        // Without its zeros a text is a C string for sure.
        Err(why) => CString::new(why.replace('\0', "")).map_or(std::ptr::null_mut(), CString::into_raw),
    }
}

/// Says that the program reached a step, for the faults that wait for one.
#[unsafe(no_mangle)]
pub extern "C" fn mainstay_reached_step(step: u64) {
    // A panic was reported where it happened.
    let _ = catch_unwind(|| fault::reached(step));
}

/// Frees a string that this library gave out; null is nothing.
///
/// # Safety
/// `string` is null or came from this library and is given up by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mainstay_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { CString::from_raw(string) });
    }
}
