//! Bringing values that this process can't read in place into the arena, with one message to each worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::buffer::{Buffer, Holder};
use super::event::Event;
use super::session::{Answer, Session};
use crate::abi::Status;
use crate::wire::arena::Block;
use crate::wire::message::{BufferId, Command, Extent, Wanted};

/// Parts in one message at most: the worker begins with the first while the client writes the next message.
const IN_ONE_MESSAGE: usize = 1024;
/// A larger value is brought in parts of so many bytes, where the device has it as the host does.
const PART: u64 = 16 << 20;

/// Who is told of values on their way. Its functions must not block.
pub trait Receiver: Send + Sync {
    /// So many bytes more of a value are there.
    fn came(&self, bytes: u64);

    /// The value with this number is there: once for each. Or why it never will be: perhaps several times.
    fn arrived(self: Arc<Self>, number: usize, value: Result<Block, Status>);
}

/// A value that is to be brought.
struct Item {
    number: usize,
    buffer: BufferId,
    /// What the value waits for: where it fails, its cause comes first.
    ready: Arc<Event>,
    block: Block,
    /// Whether its bytes can be read in parts.
    divisible: bool,
}

/// Asks for the values that some buffers have at this call, each with a number and, where it is a worker's, the block
/// that it is to be written to: what is dispatched later, donations included, comes too late to change them.
pub fn fetch(buffers: Vec<(usize, Arc<Buffer>, Option<Block>)>, receiver: &Arc<dyn Receiver>) {
    let mut batches: Vec<(Arc<Session>, Vec<Item>)> = Vec::new();
    for (number, buffer, block) in buffers {
        let (Holder::Worker(session, id), Some(block)) = (&buffer.holder, block) else {
            fetch_from_host(&buffer, number, receiver);
            continue;
        };
        if let Some(cause) = buffer.poison() {
            receiver.clone().arrived(number, Err(cause));
            continue;
        }
        let (ready, divisible) = (buffer.ready.clone(), buffer.is_dense_on_device());
        let item = Item { number, buffer: *id, ready, block, divisible };
        match batches.iter_mut().find(|(known, _)| Arc::ptr_eq(known, session)) {
            Some((_, items)) => items.push(item),
            None => batches.push((session.clone(), vec![item])),
        }
    }
    batches.into_iter().for_each(|(session, items)| ask(&session, &items, receiver));
}

/// What is in the arena already is shared, not copied.
fn fetch_from_host(buffer: &Arc<Buffer>, number: usize, receiver: &Arc<dyn Receiver>) {
    let receiver = receiver.clone();
    buffer.download(&[], move |block| {
        receiver.came(block.as_ref().map_or(0, |block| block.len() as u64));
        receiver.arrived(number, block);
    });
}

fn ask(session: &Arc<Session>, items: &[Item], receiver: &Arc<dyn Receiver>) {
    let (mut wanted, mut answers) = (Vec::new(), Vec::new());
    for item in items {
        let parts = parts(item);
        let left = Arc::new(AtomicUsize::new(parts.len()));
        for part in parts {
            answers.push(answer(session, item, part.to.len, &left, receiver));
            wanted.push(part);
        }
        if wanted.len() >= IN_ONE_MESSAGE {
            send(session, &mut wanted, &mut answers);
        }
    }
    send(session, &mut wanted, &mut answers);
}

fn send(session: &Arc<Session>, wanted: &mut Vec<Wanted>, answers: &mut Vec<Answer>) {
    let (downloads, answers) = (std::mem::take(wanted), std::mem::take(answers));
    if !downloads.is_empty() {
        session.request_many(answers, |first| Command::Downloads { first, downloads });
    }
}

fn parts(item: &Item) -> Vec<Wanted> {
    let Extent { offset, len } = item.block.extent();
    if !item.divisible || len <= PART {
        return vec![Wanted { buffer: item.buffer, from: None, to: item.block.extent() }];
    }
    let part = |from| Wanted {
        buffer: item.buffer,
        from: Some(from),
        to: Extent { offset: offset + from, len: PART.min(len - from) },
    };
    (0..len).step_by(PART as usize).map(part).collect()
}

/// What to do when one part of a value is there. The last one to come tells of the value, the first that fails of that.
fn answer(
    session: &Arc<Session>,
    item: &Item,
    bytes: u64,
    left: &Arc<AtomicUsize>,
    receiver: &Arc<dyn Receiver>,
) -> Answer {
    let (session, block, receiver, left) = (session.clone(), item.block.clone(), receiver.clone(), left.clone());
    let (number, ready) = (item.number, item.ready.clone());
    Box::new(move |reply| match reply {
        Ok(_) => {
            receiver.came(bytes);
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                receiver.arrived(number, Ok(block));
            }
        }
        Err(error) => session.unread(block, &ready, error, move |cause| receiver.arrived(number, Err(cause))),
    })
}
