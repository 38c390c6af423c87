//! Both ends in one process, and a real worker process that is killed.

use std::process::Stdio;
use std::time::Instant;

use super::*;
use crate::abi::Status;
use crate::wire::message::{Command, Query, Reply, Report, TopologySource, Urgent};

const SOON: Duration = Duration::from_secs(20);

fn small() -> Options {
    Options { command_capacity: 4096, report_capacity: 4096, ..Options::default() }
}

/// Both ends in this process, as if the worker had inherited its own.
fn both(options: &Options) -> (Arc<ClientEnd>, Listener, Arc<WorkerEnd>) {
    let (client, listener, fds) = connect(options, None).unwrap();
    let description = fds.into_description().unwrap();
    // SAFETY: the socket was just given up by `into_description`.
    let (worker, arena, _) = unsafe { WorkerEnd::from_inherited(&description) }.unwrap();
    assert!(arena.is_none());
    (client, listener, Arc::new(worker))
}

fn ping(request: u64) -> Command {
    Command::Ask { request, query: Query::Ping }
}

fn big(request: u64, len: usize) -> Command {
    Command::Ask { request, query: Query::Topology(TopologySource::Serialized(vec![request as u8; len])) }
}

fn done(request: u64) -> Report {
    Report::Reply { request, result: Ok(Reply::Done) }
}

/// Waits until `count` reports came.
fn receive(listener: &mut Listener, count: usize) -> Vec<Report> {
    let (start, mut reports) = (Instant::now(), Vec::new());
    while reports.len() < count {
        assert!(start.elapsed() < SOON, "{} of {count} reports", reports.len());
        let wait = Wait { timeout: Some(Duration::from_secs(1)), in_flight: true, ..Wait::default() };
        listener.wait(wait, &mut reports).unwrap();
    }
    reports
}

/// Waits until the listener says that the worker is gone; what came before.
fn receive_to_the_end(listener: &mut Listener) -> (Vec<Report>, ConnectionError) {
    let (start, mut reports) = (Instant::now(), Vec::new());
    loop {
        assert!(start.elapsed() < SOON);
        let wait = Wait { timeout: Some(Duration::from_secs(1)), ..Wait::default() };
        if let Err(error) = listener.wait(wait, &mut reports) {
            return (reports, error);
        }
    }
}

/// Answers every request until the client is gone.
fn answer_all(worker: &WorkerEnd) -> usize {
    let mut count = 0;
    loop {
        match worker.recv(None) {
            Ok(Some(Command::Ask { request, .. })) => {
                count += 1;
                if worker.send(&done(request)).is_err() {
                    return count;
                }
            }
            Ok(Some(other)) => panic!("{other:?}"),
            Ok(None) => {}
            Err(error) => {
                assert_eq!(error, ConnectionError::Closed);
                return count;
            }
        }
    }
}

#[test]
fn many_threads_send_through_a_small_ring() {
    let (client, mut listener, worker) = both(&small());
    std::thread::scope(|scope| {
        let server = scope.spawn(|| answer_all(&worker));
        for thread in 0..4u64 {
            let client = client.clone();
            scope.spawn(move || {
                for number in 0..500 {
                    let request = thread * 1000 + number;
                    let command = if number % 50 == 0 { big(request, 20_000) } else { ping(request) };
                    client.send(&command).unwrap();
                }
            });
        }
        let reports = receive(&mut listener, 2000);
        for thread in 0..4u64 {
            let of_thread =
                |report: &&Report| matches!(report, Report::Reply { request, .. } if request / 1000 == thread);
            let got: Vec<_> = reports.iter().filter(of_thread).cloned().collect();
            assert_eq!(got, (0..500).map(|number| done(thread * 1000 + number)).collect::<Vec<_>>());
        }
        assert_eq!(client.backlog(), 0);
        client.close();
        assert_eq!(server.join().unwrap(), 2000);
        assert_eq!(client.send(&ping(0)), Err(ConnectionError::Closed));
    });
}

#[test]
fn sending_never_blocks_and_loses_nothing() {
    let (client, mut listener, worker) = both(&small());
    for request in 0..300 {
        client.send(&big(request, 1000)).unwrap();
    }
    assert!(client.backlog() > 200_000);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| answer_all(&worker));
        let reports = receive(&mut listener, 300);
        assert_eq!(reports, (0..300).map(done).collect::<Vec<_>>());
        drop(listener);
        assert_eq!(server.join().unwrap(), 300);
    });
}

#[test]
fn what_the_worker_said_is_read_before_its_end() {
    let (client, mut listener, worker) = both(&small());
    for request in 0..20 {
        worker.send(&done(request)).unwrap();
    }
    drop(worker);
    let (reports, error) = receive_to_the_end(&mut listener);
    assert_eq!(reports, (0..20).map(done).collect::<Vec<_>>());
    assert_eq!(error, ConnectionError::Closed);
    assert_eq!(client.send(&ping(1)), Err(ConnectionError::Closed));
}

#[test]
fn what_the_client_said_is_read_before_its_end() {
    let (client, listener, worker) = both(&small());
    client.send(&ping(1)).unwrap();
    client.send(&Command::Shutdown).unwrap();
    drop(listener);
    assert_eq!(worker.recv(None), Ok(Some(ping(1))));
    assert_eq!(worker.recv(None), Ok(Some(Command::Shutdown)));
    assert_eq!(worker.recv(None), Err(ConnectionError::Closed));
}

#[test]
fn a_worker_that_waits_for_room_ends_with_the_client() {
    let (_client, listener, worker) = both(&small());
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while worker.send(&done(sent)).is_ok() {
                sent += 1;
            }
            sent
        });
        while !worker.link.reports.producer_waits() {
            std::thread::yield_now();
        }
        drop(listener);
        assert!(sender.join().unwrap() > 100);
    });
    assert_eq!(worker.send(&done(0)), Err(ConnectionError::Closed));
}

#[test]
fn urgent_messages_pass_commands_and_none_is_lost() {
    let (client, mut listener, worker) = both(&small());
    while client.backlog() == 0 {
        client.send(&ping(0)).unwrap();
    }
    // More than the socket has room for: nobody takes them yet.
    let words = "why ".repeat(1000);
    let count = 1000;
    for launch in 0..count {
        client.send_urgent(&Urgent::FailLaunch { launch, status: Status::invalid(words.as_str()) }).unwrap();
    }
    assert!(!client.waiting_urgent().is_empty());
    std::thread::scope(|scope| {
        let taker = worker.clone();
        let hears = scope.spawn(move || std::iter::from_fn(|| taker.recv_urgent()).collect::<Vec<_>>());
        client.send_urgent(&Urgent::Over { launch: count }).unwrap();
        while !client.waiting_urgent().is_empty() {
            listener.wait(Wait { timeout: Some(SOON), ..Wait::default() }, &mut Vec::new()).unwrap();
        }
        // What was sent, and does not wait for room any more, before the end is heard before the end.
        drop(listener);
        let heard = hears.join().unwrap();
        let launches = heard.iter().map(|urgent| match urgent {
            Urgent::FailLaunch { launch, .. } | Urgent::Over { launch } => *launch,
            other => panic!("{other:?}"),
        });
        assert!(launches.eq(0..=count));
    });
    let long = Status::invalid("x".repeat(MOST_URGENT_BYTES));
    let refused = client.send_urgent(&Urgent::FailLaunch { launch: 1, status: long });
    assert!(matches!(refused, Err(ConnectionError::Unsendable(_))));
}

#[test]
fn other_descriptors_and_wakes_end_the_wait() {
    let (client, mut listener, worker) = both(&small());
    let (read, write) = rustix::pipe::pipe().unwrap();
    let idle = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let mut reports = Vec::new();
    rustix::io::write(&write, b"x").unwrap();
    let extra = [idle.as_fd(), read.as_fd()];
    let woken = listener.wait(Wait { extra: &extra, ..Wait::default() }, &mut reports).unwrap();
    assert_eq!(woken.ready.as_slice(), [false, true]);
    client.wake_listener();
    let woken = listener.wait(Wait { extra: &extra[..1], ..Wait::default() }, &mut reports).unwrap();
    assert_eq!(woken.ready.as_slice(), [false]);
    let wait = Wait { timeout: Some(Duration::from_millis(1)), ..Wait::default() };
    listener.wait(wait, &mut reports).unwrap();
    assert!(reports.is_empty());
    worker.wake();
    assert_eq!(worker.recv(None), Ok(None));
    assert_eq!(worker.recv(Some(Duration::from_millis(1))), Ok(None));
    assert_eq!(worker.try_recv(), Ok(None));
}

#[test]
fn ready_descriptors_get_their_turn_in_a_stream_of_reports() {
    let (_client, mut listener, worker) = both(&Options::default());
    let (read, write) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&write, b"x").unwrap();
    let extra = [read.as_fd()];
    let mut reports = Vec::new();
    for _ in 0..100 {
        worker.send(&done(1)).unwrap();
        if listener.wait(Wait { extra: &extra, ..Wait::default() }, &mut reports).unwrap().ready[0] {
            return;
        }
    }
    panic!("the pipe was never looked at");
}

#[test]
fn bytes_that_are_no_report_are_corrupt() {
    let (client, mut listener, worker) = both(&small());
    worker.reports.lock().unwrap().try_send(&[0xff; 30], 0).unwrap();
    let error = listener.wait(Wait::default(), &mut Vec::new()).unwrap_err();
    assert!(matches!(&error, ConnectionError::Corrupt(_)), "{error}");
    assert!(error.is_slice_loss());
    assert_eq!(client.send(&ping(1)), Err(error));
}

#[test]
fn bad_inheritance_is_refused_in_words() {
    let memory = shm::create("mainstay-test", 4096).unwrap();
    assert!(open_rings(memory.as_fd()).unwrap_err().contains("MAINSTAY"));
    let mapping = Mapping::new(memory.as_fd()).unwrap();
    for (at, value) in [(0, MAGIC), (8, 1)] {
        mapping.word(at).store(value, Relaxed);
    }
    assert!(open_rings(memory.as_fd()).unwrap_err().contains("another version"));
    for (at, value) in [(8, protocol()), (16, u64::MAX), (24, 4096)] {
        mapping.word(at).store(value, Relaxed);
    }
    assert!(open_rings(memory.as_fd()).unwrap_err().contains("out of bounds"));
    // SAFETY: refused before any descriptor becomes owned.
    assert!(unsafe { WorkerEnd::from_inherited("7:900001") }.is_err());
    assert!(connect(&Options { command_capacity: 5000, ..small() }, None).is_err());
}

/// Not a test by itself: the worker process of the tests below, which start this executable anew.
#[test]
fn child_worker() {
    let mut arguments = std::env::args().skip_while(|argument| argument != FDS_ARGUMENT);
    let Some(description) = arguments.nth(1) else { return };
    // SAFETY: called once, with what `inherit` put on the command line.
    let (worker, arena, _) = unsafe { WorkerEnd::from_inherited(&description) }.unwrap();
    assert!(Mapping::new(arena.unwrap().as_fd()).is_ok());
    assert!(worker.parent.is_some());
    answer_all(&worker);
}

fn spawn_child() -> (Arc<ClientEnd>, Listener, std::process::Child) {
    let arena = shm::create("mainstay-test", 4096).unwrap();
    let (client, listener, fds) = connect(&Options::default(), Some(arena.as_fd())).unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "wire::connection::tests::child_worker", "--"]).stdout(Stdio::null());
    fds.inherit(&mut command).unwrap();
    (client, listener, command.spawn().unwrap())
}

#[test]
fn a_killed_worker_is_noticed_at_once() {
    let (client, mut listener, mut child) = spawn_child();
    client.send(&ping(1)).unwrap();
    assert_eq!(receive(&mut listener, 1), [done(1)]);
    child.kill().unwrap();
    let killed = Instant::now();
    let (_, error) = receive_to_the_end(&mut listener);
    assert_eq!(error, ConnectionError::Closed);
    assert!(killed.elapsed() < Duration::from_secs(5));
    child.wait().unwrap();
}

#[test]
fn a_worker_leaves_when_the_client_closes() {
    let (client, mut listener, mut child) = spawn_child();
    client.send(&ping(1)).unwrap();
    receive(&mut listener, 1);
    drop(listener);
    assert!(child.wait().unwrap().success());
}
