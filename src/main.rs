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
    },
}

fn main() {
    match Arguments::parse().action {
        // SAFETY: this is the start of the process, and the argument is the client's.
        Action::Worker { fds } => unsafe { mainstay::worker::process::run(&fds) },
    }
}
