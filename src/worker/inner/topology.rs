//! Topologies: devices without a client, to compile for.

use std::marker::PhantomData;

use super::call::{bytes, call, destroy, list, text};
use super::executable::Program;
use super::{Client, DeviceDescription, Executable, Plugin, named_values};
use crate::abi::{Status, sys};
use crate::wire::message::NamedValue;

/// A topology: of a client, which owns it, or one of our own, destroyed when dropped.
pub struct Topology<'c> {
    plugin: &'static Plugin,
    raw: *mut sys::PJRT_TopologyDescription,
    ours: bool,
    client: PhantomData<&'c Client>,
}

impl Topology<'static> {
    /// The topology of this name.
    pub fn by_name(plugin: &'static Plugin, name: &str, options: &[NamedValue]) -> Result<Self, Status> {
        let options = named_values::to_c(options);
        let args = call!(
            plugin,
            PJRT_TopologyDescription_Create_Args {
                topology_name: name.as_ptr().cast(),
                topology_name_size: name.len(),
                create_options: options.as_ptr(),
                num_options: options.len(),
            }
        )?;
        Self::checked(plugin, args.topology, true)
    }

    /// What [`Topology::serialize`] gave, made a topology again.
    pub fn deserialize(plugin: &'static Plugin, serialized: &[u8]) -> Result<Self, Status> {
        let args = call!(
            plugin,
            PJRT_TopologyDescription_Deserialize_Args {
                serialized_topology: serialized.as_ptr().cast(),
                serialized_topology_size: serialized.len(),
            }
        )?;
        Self::checked(plugin, args.topology, true)
    }
}

impl<'c> Topology<'c> {
    /// The client's own topology.
    pub(super) fn borrowed(client: &'c Client, raw: *mut sys::PJRT_TopologyDescription) -> Result<Self, Status> {
        Self::checked(client.plugin(), raw, false)
    }

    fn checked(plugin: &'static Plugin, raw: *mut sys::PJRT_TopologyDescription, ours: bool) -> Result<Self, Status> {
        if raw.is_null() {
            return Err(Status::failed_precondition("the plugin gave neither a topology nor an error"));
        }
        Ok(Self { plugin, raw, ours, client: PhantomData })
    }

    pub(super) fn plugin(&self) -> &'static Plugin {
        self.plugin
    }

    pub(super) fn raw(&self) -> *mut sys::PJRT_TopologyDescription {
        self.raw
    }

    /// The platform's name.
    pub fn platform_name(&self) -> Result<String, Status> {
        let args = call!(self.plugin, PJRT_TopologyDescription_PlatformName_Args { topology: self.raw })?;
        // SAFETY: the text lives as long as the topology.
        Ok(unsafe { text(args.platform_name, args.platform_name_size) })
    }

    /// The platform's version, for people.
    pub fn platform_version(&self) -> Result<String, Status> {
        let args = call!(self.plugin, PJRT_TopologyDescription_PlatformVersion_Args { topology: self.raw })?;
        // SAFETY: as above.
        Ok(unsafe { text(args.platform_version, args.platform_version_size) })
    }

    /// The topology's attributes.
    pub fn attributes(&self) -> Result<Vec<NamedValue>, Status> {
        let args = call!(self.plugin, PJRT_TopologyDescription_Attributes_Args { topology: self.raw })?;
        // SAFETY: the attributes live as long as the topology.
        Ok(unsafe { named_values::read(args.attributes, args.num_attributes) })
    }

    /// The devices.
    pub fn devices(&self) -> Result<Vec<DeviceDescription<'_>>, Status> {
        let args = call!(self.plugin, PJRT_TopologyDescription_GetDeviceDescriptions_Args { topology: self.raw })?;
        // SAFETY: the list lives as long as the topology.
        let descriptions = unsafe { list(args.descriptions, args.num_descriptions) };
        Ok(descriptions.iter().map(|raw| DeviceDescription::new(self.plugin, *raw, self)).collect())
    }

    /// The topology in bytes.
    pub fn serialize(&self) -> Result<Vec<u8>, Status> {
        let args = call!(self.plugin, PJRT_TopologyDescription_Serialize_Args { topology: self.raw })?;
        // SAFETY: the bytes live until their deleter is called.
        let serialized = unsafe { bytes(args.serialized_bytes, args.serialized_bytes_size) };
        if let Some(delete) = args.serialized_topology_deleter {
            // SAFETY: once, with what the plugin gave along with it.
            unsafe { delete(args.serialized_topology) };
        }
        Ok(serialized)
    }

    /// A number that differs between topologies that programs can't be shared between.
    pub fn fingerprint(&self) -> Result<u64, Status> {
        call!(self.plugin, PJRT_TopologyDescription_Fingerprint_Args { topology: self.raw })
            .map(|args| args.fingerprint)
    }

    /// Compiles a program for such devices. `options`: `CompileOptionsProto`.
    pub fn compile(&self, program: Program<'_>, options: &[u8]) -> Result<Executable, Status> {
        let program = program.to_c();
        let args = call!(
            self.plugin,
            PJRT_Compile_Args {
                topology: self.raw,
                program: &program,
                compile_options: options.as_ptr().cast(),
                compile_options_size: options.len(),
            }
        )?;
        Executable::new(self.plugin, args.executable)
    }
}

impl Drop for Topology<'_> {
    fn drop(&mut self) {
        if self.ours {
            destroy!(self.plugin, PJRT_TopologyDescription_Destroy_Args { topology: self.raw });
        }
    }
}
