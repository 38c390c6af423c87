//! How a function of the plugin is called, and how what it gives is read.

use std::ffi::c_char;

/// Calls the function of the plugin that takes an argument structure: `call!(plugin, Function_Args { field: … })`, or
/// one of an extension: `call!(plugin, layouts.Function, Function_Args { … })`. Gives the structure back, with what the
/// plugin wrote into it, or the error as a [`crate::abi::Status`].
///
/// The handles and pointers put into the fields must be valid during the call: the wrappers that use this macro own
/// or borrow what they pass.
macro_rules! call {
    ($plugin:expr, $args:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let plugin: &$crate::worker::inner::Plugin = $plugin;
        #[allow(unused_mut, reason = "a structure without fields of its own")]
        let mut args = $crate::abi::new_args::<$crate::abi::sys::$args>();
        $(args.$field = $value;)*
        // SAFETY: the pointers in the structure are valid, as this macro demands.
        unsafe { plugin.api.call(&mut args) }.map(|()| args)
    }};
    ($plugin:expr, $extension:ident.$function:ident, $args:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let plugin: &$crate::worker::inner::Plugin = $plugin;
        match plugin.$extension.$function {
            None => Err(plugin.absent(stringify!($function))),
            Some(function) => {
                let mut args = $crate::abi::new_args::<$crate::abi::sys::$args>();
                $(args.$field = $value;)*
                // SAFETY: the extension pairs function and structure; the pointers in it are valid, as this macro
                // demands. The error is the plugin's, and nobody else has it.
                unsafe { plugin.api.check(function(&mut args)) }.map(|()| args)
            }
        }
    }};
}
pub(super) use call;

/// Calls a function that destroys a handle. There is nobody to tell of a failure but the log.
macro_rules! destroy {
    ($plugin:expr, $($call:tt)*) => {
        if let Err(status) = call!($plugin, $($call)*) {
            tracing::warn!(%status, "the plugin could not destroy a handle");
        }
    };
}
pub(super) use destroy;

/// Text that a plugin wrote: pointer and size. Bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `data` must point to `size` readable bytes, or `size` must be 0.
pub(super) unsafe fn text(data: *const c_char, size: usize) -> String {
    // SAFETY: as the caller promises.
    String::from_utf8_lossy(unsafe { list(data.cast::<u8>(), size) }).into_owned()
}

/// Bytes that a plugin wrote: pointer and size, copied.
///
/// # Safety
/// As for [`text`].
pub(super) unsafe fn bytes(data: *const c_char, size: usize) -> Vec<u8> {
    // SAFETY: as the caller promises.
    unsafe { list(data.cast::<u8>(), size) }.to_vec()
}

/// An array that a plugin wrote: pointer and number of elements. A null pointer is an empty array.
///
/// # Safety
/// `data` must be null or point to `len` elements that stay as they are for `'a`.
pub(super) unsafe fn list<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(data, len) }
}
