//! The `mainstay` executable.

use clap::{Parser, Subcommand};
use mainstay::cli::fault;

/// A PJRT plugin that outlives the hardware under it.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Host one slice's inner plugin; started by the plugin, not by people
    #[command(hide = true)]
    Worker {
        /// The client's process id and the inherited descriptors
        #[arg(long)]
        fds: String,
        /// What it is for, as it shows in a list of processes
        #[arg(long)]
        label: String,
    },
    /// Show the slices of running programs: workers, buffers, losses
    Status {
        /// Only the program with this process id
        #[arg(long)]
        pid: Option<u32>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Do to a running program's slice what its code should bear
    Fault {
        /// What happens to the slice's worker
        #[arg(value_enum)]
        kind: fault::Name,
        /// The slice's index
        #[arg(long)]
        slice: u32,
        /// When the program reaches this step (as its elastic manager, or mainstay.fault.reached, says); else at once
        #[arg(long)]
        at_step: Option<u64>,
        /// How long `slow` waits before each launch; 0 ends it
        #[arg(long, default_value_t = 100)]
        milliseconds: u64,
        /// The program, where several use Mainstay
        #[arg(long)]
        pid: Option<u32>,
    },
}

fn main() {
    match Arguments::parse().action {
        // SAFETY: this is the start of the process, and the argument is the client's.
        Action::Worker { fds, label: _ } => unsafe { mainstay::worker::process::run(&fds) },
        Action::Status { pid, json } => print(mainstay::cli::status::run(pid, json)),
        Action::Fault { kind, slice, at_step, milliseconds, pid } => {
            print(fault::run(kind, slice, at_step, milliseconds, pid));
        }
    }
}

/// Prints what a subcommand says, or its complaint, and leaves with the exit code that fits.
fn print(result: Result<String, String>) -> ! {
    let code = match result {
        Ok(text) => {
            // Whoever reads may have closed the pipe: that is no failure.
            let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
            0
        }
        Err(complaint) => {
            eprintln!("mainstay: {complaint}");
            1
        }
    };
    std::process::exit(code)
}
