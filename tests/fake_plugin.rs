//! The fake plugin does what it should, and wrong what it is told to do wrong.
//!
//! A plugin reads its commands once per process, so every test runs its body in a process of its own: the test binary
//! again, with the commands in its environment.

use std::ffi::c_void;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mainstay::abi::{Call, Code, InnerApi, Slot, Status, element, new_args, sys};

/// Set in the processes that run a test's body.
const CHILD: &str = "FAKE_PLUGIN_TEST";

/// In the process of its own: runs the body. Otherwise starts that process, and gives how it ended.
fn alone(test: &str, commands: &str, body: impl FnOnce()) -> Option<ExitStatus> {
    if std::env::var(CHILD).is_ok() {
        body();
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, folder.path())
        .env("FAKE_PLUGIN", commands)
        .env("FAKE_PLUGIN_CONTROL", folder.path().join("control"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{test} did not end within a minute");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the body in a process of its own, which must end well.
fn passes(test: &str, commands: &str, body: impl FnOnce()) {
    if let Some(status) = alone(test, commands, body) {
        assert!(status.success(), "{test}: {status}");
    }
}

fn control(commands: &str) {
    let folder = std::env::var(CHILD).unwrap();
    fs::write(format!("{folder}/new"), commands).unwrap();
    fs::rename(format!("{folder}/new"), format!("{folder}/control")).unwrap();
}

fn load() -> Result<InnerApi, Status> {
    // SAFETY: the plugin has no initializers; it stays loaded.
    let library = unsafe { libloading::Library::new(env!("MAINSTAY_FAKE_PLUGIN")).unwrap() };
    // SAFETY: the signature is the interface's.
    let get = unsafe { library.get::<unsafe extern "C" fn() -> *const sys::PJRT_Api>(c"GetPjrtApi").unwrap() };
    // SAFETY: as the plugin is never unloaded, its table lives as long as the process.
    let api = unsafe { InnerApi::new(get()) };
    std::mem::forget(library);
    api
}

/// A client of the fake plugin.
struct Fake {
    api: InnerApi,
    client: *mut sys::PJRT_Client,
}

impl Fake {
    fn new() -> Self {
        let api = load().unwrap();
        let client = call::<sys::PJRT_Client_Create_Args>(&api, |_| {}).unwrap().client;
        Self { api, client }
    }

    fn call<A: Call>(&self, fill: impl FnOnce(&mut A)) -> Result<A, Status> {
        call(&self.api, fill)
    }

    fn memory(&self, index: usize) -> *mut sys::PJRT_Memory {
        let memories = self.call::<sys::PJRT_Client_AddressableMemories_Args>(|a| a.client = self.client).unwrap();
        list(memories.addressable_memories, memories.num_addressable_memories)[index]
    }

    fn upload(&self, values: &[f32], dims: &[i64], strides: &[i64]) -> *mut sys::PJRT_Buffer {
        let made = self
            .call::<sys::PJRT_Client_BufferFromHostBuffer_Args>(|a| {
                a.client = self.client;
                a.data = values.as_ptr().cast();
                a.type_ = sys::PJRT_Buffer_Type_F32;
                (a.dims, a.num_dims) = (dims.as_ptr(), dims.len());
                (a.byte_strides, a.num_byte_strides) = (strides.as_ptr(), strides.len());
                a.memory = self.memory(0);
            })
            .unwrap();
        self.wait(made.done_with_host_buffer).unwrap();
        made.buffer
    }

    fn download(&self, buffer: *mut sys::PJRT_Buffer) -> Result<Vec<f32>, Status> {
        let ask = |a: &mut sys::PJRT_Buffer_ToHostBuffer_Args| a.src = buffer;
        let bytes = self.call(ask)?.dst_size;
        let mut values = vec![0_f32; bytes / 4];
        let copy = self.call::<sys::PJRT_Buffer_ToHostBuffer_Args>(|a| {
            a.src = buffer;
            (a.dst, a.dst_size) = (values.as_mut_ptr().cast(), bytes);
        })?;
        self.wait(copy.event)?;
        Ok(values)
    }

    /// Waits for an event and frees it.
    fn wait(&self, event: *mut sys::PJRT_Event) -> Result<(), Status> {
        let outcome = self.call::<sys::PJRT_Event_Await_Args>(|a| a.event = event).map(|_| ());
        self.call::<sys::PJRT_Event_Destroy_Args>(|a| a.event = event).unwrap();
        outcome
    }

    fn compile(&self, text: &str) -> Result<*mut sys::PJRT_LoadedExecutable, Status> {
        let mut program = new_args::<sys::PJRT_Program>();
        (program.code, program.code_size) = (text.as_ptr().cast_mut().cast(), text.len());
        (program.format, program.format_size) = (c"mlir".as_ptr(), 4);
        let compiled = self.call::<sys::PJRT_Client_Compile_Args>(|a| {
            a.client = self.client;
            a.program = &raw const program;
        })?;
        Ok(compiled.executable)
    }

    /// Runs a program of one output on one device; gives its output and its completion.
    fn execute(
        &self,
        program: *mut sys::PJRT_LoadedExecutable,
        arguments: &[*mut sys::PJRT_Buffer],
    ) -> Result<(*mut sys::PJRT_Buffer, *mut sys::PJRT_Event), Status> {
        let mut options = new_args::<sys::PJRT_ExecuteOptions>();
        let mut output = std::ptr::null_mut();
        let mut done = std::ptr::null_mut();
        let inputs = arguments.as_ptr();
        let outputs = &raw mut output;
        self.call::<sys::PJRT_LoadedExecutable_Execute_Args>(|a| {
            a.executable = program;
            a.options = &raw mut options;
            (a.num_devices, a.num_args) = (1, arguments.len());
            a.argument_lists = &raw const inputs;
            a.output_lists = &raw const outputs;
            a.device_complete_events = &raw mut done;
        })?;
        Ok((output, done))
    }

    fn dimensions(&self, buffer: *mut sys::PJRT_Buffer) -> sys::PJRT_Buffer_Dimensions_Args {
        self.call::<sys::PJRT_Buffer_Dimensions_Args>(|a| a.buffer = buffer).unwrap()
    }
}

fn call<A: Call>(api: &InnerApi, fill: impl FnOnce(&mut A)) -> Result<A, Status> {
    let mut args = new_args::<A>();
    fill(&mut args);
    // SAFETY: the tests pass handles that live and memory that outlives the call.
    unsafe { api.call(&mut args)? };
    Ok(args)
}

fn list<'a, T>(data: *const T, count: usize) -> &'a [T] {
    // SAFETY: the fake plugin's lists live as long as what they belong to.
    unsafe { std::slice::from_raw_parts(data, count) }
}

fn text(data: *const std::ffi::c_char, size: usize) -> String {
    String::from_utf8(list(data.cast(), size).to_vec()).unwrap()
}

const ADD: &str = "fake.parameter f32[2,3]\nfake.parameter f32[2,3]\nfake.output f32[2,3] = add 0 1\n";
const VALUES: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

#[test]
fn has_every_function_and_extension() {
    passes("has_every_function_and_extension", "devices=3", || {
        let fake = Fake::new();
        assert_eq!(fake.api.version(), (0, sys::PJRT_API_MINOR as i32));
        assert!(Slot::ALL.iter().all(|slot| fake.api.has(*slot)));
        assert!(fake.api.extension::<sys::PJRT_Layouts_Extension>().is_some());
        assert!(fake.api.extension::<sys::PJRT_Shardings_Extension>().is_some());
        assert!(fake.api.extension::<sys::PJRT_FFI_Extension>().is_none());
        let devices = fake.call::<sys::PJRT_Client_Devices_Args>(|a| a.client = fake.client).unwrap();
        assert_eq!(devices.num_devices, 3);
        let kind = fake.call::<sys::PJRT_Memory_Kind_Args>(|a| a.memory = fake.memory(4)).unwrap();
        assert_eq!(text(kind.kind, kind.kind_size), "pinned_host");
        fake.call::<sys::PJRT_Client_Destroy_Args>(|a| a.client = fake.client).unwrap();
    });
}

#[test]
fn arrays_go_in_and_out() {
    passes("arrays_go_in_and_out", "", || {
        let fake = Fake::new();
        let dense = fake.upload(&VALUES, &[2, 3], &[]);
        assert_eq!(fake.download(dense).unwrap(), VALUES);
        let transposed = fake.upload(&VALUES, &[3, 2], &[4, 12]);
        assert_eq!(fake.download(transposed).unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        let scalar = fake.upload(&[7.0], &[], &[]);
        assert_eq!(fake.download(scalar).unwrap(), [7.0]);
        let empty = fake.upload(&[], &[0, 5], &[]);
        assert!(fake.download(empty).unwrap().is_empty());
        let copy = fake.call::<sys::PJRT_Buffer_CopyToMemory_Args>(|a| {
            (a.buffer, a.dst_memory) = (dense, fake.memory(1));
        });
        assert_eq!(fake.download(copy.unwrap().dst_buffer).unwrap(), VALUES);
        fake.call::<sys::PJRT_Buffer_Delete_Args>(|a| a.buffer = dense).unwrap();
        assert_eq!(fake.download(dense).unwrap_err().code, Code::FailedPrecondition);
        fake.call::<sys::PJRT_Buffer_Destroy_Args>(|a| a.buffer = dense).unwrap();
    });
}

#[test]
fn programs_are_compiled_kept_and_run() {
    passes("programs_are_compiled_kept_and_run", "", || {
        let fake = Fake::new();
        let compiled = fake.compile(ADD).unwrap();
        let executable = fake
            .call::<sys::PJRT_LoadedExecutable_GetExecutable_Args>(|a| a.loaded_executable = compiled)
            .unwrap()
            .executable;
        let kept = fake.call::<sys::PJRT_Executable_Serialize_Args>(|a| a.executable = executable).unwrap();
        let loaded = fake
            .call::<sys::PJRT_Executable_DeserializeAndLoad_Args>(|a| {
                a.client = fake.client;
                a.serialized_executable = kept.serialized_bytes;
                a.serialized_executable_size = kept.serialized_bytes_size;
            })
            .unwrap()
            .loaded_executable;
        let array = fake.upload(&VALUES, &[2, 3], &[]);
        for program in [compiled, loaded] {
            let (output, done) = fake.execute(program, &[array, array]).unwrap();
            fake.wait(done).unwrap();
            assert_eq!(fake.download(output).unwrap(), VALUES.map(|value| value * 2.0));
            let shape = fake.dimensions(output);
            assert_eq!(list(shape.dims, shape.num_dims), [2, 3]);
            let kind = fake.call::<sys::PJRT_Buffer_ElementType_Args>(|a| a.buffer = output).unwrap();
            assert_eq!(element::name(kind.type_).unwrap(), "f32");
        }
        assert!(fake.compile("func.func @main() { return }").unwrap_err().message.contains("fake."));
    });
}

#[test]
fn events_call_back() {
    passes("events_call_back", "", || {
        unsafe extern "C" fn told(error: *mut sys::PJRT_Error, sender: *mut c_void) {
            // SAFETY: the sender was leaked for this call.
            let sender = unsafe { Box::from_raw(sender.cast::<mpsc::Sender<bool>>()) };
            sender.send(error.is_null()).unwrap();
        }
        let fake = Fake::new();
        let slow = fake.compile("fake.output f32[] = fill 3\nfake.sleep 50\n").unwrap();
        let (output, done) = fake.execute(slow, &[]).unwrap();
        let (sender, receiver) = mpsc::channel::<bool>();
        assert!(!fake.call::<sys::PJRT_Event_IsReady_Args>(|a| a.event = done).unwrap().is_ready);
        fake.call::<sys::PJRT_Event_OnReady_Args>(|a| {
            a.event = done;
            a.callback = Some(told);
            a.user_arg = Box::into_raw(Box::new(sender)).cast();
        })
        .unwrap();
        assert!(receiver.recv_timeout(Duration::from_secs(10)).unwrap());
        assert_eq!(fake.download(output).unwrap(), [3.0]);
    });
}

#[test]
fn a_failing_program_poisons_what_depends_on_it() {
    passes("a_failing_program_poisons_what_depends_on_it", "", || {
        let fake = Fake::new();
        let fails = fake.compile("fake.output f32[2,3] = fill 1\nfake.sleep 20\nfake.fail 8 out of luck\n");
        let (poison, done) = fake.execute(fails.unwrap(), &[]).unwrap();
        let (output, _) = fake.execute(fake.compile(ADD).unwrap(), &[poison, poison]).unwrap();
        let status = fake.download(output).unwrap_err();
        assert_eq!((status.code, &*status.message), (Code::ResourceExhausted, "out of luck"));
        assert_eq!(fake.wait(done).unwrap_err(), status);
    });
}

#[test]
fn calls_fail_with_code_words_and_payload() {
    let commands = "PJRT_Client_Compile:error=13:msg=no: not today;PJRT_Buffer_IsDeleted:error=5@2";
    passes("calls_fail_with_code_words_and_payload", commands, || {
        let fake = Fake::new();
        let status = fake.compile(ADD).unwrap_err();
        assert_eq!((status.code, &*status.message), (Code::Internal, "no: not today"));
        let payload = ("fake.function".to_owned(), b"PJRT_Client_Compile".to_vec());
        assert_eq!(*status.payloads, [payload]);

        let array = fake.upload(&VALUES, &[6], &[]);
        let outcomes = [0; 3].map(|_| fake.call::<sys::PJRT_Buffer_IsDeleted_Args>(|a| a.buffer = array).is_ok());
        assert_eq!(outcomes, [true, false, true]);
    });
}

#[test]
fn a_hang_ends_when_it_is_told_to() {
    passes("a_hang_ends_when_it_is_told_to", "", || {
        let fake = Fake::new();
        control("PJRT_Client_ProcessIndex:hang\nPJRT_Client_PlatformName:slow=40");
        let start = Instant::now();
        fake.call::<sys::PJRT_Client_PlatformName_Args>(|a| a.client = fake.client).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(40));
        std::thread::scope(|scope| {
            let client = fake.client as usize;
            let api = &fake.api;
            let ask = move || {
                call::<sys::PJRT_Client_ProcessIndex_Args>(api, |a| a.client = client as *mut _).unwrap();
            };
            let waiting = scope.spawn(ask);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            control("");
            waiting.join().unwrap();
        });
    });
}

#[test]
fn processes_end_as_told() {
    let ends = [("abort", Some(6), None), ("segv", Some(11), None), ("kill", Some(9), None), ("exit=3", None, Some(3))];
    for (end, signal, code) in ends {
        let commands = format!("PJRT_Client_Devices:{end}@2");
        let status = alone("processes_end_as_told", &commands, || {
            let fake = Fake::new();
            for _ in 0..2 {
                fake.call::<sys::PJRT_Client_Devices_Args>(|a| a.client = fake.client).unwrap();
            }
        });
        let Some(status) = status else { return };
        assert_eq!((status.signal(), status.code()), (signal, code), "{end}");
    }
}

#[test]
fn programs_end_processes() {
    for (end, signal, code) in [("fake.abort", Some(6), None), ("fake.exit 4", None, Some(4))] {
        let status = alone("programs_end_processes", &format!("platform={end}"), || {
            let fake = Fake::new();
            let name = fake.call::<sys::PJRT_Client_PlatformName_Args>(|a| a.client = fake.client).unwrap();
            let end = text(name.platform_name, name.platform_name_size);
            let program = fake.compile(&format!("fake.output f32[] = fill 1\n{end}\n")).unwrap();
            let (_, done) = fake.execute(program, &[]).unwrap();
            fake.wait(done).unwrap();
        });
        let Some(status) = status else { return };
        assert_eq!((status.signal(), status.code()), (signal, code), "{end}");
    }
}

#[test]
fn an_older_plugin_lacks_what_came_later() {
    let commands = "version=0.81;functions=118;missing=PJRT_Client_DmaMap;noext=Layouts";
    passes("an_older_plugin_lacks_what_came_later", commands, || {
        let fake = Fake::new();
        assert_eq!(fake.api.version(), (0, 81));
        for slot in Slot::ALL {
            let there = slot.since() <= 81 && *slot != Slot::PJRT_Client_DmaMap;
            assert_eq!(fake.api.has(*slot), there, "{slot}");
        }
        let status = fake.call::<sys::PJRT_Client_CreateErrorBuffer_Args>(|_| {}).unwrap_err();
        assert_eq!(status.code, Code::Unimplemented);
        assert!(status.message.contains("PJRT_Client_CreateErrorBuffer"), "{status}");
        assert!(status.message.contains("0.81") && status.message.contains("0.82"), "{status}");
        assert!(fake.api.extension::<sys::PJRT_Layouts_Extension>().is_none());
        assert!(fake.api.extension::<sys::PJRT_MemoryDescriptions_Extension>().is_some());
        assert_eq!(fake.download(fake.upload(&VALUES, &[6], &[])).unwrap(), VALUES);
    });
}

#[test]
fn a_newer_plugin_works() {
    passes("a_newer_plugin_works", "version=0.140;functions=160", || {
        let fake = Fake::new();
        assert_eq!(fake.api.version(), (0, 140));
        assert!(Slot::ALL.iter().all(|slot| fake.api.has(*slot)));
        assert_eq!(fake.download(fake.upload(&VALUES, &[6], &[])).unwrap(), VALUES);
    });
}

#[test]
fn plugins_that_cannot_be_served_are_refused() {
    let refusals = [
        ("GetPjrtApi:error=1", "null pointer"),
        ("struct_size=24", "struct_size 24"),
        ("version=0.54", "0.54"),
        ("version=1.114", "1.114"),
        ("missing=PJRT_Error_Message", "PJRT_Error_Message"),
        ("functions=2", "PJRT_Error_GetCode"),
    ];
    for (commands, words) in refusals {
        let commands = format!("{commands};platform={}", words.replace(' ', "_"));
        passes("plugins_that_cannot_be_served_are_refused", &commands, || {
            let commands = std::env::var("FAKE_PLUGIN").unwrap();
            let words = commands.split("platform=").last().unwrap().replace("struct_size_", "struct_size ");
            let words = words.replace("null_pointer", "null pointer");
            let status = load().err().unwrap();
            assert_eq!(status.code, Code::FailedPrecondition);
            assert!(status.message.contains(&words), "{status} lacks {words}");
        });
    }
}

#[test]
fn answers_can_be_odd() {
    passes("answers_can_be_odd", "", || {
        let fake = Fake::new();
        let array = fake.upload(&VALUES, &[2, 3], &[]);
        control("PJRT_Buffer_Dimensions:dims=negative");
        assert_eq!(list(fake.dimensions(array).dims, 2), [-1, -1]);
        control("PJRT_Buffer_Dimensions:dims=null:num_dims=0");
        assert_eq!((fake.dimensions(array).dims.is_null(), fake.dimensions(array).num_dims), (true, 0));
        control("PJRT_Buffer_OnDeviceSizeInBytes:on_device_size_in_bytes=huge");
        let size = fake.call::<sys::PJRT_Buffer_OnDeviceSizeInBytes_Args>(|a| a.buffer = array).unwrap();
        assert_eq!(size.on_device_size_in_bytes, 1 << 62);
        control("");
        assert_eq!(list(fake.dimensions(array).dims, 2), [2, 3]);
    });
}
