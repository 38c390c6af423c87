//! What the library exports besides `GetPjrtApi`: for callers in the framework's process, such as the Python package.

use std::ffi::{CString, c_char};
use std::panic::catch_unwind;

use crate::runtime::status::process_status;

/// The state of this process's clients as JSON, in a string that the caller frees with [`mainstay_string_free`];
/// null where that cannot be had.
#[unsafe(no_mangle)]
pub extern "C" fn mainstay_status_json() -> *mut c_char {
    let json = catch_unwind(|| serde_json::to_string(&process_status()).ok().and_then(|json| CString::new(json).ok()));
    json.ok().flatten().map_or(std::ptr::null_mut(), CString::into_raw)
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
