//! Mainstay's log: through `tracing`, to standard error, as the setting `log` filters it.

use tracing_subscriber::EnvFilter;

/// Starts to log, unless this process has a log already. A filter that makes no sense counts as `warn`.
pub fn start(filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("warn"));
    // Refused where a log was started before: then that one goes on.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).try_init();
}
