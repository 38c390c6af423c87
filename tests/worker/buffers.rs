//! Buffers: uploaded, copied, read, destroyed; loans of the arena.

use mainstay::abi::{Code, Status, sys};
use mainstay::wire::message::{BufferSpec, Command, Dims, Extent, Ids, Payload, Query, Reply, Report};

use crate::harness::{Worker, all_plugins, bytes_of, default_plugin, f32_spec, read};

#[test]
fn small_data_travels_in_the_message_and_large_data_in_the_arena() {
    for plugin in all_plugins() {
        let mut worker = Worker::start(&plugin, 1);
        let small = worker.upload(&[1.0, 2.0, 3.0], &[3]);
        worker.ready(small).unwrap();
        assert_eq!(worker.download(small, 3).unwrap(), [1.0, 2.0, 3.0]);

        let values: Vec<f32> = (0..100_000).map(|value| value as f32).collect();
        for mutable in [false, true] {
            let block = worker.block(&values);
            let (buffer, loan) = (worker.id(), worker.id());
            let data = Payload::Arena { extent: block.extent(), loan, mutable };
            worker.send(Command::Upload { buffer, spec: f32_spec(&[1000, 100], 0), data, quiet: false });
            worker.ready(buffer).unwrap();
            if !mutable {
                worker.returned(loan);
            }
            assert_eq!(worker.download(buffer, values.len()).unwrap(), values);
            worker.send(Command::Destroy { buffers: Ids::from_slice(&[buffer]) });
            if mutable {
                worker.returned(loan);
            }
        }
    }
}

#[test]
fn memory_that_may_be_kept_is_kept_until_the_buffer_is_gone() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let block = worker.block(&[5.0; 1024]);
    let (buffer, loan) = (worker.id(), worker.id());
    let data = Payload::Arena { extent: block.extent(), loan, mutable: true };
    worker.send(Command::Upload { buffer, spec: f32_spec(&[1024], 0), data, quiet: false });
    worker.ready(buffer).unwrap();
    assert!(!worker.has_come(|report| *report == Report::Returned { loan }));
    let to = worker.arena.allocate(8).unwrap();
    let request = worker.id();
    worker.send(Command::ReadRaw { request, buffer, offset: 4, to: to.extent() });
    assert_eq!(worker.reply(request), Ok(Reply::Done));
    assert_eq!(read(&to), [5.0, 5.0]);
    worker.send(Command::Destroy { buffers: Ids::from_slice(&[buffer]) });
    worker.returned(loan);
}

#[test]
fn elements_are_written_in_the_order_asked_for() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let buffer = worker.upload(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    assert_eq!(worker.download_as(buffer, 6, &[1, 0]).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(worker.download_as(buffer, 6, &[0, 1]).unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn elements_smaller_than_a_byte_take_a_byte_on_the_host() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let block = worker.arena.allocate(4).unwrap();
    let (buffer, request) = (worker.id(), worker.id());
    let spec =
        BufferSpec { element_type: sys::PJRT_Buffer_Type_U4, dims: Dims::from_slice(&[4]), memory: 0, layout: None };
    worker.send(Command::Upload { buffer, spec, data: Payload::Inline(vec![1, 2, 15, 4]), quiet: false });
    worker.send(Command::Download { request, buffer, minor_to_major: Default::default(), to: block.extent() });
    assert_eq!(worker.reply(request), Ok(Reply::Done));
    // SAFETY: the worker has written and is done.
    assert_eq!(unsafe { block.as_slice() }, [1, 2, 15, 4]);
    assert_eq!(worker.ask(Query::OnDeviceSize { buffer }), Ok(Reply::Number(2)));
}

#[test]
fn buffers_without_elements_exist() {
    for plugin in all_plugins() {
        let mut worker = Worker::start(&plugin, 1);
        let buffer = worker.upload(&[], &[0, 7]);
        worker.ready(buffer).unwrap();
        assert_eq!(worker.download(buffer, 0).unwrap(), Vec::<f32>::new());
        let scalar = worker.upload(&[3.5], &[]);
        assert_eq!(worker.download(scalar, 1).unwrap(), [3.5]);
    }
}

#[test]
fn buffers_are_copied_between_memories_and_devices() {
    for plugin in all_plugins() {
        let mut worker = Worker::start(&plugin, 2);
        let source = worker.id();
        let memory = worker.memory(0, "device");
        worker.upload_to(source, &[7.0, 8.0], &[2], memory);
        let places = [worker.memory(0, "pinned_host"), worker.memory(1, "device"), worker.memory(1, "unpinned_host")];
        for memory in places {
            let buffer = worker.id();
            worker.send(Command::Copy { source, buffer, memory });
            worker.ready(buffer).unwrap();
            assert_eq!(worker.download(buffer, 2).unwrap(), [7.0, 8.0]);
        }
    }
}

#[test]
fn an_alias_has_the_value_of_its_source_whichever_comes_first() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let (early, late) = (worker.declare(), worker.declare());
    let source = worker.declare();
    worker.send(Command::Alias { buffer: early, source });
    worker.upload_to(source, &[2.0], &[1], 0);
    worker.send(Command::Alias { buffer: late, source });
    worker.send(Command::Destroy { buffers: Ids::from_slice(&[source]) });
    for buffer in [early, late] {
        worker.ready(buffer).unwrap();
        assert_eq!(worker.download(buffer, 1).unwrap(), [2.0]);
    }
}

#[test]
fn bits_are_seen_as_another_type_where_the_plugin_can() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let source = worker.upload(&[1.0], &[1]);
    let buffer = worker.id();
    let spec =
        BufferSpec { element_type: sys::PJRT_Buffer_Type_U32, dims: Dims::from_slice(&[1]), memory: 0, layout: None };
    worker.send(Command::Bitcast { source, buffer, spec });
    match worker.ready(buffer) {
        Ok(()) => assert_eq!(worker.download(buffer, 1).unwrap(), [1.0]),
        Err(status) => assert_eq!(status.code, Code::Unimplemented, "{status}"),
    }
    assert!(worker.download(source, 1).is_err());
}

#[test]
fn an_uninitialized_buffer_has_its_size() {
    for plugin in all_plugins() {
        let mut worker = Worker::start(&plugin, 1);
        let buffer = worker.id();
        worker.send(Command::Uninitialized { buffer, spec: f32_spec(&[16], 0) });
        worker.ready(buffer).unwrap();
        assert_eq!(worker.ask(Query::OnDeviceSize { buffer }), Ok(Reply::Number(64)));
    }
}

#[test]
fn poison_is_the_buffers_value() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let buffer = worker.declare();
    let cause = Status::new(Code::DataLoss, "slice 1 was lost");
    let request = worker.id();
    let to = worker.arena.allocate(4).unwrap();
    worker.send(Command::Download { request, buffer, minor_to_major: Default::default(), to: to.extent() });
    worker.send(Command::Fail { buffer, status: cause.clone() });
    assert_eq!(worker.ready(buffer), Err(cause.clone()));
    assert_eq!(worker.reply(request), Err(cause.clone()));
    let copy = worker.id();
    worker.send(Command::Copy { source: buffer, buffer: copy, memory: 0 });
    assert_eq!(worker.ready(copy), Err(cause));
}

#[test]
fn what_the_client_gets_wrong_is_an_error_that_names_it() {
    let mut worker = Worker::start(&default_plugin(), 1);
    let cases = [
        (f32_spec(&[2], 99), bytes_of(&[1.0, 2.0]), "memory index 99"),
        (f32_spec(&[3], 0), bytes_of(&[1.0, 2.0]), "8 bytes"),
        (f32_spec(&[-1], 0), bytes_of(&[1.0]), "-1"),
    ];
    for (spec, data, words) in cases {
        let buffer = worker.id();
        worker.send(Command::Upload { buffer, spec, data: Payload::Inline(data), quiet: false });
        let status = worker.ready(buffer).unwrap_err();
        assert!(status.message.contains(words), "{status}");
    }
    let (buffer, loan) = (worker.id(), worker.id());
    let extent = Extent { offset: 1 << 40, len: 8 };
    let data = Payload::Arena { extent, loan, mutable: true };
    worker.send(Command::Upload { buffer, spec: f32_spec(&[2], 0), data, quiet: false });
    assert!(worker.ready(buffer).is_err());
    worker.returned(loan);
    assert!(worker.download(12345, 1).unwrap_err().message.contains("12345"));
    assert!(worker.ask(Query::MemoryStats { device: 9 }).unwrap_err().message.contains("device index 9"));
}

#[test]
fn devices_with_memory_of_their_own_copy_directly_to_the_arena() {
    for (platform, expected) in [("fake", true), ("cpu", false)] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut worker = Worker::start_fake(&format!("platform={platform};log={}", log.display()));
        let block = worker.arena.allocate(1 << 20).unwrap();
        worker.send(Command::Populate { extent: block.extent() });
        assert!(worker.shut_down().success());
        let called = std::fs::read_to_string(&log).unwrap();
        assert_eq!(called.lines().any(|line| line == "PJRT_Client_DmaMap"), expected, "{called}");
    }
}
