//! Build steps: Rust types for XLA's messages.

use std::path::{Path, PathBuf};

fn main() {
    protos();
}

/// Generates `OUT_DIR/proto/` from `src/program/proto/*.proto`; see `src/program/proto/mod.rs`.
fn protos() {
    let sources = Path::new("src/program/proto");
    let names = ["shape.proto", "hlo.proto", "compile_options.proto"];
    let inputs: Vec<PathBuf> = names.iter().map(|name| sources.join(name)).collect();
    for input in &inputs {
        println!("cargo::rerun-if-changed={}", input.display());
    }
    protobuf_codegen::Codegen::new()
        .pure()
        .include(sources)
        .inputs(&inputs)
        .cargo_out_dir("proto")
        .run_from_script();
}
