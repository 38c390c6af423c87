//! Programs: compile options, executables, the planning of programs that span slices.
