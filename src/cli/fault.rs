//! `mainstay fault`: does to a running program's slice what its code should bear.

use clap::ValueEnum;

use crate::runtime::fault::{Fault, Kind};
use crate::runtime::status::{inject_into, processes};

/// What is done to the slice's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Kill it (SIGKILL)
    Kill,
    /// Stop it (SIGSTOP): lost once the bound on silence has passed
    Stop,
    /// Make it take no further work: lost once the bound on progress has passed, if one is set
    Hang,
    /// Make it wait before each launch
    Slow,
    /// Make it refuse its next launch, with an error that is no loss
    FailNextLaunch,
    /// Let it have no more memory
    ExhaustMemory,
}

/// Tells the process to do it. `milliseconds` is for [`Name::Slow`].
///
/// # Errors
/// In words: which process, or why it will not.
pub fn run(
    name: Name,
    slice: u32,
    at_step: Option<u64>,
    milliseconds: u64,
    pid: Option<u32>,
) -> Result<String, String> {
    let kind = match name {
        Name::Kill => Kind::Kill,
        Name::Stop => Kind::Stop,
        Name::Hang => Kind::Hang,
        Name::Slow => Kind::Slow(milliseconds),
        Name::FailNextLaunch => Kind::FailNextLaunch,
        Name::ExhaustMemory => Kind::ExhaustMemory,
    };
    let pid = pid.map_or_else(only_process, Ok)?;
    inject_into(pid, &Fault { kind, slice, at_step })?;
    Ok(match at_step {
        Some(step) => format!("process {pid}, slice {slice}: at step {step}\n"),
        None => format!("process {pid}, slice {slice}: done\n"),
    })
}

fn only_process() -> Result<u32, String> {
    let found = processes().map_err(|error| format!("the processes that use Mainstay cannot be listed: {error}"))?;
    match found.as_slice() {
        [pid] => Ok(*pid),
        [] => Err("no process of yours uses Mainstay now".to_owned()),
        several => Err(format!("several processes use Mainstay: choose one of {several:?} with --pid")),
    }
}
