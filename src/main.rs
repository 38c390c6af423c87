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

/// What glibc gives memory with, replaced so that a worker's plugin gets aligned blocks from shared memory; see
/// [`mainstay::worker::heap`]. Everything else goes on to the C library's own functions, under their other names.
#[cfg(target_env = "gnu")]
mod memory {
    use std::ffi::{c_int, c_void};

    use mainstay::worker::heap;

    unsafe extern "C" {
        fn __libc_free(block: *mut c_void);
        fn __libc_realloc(block: *mut c_void, len: usize) -> *mut c_void;
        fn __libc_malloc(len: usize) -> *mut c_void;
        fn __libc_memalign(align: usize, len: usize) -> *mut c_void;
    }

    const INVALID: c_int = 22;
    const NO_MEMORY: c_int = 12;

    fn aligned(align: usize, len: usize) -> *mut c_void {
        match heap::allocate(align, len) {
            Some(block) => block.as_ptr().cast(),
            // SAFETY: the C library's own function, with a power of two.
            None => unsafe { __libc_memalign(align, len) },
        }
    }

    /// # Safety
    /// As the C library has it.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, len: usize) -> c_int {
        if !align.is_power_of_two() || align < size_of::<usize>() {
            return INVALID;
        }
        let block = aligned(align, len);
        if block.is_null() {
            return NO_MEMORY;
        }
        // SAFETY: the caller's place for the result.
        unsafe { to.write(block) };
        0
    }

    /// # Safety
    /// As the C library has it.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn aligned_alloc(align: usize, len: usize) -> *mut c_void {
        if align.is_power_of_two() { aligned(align, len) } else { std::ptr::null_mut() }
    }

    /// # Safety
    /// As the C library has it.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn free(block: *mut c_void) {
        match heap::offset_of(block.addr()) {
            Some(offset) => heap::free(offset),
            // SAFETY: not a block of ours, so the C library's.
            None => unsafe { __libc_free(block) },
        }
    }

    /// # Safety
    /// As the C library has it.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn realloc(block: *mut c_void, len: usize) -> *mut c_void {
        let Some(offset) = heap::offset_of(block.addr()) else {
            // SAFETY: not a block of ours, so the C library's.
            return unsafe { __libc_realloc(block, len) };
        };
        // SAFETY: a fresh block, with room for what is copied; the old one has at least that many bytes.
        unsafe {
            let moved = __libc_malloc(len);
            if !moved.is_null() {
                let kept = heap::len_of(offset).unwrap_or(0).min(len);
                std::ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast::<u8>(), kept);
                heap::free(offset);
            }
            moved
        }
    }
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
