//! Faults on request: what `mainstay fault` and `mainstay.fault` do to a slice's worker, at once or at a step.
//!
//! They are real where that is safe for the machine: a killed or stopped process is killed or stopped by a signal,
//! and memory runs out at a limit that the kernel holds.

use std::sync::{Mutex, MutexGuard};

use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};

use super::slice::Slice;
use super::status;
use crate::sync::lock;
use crate::wire::message::{Command, Misbehaviour};

/// Address space that a worker may still get when its memory is to run out.
const LAST_BYTES: u64 = 1 << 20;

/// A fault of one slice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happens.
    pub kind: Kind,
    /// To which slice, by index.
    pub slice: u32,
    /// When the program says that it reached this step; absent: at once.
    #[serde(default)]
    pub at_step: Option<u64>,
}

/// What happens to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It is killed (SIGKILL).
    Kill,
    /// It is stopped (SIGSTOP): all its threads.
    Stop,
    /// It takes no further work, and gives signs of life.
    Hang,
    /// It waits so many milliseconds before each launch from now on.
    Slow(u64),
    /// It refuses the next launch with an error that is no loss.
    FailNextLaunch,
    /// It gets no more memory from the kernel.
    ExhaustMemory,
}

/// Faults that wait for their step.
static PENDING: Mutex<Vec<Fault>> = Mutex::new(Vec::new());

fn pending() -> MutexGuard<'static, Vec<Fault>> {
    lock(&PENDING)
}

/// Does it, or keeps it for its step.
///
/// # Errors
/// In words: there is no such slice, or no worker to do it to.
pub fn inject(fault: Fault) -> Result<(), String> {
    let (slice, count) = find(fault.slice);
    let slice = slice.ok_or_else(|| format!("there is no slice {}; there are {count}", fault.slice))?;
    if fault.at_step.is_some() {
        pending().push(fault);
        return Ok(());
    }
    perform(&slice, fault.kind)
}

/// The program says that it reached a step: faults that waited for it are done.
pub fn reached(step: u64) {
    let due: Vec<_> = pending().extract_if(.., |fault| fault.at_step.is_some_and(|at| at <= step)).collect();
    for fault in due {
        if let Err(why) = inject(Fault { at_step: None, ..fault }) {
            tracing::warn!(slice = fault.slice, step, %why, "a fault that was asked for cannot be done");
        }
    }
}

/// A slice of this process's client, and how many there are.
fn find(index: u32) -> (Option<std::sync::Arc<Slice>>, usize) {
    let clients = status::clients();
    let slices = || clients.iter().flat_map(|client| client.slices());
    (slices().find(|slice| slice.index == index).cloned(), slices().count())
}

fn perform(slice: &Slice, kind: Kind) -> Result<(), String> {
    let misbehave = |how| {
        slice.current().send(&Command::Misbehave(how));
        Ok(())
    };
    match kind {
        Kind::Kill => signal(slice, Signal::KILL),
        Kind::Stop => signal(slice, Signal::STOP),
        Kind::Hang => misbehave(Misbehaviour::Hang),
        Kind::Slow(milliseconds) => misbehave(Misbehaviour::Slow(milliseconds)),
        Kind::FailNextLaunch => misbehave(Misbehaviour::FailNextLaunch),
        Kind::ExhaustMemory => exhaust_memory(slice),
    }
}

fn worker(slice: &Slice) -> Result<Pid, String> {
    let pid = slice.standing().2.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    pid.ok_or_else(|| format!("slice {} has no worker now", slice.index))
}

fn signal(slice: &Slice, signal: Signal) -> Result<(), String> {
    let pid = worker(slice)?;
    rustix::process::kill_process(pid, signal)
        .map_err(|error| format!("the worker of slice {} (pid {pid}) cannot be signalled: {error}", slice.index))
}

fn exhaust_memory(slice: &Slice) -> Result<(), String> {
    let pid = worker(slice)?;
    let failed = |error: &dyn std::fmt::Display| {
        format!("the memory of slice {}'s worker (pid {pid}) cannot be limited: {error}", slice.index)
    };
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).map_err(|error| failed(&error))?;
    let pages: u64 = statm.split(' ').next().and_then(|pages| pages.parse().ok()).ok_or_else(|| failed(&statm))?;
    let most = pages * rustix::param::page_size() as u64 + LAST_BYTES;
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    // The heap is mapped already: what it gives would not count.
    slice.current().send(&Command::Misbehave(Misbehaviour::LeaveHeap));
    rustix::process::prlimit(Some(pid), Resource::As, limit).map(drop).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_python_and_the_command_line_write_them() {
        let read = |text: &str| serde_json::from_str::<Fault>(text).unwrap();
        assert_eq!(read(r#"{"kind":"kill","slice":1}"#), Fault { kind: Kind::Kill, slice: 1, at_step: None });
        let slow = Fault { kind: Kind::Slow(20), slice: 0, at_step: Some(7) };
        assert_eq!(read(r#"{"kind":{"slow":20},"slice":0,"at_step":7}"#), slow);
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"explode","slice":1}"#).is_err());
    }

    #[test]
    fn a_slice_that_is_not_there_is_named() {
        let why = inject(Fault { kind: Kind::Stop, slice: 7, at_step: None }).unwrap_err();
        assert!(why.contains("no slice 7"), "{why}");
    }
}
