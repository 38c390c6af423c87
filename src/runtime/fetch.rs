//! Bringing the values of many buffers into the arena, with one message to each worker.

use std::sync::Arc;

use super::buffer::{Buffer, Holder};
use super::session::{Answer, Session};
use crate::abi::Status;
use crate::wire::arena::Block;
use crate::wire::message::{BufferId, Command, Extent};

/// Buffers in one message at most: the worker begins with the first while the client writes the next message.
const IN_ONE_MESSAGE: usize = 1024;

/// Told the place of a buffer in the list and its value, or why there is none: once for each. Must not block.
pub type Arrived = Arc<dyn Fn(usize, Result<Arc<Block>, Status>) + Send + Sync>;

/// What one worker is to bring.
struct Batch {
    session: Arc<Session>,
    items: Vec<(usize, BufferId, Arc<Block>)>,
}

/// Asks for the values that the buffers have at this call: what is dispatched later, donations included, comes too late
/// to change them. Values that are in the arena already are shared, not copied.
///
/// # Errors
/// RESOURCE_EXHAUSTED where the arena has no room; nothing was asked for then, and `arrived` is never called.
pub fn fetch(buffers: &[Arc<Buffer>], arrived: &Arrived) -> Result<(), Status> {
    let mut batches: Vec<Batch> = Vec::new();
    for (place, buffer) in buffers.iter().enumerate() {
        let Holder::Worker(session, id) = &buffer.holder else { continue };
        if buffer.poison().is_some() {
            continue;
        }
        let block = Arc::new(buffer.client.allocate(buffer.shape.host_bytes()?)?);
        match batches.iter_mut().find(|batch| Arc::ptr_eq(&batch.session, session)) {
            Some(batch) => batch.items.push((place, *id, block)),
            None => batches.push(Batch { session: session.clone(), items: vec![(place, *id, block)] }),
        }
    }
    let mut asked = vec![false; buffers.len()];
    batches.iter().flat_map(|batch| &batch.items).for_each(|(place, ..)| asked[*place] = true);
    batches.into_iter().for_each(|batch| batch.ask(buffers, arrived));
    for (place, buffer) in buffers.iter().enumerate().filter(|(place, _)| !asked[*place]) {
        let arrived = arrived.clone();
        buffer.download(&[], move |block| arrived(place, block));
    }
    Ok(())
}

impl Batch {
    fn ask(self, buffers: &[Arc<Buffer>], arrived: &Arrived) {
        for items in self.items.chunks(IN_ONE_MESSAGE) {
            let downloads: Vec<(BufferId, Extent)> =
                items.iter().map(|(_, buffer, block)| (*buffer, block.extent())).collect();
            let answers = items
                .iter()
                .map(|(place, _, block)| answer(&self.session, (*place, &buffers[*place]), block, arrived))
                .collect();
            self.session.request_many(answers, |first| Command::Downloads { first, downloads });
        }
    }
}

fn answer(
    session: &Arc<Session>,
    (place, buffer): (usize, &Arc<Buffer>),
    block: &Arc<Block>,
    arrived: &Arrived,
) -> Answer {
    let (session, block, arrived) = (session.clone(), block.clone(), arrived.clone());
    let ready = buffer.ready.clone();
    Box::new(move |reply| match reply {
        Ok(_) => arrived(place, Ok(block)),
        Err(error) => {
            // A lost worker may still write to a block that it was asked to fill.
            if session.lost().is_some() {
                session.keep_until_reaped(block);
            }
            // The buffer knows the first cause, which may lie in another slice; the worker its own.
            ready.on_done(move |outcome| arrived(place, Err(outcome.as_ref().err().cloned().unwrap_or(error))));
        }
    })
}
