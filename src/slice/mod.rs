//! The state machine of a slice. No input, output or clock of its own.
