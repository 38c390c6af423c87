//! Reports on their way to the client, from whatever thread has something to say, and the count of what is in flight.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::inner::Event;
use super::process::{self, Exit};
use crate::abi::Status;
use crate::sync::lock;
use crate::wire::connection::{ConnectionError, Wake, WorkerEnd};
use crate::wire::message::{BufferId, FEW_BYTES, LoanId, Reply, Report, RequestId};

/// Sends reports, and knows how many are still to come. Clones are the same outbox.
#[derive(Clone)]
pub struct Outbox(Arc<Inner>);

struct Inner {
    end: Arc<WorkerEnd>,
    in_flight: AtomicUsize,
    /// Taken to wait for `in_flight` to become 0.
    idle: Mutex<()>,
    is_idle: Condvar,
}

impl Outbox {
    /// An outbox with nothing in flight.
    pub fn new(end: Arc<WorkerEnd>) -> Self {
        Self(Arc::new(Inner { end, in_flight: AtomicUsize::new(0), idle: Mutex::new(()), is_idle: Condvar::new() }))
    }

    /// Sends a report; waits while there is no room. Where the client is gone, this process ends.
    pub fn send(&self, report: Report) {
        self.send_and(report, Wake::Now);
    }

    fn send_and(&self, report: Report, wake: Wake) {
        let result = self.0.end.send_and(&report, wake);
        match result {
            Ok(()) => {}
            Err(ConnectionError::Unsendable(why)) => self.send_refusal(report, &why),
            Err(ConnectionError::Closed) => process::leave(Exit::ClientGone),
            Err(error) => {
                tracing::error!(%error, "reports can't be sent any more");
                process::leave(Exit::ClientGone);
            }
        }
    }

    /// Whoever waits for a report that is too large must learn so.
    fn send_refusal(&self, report: Report, why: &str) {
        let status = Status::exhausted(format!("the worker's answer is too large to be sent: {why}"));
        let report = match report {
            Report::Reply { request, .. } => Report::Reply { request, result: Err(status) },
            Report::Started(_) => Report::Started(Err(status)),
            other => {
                tracing::error!(?other, why, "a report can't be sent");
                return;
            }
        };
        if self.0.end.send(&report).is_err() {
            process::leave(Exit::ClientGone);
        }
    }

    /// Makes the main thread look for what other threads have left for it.
    pub fn wake(&self) {
        self.0.end.wake();
    }

    /// Says that a buffer has its value, which lies at a place of the heap (see [`Report::Ready`]), or why it has none.
    pub fn ready(&self, buffer: BufferId, result: Result<u64, Status>) {
        let (result, place) = match result {
            Ok(place) => (Ok(()), place),
            Err(status) => (Err(status), 0),
        };
        self.send(Report::Ready { buffer, result, place });
    }

    /// Answers a request.
    pub fn reply(&self, request: RequestId, result: Result<Reply, Status>) {
        self.send(Report::Reply { request, result });
    }

    /// Answers that it is done once the event has happened.
    pub fn done_after(&self, request: RequestId, event: Result<Event, Status>) {
        let outbox = self.clone();
        self.after(event, move |result| outbox.reply(request, result.map(|()| Reply::Done)));
    }

    /// Gives a loan of so many bytes back. The client is not woken for a few.
    pub fn returned(&self, loan: LoanId, bytes: u64) {
        let wake = if bytes <= FEW_BYTES { Wake::Later } else { Wake::Now };
        self.send_and(Report::Returned { loan }, wake);
    }

    /// Does something once the event has happened, and counts as in flight until then.
    pub fn after(&self, event: Result<Event, Status>, then: impl FnOnce(Result<(), Status>) + Send + 'static) {
        let flight = self.take_off();
        let then = move |result| {
            then(result);
            drop(flight);
        };
        match event {
            Ok(event) => event.on_ready(then),
            Err(status) => then(Err(status)),
        }
    }

    /// Something is in flight until what this gives is dropped.
    pub fn take_off(&self) -> Flight {
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        Flight(self.clone())
    }

    /// Waits until nothing is in flight: for as long as the inner plugin takes, or the client lives.
    pub fn wait_until_idle(&self) {
        let mut idle = lock(&self.0.idle);
        while self.0.in_flight.load(Ordering::Acquire) != 0 {
            idle = self.0.is_idle.wait(idle).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Something in flight.
pub struct Flight(Outbox);

impl Drop for Flight {
    fn drop(&mut self) {
        if self.0.0.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            // With the lock held, so that a waiter is either before its look at the count or asleep.
            let _idle = lock(&self.0.0.idle);
            self.0.0.is_idle.notify_all();
        }
    }
}
