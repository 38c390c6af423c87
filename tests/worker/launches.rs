//! Launches: arguments that come late, are donated, are poisoned; several devices.

use std::sync::Arc;

use mainstay::abi::{Code, Status};
use mainstay::wire::message::{Command, Execute, Ids, Payload, Report};

use crate::harness::{Worker, all_plugins, default_plugin, f32_spec};
use crate::programs::{self, ADD, STEP, SUM_OVER_REPLICAS};

#[test]
fn results_feed_the_next_launch_without_waiting() {
    for plugin in all_plugins() {
        let mut worker = Worker::start(&plugin, 1);
        let add = worker.program(ADD, programs::options(1));
        let one = worker.upload(&[1.0; 4], &[4]);
        let mut sum = one;
        let mut last = 0;
        for _ in 0..100 {
            let (launch, output) = worker.execute(add, 1, &[sum, one]);
            worker.send(Command::Destroy { buffers: Ids::from_slice(&[sum]) });
            // The first sum is `one` itself: it is read once more below.
            if sum == one {
                worker.upload_to(one, &[1.0; 4], &[4], 0);
            }
            (last, sum) = (launch, output);
        }
        worker.executed(last, 0).unwrap();
        assert_eq!(worker.download(sum, 4).unwrap(), [101.0; 4]);
    }
}

#[test]
fn a_donated_argument_is_gone_and_its_memory_lives_on_in_the_output() {
    for plugin in all_plugins() {
        let mut worker = Worker::start(&plugin, 1);
        let step = worker.program(STEP, programs::options(1));
        let block = worker.block(&[5.0; 1024]);
        let (x, loan) = (worker.id(), worker.id());
        let data = Payload::Arena { extent: block.extent(), loan, mutable: true };
        worker.send(Command::Upload { buffer: x, spec: f32_spec(&[1024], 0), data, quiet: false });
        let y = worker.upload(&[1.0; 1024], &[1024]);
        let (launch, next) = worker.execute(step, 1, &[x, y]);
        worker.executed(launch, 0).unwrap();
        assert!(worker.download(x, 1024).unwrap_err().message.contains("donated"));
        assert_eq!(worker.download(next, 1024).unwrap(), [6.0; 1024]);
        assert_eq!(worker.download(next + 1, 1024).unwrap(), [6.0; 1024]);
        assert_eq!(worker.download(y, 1024).unwrap(), [1.0; 1024]);
        worker.send(Command::Destroy { buffers: Ids::from_slice(&[x, next]) });
        worker.returned(loan);
    }
}

#[test]
fn an_argument_that_must_not_be_donated_stays() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let step = worker.program(STEP, programs::options(1));
    let x = worker.upload(&[5.0; 1024], &[1024]);
    let (launch, first_output) = (worker.id(), 1 << 20);
    worker.send(Command::Execute(Execute {
        launch,
        executable: step.executable,
        launch_id: 3,
        num_devices: 1,
        execute_device: None,
        arguments: Ids::from_slice(&[x, x]),
        first_output,
        num_outputs: 2,
        non_donatable: [0].as_slice().into(),
    }));
    worker.executed(launch, 0).unwrap();
    assert_eq!(worker.download(first_output, 1024).unwrap(), [6.0; 1024]);
    assert_eq!(worker.download(x, 1024).unwrap(), [5.0; 1024]);
}

#[test]
fn a_launch_waits_for_its_argument_and_others_do_not_wait_for_it() {
    for plugin in all_plugins() {
        let mut worker = Worker::start(&plugin, 1);
        let add = worker.program(ADD, programs::options(1));
        let (late, early) = (worker.declare(), worker.upload(&[1.0; 4], &[4]));
        let (parked, sum) = worker.execute(add, 1, &[late, early]);
        let (chained, total) = worker.execute(add, 1, &[sum, early]);
        let (free, twice) = worker.execute(add, 1, &[early, early]);
        // What waits keeps what it needs, the program too.
        worker.send(Command::Destroy { buffers: Ids::from_slice(&[early, sum]) });
        worker.send(Command::Unload { executable: add.executable });
        worker.executed(free, 0).unwrap();
        assert_eq!(worker.download(twice, 4).unwrap(), [2.0; 4]);
        assert!(!worker.has_come(|report| matches!(report, Report::Executed { .. })));
        worker.upload_to(late, &[10.0; 4], &[4], 0);
        worker.executed(parked, 0).unwrap();
        worker.executed(chained, 0).unwrap();
        assert_eq!(worker.download(total, 4).unwrap(), [12.0; 4]);
    }
}

#[test]
fn a_donation_waits_for_launches_that_still_read_the_buffer() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let step = worker.program(STEP, programs::options(1));
    let shared = worker.upload(&[1.0; 1024], &[1024]);
    let late = worker.declare();
    let (reader, first) = worker.execute(step, 1, &[late, shared]);
    let other = worker.upload(&[100.0; 1024], &[1024]);
    let (donor, second) = worker.execute(step, 1, &[shared, other]);
    assert!(!worker.has_come(|report| matches!(report, Report::Executed { .. })));
    worker.upload_to(late, &[10.0; 1024], &[1024], 0);
    worker.executed(reader, 0).unwrap();
    worker.executed(donor, 0).unwrap();
    assert_eq!(worker.download(first + 1, 1024).unwrap(), [11.0; 1024]);
    assert_eq!(worker.download(second, 1024).unwrap(), [2.0; 1024]);
}

#[test]
fn poison_spreads_with_its_first_cause() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let add = worker.program(ADD, programs::options(1));
    let (lost, fine) = (worker.declare(), worker.upload(&[1.0; 4], &[4]));
    let (first, output) = worker.execute(add, 1, &[fine, lost]);
    let (second, last) = worker.execute(add, 1, &[output, fine]);
    let cause = Status {
        payloads: Arc::from([("type.googleapis.com/lost".to_string(), vec![1, 2, 3])]),
        ..Status::new(Code::DataLoss, "slice 1 was lost")
    };
    worker.send(Command::Fail { buffer: lost, status: cause.clone() });
    assert_eq!(worker.executed(first, 0), Err(cause.clone()));
    assert_eq!(worker.executed(second, 0), Err(cause.clone()));
    assert_eq!(worker.download(last, 4), Err(cause));
    let (launch, output) = worker.execute(add, 1, &[fine, fine]);
    worker.executed(launch, 0).unwrap();
    assert_eq!(worker.download(output, 4).unwrap(), [2.0; 4]);
}

#[test]
fn devices_run_together_and_report_one_by_one() {
    for plugin in all_plugins() {
        let mut worker = Worker::start(&plugin, 2);
        let sum = worker.program(SUM_OVER_REPLICAS, programs::options(2));
        let (on_0, on_1) = (worker.id(), worker.id());
        let (memory_0, memory_1) = (worker.memory(0, "device"), worker.memory(1, "device"));
        worker.upload_to(on_0, &[1.0, 2.0, 3.0, 4.0], &[4], memory_0);
        worker.upload_to(on_1, &[10.0; 4], &[4], memory_1);
        let (launch, output) = worker.execute(sum, 2, &[on_0, on_1]);
        worker.executed(launch, 0).unwrap();
        worker.executed(launch, 1).unwrap();
        assert_eq!(worker.download(output, 4).unwrap(), [11.0, 12.0, 13.0, 14.0]);
        assert_eq!(worker.download(output + 1, 4).unwrap(), [11.0, 12.0, 13.0, 14.0]);
    }
}

#[test]
fn a_launch_that_the_plugin_refuses_fails_on_every_device() {
    let mut worker = Worker::start(&default_plugin(), 2);
    let sum = worker.program(SUM_OVER_REPLICAS, programs::options(2));
    let wrong = worker.upload(&[1.0, 2.0], &[2]);
    let (launch, output) = worker.execute(sum, 2, &[wrong, wrong]);
    let status = worker.executed(launch, 0).unwrap_err();
    assert_eq!(worker.executed(launch, 1), Err(status.clone()));
    assert_eq!(worker.download(output, 4), Err(status));
}

#[test]
fn a_program_that_is_not_there_fails_the_launch() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let add = worker.program(ADD, programs::options(1));
    let one = worker.upload(&[1.0; 4], &[4]);
    worker.send(Command::Unload { executable: add.executable });
    let (launch, _) = worker.execute(add, 1, &[one, one]);
    assert!(worker.executed(launch, 0).unwrap_err().message.contains("is not loaded"));
}

#[test]
fn a_program_that_can_not_be_loaded_is_told() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let executable = worker.id();
    let serialized = Arc::from([1u8, 2, 3].as_slice());
    worker.send(Command::Load { executable, serialized, options: Arc::from([]), donated: Arc::from([]) });
    let cause = worker.wait_for(|report| match report {
        Report::Loaded { result, .. } => Some(result.clone().unwrap_err()),
        _ => None,
    });
    let one = worker.upload(&[1.0; 4], &[4]);
    let (launch, _) = worker.execute(crate::harness::Program { executable, num_outputs: 1 }, 1, &[one]);
    assert_eq!(worker.executed(launch, 0), Err(cause));
}
