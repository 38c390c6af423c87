//! The worker process: drives the inner plugin.
