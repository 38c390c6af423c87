//! Snapshots in files: the safetensors format, written and read in pieces.
//!
//! An array is one tensor, whole whatever shards it was stored in. Element types that the format does not have (4-bit
//! integers, C128 …) travel as U8, with a dimension more where an element has several bytes; what they are stands in the
//! file's own metadata, under `mainstay`, beside what the caller adds.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use super::contents::{ArrayInfo, Contents, Shard};
use super::region::{Region, copy};
use super::snapshot::{Description, Snapshot, Value};
use super::store::Store;
use crate::abi::{Code, Status, element};
use crate::runtime::client::Client;
use crate::wire::message::Dims;

/// So much is written or read between two looks at whether to go on.
const PIECE: usize = 8 << 20;
/// Longer headers than this are not believed.
const LONGEST_HEADER: u64 = 100_000_000;
/// The key of our own entry in a file's metadata.
const KEY: &str = "mainstay";
/// The key of the caller's entry.
const CALLERS_KEY: &str = "mainstay.metadata";

/// Told the bytes that are done and all there are; false to give up.
pub type Watch<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// Our own entry in a file's metadata.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    step: i64,
    label: String,
    /// By the tensor's name: the element type of an array, where the tensor's is another.
    types: HashMap<String, String>,
}

/// Types that both sides have.
const TYPES: [(&str, Dtype); 20] = [
    ("pred", Dtype::BOOL),
    ("s8", Dtype::I8),
    ("s16", Dtype::I16),
    ("s32", Dtype::I32),
    ("s64", Dtype::I64),
    ("u8", Dtype::U8),
    ("u16", Dtype::U16),
    ("u32", Dtype::U32),
    ("u64", Dtype::U64),
    ("f16", Dtype::F16),
    ("f32", Dtype::F32),
    ("f64", Dtype::F64),
    ("bf16", Dtype::BF16),
    ("c64", Dtype::C64),
    ("f8e5m2", Dtype::F8_E5M2),
    ("f8e4m3fn", Dtype::F8_E4M3),
    ("f8e8m0fnu", Dtype::F8_E8M0),
    ("f8e4m3fnuz", Dtype::F8_E4M3FNUZ),
    ("f8e5m2fnuz", Dtype::F8_E5M2FNUZ),
    // Never looked up by its name: what is no other tensor is bytes.
    ("", Dtype::U8),
];

fn unusable(path: &Path, what: impl std::fmt::Display) -> Status {
    Status::failed_precondition(format!("{}: {what}", path.display()))
}

fn cancelled() -> Status {
    Status::new(Code::Cancelled, "given up by the caller")
}

impl Snapshot {
    /// Writes the snapshot to a file: beside it first, so that the file is whole or absent. `names` names the arrays, one
    /// each; `metadata` is the caller's, as text.
    ///
    /// # Errors
    /// A snapshot that is not whole, names that are not unique, what the file system says.
    pub fn export(&self, path: &Path, names: &[String], metadata: &str, watch: Watch<'_>) -> Result<(), Status> {
        let values = self.values(0..self.contents.shards.len())?;
        let unique: HashSet<_> = names.iter().collect();
        if names.len() != self.contents.arrays.len() || unique.len() != names.len() {
            return Err(Status::invalid(format!(
                "{} names, {} of them different, were given for {} arrays",
                names.len(),
                unique.len(),
                self.contents.arrays.len()
            )));
        }
        let header = self.header(names, metadata)?;
        let beside = PathBuf::from(format!("{}.part", path.display()));
        let written = self
            .write(&beside, &header, &values, watch)
            .and_then(|()| std::fs::rename(&beside, path).map_err(|error| unusable(path, error)));
        if written.is_err() {
            // The first error is the one to tell.
            let _ = std::fs::remove_file(&beside);
        }
        written
    }

    fn header(&self, names: &[String], metadata: &str) -> Result<Vec<u8>, Status> {
        let (mut tensors, mut types, mut end) = (Vec::new(), HashMap::new(), 0);
        for (array, name) in self.contents.arrays.iter().zip(names) {
            let (type_name, bytes) = (element::name(array.element_type)?, array.element_bytes()?);
            let mut shape: Vec<usize> = array.dims.iter().map(|&dim| dim as usize).collect();
            let known = TYPES.iter().find(|(name, _)| *name == type_name).map(|(_, dtype)| *dtype);
            if known.is_none() {
                types.insert(name.clone(), type_name.to_owned());
                shape.extend((bytes > 1).then_some(bytes));
            }
            let begin = end;
            end += element::dense_bytes(array.element_type, &array.dims)? as usize;
            let dtype = known.unwrap_or(Dtype::U8);
            tensors.push((name.clone(), TensorInfo { dtype, shape, data_offsets: (begin, end) }));
        }
        let own = Header { version: 1, step: self.step, label: self.label.clone(), types };
        let invalid =
            |error: &dyn std::fmt::Display| Status::invalid(format!("the file's header cannot be made: {error}"));
        let own = serde_json::to_string(&own).map_err(|error| invalid(&error))?;
        let entries = HashMap::from([(KEY.to_owned(), own), (CALLERS_KEY.to_owned(), metadata.to_owned())]);
        let metadata = Metadata::new(Some(entries), tensors).map_err(|error| invalid(&error))?;
        let mut header = serde_json::to_vec(&metadata).map_err(|error| invalid(&error))?;
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok(header)
    }

    fn write(&self, path: &Path, header: &[u8], values: &[Value], watch: Watch<'_>) -> Result<(), Status> {
        let failed = |error: std::io::Error| unusable(path, error);
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
        file.write_all(header).map_err(failed)?;
        let total = self.progress().total;
        let mut done = 0;
        for array in &self.contents.arrays {
            self.pieces(array, values, &mut |piece| {
                file.write_all(piece).map_err(failed)?;
                done += piece.len() as u64;
                if watch(done, total) { Ok(()) } else { Err(cancelled()) }
            })?;
        }
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)
    }

    /// Gives the dense bytes of an array, piece by piece.
    fn pieces(
        &self,
        array: &ArrayInfo,
        values: &[Value],
        give: &mut dyn FnMut(&[u8]) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let whole = Region::within(&array.dims, &Dims::from_elem(0, array.dims.len()), &array.dims)?;
        let stored = || self.contents.shards[array.shards.clone()].iter().zip(&values[array.shards.clone()]);
        // SAFETY: the blocks are values, which nobody writes to.
        let bytes = |value: &Value| unsafe { std::slice::from_raw_parts(value.block.as_ptr(), value.block.len()) };
        if let Some((_, value)) = stored().find(|(shard, _)| shard.region == whole) {
            return bytes(value).chunks(PIECE).try_for_each(give);
        }
        let size = array.element_bytes()?;
        let mut room = Vec::new();
        for slab in whole.slabs((PIECE / size.max(1)) as u64) {
            room.resize(slab.count() as usize * size, 0);
            for (shard, value) in stored() {
                if let Some(part) = shard.region.overlap(&slab) {
                    copy(&part, &shard.region, bytes(value), &slab, &mut room, size);
                }
            }
            give(&room)?;
        }
        Ok(())
    }
}

/// What a file holds.
pub struct Imported {
    /// The arrays, whole.
    pub snapshot: Arc<Snapshot>,
    /// Their names.
    pub names: Vec<String>,
}

/// An array of a file: its name, what it is, and where its bytes begin.
struct Entry {
    name: String,
    element_type: u32,
    dims: Dims,
    bytes: u64,
    offset: u64,
}

impl Store {
    /// Reads a file, ours or any other in the format, into a snapshot of the store; the metadata is what the caller gave
    /// when it was written.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the arena has no room; a file that is damaged or of another format; what the file system
    /// says.
    pub fn import(self: &Arc<Self>, client: &Client, path: &Path, watch: Watch<'_>) -> Result<Imported, Status> {
        let file = File::open(path).map_err(|error| unusable(path, error))?;
        let (metadata, data_at) = read_header(&file, path)?;
        let entry_of = |key| metadata.metadata().as_ref().and_then(|entries| entries.get(key));
        let own = entry_of(KEY).map(|text| serde_json::from_str::<Header>(text)).transpose();
        let own = own.map_err(|error| unusable(path, format!("the entry {KEY} of its metadata: {error}")))?;
        let entries = entries(&metadata, own.as_ref(), data_at).map_err(|status| unusable(path, status.message))?;
        let total = entries.iter().map(|entry| entry.bytes).sum();
        let (mut blocks, mut done) = (Vec::new(), 0);
        for entry in &entries {
            let mut block = client.allocate(entry.bytes)?;
            // SAFETY: fresh from the arena: no worker knows of it.
            let room = unsafe { block.as_mut_slice() };
            for (piece, at) in room.chunks_mut(PIECE).zip((entry.offset..).step_by(PIECE)) {
                file.read_exact_at(piece, at).map_err(|error| unusable(path, error))?;
                done += piece.len() as u64;
                if !watch(done, total) {
                    return Err(cancelled());
                }
            }
            blocks.push(block);
        }
        let (step, label) = own.map_or((0, String::new()), |own| (own.step, own.label));
        let metadata = entry_of(CALLERS_KEY).map_or(Vec::new(), |text| text.clone().into_bytes());
        let (arrays, shards) = (0..).zip(&entries).map(|(index, entry)| entry.describe(index)).unzip();
        let contents = Arc::new(Contents::new(arrays, shards));
        let snapshot = self.keep(Description { step, label, metadata, contents, copied: 0 }, blocks);
        Ok(Imported { snapshot, names: entries.into_iter().map(|entry| entry.name).collect() })
    }
}

fn read_header(file: &File, path: &Path) -> Result<(Metadata, u64), Status> {
    let failed = |error: std::io::Error| unusable(path, error);
    let length = file.metadata().map_err(failed)?.len();
    let mut size = [0; 8];
    file.read_exact_at(&mut size, 0).map_err(failed)?;
    let size = u64::from_le_bytes(size);
    if size > LONGEST_HEADER || size + 8 > length {
        return Err(unusable(path, format!("a header of {size} bytes: this is no safetensors file, or it is damaged")));
    }
    let mut header = vec![0; size as usize];
    file.read_exact_at(&mut header, 8).map_err(failed)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| unusable(path, error))?;
    if 8 + size + metadata.data_len() as u64 != length {
        return Err(unusable(path, format!("{length} bytes, but its header speaks of {}", metadata.data_len())));
    }
    Ok((metadata, 8 + size))
}

/// The arrays of a file, in the order of their bytes.
fn entries(metadata: &Metadata, own: Option<&Header>, data_at: u64) -> Result<Vec<Entry>, Status> {
    let entry = |name: String| {
        let info = metadata.info(&name).ok_or_else(|| Status::invalid(format!("no tensor {name}")))?;
        let named = own.and_then(|own| own.types.get(&name)).map(String::as_str);
        let type_name = named.or(TYPES.iter().find(|(_, dtype)| *dtype == info.dtype).map(|(name, _)| *name));
        let element_type = type_name.and_then(element::from_name).ok_or_else(|| {
            Status::unimplemented(format!("tensor {name} has the type {}, which is not read", info.dtype))
        })?;
        let mut dims: Dims = info.shape.iter().map(|&dim| i64::try_from(dim).unwrap_or(-1)).collect();
        if named.is_some() && element::host_bytes(element_type)? > 1 {
            dims.pop();
        }
        let (begin, end) = info.data_offsets;
        let bytes = element::dense_bytes(element_type, &dims)?;
        if bytes != (end - begin) as u64 {
            return Err(Status::invalid(format!("tensor {name} has {} bytes; its shape needs {bytes}", end - begin)));
        }
        Ok(Entry { name, element_type, dims, bytes, offset: data_at + begin as u64 })
    };
    metadata.offset_keys().into_iter().map(entry).collect()
}

impl Entry {
    fn describe(&self, index: usize) -> (ArrayInfo, Shard) {
        let array = ArrayInfo { element_type: self.element_type, dims: self.dims.clone(), shards: index..index + 1 };
        let region = Region { start: Dims::from_elem(0, self.dims.len()), size: self.dims.clone() };
        (array, Shard { array: index, region, bytes: self.bytes })
    }
}
