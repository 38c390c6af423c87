//! The `mainstay` executable.

use clap::{Parser, Subcommand};

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
}

fn main() {
    match Arguments::parse().action {
        // SAFETY: this is the start of the process, and the argument is the client's.
        Action::Worker { fds, label: _ } => unsafe { mainstay::worker::process::run(&fds) },
        Action::Status { pid, json } => print(mainstay::cli::status::run(pid, json)),
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
