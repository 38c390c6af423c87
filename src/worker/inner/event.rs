//! Events: something that the plugin will have done.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::Plugin;
use super::call::{call, destroy};
use crate::abi::{Status, sys};

/// An event of the plugin, destroyed when dropped.
pub struct Event {
    plugin: &'static Plugin,
    /// Absent where the plugin had nothing to wait for.
    raw: Option<NonNull<sys::PJRT_Event>>,
}

// SAFETY: the interface lets any thread use an event.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Takes over an event that the plugin gave; null is an event that has happened.
    pub(super) fn new(plugin: &'static Plugin, raw: *mut sys::PJRT_Event) -> Self {
        Self { plugin, raw: NonNull::new(raw) }
    }

    /// Has `then` called once the event has happened, with its error if it failed: on this thread if that is so by
    /// now, else on a thread of the plugin, which must not be kept waiting.
    pub fn on_ready(mut self, then: impl FnOnce(Result<(), Status>) + Send + 'static) {
        let Some(raw) = self.raw.take() else { return then(Ok(())) };
        let armed = Box::into_raw(Box::new(Armed { event: Self { plugin: self.plugin, raw: Some(raw) }, then }));
        let registered = call!(
            self.plugin,
            PJRT_Event_OnReady_Args {
                event: raw.as_ptr(),
                callback: Some(on_ready_callback(armed)),
                user_arg: armed.cast(),
            }
        );
        if let Err(status) = registered {
            // SAFETY: the plugin refused the callback and so will not call it: the box is still ours alone.
            let armed = unsafe { Box::from_raw(armed) };
            (armed.then)(Err(status));
        }
    }

    /// Waits for the event: for as long as the plugin takes.
    ///
    /// # Errors
    /// The event's own error.
    pub fn wait(&self) -> Result<(), Status> {
        let Some(raw) = self.raw else { return Ok(()) };
        call!(self.plugin, PJRT_Event_Await_Args { event: raw.as_ptr() }).map(|_| ())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(raw) = self.raw {
            destroy!(self.plugin, PJRT_Event_Destroy_Args { event: raw.as_ptr() });
        }
    }
}

/// What a callback carries: the event, kept until it has happened, and what is to be done then.
struct Armed<F> {
    event: Event,
    then: F,
}

/// The C function that runs what `_armed` carries; the argument only names the type.
fn on_ready_callback<F: FnOnce(Result<(), Status>)>(
    _armed: *mut Armed<F>,
) -> unsafe extern "C" fn(*mut sys::PJRT_Error, *mut c_void) {
    unsafe extern "C" fn fire<F: FnOnce(Result<(), Status>)>(error: *mut sys::PJRT_Error, armed: *mut c_void) {
        // SAFETY: the plugin calls back once, with the pointer it was given: a box of this type.
        let armed = unsafe { Box::from_raw(armed.cast::<Armed<F>>()) };
        // SAFETY: the plugin hands the error over.
        let result = unsafe { armed.event.plugin.api.check(error) };
        drop(armed.event);
        (armed.then)(result);
    }
    fire::<F>
}
