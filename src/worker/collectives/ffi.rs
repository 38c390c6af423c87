//! The handlers of the custom calls in spanning programs: from XLA's call frames to the exchange, and from its
//! completions to XLA's futures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use crate::abi::{Code, Status, new_args, sys};
use crate::program::spanning::spec::{
    COLLECTIVE_TARGET, COORDINATE_TARGET, Coordinate, KEY_ATTRIBUTE, PLATFORM, SPEC_ATTRIBUTE,
};
use crate::program::spanning::types;
use crate::worker::inner::Plugin;

use super::exchange::{Buffer, Call, Exchange};
use super::plan::Array;

/// What an empty array, which may have no address, is taken to lead to: aligned as XLA's arrays are.
#[repr(align(64))]
struct Empty;

/// The exchange that this process's programs meet in: handlers are functions without an owner.
static EXCHANGE: RwLock<Option<Arc<Exchange>>> = RwLock::new(None);

/// Registers the handlers with a plugin. To be called once in each process that compiles or runs spanning programs,
/// before it does.
pub fn register(plugin: &Plugin) -> Result<(), Status> {
    plugin.register_handler(COLLECTIVE_TARGET, PLATFORM, collective)?;
    plugin.register_handler(COORDINATE_TARGET, PLATFORM, coordinate)
}

/// Makes this the exchange of the process, or none.
pub fn install(exchange: Option<Arc<Exchange>>) {
    *EXCHANGE.write().unwrap_or_else(PoisonError::into_inner) = exchange;
}

fn installed() -> Result<Arc<Exchange>, Status> {
    let exchange = EXCHANGE.read().unwrap_or_else(PoisonError::into_inner).clone();
    exchange.ok_or_else(|| Status::failed_precondition("a program that spans slices was run outside a worker"))
}

/// Handler of [`COLLECTIVE_TARGET`].
unsafe extern "C" fn collective(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    // SAFETY: XLA passes a frame that lives as long as the call.
    unsafe { handle(frame, come) }
}

/// Handler of [`COORDINATE_TARGET`].
unsafe extern "C" fn coordinate(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    // SAFETY: as above.
    unsafe { handle(frame, tell) }
}

/// Answers questions about the handler, and calls with `body`.
///
/// # Safety
/// `frame` is a call frame of XLA's that lives as long as the call.
unsafe fn handle(
    frame: *mut sys::XLA_FFI_CallFrame,
    body: impl FnOnce(&mut Frame) -> Result<(), Status>,
) -> *mut sys::XLA_FFI_Error {
    // SAFETY: as promised.
    let Some(mut frame) = (unsafe { Frame::new(frame) }) else { return std::ptr::null_mut() };
    if frame.answer_metadata() || frame.raw().stage != sys::XLA_FFI_ExecutionStage_EXECUTE {
        return std::ptr::null_mut();
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&mut frame)));
    let outcome = outcome.unwrap_or_else(|_| Err(Status::failed_precondition("a collective's handler panicked")));
    match outcome {
        Ok(()) => std::ptr::null_mut(),
        Err(status) => frame.api.error(&status),
    }
}

/// A device comes to a collective.
fn come(frame: &mut Frame) -> Result<(), Status> {
    let exchange = installed()?;
    let key = frame.key()?;
    let operands = frame.operands()?;
    let results = frame.results()?;
    let (run, ordinal) = (frame.run()?, frame.ordinal()?);
    let future = frame.api.future()?;
    frame.raw_mut().future = future.raw;
    let call = Call { run, ordinal, key, spec: frame.text(SPEC_ATTRIBUTE)?, operands: &operands, results: &results };
    exchange.arrive(&call, Box::new(move |result| future.complete(result)));
    Ok(())
}

/// A device asks where it is.
fn tell(frame: &mut Frame) -> Result<(), Status> {
    let name = frame.text(SPEC_ATTRIBUTE)?;
    let coordinate = Coordinate::from_name(name).ok_or_else(|| {
        Status::invalid(format!("a program asks for the coordinate {name:?}, which devices don't have"))
    })?;
    let value = installed()?.coordinate(frame.run()?, frame.ordinal()?, coordinate)?;
    let results = frame.results()?;
    let Some(result) = results.first().filter(|result| result.array.bytes == size_of::<u32>()) else {
        return Err(Status::invalid("a program asks for a coordinate that is not a number of 32 bits"));
    };
    // SAFETY: XLA's result has as many bytes as checked, and is aligned for its type.
    unsafe { result.start.cast::<u32>().write(value) };
    Ok(())
}

/// XLA's functions.
#[derive(Clone, Copy)]
struct Api(NonNull<sys::XLA_FFI_Api>);

// SAFETY: the table is constant and lives as long as the process; any thread may call its functions.
unsafe impl Send for Api {}

/// A promise to XLA.
struct Future {
    api: Api,
    raw: *mut sys::XLA_FFI_Future,
}

// SAFETY: any thread may fulfil a future.
unsafe impl Send for Future {}

macro_rules! ffi {
    ($api:expr, $function:ident, $args:ident { $($field:ident: $value:expr),* }) => {{
        let mut args = new_args::<sys::$args>();
        $(args.$field = $value;)*
        match $api.function(std::mem::offset_of!(sys::XLA_FFI_Api, $function), |api| api.$function) {
            None => Err(Status::unimplemented(concat!("the inner plugin's FFI has no ", stringify!($function)))),
            // SAFETY: function and structure belong together, and what the structure points to is valid.
            Some(function) => match unsafe { function(&mut args) } {
                error if error.is_null() => Ok(args),
                error => Err($api.take(error)),
            },
        }
    }};
}

impl Api {
    /// A function of the table, if the table is long enough for it.
    fn function<F>(self, offset: usize, read: impl FnOnce(&sys::XLA_FFI_Api) -> Option<F>) -> Option<F> {
        // SAFETY: every table begins with its size, and what lies within that size is there.
        let size = unsafe { (*self.0.as_ptr()).struct_size };
        if size < offset + size_of::<usize>() {
            return None;
        }
        // SAFETY: the field is within the table; the others are not looked at.
        read(unsafe { self.0.as_ref() })
    }

    fn error(self, status: &Status) -> *mut sys::XLA_FFI_Error {
        let Some(create) = self.function(0, |api| api.XLA_FFI_Error_Create) else { return std::ptr::null_mut() };
        let message = format!("{}\0", status.message.replace('\0', " "));
        let mut args = new_args::<sys::XLA_FFI_Error_Create_Args>();
        args.message = message.as_ptr().cast();
        args.errc = status.code as u32;
        // SAFETY: the message ends with a zero and is copied by the function.
        unsafe { create(&mut args) }
    }

    /// The status of an error, which is destroyed.
    fn take(self, error: *mut sys::XLA_FFI_Error) -> Status {
        if let Some(destroy) = self.function(0, |api| api.XLA_FFI_Error_Destroy) {
            let mut args = new_args::<sys::XLA_FFI_Error_Destroy_Args>();
            args.error = error;
            // SAFETY: the error is this caller's alone and not used any more.
            unsafe { destroy(&mut args) };
        }
        Status::new(Code::Unknown, "the inner plugin refused a call of its FFI")
    }

    fn future(self) -> Result<Future, Status> {
        let args = ffi!(self, XLA_FFI_Future_Create, XLA_FFI_Future_Create_Args {})?;
        Ok(Future { api: self, raw: args.future })
    }
}

impl Future {
    /// Fulfils the promise: XLA goes on with the program, on this thread or on its own.
    fn complete(self, result: Result<(), Status>) {
        let told = match result {
            Ok(()) => {
                ffi!(self.api, XLA_FFI_Future_SetAvailable, XLA_FFI_Future_SetAvailable_Args { future: self.raw })
                    .map(|_| ())
            }
            Err(status) => {
                let error = self.api.error(&status);
                ffi!(self.api, XLA_FFI_Future_SetError, XLA_FFI_Future_SetError_Args { future: self.raw, error: error })
                    .map(|_| ())
            }
        };
        if let Err(status) = told {
            tracing::error!(%status, "a collective's outcome could not be told to the plugin");
        }
    }
}

/// A call frame.
struct Frame {
    raw: NonNull<sys::XLA_FFI_CallFrame>,
    api: Api,
}

impl Frame {
    /// # Safety
    /// `raw` is null or a call frame that lives as long as the result, and that nobody else uses.
    unsafe fn new(raw: *mut sys::XLA_FFI_CallFrame) -> Option<Self> {
        let raw = NonNull::new(raw)?;
        // SAFETY: as promised.
        let api = NonNull::new(unsafe { raw.as_ref() }.api.cast_mut())?;
        Some(Self { raw, api: Api(api) })
    }

    fn raw(&self) -> &sys::XLA_FFI_CallFrame {
        // SAFETY: the frame lives as long as `self`, as [`Frame::new`] has been promised.
        unsafe { self.raw.as_ref() }
    }

    fn raw_mut(&mut self) -> &mut sys::XLA_FFI_CallFrame {
        // SAFETY: as above, and nobody else uses it.
        unsafe { self.raw.as_mut() }
    }

    /// Whether this is the question what the handler is, which is answered: it speaks the plugin's own version, since
    /// all that it uses was there from the beginning, or is looked for.
    fn answer_metadata(&mut self) -> bool {
        let Some(extension) = NonNull::new(self.raw().extension_start) else { return false };
        // SAFETY: extensions of a frame begin with this structure.
        if unsafe { extension.as_ref() }.type_ != sys::XLA_FFI_Extension_Metadata {
            return false;
        }
        // SAFETY: the type says which structure it is, and the plugin's table of functions is always there.
        unsafe {
            let metadata = (*extension.as_ptr().cast::<sys::XLA_FFI_Metadata_Extension>()).metadata;
            let version = (*self.api.0.as_ptr()).api_version;
            (*metadata).api_version.major_version = version.major_version;
            (*metadata).api_version.minor_version = version.minor_version;
            (*metadata).traits = 0;
        }
        true
    }

    fn run(&self) -> Result<i64, Status> {
        ffi!(self.api, XLA_FFI_RunId_Get, XLA_FFI_RunId_Get_Args { ctx: self.raw().ctx }).map(|args| args.run_id)
    }

    fn ordinal(&self) -> Result<u32, Status> {
        let args = ffi!(self.api, XLA_FFI_DeviceOrdinal_Get, XLA_FFI_DeviceOrdinal_Get_Args { ctx: self.raw().ctx })?;
        u32::try_from(args.device_ordinal)
            .map_err(|_| Status::failed_precondition(format!("a collective runs on device {}", args.device_ordinal)))
    }

    /// Type of and pointer to the attribute of this name.
    fn attribute(&self, name: &str) -> Result<(u32, NonNull<u8>), Status> {
        let attributes = &self.raw().attrs;
        for index in 0..usize::try_from(attributes.size).unwrap_or(0) {
            // SAFETY: names, types and attributes are arrays of `size`, whose strings live as long as the frame.
            let (kind, found, attribute) = unsafe {
                let span = &**attributes.names.add(index);
                let found = std::slice::from_raw_parts(span.ptr.cast::<u8>(), span.len);
                (*attributes.types.add(index), found, *attributes.attrs.add(index))
            };
            if found == name.as_bytes()
                && let Some(attribute) = NonNull::new(attribute.cast())
            {
                return Ok((kind, attribute));
            }
        }
        Err(Status::invalid(format!("a custom call has no attribute {name:?}")))
    }

    fn key(&self) -> Result<u32, Status> {
        let (kind, attribute) = self.attribute(KEY_ATTRIBUTE)?;
        if kind == sys::XLA_FFI_AttrType_SCALAR {
            // SAFETY: the type says what the pointer leads to.
            let scalar = unsafe { attribute.cast::<sys::XLA_FFI_Scalar>().as_ref() };
            if scalar.dtype == sys::XLA_FFI_DataType_S64 && !scalar.value.is_null() {
                // SAFETY: as above.
                let key = unsafe { scalar.value.cast::<i64>().read_unaligned() };
                return u32::try_from(key).map_err(|_| Status::invalid(format!("a collective with the key {key}")));
            }
        }
        Err(Status::invalid("a collective's key is not a number of 64 bits"))
    }

    fn text(&self, name: &str) -> Result<&str, Status> {
        let (kind, attribute) = self.attribute(name)?;
        let not_text = || Status::invalid(format!("the attribute {name:?} of a custom call is not text"));
        if kind != sys::XLA_FFI_AttrType_STRING {
            return Err(not_text());
        }
        // SAFETY: the type says what the pointer leads to; the string lives as long as the frame.
        let bytes = unsafe {
            let span = attribute.cast::<sys::XLA_FFI_ByteSpan>().as_ref();
            std::slice::from_raw_parts(span.ptr.cast::<u8>(), span.len)
        };
        std::str::from_utf8(bytes).map_err(|_| not_text())
    }

    fn operands(&self) -> Result<Vec<Buffer>, Status> {
        let args = &self.raw().args;
        // SAFETY: the frame's arrays have `size` entries.
        unsafe { buffers(args.size, args.types, args.args, sys::XLA_FFI_ArgType_BUFFER) }
    }

    fn results(&self) -> Result<Vec<Buffer>, Status> {
        let rets = &self.raw().rets;
        // SAFETY: as above.
        unsafe { buffers(rets.size, rets.types, rets.rets, sys::XLA_FFI_RetType_BUFFER) }
    }
}

/// Arrays of a call frame.
///
/// # Safety
/// `kinds` and `entries` have `count` entries; those of kind `buffer` lead to `XLA_FFI_Buffer`s.
unsafe fn buffers(
    count: i64,
    kinds: *const u32,
    entries: *const *mut std::ffi::c_void,
    buffer: u32,
) -> Result<Vec<Buffer>, Status> {
    let odd = || Status::invalid("a custom call's operand or result is not an array");
    (0..usize::try_from(count).unwrap_or(0))
        .map(|index| {
            // SAFETY: as promised; dimensions are an array of `rank`.
            let (array, dims) = unsafe {
                if *kinds.add(index) != buffer {
                    return Err(odd());
                }
                let array = &*(*entries.add(index)).cast::<sys::XLA_FFI_Buffer>();
                let rank = usize::try_from(array.rank).unwrap_or(0);
                let dims = if rank == 0 { &[][..] } else { std::slice::from_raw_parts(array.dims, rank) };
                (array, dims)
            };
            let elements =
                dims.iter().try_fold(1_usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
            let bits = types::bits(array.dtype as i32) as usize;
            let bytes =
                elements.and_then(|elements| elements.checked_mul(bits)).filter(|_| bits >= 8).ok_or_else(odd)? / 8;
            let start = match NonNull::new(array.data.cast::<u8>()) {
                Some(start) => start,
                None if bytes == 0 => NonNull::<Empty>::dangling().cast(),
                None => return Err(odd()),
            };
            Ok(Buffer { array: Array { element: array.dtype, bytes }, start })
        })
        .collect()
}
