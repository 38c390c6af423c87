//! `mainstay status`: what the clients of this user's processes are doing.

use std::fmt::Write as _;

use crate::runtime::status::{ClientStatus, ProcessStatus, SliceStatus, ask, processes};

/// Asks one process, or all of this user's, and prints what they say.
///
/// # Errors
/// In words, where the process that was named cannot be asked.
pub fn run(pid: Option<u32>, json: bool) -> Result<String, String> {
    let found = match pid {
        Some(pid) => vec![ask(pid).map_err(|error| {
            format!("process {pid} cannot be asked: {error}; is it a program of yours that uses Mainstay now?")
        })?],
        // A process that ended since it was listed is no error.
        None => processes()
            .map_err(|error| format!("the processes that use Mainstay cannot be listed: {error}"))?
            .into_iter()
            .filter_map(|pid| ask(pid).ok())
            .collect(),
    };
    if json {
        let printed =
            if pid.is_some() { serde_json::to_string_pretty(&found[0]) } else { serde_json::to_string_pretty(&found) };
        return printed.map(|json| json + "\n").map_err(|error| error.to_string());
    }
    if found.is_empty() {
        return Ok("no process of yours uses Mainstay now\n".to_owned());
    }
    let mut text = String::new();
    found.iter().for_each(|process| print_process(&mut text, process));
    Ok(text)
}

fn print_process(text: &mut String, process: &ProcessStatus) {
    for client in &process.clients {
        print_client(text, process.pid, client);
    }
}

fn print_client(text: &mut String, pid: u32, client: &ClientStatus) {
    let memory = &client.host_memory;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "process {pid}: platform {}, plugin {}", client.platform, client.plugin);
    let _ = writeln!(
        text,
        "  host memory: {} used, {} committed, {} allowed{}",
        bytes(memory.used),
        bytes(memory.committed),
        bytes(memory.limit),
        memory.nodes.as_ref().map_or_else(String::new, |nodes| format!(", spread over NUMA nodes {nodes}"))
    );
    let _ = writeln!(
        text,
        "  {:<6} {:<10} {:<12} {:<8} {:<16} {:<8} bytes",
        "slice", "state", "incarnation", "worker", "devices", "buffers"
    );
    for slice in &client.slices {
        print_slice(text, slice);
    }
    for spare in &client.spares {
        let _ = writeln!(text, "  spare  {:<23} {}", if spare.ready { "ready" } else { "starting" }, spare.pid);
    }
}

fn print_slice(text: &mut String, slice: &SliceStatus) {
    let devices = slice.devices.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    let kinds: Vec<_> = slice
        .bytes
        .iter()
        .filter(|(_, used)| **used > 0)
        .map(|(kind, used)| format!("{kind} {}", bytes(*used)))
        .collect();
    let pid = if slice.pid == 0 { "-".to_owned() } else { slice.pid.to_string() };
    let _ = writeln!(
        text,
        "  {:<6} {:<10} {:<12} {pid:<8} {devices:<16} {:<8} {}",
        slice.index,
        slice.state,
        slice.incarnation,
        slice.buffers,
        if kinds.is_empty() { "-".to_owned() } else { kinds.join(", ") }
    );
    match slice.loss_count.saturating_sub(slice.losses.len() as u64) {
        0 => {}
        older => _ = writeln!(text, "         {older} older losses, no longer listed"),
    }
    for loss in &slice.losses {
        let _ = writeln!(text, "         lost incarnation {}: {}", loss.incarnation, loss.reason);
    }
}

/// A number of bytes as people read it.
fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = "B";
    for larger in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::{bytes, print_slice};
    use crate::runtime::status::{LossStatus, SliceStatus};

    #[test]
    fn bytes_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }

    #[test]
    fn losses_that_are_not_kept_are_counted() {
        let kept = LossStatus { incarnation: 107, reason: "why".to_owned(), at: 0.0 };
        let mut slice = SliceStatus {
            index: 1,
            state: "healthy".to_owned(),
            incarnation: 108,
            pid: 4711,
            devices: vec![1],
            buffers: 0,
            bytes: Default::default(),
            loss_count: 107,
            losses: vec![kept],
        };
        let printed = |slice: &SliceStatus| {
            let mut text = String::new();
            print_slice(&mut text, slice);
            text.lines().skip(1).map(|line| line.trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(printed(&slice), ["106 older losses, no longer listed", "lost incarnation 107: why"]);
        slice.loss_count = 1;
        assert_eq!(printed(&slice), ["lost incarnation 107: why"]);
    }
}
