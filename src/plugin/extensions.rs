//! The extensions that Mainstay offers: Layouts, Shardings, MemoryDescriptions, and its own for snapshots.

use std::ffi::c_char;
use std::sync::Arc;

use super::buffer::BufferHandle;
use super::client::ClientHandle;
use super::device::DescriptionHandle;
use super::entry::{entries, list, quietly};
use super::executable::ExecutableHandle;
use super::handle::Handle;
use super::topology::TopologyHandle;
use crate::abi::{Status, sys};
use crate::runtime::buffer::{DeviceLayout, Shape};

/// A layout in a caller's hands: the inner plugin's text of it.
struct LayoutHandle(Arc<str>);

impl Handle for LayoutHandle {
    type Raw = sys::PJRT_Layouts_MemoryLayout;
    const WHAT: &'static str = "layout";
}

unsafe extern "C" fn delete_layout_text(text: *mut sys::PJRT_Layouts_SerializedLayout) {
    if !text.is_null() {
        // SAFETY: given out below as a box of this type; the caller gives it up.
        quietly((), || drop(unsafe { Box::from_raw(text.cast::<Arc<str>>()) }));
    }
}

/// The layouts of an executable's outputs or parameters; they belong to the executable.
pub struct LayoutList {
    pointers: Vec<*mut sys::PJRT_Layouts_MemoryLayout>,
    // What `pointers` points to.
    _layouts: Box<[LayoutHandle]>,
}

// SAFETY: the pointers go into the box beside them, which nobody changes.
unsafe impl Send for LayoutList {}
// SAFETY: as above.
unsafe impl Sync for LayoutList {}

impl LayoutList {
    /// The layouts with these texts.
    pub fn new(texts: &Result<Vec<String>, Status>) -> Result<Self, Status> {
        let texts = texts.as_ref().map_err(Clone::clone)?;
        let layouts: Box<[_]> = texts.iter().map(|text| LayoutHandle(Arc::from(text.as_str()))).collect();
        Ok(Self { pointers: layouts.iter().map(Handle::as_raw).collect(), _layouts: layouts })
    }

    fn c(&self) -> (*mut *mut sys::PJRT_Layouts_MemoryLayout, usize) {
        (self.pointers.as_ptr().cast_mut(), self.pointers.len())
    }
}

entries! {
    PJRT_Layouts_MemoryLayout_Destroy(args: PJRT_Layouts_MemoryLayout_Destroy_Args) {
        // SAFETY: the caller gives up a layout of ours, or null.
        drop(unsafe { LayoutHandle::take(args.layout) });
        Ok(())
    }

    PJRT_Layouts_MemoryLayout_Serialize(args: PJRT_Layouts_MemoryLayout_Serialize_Args) {
        // SAFETY: a live layout of ours.
        let text = unsafe { LayoutHandle::borrow(args.layout)? }.0.clone();
        (args.serialized_bytes, args.serialized_bytes_size) = (text.as_ptr().cast(), text.len());
        args.serialized_layout = Box::into_raw(Box::new(text)).cast();
        args.serialized_layout_deleter = Some(delete_layout_text);
        Ok(())
    }

    PJRT_Layouts_PJRT_Client_GetDefaultLayout(args: PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args) {
        // SAFETY: a live client of ours and the caller's dimensions.
        let (client, dims) = unsafe { (ClientHandle::borrow(args.client)?, list(args.dims, args.num_dims)) };
        let (_, text) = client.client().default_layout(&Shape::new(args.type_, dims))?;
        args.layout = LayoutHandle(text).into_raw();
        Ok(())
    }

    PJRT_Layouts_PJRT_Buffer_MemoryLayout(args: PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args) {
        // SAFETY: a live buffer of ours.
        let buffer = unsafe { BufferHandle::borrow(args.buffer)? }.buffer();
        let text = match &buffer.shape.layout {
            Some(DeviceLayout::Text(text, _)) => text.clone(),
            Some(DeviceLayout::Given(layout)) => buffer.client.layout_text(&buffer.shape, layout)?,
            None => buffer.client.default_layout(&buffer.shape)?.1,
        };
        args.layout = LayoutHandle(text).into_raw();
        Ok(())
    }

    PJRT_Layouts_PJRT_Executable_GetOutputLayouts(args: PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args) {
        // SAFETY: a live executable of ours.
        let executable = unsafe { ExecutableHandle::borrow(args.executable)? };
        (args.layouts, args.num_outputs) = executable.output_layouts()?.c();
        Ok(())
    }

    PJRT_Layouts_PJRT_Executable_GetParameterLayouts(args: PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args) {
        // SAFETY: a live executable of ours.
        let executable = unsafe { ExecutableHandle::borrow(args.executable)? };
        (args.layouts, args.num_parameters) = executable.parameter_layouts()?.c();
        Ok(())
    }

    PJRT_Layouts_PJRT_Topology_GetDefaultLayout(args: PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args) {
        // SAFETY: a live topology of ours.
        unsafe { TopologyHandle::borrow(args.topology_description)? };
        Err(Status::unimplemented("the default layout of a topology is not known without a client; ask the client"))
    }

    PJRT_Shardings_PJRT_Executable_ParameterShardings(args: PJRT_Shardings_PJRT_Executable_ParameterShardings_Args) {
        // SAFETY: a live executable of ours.
        let shardings = unsafe { ExecutableHandle::borrow(args.executable)? }.parameter_shardings()?;
        args.num_parameters = shardings.map_or(0, |shardings| shardings.len());
        args.shardings = shardings.map_or(std::ptr::null(), |shardings| shardings.pointers());
        args.sharding_sizes = shardings.map_or(std::ptr::null(), |shardings| shardings.sizes());
        Ok(())
    }

    PJRT_Shardings_PJRT_Executable_OutputShardings(args: PJRT_Shardings_PJRT_Executable_OutputShardings_Args) {
        // SAFETY: a live executable of ours.
        let shardings = unsafe { ExecutableHandle::borrow(args.executable)? }.output_shardings()?;
        args.num_outputs = shardings.map_or(0, |shardings| shardings.len());
        args.shardings = shardings.map_or(std::ptr::null(), |shardings| shardings.pointers());
        args.sharding_sizes = shardings.map_or(std::ptr::null(), |shardings| shardings.sizes());
        Ok(())
    }

    PJRT_DeviceDescription_MemoryDescriptions(args: PJRT_DeviceDescription_MemoryDescriptions_Args) {
        // SAFETY: a live description of ours.
        let description = unsafe { DescriptionHandle::borrow(args.device_description)? };
        let memories = description.memory_descriptions();
        (args.memory_descriptions, args.num_memory_descriptions) = (memories.as_ptr(), memories.len());
        // The interface's word for none.
        args.default_memory_index = description.default_memory_description().unwrap_or(usize::MAX);
        Ok(())
    }

    PJRT_MemoryDescription_Kind(args: PJRT_MemoryDescription_Kind_Args) {
        // SAFETY: a live memory description of ours: it points to a kind in a device description.
        let memory = unsafe { args.memory_description.cast::<MemoryKind>().as_ref() };
        let memory = memory.ok_or_else(|| Status::invalid("a null pointer was given for a memory description"))?;
        (args.kind, args.kind_size) = (memory.name.as_ptr().cast::<c_char>(), memory.name.len());
        args.kind_id = memory.id;
        Ok(())
    }
}

/// A kind of memory that a device has, as a description lends it out.
pub struct MemoryKind {
    /// The kind's number.
    pub id: i32,
    /// The kind's name.
    pub name: String,
}

/// The chain of extensions: each entry points to the next.
pub struct Extensions {
    layouts: sys::PJRT_Layouts_Extension,
    shardings: sys::PJRT_Shardings_Extension,
    memories: sys::PJRT_MemoryDescriptions_Extension,
    snapshot: sys::Mainstay_Snapshot_Extension,
}

// SAFETY: constant function pointers, and pointers among the members of the one static.
unsafe impl Sync for Extensions {}

const fn head(
    size: usize,
    kind: sys::PJRT_Extension_Type,
    next: *const sys::PJRT_Extension_Base,
) -> sys::PJRT_Extension_Base {
    sys::PJRT_Extension_Base { struct_size: size, type_: kind, next: next.cast_mut() }
}

/// The extensions, in the order of the chain.
pub static EXTENSIONS: Extensions = Extensions {
    layouts: sys::PJRT_Layouts_Extension {
        base: head(
            size_of::<sys::PJRT_Layouts_Extension>(),
            sys::PJRT_Extension_Type_Layouts,
            &raw const EXTENSIONS.shardings.base,
        ),
        PJRT_Layouts_MemoryLayout_Destroy: Some(PJRT_Layouts_MemoryLayout_Destroy),
        PJRT_Layouts_MemoryLayout_Serialize: Some(PJRT_Layouts_MemoryLayout_Serialize),
        PJRT_Layouts_PJRT_Client_GetDefaultLayout: Some(PJRT_Layouts_PJRT_Client_GetDefaultLayout),
        PJRT_Layouts_PJRT_Buffer_MemoryLayout: Some(PJRT_Layouts_PJRT_Buffer_MemoryLayout),
        PJRT_Layouts_PJRT_Topology_GetDefaultLayout: Some(PJRT_Layouts_PJRT_Topology_GetDefaultLayout),
        PJRT_Layouts_PJRT_Executable_GetOutputLayouts: Some(PJRT_Layouts_PJRT_Executable_GetOutputLayouts),
        PJRT_Layouts_PJRT_Executable_GetParameterLayouts: Some(PJRT_Layouts_PJRT_Executable_GetParameterLayouts),
    },
    shardings: sys::PJRT_Shardings_Extension {
        base: head(
            size_of::<sys::PJRT_Shardings_Extension>(),
            sys::PJRT_Extension_Type_Shardings,
            &raw const EXTENSIONS.memories.base,
        ),
        PJRT_Shardings_PJRT_Executable_ParameterShardings: Some(PJRT_Shardings_PJRT_Executable_ParameterShardings),
        PJRT_Shardings_PJRT_Executable_OutputShardings: Some(PJRT_Shardings_PJRT_Executable_OutputShardings),
    },
    memories: sys::PJRT_MemoryDescriptions_Extension {
        base: head(
            size_of::<sys::PJRT_MemoryDescriptions_Extension>(),
            sys::PJRT_Extension_Type_MemoryDescriptions,
            &raw const EXTENSIONS.snapshot.base,
        ),
        PJRT_DeviceDescription_MemoryDescriptions: Some(PJRT_DeviceDescription_MemoryDescriptions),
        PJRT_MemoryDescription_Kind: Some(PJRT_MemoryDescription_Kind),
    },
    snapshot: super::snapshot::extension(),
};

/// The snapshot extension.
pub const fn snapshot() -> *const sys::Mainstay_Snapshot_Extension {
    &raw const EXTENSIONS.snapshot
}

/// The head of the chain.
pub const fn first() -> *mut sys::PJRT_Extension_Base {
    (&raw const EXTENSIONS.layouts.base).cast_mut()
}
