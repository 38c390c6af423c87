//! Build steps: Rust bindings of our own C headers, so that layouts are declared once, in `include/`; Rust types for
//! XLA's messages; the fake plugin that tests use.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The C headers, in the order in which they depend on each other.
const HEADERS: [&str; 4] = ["pjrt_c_api.h", "pjrt_extensions.h", "xla_ffi_c_api.h", "mainstay_snapshot.h"];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    protos();
    match bindings().and_then(|()| fake_plugin()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Generates `OUT_DIR/proto/` from `src/program/proto/*.proto`; see `src/program/proto/mod.rs`.
fn protos() {
    let sources = Path::new("src/program/proto");
    let names = ["shape.proto", "hlo.proto", "compile_options.proto"];
    let inputs: Vec<PathBuf> = names.iter().map(|name| sources.join(name)).collect();
    for input in &inputs {
        println!("cargo::rerun-if-changed={}", input.display());
    }
    protobuf_codegen::Codegen::new().pure().include(sources).inputs(&inputs).cargo_out_dir("proto").run_from_script();
}

/// Writes `OUT_DIR/abi_bindings.rs` (the C declarations), `abi_structs.rs` and `abi_slots.rs` (lists of structs and
/// functions for the macros of `src/abi/`).
fn bindings() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut umbrella = String::new();
    let mut structs = String::new();
    let mut slots = String::new();
    for header in HEADERS {
        let path = Path::new("include").join(header);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path)?;
        writeln!(umbrella, "#include \"{header}\"")?;
        struct_sizes(&text, &mut structs)?;
        functions(&text, &mut slots)?;
    }
    fs::write(out.join("abi_structs.rs"), structs)?;
    fs::write(out.join("abi_slots.rs"), slots)?;

    let builder = bindgen::Builder::default()
        .header_contents("mainstay_abi.h", &umbrella)
        .clang_arg("-Iinclude")
        .clang_args(compiler_headers())
        .allowlist_item("(PJRT|XLA_FFI|Mainstay|MAINSTAY)_.*")
        .blocklist_function(".*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(false);
    // bindgen panics when it cannot load libclang, which does not say what to do.
    let bindings = std::panic::catch_unwind(AssertUnwindSafe(|| builder.generate())).map_err(|_| {
        "the C headers could not be read, because libclang is missing or too old: run `make setup`, which fetches it, \
         or set LIBCLANG_PATH to the folder of libclang.so"
    })??;
    bindings.write_to_file(out.join("abi_bindings.rs"))?;
    Ok(())
}

/// A libclang that comes without clang's own headers (as the Python package does) borrows `stddef.h` and its like from
/// the C compiler.
fn compiler_headers() -> Vec<String> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let Ok(output) = Command::new(compiler).arg("-print-file-name=include").output() else {
        return Vec::new();
    };
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => Vec::new(),
        folder => vec!["-idirafter".into(), folder.into()],
    }
}

/// Appends one `sized!(name, size, size of the first version)` for every struct that begins with its own size.
fn struct_sizes(header: &str, tables: &mut String) -> std::fmt::Result {
    let named = |line: &'static str| {
        header.lines().filter_map(move |text| text.strip_prefix(line)?.split_once(',')).map(|(name, _)| name)
    };
    let grown: Vec<&str> = named("PJRT_STRUCT_BEGAN_AT(").collect();
    for name in named("PJRT_STRUCT_ENDS_AT(") {
        let opening = format!("struct {name} {{\n  ");
        let first = header.split_once(&opening).map_or("", |(_, body)| body);
        if ["size_t struct_size;", "PJRT_Extension_Base base;", "XLA_FFI_Extension_Base extension_base;"]
            .iter()
            .any(|field| first.starts_with(field))
        {
            let least = if grown.contains(&name) { "FIRST" } else { "STRUCT" };
            writeln!(tables, "sized!({name}, {name}_STRUCT_SIZE, {name}_{least}_SIZE);")?;
        }
    }
    Ok(())
}

/// Appends the functions of `PJRT_Api` in the order of its table, as `function(arguments) -> what it returns`.
fn functions(header: &str, tables: &mut String) -> std::fmt::Result {
    let Some((_, list)) = header.split_once("#define PJRT_FUNCTIONS(X)") else { return Ok(()) };
    writeln!(tables, "slots! {{")?;
    for line in list.lines().skip(1) {
        let Some(name) = line.strip_prefix("  X(").and_then(|line| line.split(')').next()) else {
            break;
        };
        let returns = if header.contains(&format!("typedef void {name}(")) { "nothing" } else { "error" };
        writeln!(tables, "    {name}({name}_Args) -> {returns},")?;
    }
    writeln!(tables, "}}")
}

/// Compiles `ffi/fake_*.c` into `OUT_DIR/libfake_plugin.so`, which Rust tests find through `env!("MAINSTAY_FAKE_PLUGIN")`.
fn fake_plugin() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=ffi");
    let library = PathBuf::from(env::var("OUT_DIR")?).join("libfake_plugin.so");
    let mut compiler = cc::Build::new().try_get_compiler()?.to_command();
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Iinclude"]);
    compiler.args(["-Wall", "-Wextra", "-Wl,-z,defs", "-o"]).arg(&library);
    for entry in fs::read_dir("ffi")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            compiler.arg(path);
        }
    }
    if !compiler.status()?.success() {
        return Err("the fake plugin in ffi/ could not be compiled: the C compiler says above what is wrong".into());
    }
    println!("cargo::rustc-env=MAINSTAY_FAKE_PLUGIN={}", library.display());
    Ok(())
}
