//! Compiling a program that spans slices: planned on a client of the program's size, rewritten, compiled for each
//! slice. See [`crate::program::spanning`] for the way.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use protobuf::Message;

use super::collectives::ffi;
use super::compile::Compiler;
use super::describe;
use super::inner::{Client, Plugin, Program};
use crate::abi::Status;
use crate::program::proto::hlo::{HloModuleProto, HloProto};
use crate::program::spanning::{self, Extents, metadata, options};
use crate::wire::message::{Compiled, CompiledSpanning, SpanningJob, SpanningPart};

impl Compiler {
    /// Plans and compiles a program that spans slices.
    pub(super) fn compile_spanning(&self, job: &SpanningJob) -> Result<CompiledSpanning, Status> {
        static REGISTERED: OnceLock<Result<(), Status>> = OnceLock::new();
        REGISTERED.get_or_init(|| ffi::register(self.plugin)).clone()?;
        let extents = options::extents(&job.program.options)?;
        let program = Program { format: &job.program.format, code: &job.program.code };
        let world = self.client(&job.program.client_options)?;
        let module = partitioned(self.plugin, &world, program, &job.program.options, extents)?;
        let metadata = metadata::metadata(&module)?;
        let rewritten = spanning::rewrite(module, extents)?
            .write_to_bytes()
            .map_err(|error| Status::invalid(format!("the rewritten program can't be written: {error}")))?;
        let part = |part| self.compile_part(&rewritten, &job.program.options, part);
        let parts: Vec<Compiled> = job.parts.iter().map(part).collect::<Result<_, _>>()?;
        let Some(first) = parts.first() else {
            return Err(Status::invalid("a program that spans slices has no parts to compile"));
        };
        let info = metadata.describe(&first.info, &job.program, extents);
        Ok(CompiledSpanning { info, parts })
    }

    fn compile_part(&self, module: &[u8], options: &[u8], part: &SpanningPart) -> Result<Compiled, Status> {
        let client = self.client(&part.client_options)?;
        let options = options::slice(options, &part.devices)?;
        let loaded = client.compile(Program { format: "hlo", code: module }, &options)?;
        describe::loaded(&loaded, &|kind, dims| client.default_layout(kind, dims))
    }
}

/// The program's module after SPMD partitioning, or before all optimization where it has one partition only.
fn partitioned(
    plugin: &'static Plugin,
    world: &Client,
    program: Program<'_>,
    options: &[u8],
    extents: Extents,
) -> Result<HloModuleProto, Status> {
    let folder = Folder::new()?;
    let options = options::planning(options, &folder.0)?;
    let planned = plugin.compile_to_plan(|| world.compile(program, &options)).map(drop);
    let wanted: &[&str] = match extents.partitions {
        1 => &["before_optimizations"],
        // The plugin compiles in full where it can't be stopped, and may then have no code for a collective, of which none
        // will be left.
        _ if planned.is_err() => &["after_spmd-partitioning"],
        // A pass that changed nothing leaves only what it was given.
        _ => &["after_spmd-partitioning", "before_spmd-partitioning", "before_optimizations"],
    };
    let names = folder.files()?;
    let Some(name) = wanted.iter().find_map(|part| names.iter().find(|name| name.contains(part))) else {
        planned?;
        return Err(Status::failed_precondition(format!(
            "the inner plugin did not write down the partitioned program: it wrote {names:?}"
        )));
    };
    let bytes = std::fs::read(folder.0.join(name)).map_err(|error| folder.unusable(&error))?;
    let proto = HloProto::parse_from_bytes(&bytes)
        .map_err(|error| Status::invalid(format!("the partitioned program can't be read: {error}")))?;
    proto.hlo_module.into_option().ok_or_else(|| Status::invalid("the partitioned program is empty"))
}

/// What the folders' names begin with, before the number of their process.
const PREFIX: &str = "mainstay-plan-";
/// No plan takes longer.
const LONGEST_PLAN: Duration = Duration::from_secs(600);

/// Removes what a compiler process that died while it planned has left behind. To be called once it is reaped.
pub fn clear_up_after(pid: u32) {
    for (_, folder) in all_folders().filter(|(owner, _)| *owner == pid) {
        if let Err(error) = std::fs::remove_dir_all(folder.path()) {
            tracing::warn!(%error, folder = %folder.path().display(), "a dead compiler's folder stays");
        }
    }
}

/// Removes what processes left behind that were killed together with their clients, so that nobody cleared up after them,
/// and an earlier process that had the number of this one. To be called before this one makes its first folder.
fn clear_up_after_the_dead() {
    for (owner, folder) in all_folders() {
        // A process that can't be seen may live in another container that has the same memory: not for so long, though.
        let is_dead = || !Path::new(&format!("/proc/{owner}")).exists();
        let age = folder.metadata().and_then(|folder| folder.modified()).ok().and_then(|made| made.elapsed().ok());
        if owner == std::process::id() || (is_dead() && age.is_some_and(|age| age > LONGEST_PLAN)) {
            // Another user's stays.
            let _ = std::fs::remove_dir_all(folder.path());
        }
    }
}

/// The folders of all processes, each with the number of its process.
fn all_folders() -> impl Iterator<Item = (u32, DirEntry)> {
    let owner = |folder: &DirEntry| folder.file_name().to_str()?.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok();
    let entries = std::fs::read_dir(folders()).into_iter().flatten().flatten();
    entries.filter_map(move |folder| Some((owner(&folder)?, folder)))
}

/// Where the folders are: in memory where there is such a place.
fn folders() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.into() } else { std::env::temp_dir() }
}

/// A new folder of this process's own, in memory where there is such a place; gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Status> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        static CLEARED_UP: Once = Once::new();
        CLEARED_UP.call_once(clear_up_after_the_dead);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = Self(folders().join(format!("{PREFIX}{}-{number}", std::process::id())));
        let mut builder = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        // A folder that is there already is somebody else's, or a dead process's: neither is to be trusted.
        builder.create(&folder.0).map_err(|error| folder.unusable(&error))?;
        Ok(folder)
    }

    /// Names of the modules in it, in order.
    fn files(&self) -> Result<Vec<String>, Status> {
        let entries = std::fs::read_dir(&self.0).map_err(|error| self.unusable(&error))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut modules: Vec<String> = names.filter(|name| name.ends_with(".hlo.pb")).collect();
        modules.sort_unstable();
        Ok(modules)
    }

    fn unusable(&self, error: &std::io::Error) -> Status {
        Status::failed_precondition(format!(
            "the folder {} for planning a program can't be used: {error}",
            self.0.display()
        ))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, folder = %self.0.display(), "a folder of the planner stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_compiler_left_is_removed_and_nothing_else() {
        // Numbers that no process has.
        let (dead, other) = (4_200_000_001, 4_200_000_002);
        let make = |pid| folders().join(format!("{PREFIX}{pid}-{}", std::process::id()));
        for pid in [dead, other] {
            std::fs::create_dir(make(pid)).unwrap();
            std::fs::write(make(pid).join("module.hlo.pb"), b"x").unwrap();
        }
        clear_up_after(dead);
        assert!(!make(dead).exists());
        assert!(make(other).exists());
        clear_up_after(other);
        assert!(!make(other).exists());
    }
}
