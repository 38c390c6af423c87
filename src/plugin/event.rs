//! `PJRT_Event`.

use std::ffi::c_void;
use std::sync::Arc;

use super::entry::{entries, text};
use super::error::{from_parts, optional};
use super::handle::Handle;
use crate::abi::{Status, sys};
use crate::runtime::buffer::{Buffer, outcome};
use crate::runtime::callbacks;
use crate::runtime::event::{Event, Outcome};
use crate::runtime::session::Session;

/// An event in a caller's hands.
pub struct EventHandle {
    event: Arc<Event>,
    /// Who holds the value that the event tells of: when it is lost, so is what was ready.
    session: Option<Arc<Session>>,
    /// Whether callbacks go on to use the value, and may wait for locks of the caller's therefore.
    is_for_use: bool,
}

impl Handle for EventHandle {
    type Raw = sys::PJRT_Event;
    const WHAT: &'static str = "event";
}

impl EventHandle {
    /// An event that depends on no worker any more once it is set.
    pub fn plain(event: Arc<Event>) -> *mut sys::PJRT_Event {
        Self { event, session: None, is_for_use: false }.into_raw()
    }

    /// An event of a value that a session holds, if any does.
    pub fn of_value(event: Arc<Event>, session: Option<Arc<Session>>) -> *mut sys::PJRT_Event {
        Self { event, session, is_for_use: false }.into_raw()
    }

    /// The event that a buffer is ready.
    pub fn of_buffer(buffer: &Arc<Buffer>) -> *mut sys::PJRT_Event {
        let session = buffer.holder.session().cloned();
        Self { event: buffer.ready.clone(), session, is_for_use: true }.into_raw()
    }

    /// The event that a value is in the caller's memory.
    pub fn of_copy(event: Arc<Event>) -> *mut sys::PJRT_Event {
        Self { event, session: None, is_for_use: true }.into_raw()
    }

    /// An event that has happened.
    pub fn done(result: Outcome) -> *mut sys::PJRT_Event {
        Self::plain(Event::completed(result))
    }

    fn judge(&self, result: Outcome) -> Outcome {
        match &self.session {
            Some(session) => outcome(result, session),
            None => result,
        }
    }
}

/// A pointer of the caller's that goes back to it in a callback.
struct UserArgument(*mut c_void);

// SAFETY: only handed back; the interface makes callers expect their callbacks on any thread.
unsafe impl Send for UserArgument {}

impl UserArgument {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

entries! {
    PJRT_Event_Destroy(args: PJRT_Event_Destroy_Args) {
        // SAFETY: the caller gives up an event of ours, or null.
        drop(unsafe { EventHandle::take(args.event) });
        Ok(())
    }

    PJRT_Event_IsReady(args: PJRT_Event_IsReady_Args) {
        // SAFETY: a live event of ours.
        args.is_ready = unsafe { EventHandle::borrow(args.event)? }.event.is_done();
        Ok(())
    }

    /// The error of an event that has happened.
    PJRT_Event_Error(args: PJRT_Event_Error_Args) {
        // SAFETY: a live event of ours.
        let event = unsafe { EventHandle::borrow(args.event)? };
        match event.event.outcome() {
            Some(result) => event.judge(result),
            None => Err(Status::failed_precondition("the event has not happened yet; its error is known once it is ready")),
        }
    }

    /// Waits. Ends at the latest when the worker that owes the event is lost.
    PJRT_Event_Await(args: PJRT_Event_Await_Args) {
        // SAFETY: a live event of ours.
        let event = unsafe { EventHandle::borrow(args.event)? };
        event.judge(event.event.wait())
    }

    PJRT_Event_OnReady(args: PJRT_Event_OnReady_Args) {
        // SAFETY: a live event of ours.
        let event = unsafe { EventHandle::borrow(args.event)? };
        let Some(callback) = args.callback else { return Err(Status::invalid("a null callback was given for an event")) };
        let (argument, session, is_for_use) = (UserArgument(args.user_arg), event.session.clone(), event.is_for_use);
        event.event.on_done(move |result| {
            let result = match &session {
                Some(session) => outcome(result.clone(), session),
                None => result.clone(),
            };
            // SAFETY: the callback owns the error it is given and knows its own argument.
            let call = move || unsafe { callback(optional(result), argument.get()) };
            if is_for_use { callbacks::run(call) } else { call() }
        });
        Ok(())
    }

    PJRT_Event_Create(args: PJRT_Event_Create_Args) {
        args.event = EventHandle::plain(Event::pending());
        Ok(())
    }

    PJRT_Event_Set(args: PJRT_Event_Set_Args) {
        // SAFETY: a live event of ours.
        let event = unsafe { EventHandle::borrow(args.event)? };
        let result = match args.error_code {
            sys::PJRT_Error_Code_OK => Ok(()),
            // SAFETY: the caller's string.
            code => Err(from_parts(code, unsafe { text(args.error_message, args.error_message_size) })),
        };
        if !event.event.set(result) {
            return Err(Status::failed_precondition("the event has happened already; it can be set once"));
        }
        Ok(())
    }
}
