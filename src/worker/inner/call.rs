//! How a function of the plugin is called, and how what it gives is read.

use std::ffi::c_char;

/// Calls a function of the plugin with an argument structure: `call!(plugin, Function, Function_Args { field: … })`,
/// or of an extension: `call!(plugin, layouts.Function, …)`. Gives the structure back, with what the plugin wrote
/// into it, or the error as a [`crate::abi::Status`].
///
/// The handles and pointers put into the fields must be valid during the call: the wrappers that use this macro own
/// or borrow what they pass.
macro_rules! call {
    ($plugin:expr, $function:ident, $args:ident { $($field:ident: $value:expr),* $(,)? }) => {
        call!($plugin, table.$function, $args { $($field: $value),* })
    };
    ($plugin:expr, $table:ident.$function:ident, $args:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let plugin: &$crate::worker::inner::Plugin = $plugin;
        match plugin.$table.$function {
            None => Err(plugin.absent(stringify!($function))),
            Some(function) => {
                // SAFETY: argument structures are made of integers, pointers and optional functions; zero is a value
                // of each.
                let mut args: $crate::abi::sys::$args = unsafe { std::mem::zeroed() };
                args.struct_size = size_of::<$crate::abi::sys::$args>();
                $(args.$field = $value;)*
                // SAFETY: the plugin gave this function for this structure, which says its size; the pointers in it
                // are valid as this macro demands.
                let error = unsafe { function(&mut args) };
                // SAFETY: the plugin has just made the error, and nobody else has it.
                unsafe { plugin.check(error) }.map(|()| args)
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
