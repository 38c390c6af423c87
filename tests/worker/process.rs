//! The worker as a process: how it starts, what it survives, how it ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command as Process, Stdio};
use std::time::Instant;

use mainstay::abi::Code;
use mainstay::wire::message::{Command, Query, Reply, Start};
use rustix::process::{Pid, Signal};

use crate::harness::{PATIENCE, Worker, all_plugins, cpu_options, default_plugin, left_with};
use crate::programs::{self, ENDLESS};

const SHUT_DOWN: i32 = 0;
const CLIENT_GONE: i32 = 3;

/// Set in the process that plays a client to be killed.
const VICTIM: &str = "MAINSTAY_TEST_VICTIM";

#[test]
fn a_worker_describes_its_devices() {
    for plugin in all_plugins() {
        let worker = Worker::start(&plugin, 3);
        let description = worker.description.as_ref().unwrap();
        assert_eq!(description.platform_name, "cpu");
        assert_eq!(description.devices.len(), 3);
        assert_eq!(description.api_version.0, 0);
        assert!(!description.extensions.is_empty());
        for (index, device) in description.devices.iter().enumerate() {
            assert_eq!(device.id, index as i32);
            let default = device.default_memory.unwrap() as usize;
            assert_eq!(description.memories[default].kind, "device");
            let mut kinds: Vec<_> =
                device.memories.iter().map(|memory| description.memories[*memory as usize].kind.as_str()).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, ["device", "pinned_host", "unpinned_host"]);
            assert_eq!(description.memories[default].devices, [index as u32]);
        }
    }
}

#[test]
fn a_worker_that_is_told_to_leaves() {
    for plugin in all_plugins() {
        let mut worker = Worker::start(&plugin, 2);
        let buffer = worker.upload(&[1.0], &[1]);
        worker.ready(buffer).unwrap();
        assert!(left_with(worker.shut_down(), SHUT_DOWN));
    }
}

/// The error of a start with this plugin.
fn failed_start(plugin: &str) -> mainstay::abi::Status {
    let start = Start { plugin: plugin.into(), options: cpu_options(1), create_client: true, heap_slack: 0 };
    let mut worker = Worker::spawn(start);
    let status = worker.started().unwrap_err();
    assert!(status.message.contains(plugin), "{status}");
    assert!(left_with(worker.shut_down(), SHUT_DOWN));
    status
}

#[test]
fn a_plugin_that_can_not_be_loaded_is_named() {
    assert!(failed_start("/nonexistent/plugin.so").message.contains("MAINSTAY_PLUGIN"));
    let text = tempfile::NamedTempFile::with_suffix(".so").unwrap();
    text.as_file().write_all(b"not a library").unwrap();
    assert!(failed_start(text.path().to_str().unwrap()).message.contains("MAINSTAY_PLUGIN"));
}

#[test]
fn a_library_that_is_no_plugin_is_named() {
    let library = ["/lib64/libm.so.6", "/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .expect("a C library in one of the usual places");
    assert!(failed_start(library).message.contains("GetPjrtApi"));
}

#[test]
fn a_create_option_that_the_plugin_refuses_is_its_error() {
    let mut options = cpu_options(1);
    options[0].value = mainstay::wire::message::Value::String("many".into());
    let mut worker = Worker::spawn(Start { plugin: default_plugin(), options, create_client: true, heap_slack: 0 });
    assert_eq!(worker.started().unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn an_interrupt_from_the_terminal_is_not_for_the_worker() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let pid = Pid::from_child(&worker.child);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    assert_eq!(worker.ask(Query::Ping), Ok(Reply::Done));
}

/// Launches a program that does not end.
fn start_endless(worker: &mut Worker) {
    let endless = worker.program(ENDLESS, programs::options(1));
    let x = worker.upload(&[1.0], &[]);
    worker.ready(x).unwrap();
    worker.execute(endless, 1, &[x]);
}

#[test]
fn a_worker_ends_when_the_client_closes_whatever_the_plugin_does() {
    let mut worker = Worker::start(&default_plugin(), 1);
    start_endless(&mut worker);
    worker.close();
    assert!(left_with(worker.wait_for_exit(), CLIENT_GONE));
}

#[test]
fn a_worker_dies_with_its_client() {
    let mut victim = Process::new(std::env::current_exe().unwrap())
        .args(["process::victim", "--exact", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let pid = lines.find_map(|line| line.split_once("worker ").and_then(|(_, pid)| pid.parse().ok()));
    let pid = Pid::from_raw(pid.expect("the worker's process id")).unwrap();
    rustix::process::test_kill_process(pid).unwrap();
    victim.kill().unwrap();
    victim.wait().unwrap();
    let start = Instant::now();
    // Reaped by init, or a zombie of a container without one: then its state says so.
    while is_alive(pid) {
        assert!(start.elapsed() < PATIENCE, "the worker outlives its client");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn is_alive(pid: Pid) -> bool {
    match std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) {
        Ok(stat) => !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')),
        Err(_) => false,
    }
}

/// Not a test of its own: the client that [`a_worker_dies_with_its_client`] kills.
#[test]
fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let mut worker = Worker::start(&default_plugin(), 1);
    start_endless(&mut worker);
    println!("worker {}", worker.child.id());
    std::thread::sleep(PATIENCE);
}

#[test]
fn commands_after_a_failed_start_are_harmless() {
    let start =
        Start { plugin: "/nonexistent/plugin.so".into(), options: Vec::new(), create_client: true, heap_slack: 0 };
    let mut worker = Worker::spawn(start);
    worker.send(Command::Ask { request: 1, query: Query::Ping });
    assert!(worker.started().is_err());
    assert!(left_with(worker.shut_down(), SHUT_DOWN));
}
