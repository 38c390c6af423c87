//! The loaded plugin: its library, its table of functions, its extensions, and its errors as ours.

use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use super::call::{bytes, call, text};
use super::named_values;
use crate::abi::{Code, Status, sys};
use crate::wire::message::NamedValue;

/// No table or extension is as long as this; a size beyond it is not a size.
const LARGEST_STRUCT: usize = 1 << 16;
/// No plugin has so many extensions; a longer chain is a circle.
const MOST_EXTENSIONS: usize = 256;

/// A loaded plugin. It stays until the process ends: plugins leave threads behind that run their code.
pub struct Plugin {
    path: PathBuf,
    version: (i32, i32),
    extensions: Vec<u32>,
    /// The plugin's functions; a slot that it does not have is `None`.
    pub(super) table: sys::PJRT_Api,
    pub(super) layouts: sys::PJRT_Layouts_Extension,
    pub(super) shardings: sys::PJRT_Shardings_Extension,
    pub(super) memory_descriptions: sys::PJRT_MemoryDescriptions_Extension,
}

// SAFETY: the pointers in the tables lead to the plugin's constant data; the interface lets any thread call its
// functions.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads the library at `path` and initializes the plugin in it.
    ///
    /// # Errors
    /// A sentence that names the path and what to do, or the plugin's own error from its initialization.
    pub fn load(path: &Path) -> Result<&'static Self, Status> {
        let api = open(path)?;
        // SAFETY: `open` has seen that the table is there and large enough for its head.
        let plugin = unsafe { Self::from_api(path, api) }?;
        call!(&plugin, PJRT_Plugin_Initialize, PJRT_Plugin_Initialize_Args {})?;
        Ok(Box::leak(Box::new(plugin)))
    }

    /// Reads the plugin's table and extensions.
    ///
    /// # Safety
    /// `api` must be what a plugin's `GetPjrtApi` gave.
    unsafe fn from_api(path: &Path, api: *const sys::PJRT_Api) -> Result<Self, Status> {
        // SAFETY: as the caller promises; the plugin says in the first field how much is there.
        let table = unsafe { copy_struct(api, (*api).struct_size) };
        let version = (table.pjrt_api_version.major_version, table.pjrt_api_version.minor_version);
        if version.0 != sys::PJRT_API_MAJOR as i32 {
            return Err(Status::failed_precondition(format!(
                "the plugin {} speaks PJRT {}.{}, and this Mainstay {}.x: use builds of both that fit together",
                path.display(),
                version.0,
                version.1,
                sys::PJRT_API_MAJOR,
            )));
        }
        // SAFETY: the chain hangs at the plugin's table, as the interface says.
        let chain = unsafe { extension_chain(table.extension_start) };
        Ok(Self {
            path: path.into(),
            version,
            extensions: chain.iter().map(|(kind, _)| *kind).collect(),
            table,
            // SAFETY: an extension's type says which structure it is, its first field how much of it is there.
            layouts: unsafe { extension(&chain, sys::PJRT_Extension_Type_Layouts) },
            // SAFETY: as above.
            shardings: unsafe { extension(&chain, sys::PJRT_Extension_Type_Shardings) },
            // SAFETY: as above.
            memory_descriptions: unsafe { extension(&chain, sys::PJRT_Extension_Type_MemoryDescriptions) },
        })
    }

    /// Version of the interface that the plugin was built with: major, minor.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Types (`PJRT_Extension_Type`) of the extensions that the plugin offers.
    pub fn extensions(&self) -> &[u32] {
        &self.extensions
    }

    /// The plugin's own attributes.
    pub fn attributes(&self) -> Result<Vec<NamedValue>, Status> {
        let args = call!(self, PJRT_Plugin_Attributes, PJRT_Plugin_Attributes_Args {})?;
        // SAFETY: the plugin's attributes live as long as the process.
        Ok(unsafe { named_values::read(args.attributes, args.num_attributes) })
    }

    /// The error of a function that this plugin does not have.
    pub(super) fn absent(&self, function: &str) -> Status {
        Status::unimplemented(format!(
            "the plugin {} (PJRT {}.{}) has no {function}",
            self.path.display(),
            self.version.0,
            self.version.1,
        ))
    }

    /// The outcome of a call: takes the plugin's error, if there is one, and frees it.
    ///
    /// # Safety
    /// `error` must be null or an error of this plugin that nobody else has.
    pub(super) unsafe fn check(&self, error: *mut sys::PJRT_Error) -> Result<(), Status> {
        if error.is_null() {
            return Ok(());
        }
        let status = Status {
            code: self.error_code(error),
            message: self.error_message(error),
            payloads: self.error_payloads(error),
        };
        if let Some(destroy) = self.table.PJRT_Error_Destroy {
            let mut args = sys::PJRT_Error_Destroy_Args {
                struct_size: size_of::<sys::PJRT_Error_Destroy_Args>(),
                extension_start: std::ptr::null_mut(),
                error,
            };
            // SAFETY: the error is ours, as the caller promises, and not used afterwards.
            unsafe { destroy(&mut args) };
        }
        Err(status)
    }

    /// `error` must be an error of this plugin; so must it be for the two functions below.
    fn error_code(&self, error: *mut sys::PJRT_Error) -> Code {
        let Some(get_code) = self.table.PJRT_Error_GetCode else { return Code::Unknown };
        let mut args = sys::PJRT_Error_GetCode_Args {
            struct_size: size_of::<sys::PJRT_Error_GetCode_Args>(),
            extension_start: std::ptr::null_mut(),
            error,
            code: sys::PJRT_Error_Code_UNKNOWN,
        };
        // SAFETY: the error lives. What this call itself could give as an error is lost: there is no end to asking.
        unsafe { get_code(&mut args) };
        Code::from_raw(args.code)
    }

    fn error_message(&self, error: *mut sys::PJRT_Error) -> Arc<str> {
        let Some(message) = self.table.PJRT_Error_Message else {
            return "the plugin gave an error without words".into();
        };
        let mut args = sys::PJRT_Error_Message_Args {
            struct_size: size_of::<sys::PJRT_Error_Message_Args>(),
            extension_start: std::ptr::null_mut(),
            error,
            message: std::ptr::null(),
            message_size: 0,
        };
        // SAFETY: the error lives, and its message as long as it.
        unsafe {
            message(&mut args);
            text(args.message, args.message_size).into()
        }
    }

    fn error_payloads(&self, error: *mut sys::PJRT_Error) -> Arc<[(String, Vec<u8>)]> {
        unsafe extern "C" fn visit(
            key: *const c_char,
            key_size: usize,
            value: *const c_char,
            value_size: usize,
            list: *mut c_void,
        ) {
            // SAFETY: key and value are the plugin's for this call; `list` is the vector below, used by one thread.
            unsafe {
                let list = &mut *list.cast::<Vec<(String, Vec<u8>)>>();
                list.push((text(key, key_size), bytes(value, value_size)));
            }
        }
        let mut payloads: Vec<(String, Vec<u8>)> = Vec::new();
        if let Some(for_each) = self.table.PJRT_Error_ForEachPayload {
            let mut args = sys::PJRT_Error_ForEachPayload_Args {
                struct_size: size_of::<sys::PJRT_Error_ForEachPayload_Args>(),
                extension_start: std::ptr::null_mut(),
                error,
                visitor: Some(visit),
                user_arg: (&raw mut payloads).cast(),
            };
            // SAFETY: the error lives, and the visitor is called before this returns.
            unsafe { for_each(&mut args) };
        }
        payloads.into()
    }
}

/// Opens the library and asks it for its table, whose head is checked.
fn open(path: &Path) -> Result<*const sys::PJRT_Api, Status> {
    let shown = path.display();
    // SAFETY: loading runs the library's initializers. That is what the user asked for by naming it as the plugin,
    // and why it happens in this process and not in the client's.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        Status::failed_precondition(format!(
            "cannot load the plugin {shown}: {error}; MAINSTAY_PLUGIN must be the path of a PJRT plugin built for \
             this machine"
        ))
    })?;
    type GetPjrtApi = unsafe extern "C" fn() -> *const sys::PJRT_Api;
    // SAFETY: a symbol of this name is the entry point of a PJRT plugin and has this type.
    let get_api: Symbol<GetPjrtApi> = unsafe { library.get("GetPjrtApi") }.map_err(|_| {
        Status::failed_precondition(format!(
            "{shown} is not a PJRT plugin: it has no function GetPjrtApi; MAINSTAY_PLUGIN must be the path of one"
        ))
    })?;
    // SAFETY: as above.
    let api = unsafe { get_api() };
    std::mem::forget(library);
    // SAFETY: a table that is there begins with its size.
    if api.is_null() || !head_fits(unsafe { (*api).struct_size }) {
        return Err(Status::failed_precondition(format!(
            "{shown} gives no usable table of functions: it is not a PJRT plugin, or one of another kind of machine"
        )));
    }
    Ok(api)
}

/// Whether a table of this size has at least a version and the functions for errors.
fn head_fits(size: usize) -> bool {
    (std::mem::offset_of!(sys::PJRT_Api, PJRT_Plugin_Initialize)..LARGEST_STRUCT).contains(&size)
}

/// Copies as much of a structure as its `size` says is there; the rest is zero.
///
/// # Safety
/// `from` must point to `size` readable bytes; zero must be a value of every field of `T`.
unsafe fn copy_struct<T: Copy>(from: *const T, size: usize) -> T {
    // SAFETY: as the caller promises.
    unsafe {
        let mut copy: T = std::mem::zeroed();
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut copy).cast::<u8>(), size.min(size_of::<T>()));
        copy
    }
}

type Chain = Vec<(sys::PJRT_Extension_Type, *const sys::PJRT_Extension_Base)>;

/// The extensions by type, first first.
///
/// # Safety
/// `next` must be null or the first of a chain of extensions.
unsafe fn extension_chain(mut next: *const sys::PJRT_Extension_Base) -> Chain {
    let mut chain = Vec::new();
    while !next.is_null() && chain.len() < MOST_EXTENSIONS {
        // SAFETY: as the caller promises; every member of the chain begins with this structure.
        let base = unsafe { &*next };
        chain.push((base.type_, next));
        next = base.next;
    }
    chain
}

/// The extension of this type, as far as the plugin has it; an absent one has no functions.
///
/// # Safety
/// `T` must be the structure of extensions of this type, and zero a value of each of its fields.
unsafe fn extension<T: Copy>(chain: &Chain, kind: sys::PJRT_Extension_Type) -> T {
    match chain.iter().find(|(other, _)| *other == kind) {
        // SAFETY: as the caller promises; the size is what the plugin says, within reason.
        Some((_, base)) => unsafe { copy_struct(base.cast::<T>(), (**base).struct_size.min(LARGEST_STRUCT)) },
        // SAFETY: as the caller promises.
        None => unsafe { std::mem::zeroed() },
    }
}
