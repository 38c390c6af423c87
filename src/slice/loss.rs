//! The loss of an incarnation: what happened, and how it reads as the status of all that was lost.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Incarnation;
use crate::abi::{Code, Status, harmless};

/// Of a worker's last output, so many bytes go into the message.
const OUTPUT_IN_MESSAGE: usize = 2000;

/// How a worker ended, as its parent learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By a signal.
    Signal(i32),
    /// By itself.
    Code(i32),
}

/// Why an incarnation is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// The worker was killed by a signal, or raised one itself.
    Signal(i32),
    /// The worker left.
    ExitCode(i32),
    /// The worker closed its end of the connection and went on living, until it was killed for that.
    ConnectionClosed,
    /// The worker said what makes no sense.
    Corrupt(String),
    /// The worker gave no sign of life for this long.
    Silent(Duration),
    /// The worker had work and finished none of it for this long.
    Stuck(Duration),
    /// The machine under the slice was taken away.
    Preempted,
    /// The worker never came up.
    StartFailed(Status),
    /// The worker did not come up within this time.
    StartTimeout(Duration),
    /// The client told the slice to stop.
    Stopped,
}

impl From<Exit> for LossCause {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Signal(signal) => Self::Signal(signal),
            Exit::Code(code) => Self::ExitCode(code),
        }
    }
}

/// What follows on a loss, as it was decided at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequel {
    /// A replacement starts this long after the worker is reaped.
    Replacement(Duration),
    /// Nothing: this many incarnations in a row were lost young.
    GivenUp(u32),
    /// Nothing: the user wants no replacements.
    NotReplaced,
    /// Nothing until the slice is resumed, or ever: as the client wanted it.
    Rest,
}

/// The loss of one incarnation of a slice. Never changes once it was told.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The slice's index.
    pub slice: u32,
    /// Which of its workers.
    pub incarnation: Incarnation,
    /// What happened.
    pub cause: LossCause,
    /// The worker's last lines on stderr, as far as they were known and as many as a message can bear.
    pub stderr_tail: Arc<str>,
    /// The worker's process, if there was one.
    pub pid: Option<u32>,
    /// When it was noticed.
    pub at: Instant,
    /// What Mainstay does next.
    pub sequel: Sequel,
    /// The status of all that was lost.
    status: Status,
}

impl Loss {
    pub(super) fn new(
        slice: u32,
        incarnation: Incarnation,
        cause: LossCause,
        (pid, stderr_tail): (Option<u32>, Arc<str>),
        at: Instant,
        sequel: Sequel,
    ) -> Self {
        let (status, stderr_tail) = (Status::new(Code::DataLoss, ""), last_part(&stderr_tail).into());
        let mut loss = Self { slice, incarnation, cause, stderr_tail, pid, at, sequel, status };
        loss.status.message = loss.message(None).into();
        loss
    }

    /// DATA_LOSS, for everything of this incarnation. Cheap.
    pub fn status(&self) -> Status {
        self.status.clone()
    }

    /// DATA_LOSS, for something that was on one device.
    pub fn status_of(&self, device: &str) -> Status {
        Status::new(Code::DataLoss, self.message(Some(device)))
    }

    /// What a client that can't be made for it is told: there was nothing to lose yet, but something to set right.
    pub fn at_start(&self, executable: &Path) -> Status {
        if let LossCause::StartFailed(status) = &self.cause {
            return status.clone();
        }
        Status::failed_precondition(format!(
            "slice {} did not come up: {}; the worker executable is {} (MAINSTAY_WORKER).{}",
            self.slice,
            self.what_happened(),
            executable.display(),
            harmless(&self.last_words())
        ))
    }

    fn message(&self, device: Option<&str>) -> String {
        let Self { slice, incarnation, .. } = self;
        let device = device.map(|device| format!(" ({device})")).unwrap_or_default();
        let next = incarnation + 1;
        let sequel = match &self.sequel {
            Sequel::Replacement(wait) if wait.is_zero() => {
                format!("Incarnation {next} is being started and will work; make the lost data anew on it")
            }
            Sequel::Replacement(wait) => format!(
                "Incarnation {next} will be started in {wait:?}, since earlier ones failed too; make the lost data anew \
                 on it"
            ),
            Sequel::GivenUp(count) => format!(
                "The slice stays down after {count} lost in a row; see the cause, or raise replace_limit \
                 (MAINSTAY_REPLACE_LIMIT)"
            ),
            Sequel::NotReplaced => {
                "The slice is not replaced, since replace_limit (MAINSTAY_REPLACE_LIMIT) is 0".to_owned()
            }
            Sequel::Rest => "The slice is not started again for now".to_owned(),
        };
        format!(
            "slice {slice}{device} lost incarnation {incarnation}: {}. Its buffers, and the results of launches that \
             had not finished, are gone. {sequel}.{}",
            self.what_happened(),
            self.last_words()
        )
    }

    fn last_words(&self) -> String {
        match &*self.stderr_tail {
            "" => String::new(),
            words => format!(" The worker's last output:\n{words}"),
        }
    }

    fn what_happened(&self) -> String {
        let worker = match self.pid {
            Some(pid) => format!("its worker (pid {pid})"),
            None => "its worker".to_owned(),
        };
        match &self.cause {
            LossCause::Signal(signal) => {
                format!("{worker} was killed by signal {signal}{}", signal_words(*signal))
            }
            LossCause::ExitCode(code) => format!("{worker} left with exit code {code}"),
            LossCause::ConnectionClosed => format!("{worker} closed its connection and was killed"),
            LossCause::Corrupt(what) => format!("{worker} sent what can't be read and was killed ({what})"),
            LossCause::Silent(time) => {
                format!("{worker} gave no sign of life for {time:.1?} (heartbeat_timeout) and was killed")
            }
            LossCause::Stuck(time) => {
                format!("{worker} finished none of its work for {time:.1?} (progress_timeout) and was killed")
            }
            LossCause::Preempted => "it was preempted".to_owned(),
            LossCause::StartFailed(status) => format!("{worker} could not start: {}", status.message),
            LossCause::StartTimeout(time) => {
                format!("{worker} was not up after {time:?} (start_timeout) and was killed")
            }
            LossCause::Stopped => format!("{worker} was told to stop"),
        }
    }
}

/// The end of a worker's output: what a message can bear.
fn last_part(output: &str) -> &str {
    let text = output.trim_end();
    let mut start = text.len().saturating_sub(OUTPUT_IN_MESSAGE);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// The name of a signal, and what it usually means for a worker.
fn signal_words(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL: an instruction this machine lacks, or a trap in the plugin)",
        5 => " (SIGTRAP)",
        6 => " (SIGABRT: a failed check in the plugin; its output says which)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL: by the kernel when memory runs out, or by someone else)",
        11 => " (SIGSEGV: a bad access in the plugin or its driver)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU: over a limit of processor time)",
        31 => " (SIGSYS: a system call that is not allowed here)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(cause: LossCause, output: &str, sequel: Sequel) -> Loss {
        Loss::new(1, 3, cause, (Some(4711), output.into()), Instant::now(), sequel)
    }

    #[test]
    fn a_loss_reads_well() {
        let loss = loss(LossCause::Signal(9), "one\ntwo\n", Sequel::Replacement(Duration::ZERO));
        let status = loss.status();
        assert_eq!(status.code, Code::DataLoss);
        assert_eq!(
            &*status.message,
            "slice 1 lost incarnation 3: its worker (pid 4711) was killed by signal 9 (SIGKILL: by the kernel when \
             memory runs out, or by someone else). Its buffers, and the results of launches that had not finished, are \
             gone. Incarnation 4 is being started and will work; make the lost data anew on it. The worker's last \
             output:\none\ntwo"
        );
        assert!(loss.status_of("TFRT_CPU_5").message.starts_with("slice 1 (TFRT_CPU_5) lost incarnation 3: "));
    }

    #[test]
    fn every_cause_and_sequel_has_its_words() {
        let second = Duration::from_secs(1);
        for (cause, words) in [
            (LossCause::ExitCode(3), "left with exit code 3"),
            (LossCause::ConnectionClosed, "closed its connection"),
            (LossCause::Corrupt("bad header".into()), "bad header"),
            (LossCause::Silent(second), "no sign of life for 1.0s"),
            (LossCause::Stuck(second), "none of its work for 1.0s"),
            (LossCause::Preempted, "it was preempted"),
            (LossCause::StartFailed(Status::invalid("no such file")), "could not start: no such file"),
            (LossCause::StartTimeout(second), "not up after 1s"),
            (LossCause::Stopped, "told to stop"),
        ] {
            let message = loss(cause, "", Sequel::GivenUp(5)).status().message;
            assert!(message.contains(words), "{message}");
            assert!(message.contains("after 5 lost in a row") && message.contains("replace_limit"), "{message}");
            assert!(!message.contains("last output"));
        }
        assert!(loss(LossCause::Stopped, "", Sequel::Replacement(second)).status().message.contains("in 1s"));
        assert!(loss(LossCause::Preempted, "", Sequel::NotReplaced).status().message.contains("is 0"));
        assert!(loss(LossCause::Stopped, "", Sequel::Rest).status().message.contains("not started again"));
    }

    #[test]
    fn long_output_is_cut_between_characters() {
        let loss = loss(LossCause::ExitCode(1), &"ä".repeat(5001), Sequel::Rest);
        assert!(loss.status().message.len() < OUTPUT_IN_MESSAGE + 500);
        assert_eq!(loss.stderr_tail.len(), OUTPUT_IN_MESSAGE);
    }
}
