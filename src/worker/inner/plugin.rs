//! The loaded plugin: its library, its functions and extensions.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use super::call::call;
use super::named_values;
use crate::abi::{InnerApi, Status, new_args, sys};
use crate::wire::message::NamedValue;

/// No plugin has so many extensions; a longer chain is a circle.
const MOST_EXTENSIONS: usize = 256;

/// A loaded plugin. It stays until the process ends: plugins leave threads behind that run their code.
pub struct Plugin {
    path: PathBuf,
    pub(super) api: InnerApi,
    /// Extensions; the functions of an absent one are absent.
    pub(super) layouts: sys::PJRT_Layouts_Extension,
    pub(super) shardings: sys::PJRT_Shardings_Extension,
    pub(super) memory_descriptions: sys::PJRT_MemoryDescriptions_Extension,
    extension_types: Vec<u32>,
}

// SAFETY: the extensions are copies of the plugin's constant data; the interface lets any thread call its functions.
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
        let plugin = Self {
            path: path.into(),
            layouts: api.extension().unwrap_or_else(new_args),
            shardings: api.extension().unwrap_or_else(new_args),
            memory_descriptions: api.extension().unwrap_or_else(new_args),
            extension_types: extension_types(&api),
            api,
        };
        call!(&plugin, PJRT_Plugin_Initialize_Args {})?;
        Ok(Box::leak(Box::new(plugin)))
    }

    /// The plugin's functions, and through them its extensions.
    pub fn api(&self) -> &InnerApi {
        &self.api
    }

    /// Version of the interface that the plugin was built with: major, minor.
    pub fn version(&self) -> (i32, i32) {
        self.api.version()
    }

    /// Types (`PJRT_Extension_Type`) of the extensions that the plugin offers.
    pub fn extension_types(&self) -> &[u32] {
        &self.extension_types
    }

    /// The plugin's own attributes.
    pub fn attributes(&self) -> Result<Vec<NamedValue>, Status> {
        let args = call!(self, PJRT_Plugin_Attributes_Args {})?;
        // SAFETY: the plugin's attributes live as long as the process.
        Ok(unsafe { named_values::read(args.attributes, args.num_attributes) })
    }

    /// The error of an extension's function that this plugin does not have.
    pub(super) fn absent(&self, function: &str) -> Status {
        let (major, minor) = self.version();
        let path = self.path.display();
        Status::unimplemented(format!("the inner plugin {path} (PJRT {major}.{minor}) has no {function}"))
    }
}

/// Opens the library and asks it for its functions.
fn open(path: &Path) -> Result<InnerApi, Status> {
    let shown = path.display();
    // SAFETY: loading runs the library's initializers. That is what the user asked for by naming it as the plugin,
    // and why it happens in this process and not in the client's.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        Status::failed_precondition(format!(
            "cannot load the inner plugin {shown}: {}; MAINSTAY_PLUGIN must be the path of a PJRT plugin that is built \
             for this machine",
            in_full(&error)
        ))
    })?;
    type GetPjrtApi = unsafe extern "C" fn() -> *const sys::PJRT_Api;
    // SAFETY: a symbol of this name is the entry point of a PJRT plugin and has this type.
    let get_api: Symbol<GetPjrtApi> = unsafe { library.get("GetPjrtApi") }.map_err(|_| {
        Status::failed_precondition(format!(
            "{shown} is not a PJRT plugin: it has no function GetPjrtApi; MAINSTAY_PLUGIN must be the path of one"
        ))
    })?;
    // SAFETY: as above; the table is constant, and the library is never unloaded.
    let api = unsafe { InnerApi::new(get_api()) }.map_err(|status| Status {
        message: format!("{} (MAINSTAY_PLUGIN: {shown})", status.message).into(),
        ..status
    })?;
    std::mem::forget(library);
    Ok(api)
}

/// What the system says is in the error's source only.
fn in_full(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The type of each extension in the plugin's chain.
fn extension_types(api: &InnerApi) -> Vec<u32> {
    let mut types = Vec::new();
    let mut next = api.table().extension_start.cast_const();
    while !next.is_null() && types.len() < MOST_EXTENSIONS {
        // SAFETY: extensions live as long as the process, begin with this structure and end with null.
        let base = unsafe { &*next };
        types.push(base.type_);
        next = base.next;
    }
    types
}
