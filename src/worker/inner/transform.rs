//! Compiling only as far as the dumps of the optimized modules: to plan a program, not to run it.
//!
//! The plugin's XlaTransform extension calls back with each module before it is scheduled and turned into code. A
//! callback that answers with an error ends that compilation, a tenth of the way through its time.

use std::cell::Cell;
use std::sync::{Mutex, OnceLock};

use super::Plugin;
use crate::abi::{Status, new_args, sys};
use crate::sync::lock;

/// The error that ends a compilation; recognised in what the plugin makes of it.
const STOP: &str = "mainstay has the plan that it wanted";
const NAME: &str = "mainstay-plan";

thread_local! {
    /// Whether this thread compiles to plan.
    static PLANNING: Cell<bool> = const { Cell::new(false) };
}

/// The extension registers for the whole process: one planner at a time.
static REGISTERED: Mutex<()> = Mutex::new(());

impl Plugin {
    /// Runs a compilation that ends before the program is turned into code, where the plugin can do that, and in full
    /// where it can't. Compilations of other threads are not affected. `Ok(None)` says that it has been stopped.
    ///
    /// # Errors
    /// The compilation's own.
    pub fn compile_to_plan<T>(&self, compile: impl FnOnce() -> Result<T, Status>) -> Result<Option<T>, Status> {
        let _one = lock(&REGISTERED);
        let extension = self.api.extension::<sys::PJRT_Xla_Transform_Extension>();
        let functions = extension.and_then(|it| Some((it.register_xla_transform?, it.clear_xla_transform?)));
        let Some((register, clear)) = functions else { return compile().map(Some) };
        let callbacks = callbacks();
        let mut args = new_args::<sys::PJRT_Register_Xla_Transform_Args>();
        args.name = NAME.as_ptr().cast();
        args.name_size = NAME.len();
        args.stage = sys::PJRT_XlaTransform_PipelineStage_kPreScheduler;
        args.callbacks = callbacks;
        // SAFETY: the extension pairs function and structure; the callbacks live for ever.
        // The error is the plugin's, and nobody else has it.
        if unsafe { self.api.check(register(&mut args)) }.is_err() {
            return compile().map(Some);
        }
        PLANNING.set(true);
        let compiled = compile();
        PLANNING.set(false);
        let mut args = new_args::<sys::PJRT_Clear_Xla_Transform_Args>();
        args.name = NAME.as_ptr().cast();
        args.name_size = NAME.len();
        args.stage = sys::PJRT_XlaTransform_PipelineStage_kPreScheduler;
        args.callbacks = callbacks;
        // SAFETY: as above.
        if let Err(status) = unsafe { self.api.check(clear(&mut args)) } {
            tracing::warn!(%status, "the plugin keeps the planner's callback; it does nothing to other compilations");
        }
        match compiled {
            Err(status) if status.message.contains(STOP) => Ok(None),
            other => other.map(Some),
        }
    }
}

/// The callbacks, which stay: a compilation may still be about to call them when they are cleared.
fn callbacks() -> *mut sys::PJRT_XlaTransform_Callbacks {
    static CALLBACKS: OnceLock<usize> = OnceLock::new();
    let address = CALLBACKS.get_or_init(|| {
        let callbacks =
            sys::PJRT_XlaTransform_Callbacks { version: 1, dtor: Some(forget), transform_hlo_module: Some(transform) };
        Box::into_raw(Box::new(callbacks)).expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*address)
}

/// Ends this thread's compilation if it is a plan's, and leaves others as they are.
unsafe extern "C" fn transform(_: *mut sys::PJRT_XlaTransform_Callbacks, args: *mut sys::PJRT_XlaTransform_Args) {
    // SAFETY: the plugin passes a structure of its own, which it reads after this call.
    let args = unsafe { &mut *args };
    args.changed = false;
    args.header.has_error = PLANNING.get();
    if PLANNING.get() {
        args.header.code = sys::PJRT_Error_Code_CANCELLED;
        args.header.error_msg = sys::PJRT_XlaTransform_string { data: STOP.as_ptr().cast(), size: STOP.len() };
    }
}

/// The plugin needs the callbacks no more: see [`callbacks`].
unsafe extern "C" fn forget(_: *mut sys::PJRT_XlaTransform_Callbacks) {}
