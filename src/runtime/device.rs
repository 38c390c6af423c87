//! Devices and memories: made once with the client, the same objects whatever happens to the workers behind them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::message::{ClientDescription, DeviceInfo, MemoryInfo, NamedValue, Value};

/// A device of a slice.
pub struct Device {
    /// Position among the client's devices.
    pub index: u32,
    /// The slice it belongs to.
    pub slice: u32,
    /// Position among the slice's devices, which is its index on the worker.
    pub ordinal: u32,
    /// What the inner plugin says of it, with ids, memories and attributes as the whole client has them.
    pub info: DeviceInfo,
}

/// A memory of a slice.
pub struct Memory {
    /// Position among the client's memories.
    pub index: u32,
    /// The slice it belongs to.
    pub slice: u32,
    /// Position among the slice's memories, which is its index on the worker.
    pub ordinal: u32,
    /// What the inner plugin says of it, with ids and devices as the whole client has them.
    pub info: MemoryInfo,
    /// Live buffers in it.
    pub usage: Usage,
}

/// How many buffers are alive and how many bytes they have.
#[derive(Default)]
pub struct Usage {
    buffers: AtomicU64,
    bytes: AtomicU64,
}

impl Usage {
    /// A buffer of `bytes` came to life.
    pub fn add(&self, bytes: u64) {
        self.buffers.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A buffer of `bytes` is gone.
    pub fn remove(&self, bytes: u64) {
        self.buffers.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Live buffers and their bytes.
    pub fn get(&self) -> (u64, u64) {
        (self.buffers.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// The devices and memories of all slices, in the order of the slices.
///
/// A device keeps the id that the plugin gave it where ids are unique over the slices (real multi-slice systems); where every
/// slice counts from the same start (CPU), ids are counted on from slice to slice.
pub fn combine(slices: &[&ClientDescription]) -> (Vec<Device>, Vec<Memory>) {
    let (mut devices, mut memories) = (Vec::new(), Vec::new());
    let unique_devices = unique(slices.iter().flat_map(|slice| slice.devices.iter().map(|device| device.id)));
    let unique_memories = unique(slices.iter().flat_map(|slice| slice.memories.iter().map(|memory| memory.id)));
    for (slice, description) in (0_u32..).zip(slices) {
        let (first_device, first_memory) = (devices.len() as u32, memories.len() as u32);
        for (ordinal, device) in (0_u32..).zip(&description.devices) {
            let mut info = device.clone();
            if !unique_devices {
                renumber(&mut info, first_device + ordinal);
            }
            info.process_index = 0;
            info.memories.iter_mut().chain(&mut info.default_memory).for_each(|memory| *memory += first_memory);
            set_slice_index(&mut info.attributes, slice);
            devices.push(Device { index: first_device + ordinal, slice, ordinal, info });
        }
        for (ordinal, memory) in (0_u32..).zip(&description.memories) {
            let mut info = memory.clone();
            if !unique_memories {
                info.id = (first_memory + ordinal).cast_signed();
            }
            info.devices.iter_mut().for_each(|device| *device += first_device);
            memories.push(Memory { index: first_memory + ordinal, slice, ordinal, info, usage: Usage::default() });
        }
    }
    (devices, memories)
}

fn unique(ids: impl Iterator<Item = i32>) -> bool {
    let mut seen = std::collections::HashSet::new();
    let mut ids = ids;
    ids.all(|id| seen.insert(id))
}

/// Gives a device a new id, in its texts too where they end with the old one (`TFRT_CPU_0`, `CpuDevice(id=0)`).
fn renumber(info: &mut DeviceInfo, id: u32) {
    let old = info.id.to_string();
    for text in [&mut info.debug_string, &mut info.to_string] {
        if let Some(at) = text.rfind(&old) {
            text.replace_range(at..at + old.len(), &id.to_string());
        }
    }
    info.id = id.cast_signed();
    info.local_hardware_id = id.cast_signed();
}

fn set_slice_index(attributes: &mut Vec<NamedValue>, slice: u32) {
    attributes.retain(|attribute| attribute.name != "slice_index");
    attributes.push(NamedValue { name: "slice_index".to_owned(), value: Value::Int64(slice.into()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(first_id: i32) -> ClientDescription {
        let device = |ordinal: i32| DeviceInfo {
            id: first_id + ordinal,
            process_index: 0,
            local_hardware_id: ordinal,
            kind: "cpu".into(),
            debug_string: format!("TFRT_CPU_{}", first_id + ordinal),
            to_string: format!("CpuDevice(id={})", first_id + ordinal),
            attributes: vec![],
            memories: vec![ordinal.cast_unsigned()],
            default_memory: Some(ordinal.cast_unsigned()),
            memory_descriptions: vec![],
        };
        let memory = |ordinal: i32| MemoryInfo {
            id: ordinal,
            kind: "device".into(),
            kind_id: 7,
            debug_string: String::new(),
            to_string: String::new(),
            devices: vec![ordinal.cast_unsigned()],
        };
        ClientDescription {
            api_version: (0, 115),
            extensions: vec![],
            platform_name: "cpu".into(),
            platform_version: "cpu".into(),
            process_index: 0,
            devices: vec![device(0), device(1)],
            memories: vec![memory(0), memory(1)],
        }
    }

    #[test]
    fn slices_that_count_alike_are_counted_on() {
        let slice = description(0);
        let (devices, memories) = combine(&[&slice, &slice]);
        assert_eq!(devices.iter().map(|d| d.info.id).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(devices[3].info.debug_string, "TFRT_CPU_3");
        assert_eq!(devices[3].info.to_string, "CpuDevice(id=3)");
        assert_eq!((devices[3].slice, devices[3].ordinal), (1, 1));
        assert_eq!(devices[3].info.default_memory, Some(3));
        assert_eq!(memories[3].info.devices, [3]);
        assert_eq!(memories[3].info.id, 3);
        assert_eq!(devices[2].info.attributes[0].value, Value::Int64(1));
    }

    #[test]
    fn ids_that_are_unique_already_stay() {
        let (devices, _) = combine(&[&description(100), &description(200)]);
        assert_eq!(devices.iter().map(|d| d.info.id).collect::<Vec<_>>(), [100, 101, 200, 201]);
    }
}
