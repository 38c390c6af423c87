//! The function table of an inner plugin: checked once, then called with what it really has.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;

use super::{Call, Code, OLDEST_MINOR, Slot, Status, StructSize, new_args, sys};

/// An inner plugin's functions and extensions, whatever its version.
///
/// The table is a copy of the plugin's, in which functions that it does not have (because it is older, or left them null)
/// are absent. It is only read after it was made, so that any thread may use it.
pub struct InnerApi {
    table: Box<sys::PJRT_Api>,
}

// SAFETY: the table and the extensions it points to live as long as the process and are never written; PJRT lets any
// thread call its functions.
unsafe impl Send for InnerApi {}
// SAFETY: as above.
unsafe impl Sync for InnerApi {}

/// An extension that hangs at `PJRT_Api`.
///
/// # Safety
/// `TYPE` is what the base of extensions of this layout says.
pub unsafe trait Extension: StructSize {
    /// The extension's number.
    const TYPE: sys::PJRT_Extension_Type;
}

macro_rules! extensions {
    ($($name:ident: $kind:ident,)*) => {$(
        // SAFETY: the interface pairs them.
        unsafe impl Extension for sys::$name {
            const TYPE: sys::PJRT_Extension_Type = sys::$kind;
        }
    )*};
}

extensions! {
    PJRT_Layouts_Extension: PJRT_Extension_Type_Layouts,
    PJRT_Shardings_Extension: PJRT_Extension_Type_Shardings,
    PJRT_MemoryDescriptions_Extension: PJRT_Extension_Type_MemoryDescriptions,
    PJRT_FFI_Extension: PJRT_Extension_Type_FFI,
    PJRT_PhaseCompile_Extension: PJRT_Extension_Type_PhaseCompile,
    PJRT_Xla_Transform_Extension: PJRT_Extension_Type_XlaTransform,
    PJRT_RawBuffer_Extension: PJRT_Extension_Type_RawBuffer,
}

impl InnerApi {
    /// No plugin has this many extensions: a longer chain is a broken one.
    const MOST_EXTENSIONS: usize = 256;

    /// Takes over what the plugin's `GetPjrtApi` gave.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the table is missing, too small to be one, of a version that can't be served, or without the
    /// functions that read errors.
    ///
    /// # Safety
    /// `api` is null or points to a table that lives, unchanged, as long as the process.
    pub unsafe fn new(api: *const sys::PJRT_Api) -> Result<Self, Status> {
        let refuse = |why: String| Err(Status::failed_precondition(format!("the inner plugin can't be used: {why}")));
        if api.is_null() {
            return refuse("its GetPjrtApi returned a null pointer".into());
        }
        // SAFETY: every struct of the interface begins with its size.
        let size = unsafe { api.cast::<usize>().read() };
        let header = std::mem::offset_of!(sys::PJRT_Api, PJRT_Error_Destroy);
        if size < header {
            return refuse(format!(
                "its function table has struct_size {size}, less than the {header} bytes of its head"
            ));
        }
        let mut table = Box::new(new_args::<sys::PJRT_Api>());
        // SAFETY: the plugin's table has `size` bytes, by its own word; ours has `STRUCT_SIZE`. A null function is `None`.
        unsafe {
            let known = size.min(sys::PJRT_Api::STRUCT_SIZE);
            api.cast::<u8>().copy_to_nonoverlapping((&raw mut *table).cast(), known);
        }
        let inner = Self { table };
        let (major, minor) = inner.version();
        if i64::from(major) != i64::from(sys::PJRT_API_MAJOR) || i64::from(minor) < i64::from(OLDEST_MINOR) {
            return refuse(format!(
                "it speaks PJRT {major}.{minor}, and Mainstay serves {}.{OLDEST_MINOR} and newer; use a newer build of it",
                sys::PJRT_API_MAJOR
            ));
        }
        for slot in [Slot::PJRT_Error_Destroy, Slot::PJRT_Error_Message, Slot::PJRT_Error_GetCode] {
            if !inner.has(slot) {
                return refuse(format!("its function table has no {slot}"));
            }
        }
        Ok(inner)
    }

    /// Major and minor version of the interface that the plugin was built with.
    pub fn version(&self) -> (i32, i32) {
        (self.table.pjrt_api_version.major_version, self.table.pjrt_api_version.minor_version)
    }

    /// The functions themselves; absent ones are `None`.
    pub fn table(&self) -> &sys::PJRT_Api {
        &self.table
    }

    /// Whether the plugin has the function.
    pub fn has(&self, slot: Slot) -> bool {
        let end = (&raw const *self.table).cast::<u8>().wrapping_add(slot.end());
        // SAFETY: the slot lies in our own table, which is as long as the last slot; a function pointer is a word, zero
        // where absent.
        unsafe { end.cast::<usize>().sub(1).read() != 0 }
    }

    /// Calls the function that these arguments belong to.
    ///
    /// # Errors
    /// What the plugin returns, unchanged; UNIMPLEMENTED, with the function's name, if the plugin does not have it.
    ///
    /// # Safety
    /// The arguments are what the interface asks for: the handles live, the pointers lead to what they should.
    pub unsafe fn call<A: Call>(&self, args: &mut A) -> Result<(), Status> {
        let Some(function) = A::function(&self.table) else {
            return Err(self.missing(A::SLOT));
        };
        // SAFETY: the caller's promise, and `Call`'s: the function takes these arguments.
        unsafe { self.check(function(args)) }
    }

    /// The error for a function that the plugin lacks.
    pub fn missing(&self, slot: Slot) -> Status {
        let (major, minor) = self.version();
        Status::unimplemented(format!(
            "the inner plugin (PJRT {major}.{minor}) has no {slot}, which PJRT {major}.{} brought",
            slot.since()
        ))
    }

    /// The outcome that a returned error stands for: null is success. Frees the error.
    ///
    /// # Errors
    /// The plugin's own error.
    ///
    /// # Safety
    /// `error` is null or an error of this plugin that its receiver owns; it is gone afterwards.
    pub unsafe fn check(&self, error: *mut sys::PJRT_Error) -> Result<(), Status> {
        let Some(error) = NonNull::new(error) else { return Ok(()) };
        // SAFETY: the caller's promise.
        let status = unsafe { self.read_error(error) };
        let mut args = new_args::<sys::PJRT_Error_Destroy_Args>();
        args.error = error.as_ptr();
        if let Some(destroy) = self.table.PJRT_Error_Destroy {
            // SAFETY: the error is owned and not used again.
            unsafe { destroy(&raw mut args) };
        }
        Err(status)
    }

    /// Code, words and payloads of an error.
    ///
    /// # Safety
    /// `error` is an error of this plugin.
    pub unsafe fn read_error(&self, error: NonNull<sys::PJRT_Error>) -> Status {
        let mut code = new_args::<sys::PJRT_Error_GetCode_Args>();
        code.error = error.as_ptr();
        code.code = Code::Unknown as u32;
        let mut message = new_args::<sys::PJRT_Error_Message_Args>();
        message.error = error.as_ptr();
        // SAFETY: the error lives, says the caller. An error of the getter itself can't be read either, so it is dropped.
        unsafe {
            if let Some(get_code) = self.table.PJRT_Error_GetCode {
                get_code(&raw mut code);
            }
            if let Some(get_message) = self.table.PJRT_Error_Message {
                get_message(&raw mut message);
            }
        }
        // SAFETY: the words live as long as the error.
        let words = String::from_utf8_lossy(unsafe { bytes(message.message, message.message_size) }).into_owned();
        // SAFETY: the error lives.
        let payloads = unsafe { self.payloads(error) };
        Status { payloads: payloads.into(), ..Status::new(Code::from_raw(code.code), words) }
    }

    /// # Safety
    /// `error` is an error of this plugin.
    unsafe fn payloads(&self, error: NonNull<sys::PJRT_Error>) -> Vec<(String, Vec<u8>)> {
        unsafe extern "C" fn visit(
            key: *const c_char,
            key_size: usize,
            value: *const c_char,
            value_size: usize,
            payloads: *mut c_void,
        ) {
            // SAFETY: the plugin passes through what it was given below, and keys and values for the time of this call.
            unsafe {
                let key = String::from_utf8_lossy(bytes(key, key_size)).into_owned();
                let payloads = payloads.cast::<Vec<(String, Vec<u8>)>>();
                (*payloads).push((key, bytes(value, value_size).to_vec()));
            }
        }

        let mut payloads = Vec::new();
        let mut args = new_args::<sys::PJRT_Error_ForEachPayload_Args>();
        args.error = error.as_ptr();
        args.visitor = Some(visit);
        args.user_arg = (&raw mut payloads).cast();
        if let Some(for_each) = self.table.PJRT_Error_ForEachPayload {
            // SAFETY: the error lives, and the visitor and its argument outlive the call. An error here would be about
            // payloads only, which are an extra.
            unsafe { for_each(&raw mut args) };
        }
        payloads
    }

    /// A copy of the plugin's extension of this kind, in which functions that it does not have are absent.
    pub fn extension<E: Extension>(&self) -> Option<E> {
        let mut next = self.table.extension_start;
        for _ in 0..Self::MOST_EXTENSIONS {
            let base = NonNull::new(next)?;
            // SAFETY: extensions live as long as the process and begin with a base.
            let base = unsafe { base.as_ref() };
            if base.type_ == E::TYPE {
                let mut extension = new_args::<E>();
                // SAFETY: the plugin's extension has `struct_size` bytes, by its own word; ours has `STRUCT_SIZE`.
                unsafe {
                    let known = base.struct_size.min(E::STRUCT_SIZE);
                    next.cast::<u8>().copy_to_nonoverlapping((&raw mut extension).cast(), known);
                }
                return Some(extension);
            }
            next = base.next;
        }
        None
    }
}

/// The bytes that a pointer and a size name; none for a null pointer.
///
/// # Safety
/// A pointer that is not null leads to `size` bytes that live and stay unchanged for `'a`.
unsafe fn bytes<'a>(data: *const c_char, size: usize) -> &'a [u8] {
    if data.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast(), size) }
}
