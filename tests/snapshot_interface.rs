//! `include/mainstay_snapshot.h` for those who use it from C: a C compiler sees the structs as this library does, and a C
//! program without any framework takes a snapshot and restores from it.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mainstay::abi::sys;

const PATIENCE: Duration = Duration::from_secs(120);

fn checkout() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles the C program; `layout` is what it includes to print layouts.
fn compile(folder: &Path, layout: &str) -> PathBuf {
    let program = folder.join("snapshot_interface");
    std::fs::write(folder.join("snapshot_layout.h"), layout).unwrap();
    let status = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-O1"])
        .arg("-I")
        .arg(checkout().join("include"))
        .arg("-I")
        .arg(folder)
        .arg(checkout().join("tests/snapshot_interface.c"))
        .arg("-o")
        .arg(&program)
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(status.success());
    program
}

/// Runs a program to its end, which is not waited for forever.
fn run(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("{command:?} took too long: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Sizes of structs and offsets of fields, by name, as Rust has them.
fn rust_layout() -> BTreeMap<String, usize> {
    let mut layout = BTreeMap::new();
    macro_rules! structs {
        ($($name:ident { $($field:ident)* })*) => {$(
            layout.insert(stringify!($name).to_owned(), size_of::<sys::$name>());
            $(layout.insert(
                format!("{}.{}", stringify!($name), stringify!($field).trim_end_matches('_')),
                offset_of!(sys::$name, $field),
            );)*
        )*};
    }
    structs! {
        Mainstay_SnapshotStore_Create_Args { struct_size extension_start size checksums store }
        Mainstay_SnapshotStore_Destroy_Args { struct_size extension_start store }
        Mainstay_SnapshotStore_List_Args { struct_size extension_start store snapshots capacity num_snapshots }
        Mainstay_Snapshot_Take_Args {
            struct_size extension_start store step label label_size metadata metadata_size buffers num_buffers layout
            layout_size captured snapshot
        }
        Mainstay_Snapshot_Destroy_Args { struct_size extension_start snapshot }
        Mainstay_Snapshot_Info_Args {
            struct_size extension_start snapshot id step taken_at done total num_arrays label label_size metadata
            metadata_size phase
        }
        Mainstay_Snapshot_Array_Args { struct_size extension_start snapshot array dims num_dims num_parts type_ }
        Mainstay_Snapshot_Wait_Args { struct_size extension_start snapshot timeout phase }
        Mainstay_Snapshot_Verify_Args { struct_size extension_start snapshot }
        Mainstay_Snapshot_Drop_Args { struct_size extension_start snapshot }
        Mainstay_Snapshot_Restore_Args {
            struct_size extension_start snapshot array client device memory start dims num_dims buffer
        }
        Mainstay_Snapshot_Export_Args {
            struct_size extension_start snapshot path path_size names names_size metadata metadata_size watch user
        }
        Mainstay_Snapshot_Import_Args {
            struct_size extension_start store client path path_size watch user snapshot names names_size
        }
        Mainstay_Capture_Begin_Args { struct_size extension_start }
        Mainstay_Capture_End_Args { struct_size extension_start buffers capacity num_buffers }
        Mainstay_Supply_Begin_Args { struct_size extension_start snapshot orders orders_size }
        Mainstay_Supply_End_Args { struct_size extension_start num_left }
        Mainstay_Snapshot_Extension {
            base name version Mainstay_SnapshotStore_Create Mainstay_SnapshotStore_Destroy Mainstay_SnapshotStore_List
            Mainstay_Snapshot_Take Mainstay_Snapshot_Destroy Mainstay_Snapshot_Info Mainstay_Snapshot_Array
            Mainstay_Snapshot_Wait Mainstay_Snapshot_Verify Mainstay_Snapshot_Drop Mainstay_Snapshot_Restore
            Mainstay_Capture_Begin Mainstay_Capture_End Mainstay_Supply_Begin Mainstay_Supply_End
            Mainstay_Snapshot_Export Mainstay_Snapshot_Import
        }
    }
    layout
}

/// The header's structs and their fields, in its order.
fn structs_of_header() -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(checkout().join("include/mainstay_snapshot.h")).unwrap();
    let mut structs: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in text.lines().map(|line| line.split("//").next().unwrap_or("").trim()) {
        if let Some(name) = line.strip_prefix("typedef struct ").and_then(|line| line.strip_suffix(" {")) {
            structs.push((name.to_owned(), Vec::new()));
            inside = true;
        } else if line.starts_with('}') {
            inside = false;
        } else if let Some(declaration) = line.strip_suffix(';').filter(|_| inside) {
            let field = declaration.rsplit([' ', '*']).next().unwrap().to_owned();
            structs.last_mut().unwrap().1.push(field);
        }
    }
    structs
}

#[test]
fn a_c_compiler_sees_the_same_structs() {
    let structs = structs_of_header();
    let mut layout = String::new();
    for (name, fields) in &structs {
        layout += &format!("SIZED({name});\n");
        for field in fields {
            layout += &format!("FIELD({name}, {field});\n");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let output = run(Command::new(compile(folder.path(), &layout)).arg("layout"));
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut seen: BTreeMap<String, usize> = printed
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, number)| (name.to_owned(), number.parse().unwrap()))
        .collect();
    // What callers write into `struct_size` is the end of the last field, which may lie before the struct's own.
    for (name, _) in &structs {
        let size = seen.remove(&format!("{name}_STRUCT_SIZE")).unwrap();
        assert!(size <= seen[name] && seen[name] - size < 8, "{name}: {size} of {}", seen[name]);
    }
    assert_eq!(seen, rust_layout());
}

#[test]
fn a_c_program_takes_and_restores() {
    let plugin = std::env::var_os("MAINSTAY_TEST_PLUGIN");
    let plugin = plugin.expect("MAINSTAY_TEST_PLUGIN is not set: it must be the path of a CPU plugin");
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_mainstay"));
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(compile(folder.path(), ""));
    command
        .arg(executable.with_file_name("deps").join("libmainstay.so"))
        .env("MAINSTAY_PLUGIN", plugin)
        .env("MAINSTAY_SLICES", "2")
        .env("MAINSTAY_DEVICES_PER_SLICE", "1")
        .env("XDG_RUNTIME_DIR", folder.path());
    let output = run(&mut command);
    assert!(output.status.success() && output.stdout == b"done\n", "{output:?}");
}
