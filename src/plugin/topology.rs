//! `PJRT_TopologyDescription`.

use std::sync::{Arc, OnceLock};

use super::device::{DescriptionHandle, Places};
use super::entry::{bytes, entries, refusals, text};
use super::handle::Handle;
use super::values::{NamedValues, OwnedBytes, from_c, owned_bytes};
use crate::abi::{Status, sys};
use crate::runtime;
use crate::wire::message::{TopologyInfo, TopologySource};

/// A topology in a caller's hands.
pub struct TopologyHandle {
    platform_name: String,
    platform_version: String,
    descriptions: Descriptions,
    source: TopologySource,
    /// What the inner plugin says of it, asked when needed.
    info: OnceLock<Result<TopologyInfo, Status>>,
    attributes: OnceLock<NamedValues>,
}

/// The topology's devices: of a client, or its own.
struct Descriptions {
    pointers: Vec<*mut sys::PJRT_DeviceDescription>,
    _own: Box<[DescriptionHandle]>,
    _places: Option<Arc<Places>>,
}

// SAFETY: the pointers go into what is kept beside them, which is made for many threads.
unsafe impl Send for Descriptions {}
// SAFETY: as above.
unsafe impl Sync for Descriptions {}

impl Handle for TopologyHandle {
    type Raw = sys::PJRT_TopologyDescription;
    const WHAT: &'static str = "topology";
}

owned_bytes! { delete_serialized PJRT_SerializedTopology }

impl TopologyHandle {
    /// The topology of a client: all slices' devices.
    pub fn of_client(places: &Arc<Places>) -> Self {
        let client = &places.client;
        Self {
            platform_name: client.platform_name.clone(),
            platform_version: client.platform_version.clone(),
            descriptions: Descriptions {
                pointers: places.descriptions(),
                _own: Box::default(),
                _places: Some(places.clone()),
            },
            source: client.topology_source(),
            info: OnceLock::new(),
            attributes: OnceLock::new(),
        }
    }

    /// A topology without a client.
    fn new(source: TopologySource) -> Result<Self, Status> {
        let info = runtime::compiler::topology(&source)?;
        let own: Box<[_]> = info.devices.iter().cloned().map(DescriptionHandle::new).collect();
        Ok(Self {
            platform_name: info.platform_name.clone(),
            platform_version: info.platform_version.clone(),
            descriptions: Descriptions { pointers: own.iter().map(Handle::as_raw).collect(), _own: own, _places: None },
            source,
            info: OnceLock::from(Ok(info)),
            attributes: OnceLock::new(),
        })
    }

    fn info(&self) -> Result<&TopologyInfo, Status> {
        self.info.get_or_init(|| runtime::compiler::topology(&self.source)).as_ref().map_err(Clone::clone)
    }

    /// Where it is from.
    pub fn source(&self) -> &TopologySource {
        &self.source
    }

    /// The inner plugin's serialized form.
    pub fn serialized(&self) -> Result<&[u8], Status> {
        self.info()?.serialized.as_deref().map_err(Clone::clone)
    }
}

entries! {
    PJRT_TopologyDescription_Create(args: PJRT_TopologyDescription_Create_Args) {
        // SAFETY: the caller's name and options.
        let (name, options) = unsafe { (text(args.topology_name, args.topology_name_size), from_c(args.create_options, args.num_options)?) };
        args.topology = TopologyHandle::new(TopologySource::Name { name, options })?.into_raw();
        Ok(())
    }

    PJRT_TopologyDescription_Deserialize(args: PJRT_TopologyDescription_Deserialize_Args) {
        // SAFETY: the caller's bytes.
        let serialized = unsafe { bytes(args.serialized_topology, args.serialized_topology_size) };
        args.topology = TopologyHandle::new(TopologySource::Serialized(serialized.to_vec()))?.into_raw();
        Ok(())
    }

    PJRT_TopologyDescription_Destroy(args: PJRT_TopologyDescription_Destroy_Args) {
        // SAFETY: the caller gives up a topology of ours, or null.
        drop(unsafe { TopologyHandle::take(args.topology) });
        Ok(())
    }

    PJRT_TopologyDescription_PlatformName(args: PJRT_TopologyDescription_PlatformName_Args) {
        // SAFETY: a live topology of ours.
        let name = &unsafe { TopologyHandle::borrow(args.topology)? }.platform_name;
        (args.platform_name, args.platform_name_size) = (name.as_ptr().cast(), name.len());
        Ok(())
    }

    PJRT_TopologyDescription_PlatformVersion(args: PJRT_TopologyDescription_PlatformVersion_Args) {
        // SAFETY: a live topology of ours.
        let version = &unsafe { TopologyHandle::borrow(args.topology)? }.platform_version;
        (args.platform_version, args.platform_version_size) = (version.as_ptr().cast(), version.len());
        Ok(())
    }

    PJRT_TopologyDescription_GetDeviceDescriptions(args: PJRT_TopologyDescription_GetDeviceDescriptions_Args) {
        // SAFETY: a live topology of ours.
        let pointers = &unsafe { TopologyHandle::borrow(args.topology)? }.descriptions.pointers;
        (args.descriptions, args.num_descriptions) = (pointers.as_ptr(), pointers.len());
        Ok(())
    }

    PJRT_TopologyDescription_Serialize(args: PJRT_TopologyDescription_Serialize_Args) {
        // SAFETY: a live topology of ours.
        let bytes = OwnedBytes(unsafe { TopologyHandle::borrow(args.topology)? }.serialized()?.to_vec());
        (args.serialized_bytes, args.serialized_bytes_size) = (bytes.0.as_ptr().cast(), bytes.0.len());
        args.serialized_topology = Box::into_raw(Box::new(bytes)).cast();
        args.serialized_topology_deleter = Some(delete_serialized);
        Ok(())
    }

    PJRT_TopologyDescription_Attributes(args: PJRT_TopologyDescription_Attributes_Args) {
        // SAFETY: a live topology of ours.
        let topology = unsafe { TopologyHandle::borrow(args.topology)? };
        let info = topology.info()?;
        let attributes = topology.attributes.get_or_init(|| NamedValues::new(info.attributes.clone())).array();
        (args.attributes, args.num_attributes) = (attributes.as_ptr(), attributes.len());
        Ok(())
    }

    PJRT_TopologyDescription_Fingerprint(args: PJRT_TopologyDescription_Fingerprint_Args) {
        // SAFETY: a live topology of ours.
        args.fingerprint = unsafe { TopologyHandle::borrow(args.topology)? }.info()?.fingerprint.clone()?;
        Ok(())
    }
}

refusals! {
    PJRT_TopologyDescription_GetMemorySpaceKindIds(PJRT_TopologyDescription_GetMemorySpaceKindIds_Args)
        "ask the devices of a client for their memories"
    PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace(PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args)
        "ask a client for the default layout"
}
