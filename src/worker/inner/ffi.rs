//! Custom calls: handlers of ours in programs of the plugin.

use std::ffi::c_void;

use super::Plugin;
use crate::abi::{Status, new_args, sys};

/// A handler in the form of XLA's typed FFI. It is also called to say which version of the interface it speaks.
pub type Handler = unsafe extern "C" fn(*mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error;

impl Plugin {
    /// Registers a handler for the custom calls of a name, for the life of the process and for all its clients. To be
    /// done once for each name, before a program that calls it is compiled or loaded.
    ///
    /// # Errors
    /// UNIMPLEMENTED where the plugin has no FFI extension, and the plugin's own.
    pub fn register_handler(&self, target: &str, platform: &str, handler: Handler) -> Result<(), Status> {
        let extension = self.api.extension::<sys::PJRT_FFI_Extension>();
        let Some(register) = extension.and_then(|extension| extension.register_handler) else {
            return Err(self.absent("PJRT_FFI_Register_Handler"));
        };
        let mut args = new_args::<sys::PJRT_FFI_Register_Handler_Args>();
        args.target_name = target.as_ptr().cast();
        args.target_name_size = target.len();
        args.platform_name = platform.as_ptr().cast();
        args.platform_name_size = platform.len();
        args.handler = handler as *mut c_void;
        // SAFETY: the extension pairs function and structure; the names are valid during the call and the handler is a
        // function of this library, which is never unloaded. The error is the plugin's, and nobody else has it.
        unsafe { self.api.check(register(&mut args)) }
    }
}
