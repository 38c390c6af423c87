//! One meeting: the ranks of one worker in one run of a collective, from the first arrival to the last completion.
//!
//! A meeting never waits. Each event (an arrival, a message, room in the arena) takes it as far as it can go; when
//! there is nothing left to do, its completions are handed out.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::Status;
use crate::program::spanning::spec::Kind;

use super::plan::{CHUNK, Chain, Plan, Transfer, Way};
use super::ragged;
use super::transport::{Block, Meeting as Id, Message, Slot, Slots, Transport, What};

/// A large reduction has at most this many of its chunks under way: enough to keep all workers busy while one of them
/// waits for a processor, few enough to leave room for other collectives.
const WINDOW: usize = 32;

/// Called once when a rank's part is over: its results are there, or the error that they have for a value.
pub type Completion = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// A rank that has arrived. The memory stays valid until its completion is called.
pub struct Arrival {
    /// Start of each operand.
    pub operands: Vec<NonNull<u8>>,
    /// Start of each result.
    pub results: Vec<NonNull<u8>>,
    /// To be called once.
    pub completion: Completion,
}

// SAFETY: the pointers are to memory that XLA keeps for this call until the completion is called, on any thread.
unsafe impl Send for Arrival {}

/// A message as a meeting keeps it: small payloads are copied, so that the sender's memory is free again.
pub struct Parcel {
    /// The message; its block is not to be used.
    pub message: Message,
    /// The payload.
    pub bytes: Box<[u8]>,
}

/// Bytes with the alignment that any element needs.
struct Aligned(Vec<u128>);

impl Aligned {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(16)])
    }

    fn start(&mut self) -> NonNull<u8> {
        NonNull::from(&mut self.0[..]).cast()
    }
}

/// See the module's documentation.
pub struct Meeting {
    id: Id,
    plan: Option<Arc<Plan>>,
    /// By local number of the rank.
    arrivals: Vec<Option<Arrival>>,
    missing: usize,
    /// What came before all ranks of this worker were here.
    early: Vec<Parcel>,
    /// Who has said that it is ready.
    ready: Slots,
    /// Bytes sent of each outgoing stream.
    sent: Vec<usize>,
    /// Bytes received of each incoming stream, and in gathers the bytes themselves.
    received: Vec<usize>,
    gathered: Vec<Aligned>,
    /// Chunks of a chain that have set out, and their blocks.
    started: usize,
    under_way: Vec<Block>,
    /// Messages of a chain still to come.
    partial: usize,
    reduced: usize,
    computed: bool,
    over: bool,
}

/// What came of an event.
pub enum Progress {
    /// Nothing to do until the next event.
    Waiting,
    /// As before, but there was no room in the arena: try again when there is.
    NoRoom,
    /// It is over: ranks and completions, to be called with this result.
    Over(Vec<(usize, Completion)>, Result<(), Status>),
}

impl Meeting {
    /// A meeting nobody has come to.
    pub fn new(id: Id) -> Self {
        Self {
            id,
            plan: None,
            arrivals: Vec::new(),
            missing: 0,
            early: Vec::new(),
            ready: Slots::default(),
            sent: Vec::new(),
            received: Vec::new(),
            gathered: Vec::new(),
            started: 0,
            under_way: Vec::new(),
            partial: 0,
            reduced: 0,
            computed: false,
            over: false,
        }
    }

    /// Which meeting it is.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Whether all ranks of this worker are here, and something of other workers' is still to come.
    pub fn waits_for_others(&self) -> bool {
        self.plan.is_some() && self.missing == 0 && !self.over
    }

    /// A rank arrives. `Err` gives the arrival back where the meeting is over: its launch has failed.
    pub fn arrive(
        &mut self,
        post: &Post<'_>,
        plan: &Arc<Plan>,
        rank: usize,
        arrival: Arrival,
    ) -> Result<Progress, Arrival> {
        if self.over {
            return Err(arrival);
        }
        if self.plan.is_none() {
            self.begin(post.transport.me(), plan);
        }
        let place = plan.local(rank).and_then(|local| self.arrivals.get_mut(local)).filter(|place| place.is_none());
        let Some(place) = place else { return Err(arrival) };
        *place = Some(arrival);
        self.missing -= 1;
        if self.missing > 0 {
            return Ok(Progress::Waiting);
        }
        Ok(self.everybody_is_here(post, plan))
    }

    fn begin(&mut self, me: Slot, plan: &Arc<Plan>) {
        self.missing = plan.here.len();
        self.arrivals = (0..self.missing).map(|_| None).collect();
        self.sent = vec![0; plan.outgoing.len()];
        self.received = vec![0; plan.incoming.len()];
        if matches!(plan.way, Way::Gather) {
            self.gathered = plan.incoming.iter().map(|stream| Aligned::new(stream.len)).collect();
        }
        if let Way::Chain(chain) = &plan.way {
            let runs_of_mine = chain.runs.iter().skip(1).filter(|(slot, _)| *slot == me).count();
            self.partial = runs_of_mine * chain.chunks.len();
            if chain.last() != me {
                let mine = |chunk| chain.receivers(chunk, &plan.ranks).contains(me);
                self.reduced = chain.chunks.iter().filter(|chunk| mine(chunk)).count();
            }
        }
        self.plan = Some(plan.clone());
    }

    fn everybody_is_here(&mut self, post: &Post<'_>, plan: &Arc<Plan>) -> Progress {
        for &rank in &plan.unsent {
            for (result, array) in plan.results.iter().enumerate() {
                if let Some(to) = self.result(plan, rank, result, 0, array.bytes) {
                    // SAFETY: `result` has checked that the rank's result has so many bytes.
                    unsafe { to.write_bytes(0, array.bytes) };
                }
            }
        }
        for transfer in &plan.within {
            if let Some(from) = self.operand(plan, transfer.from, transfer.operand, transfer.offset, transfer.len) {
                self.deliver(plan, transfer, 0, from, transfer.len);
            }
        }
        for slot in plan.tells(post.transport.me()).iter() {
            post.to(slot, self.id, What::Ready, 0, 0, None);
        }
        for parcel in std::mem::take(&mut self.early) {
            let from = NonNull::from(&parcel.bytes[..]).cast();
            if let Err(status) = self.take(plan, &parcel.message, from, parcel.bytes.len()) {
                return self.fail(status);
            }
        }
        self.go_on(post)
    }

    /// A message arrives; its block is released.
    pub fn receive(&mut self, post: &Post<'_>, message: &Message) -> Progress {
        match self.plan.clone().filter(|_| self.missing == 0 && !self.over) {
            Some(plan) => self.receive_now(post, &plan, message),
            None => {
                if self.over {
                    post.drop_block(message);
                } else if let Some(parcel) = post.unpack(message) {
                    self.early.push(parcel);
                }
                Progress::Waiting
            }
        }
    }

    fn receive_now(&mut self, post: &Post<'_>, plan: &Arc<Plan>, message: &Message) -> Progress {
        let done = match (message.what, &message.block) {
            (What::Ready, _) => {
                self.ready = self.ready.with(message.from);
                Ok(())
            }
            (What::Data, Some(block)) => {
                let taken = match post.transport.address(block) {
                    Some(from) => self.take(plan, message, from, block.len as usize),
                    None => Err(stale(message)),
                };
                post.settle(block, taken)
            }
            (What::Partial, Some(block)) => self.take_partial(post, plan, message, block),
            (What::Reduced, Some(block)) => {
                let taken = self.take_reduced(post, plan, message, block);
                post.settle(block, taken)
            }
            (_, None) => Err(malformed(message)),
        };
        match done {
            Ok(()) => self.go_on(post),
            Err(status) => self.fail(status),
        }
    }

    /// A parcel that came before the launch had begun here.
    pub fn receive_parcel(&mut self, parcel: Parcel) {
        if !self.over {
            self.early.push(parcel);
        }
    }

    /// Takes `len` bytes of a stream, or that its sender is ready.
    fn take(&mut self, plan: &Plan, message: &Message, from: NonNull<u8>, len: usize) -> Result<(), Status> {
        if message.what == What::Ready {
            self.ready = self.ready.with(message.from);
            return Ok(());
        }
        let number = plan.incoming.iter().position(|stream| stream.with.contains(message.from));
        let Some(number) = number.filter(|_| message.what == What::Data) else { return Err(malformed(message)) };
        let stream = &plan.incoming[number];
        let start = message.index as usize * CHUNK;
        if start != self.received[number] || start + len > stream.len || len == 0 {
            return Err(malformed(message));
        }
        self.received[number] += len;
        if matches!(plan.way, Way::Gather) {
            let to = self.gathered[number].start();
            // SAFETY: the gathered bytes have the stream's length, which `start + len` doesn't exceed; `from` is good
            // for `len` bytes, in memory of the sender or in a parcel, neither of which is this buffer.
            unsafe { to.add(start).copy_from_nonoverlapping(from, len) };
            return Ok(());
        }
        for (transfer, within, part) in stream.parts(start, start + len) {
            // SAFETY: `parts` gives parts of the `len` bytes after `start`, so the sum is within what `from` has.
            let from = unsafe { from.add(transfer.at + within - start) };
            self.deliver(plan, transfer, within, from, part);
        }
        Ok(())
    }

    /// Copies `len` bytes of a transfer, from its byte `within` on, to where they belong.
    fn deliver(&self, plan: &Plan, transfer: &Transfer, within: usize, from: NonNull<u8>, len: usize) {
        for target in &transfer.to {
            if let Some(to) = self.result(plan, target.rank, target.result, target.offset + within, len) {
                // SAFETY: `result` has checked the place; `from` is good for `len` bytes and is no result.
                unsafe { to.copy_from_nonoverlapping(from, len) };
            }
        }
    }

    /// Where `len` bytes of a local rank's operand are.
    fn operand(&self, plan: &Plan, rank: usize, operand: usize, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let arrival = self.arrivals.get(plan.local(rank)?)?.as_ref()?;
        let fits = plan.operands.get(operand)?.bytes >= offset.checked_add(len)?;
        // SAFETY: an arrival's operands have the sizes of its plan ([`super::Exchange::arrive`] makes them equal).
        let at = unsafe { arrival.operands.get(operand)?.add(offset) };
        fits.then_some(at)
    }

    /// Where `len` bytes of a local rank's result are.
    fn result(&self, plan: &Plan, rank: usize, result: usize, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let arrival = self.arrivals.get(plan.local(rank)?)?.as_ref()?;
        let fits = plan.results.get(result)?.bytes >= offset.checked_add(len)?;
        // SAFETY: as for operands.
        let at = unsafe { arrival.results.get(result)?.add(offset) };
        fits.then_some(at)
    }

    /// Does all that can be done now.
    pub fn go_on(&mut self, post: &Post<'_>) -> Progress {
        let Some(plan) = self.plan.clone().filter(|_| self.missing == 0 && !self.over) else {
            return Progress::Waiting;
        };
        let room = match self.send(post, &plan) {
            Ok(room) => room,
            Err(status) => return self.fail(status),
        };
        let received = plan.incoming.iter().zip(&self.received).all(|(stream, received)| stream.len == *received);
        if received && !self.computed {
            if let Err(status) = self.compute(&plan) {
                return self.fail(status);
            }
            self.computed = true;
        }
        let sent = plan.outgoing.iter().zip(&self.sent).all(|(stream, sent)| stream.len == *sent);
        let chained = match &plan.way {
            Way::Chain(chain) => {
                let first = chain.runs[0].0 == post.transport.me();
                (!first || self.started == chain.chunks.len()) && self.partial == 0 && self.reduced == 0
            }
            _ => true,
        };
        if received && sent && chained {
            return self.finish(Ok(()));
        }
        if room { Progress::Waiting } else { Progress::NoRoom }
    }

    /// Sends what may be sent; `false` where the arena has no room.
    fn send(&mut self, post: &Post<'_>, plan: &Plan) -> Result<bool, Status> {
        for (number, stream) in plan.outgoing.iter().enumerate() {
            if plan.waits && !self.ready.covers(stream.with) {
                continue;
            }
            while self.sent[number] < stream.len {
                let start = self.sent[number];
                let end = stream.len.min(start + CHUNK);
                let Some(block) = post.transport.allocate(end - start, stream.with, self.id.launch)? else {
                    return Ok(false);
                };
                let to = post.transport.address(&block).ok_or_else(|| lost_block(&block))?;
                for (transfer, within, part) in stream.parts(start, end) {
                    let offset = transfer.offset + within;
                    if let Some(from) = self.operand(plan, transfer.from, transfer.operand, offset, part) {
                        // SAFETY: `parts` stays within the block's `end - start` bytes, which are this worker's own
                        // until they are posted; the operand is no part of the arena.
                        unsafe { to.add(transfer.at + within - start).copy_from_nonoverlapping(from, part) };
                    }
                }
                self.sent[number] = end;
                for slot in stream.with.iter() {
                    post.to(slot, self.id, What::Data, (start / CHUNK) as u32, 0, Some(block));
                }
            }
        }
        match &plan.way {
            Way::Chain(chain) => self.start_chunks(post, plan, chain),
            _ => Ok(true),
        }
    }

    /// Sets chunks of a reduction going, if this worker has the first ranks.
    fn start_chunks(&mut self, post: &Post<'_>, plan: &Plan, chain: &Chain) -> Result<bool, Status> {
        let me = post.transport.me();
        if chain.runs[0].0 != me || !self.ready.covers(plan.chain_waits_for(me)) {
            return Ok(true);
        }
        while let Some(chunk) = chain.chunks.get(self.started) {
            if post.transport.in_use(&mut self.under_way) >= WINDOW {
                return Ok(false);
            }
            let receivers = chain.receivers(chunk, &plan.ranks);
            let later = chain.runs[1..].iter().fold(receivers, |slots, (slot, _)| slots.with(*slot));
            let Some(block) = post.transport.allocate(chunk.len, later, self.id.launch)? else { return Ok(false) };
            let to = post.transport.address(&block).ok_or_else(|| lost_block(&block))?;
            let reducer = plan.reducers[chunk.operand];
            // SAFETY: the block is aligned, has the chunk's length and is this worker's own until posted.
            unsafe { reducer.start(to, chunk.len) };
            self.take_in_run(plan, chain, 0, chunk, to);
            let number = self.started as u32;
            self.started += 1;
            self.under_way.push(block);
            post.to(chain.runs[1].0, self.id, What::Partial, number, 1, Some(block));
        }
        Ok(true)
    }

    /// Takes a run's ranks into a chunk.
    fn take_in_run(&self, plan: &Plan, chain: &Chain, stage: usize, chunk: &super::plan::Chunk, to: NonNull<u8>) {
        for &rank in &chain.runs[stage].1 {
            if let Some(from) = self.operand(plan, rank, chunk.operand, chunk.offset, chunk.len) {
                // SAFETY: both have the chunk's length and are aligned: operands by XLA, blocks by the arena, offsets
                // by whole elements. The chunk is in this worker's hands alone, the operand is not written to.
                unsafe { plan.reducers[chunk.operand].take_in(to, from, chunk.len) };
            }
        }
    }

    fn take_partial(&mut self, post: &Post<'_>, plan: &Plan, message: &Message, block: &Block) -> Result<(), Status> {
        let me = post.transport.me();
        let (stage, index) = (message.stage as usize, message.index as usize);
        let Way::Chain(chain) = &plan.way else { return Err(malformed(message)) };
        let known = chain.runs.get(stage).is_some_and(|(slot, _)| *slot == me && stage > 0);
        let Some(chunk) = chain.chunks.get(index).filter(|_| known && self.partial > 0) else {
            return Err(malformed(message));
        };
        if block.len != chunk.len as u64 {
            return Err(malformed(message));
        }
        let at = post.transport.address(block).ok_or_else(|| stale(message))?;
        self.partial -= 1;
        self.take_in_run(plan, chain, stage, chunk, at);
        let receivers = chain.receivers(chunk, &plan.ranks);
        if stage + 1 < chain.runs.len() {
            let next = chain.runs[stage + 1].0;
            if !post.transport.is_current(block) {
                return Err(stale(message));
            }
            let done = chain.is_done_after(stage, me, receivers);
            post.to(next, self.id, What::Partial, message.index, message.stage + 1, Some(*block));
            if done {
                post.transport.release(block);
            }
            return Ok(());
        }
        for slot in receivers.without(me).iter() {
            post.to(slot, self.id, What::Reduced, message.index, 0, Some(*block));
        }
        self.deliver_chunk(plan, chunk, at);
        post.settle(block, Ok(()))
    }

    fn take_reduced(&mut self, post: &Post<'_>, plan: &Plan, message: &Message, block: &Block) -> Result<(), Status> {
        let Way::Chain(chain) = &plan.way else { return Err(malformed(message)) };
        let chunk = chain.chunks.get(message.index as usize).filter(|chunk| block.len == chunk.len as u64);
        let Some(chunk) = chunk.filter(|_| self.reduced > 0) else { return Err(malformed(message)) };
        let at = post.transport.address(block).ok_or_else(|| stale(message))?;
        self.reduced -= 1;
        self.deliver_chunk(plan, chunk, at);
        Ok(())
    }

    /// Copies a reduced chunk into the results of this worker's ranks that it is for.
    fn deliver_chunk(&self, plan: &Plan, chunk: &super::plan::Chunk, from: NonNull<u8>) {
        for &rank in &plan.here {
            let offset = match chunk.only {
                Some((only, _)) if only != rank => continue,
                Some((_, offset)) => offset,
                None => chunk.offset,
            };
            if let Some(to) = self.result(plan, rank, chunk.operand, offset, chunk.len) {
                // SAFETY: `result` has checked the place, the block has the chunk's length, and results are no blocks.
                unsafe { to.copy_from_nonoverlapping(from, chunk.len) };
            }
        }
    }

    /// Computes results out of whole operands, where that is the way.
    fn compute(&mut self, plan: &Plan) -> Result<(), Status> {
        let gather = matches!(plan.way, Way::Gather);
        if !gather && !matches!(plan.way, Way::Here) {
            return Ok(());
        }
        match plan.kind {
            Kind::AllReduce(_) | Kind::ReduceScatter(_) => {
                self.reduce_all(plan);
                Ok(())
            }
            Kind::RaggedAllToAll { row } => {
                let sources = self.sources(plan);
                let results: Vec<_> = plan.here.iter().map(|&rank| (rank, self.result(plan, rank, 0, 0, 0))).collect();
                ragged::assemble(plan, row, &sources, &results)
            }
            _ => Ok(()),
        }
    }

    /// Where every rank's operands are, by rank and operand.
    fn sources(&mut self, plan: &Plan) -> Vec<Vec<Option<NonNull<u8>>>> {
        let mut sources: Vec<Vec<_>> = (0..plan.ranks.len())
            .map(|rank| {
                plan.operands
                    .iter()
                    .enumerate()
                    .map(|(number, array)| self.operand(plan, rank, number, 0, array.bytes))
                    .collect()
            })
            .collect();
        for (stream, bytes) in plan.incoming.iter().zip(&mut self.gathered) {
            for transfer in &stream.transfers {
                // SAFETY: transfers lie within the stream, whose length the gathered bytes have.
                sources[transfer.from][transfer.operand] = Some(unsafe { bytes.start().add(transfer.at) });
            }
        }
        sources
    }

    fn reduce_all(&mut self, plan: &Plan) {
        let sources = self.sources(plan);
        let count = plan.ranks.len();
        let scatters = matches!(plan.kind, Kind::ReduceScatter(_));
        for (number, array) in plan.operands.iter().enumerate() {
            let reducer = plan.reducers[number];
            let part = if scatters { array.bytes / count } else { array.bytes };
            let step = (CHUNK / 8) - (CHUNK / 8) % reducer.element_bytes();
            // Piece by piece, so that what is accumulated stays in the cache.
            for at in (0..part).step_by(step) {
                let len = step.min(part - at);
                let mut first: Option<NonNull<u8>> = None;
                for &rank in &plan.here {
                    let Some(to) = self.result(plan, rank, number, at, len) else { continue };
                    if let Some(from) = first.filter(|_| !scatters) {
                        // SAFETY: two ranks' results, checked to have these `len` bytes, don't overlap.
                        unsafe { to.copy_from_nonoverlapping(from, len) };
                        continue;
                    }
                    first = Some(to);
                    let offset = if scatters { rank * part + at } else { at };
                    // SAFETY: results and operands are aligned by XLA, gathered ones by the stream, `offset` and `len`
                    // are whole elements within them; operands and results don't overlap.
                    unsafe {
                        reducer.start(to, len);
                        for from in sources.iter().filter_map(|operands| operands[number]) {
                            reducer.take_in(to, from.add(offset), len);
                        }
                    }
                }
            }
        }
    }

    /// Ends the meeting with an error for everybody who has arrived.
    pub fn fail(&mut self, status: Status) -> Progress {
        self.finish(Err(status))
    }

    fn finish(&mut self, result: Result<(), Status>) -> Progress {
        if std::mem::replace(&mut self.over, true) {
            return Progress::Waiting;
        }
        self.early.clear();
        self.gathered.clear();
        let ranks = self.plan.iter().flat_map(|plan| plan.here.iter().copied());
        let arrivals =
            ranks.zip(self.arrivals.drain(..)).filter_map(|(rank, arrival)| Some((rank, arrival?.completion)));
        Progress::Over(arrivals.collect(), result)
    }
}

/// Sends a meeting's messages to the right incarnations.
pub struct Post<'a> {
    /// The way.
    pub transport: &'a dyn Transport,
    /// Incarnations of the participants, by slot.
    pub incarnations: &'a [u32],
}

impl Post<'_> {
    fn to(&self, slot: Slot, meeting: Id, what: What, index: u32, stage: u32, block: Option<Block>) {
        let incarnation = self.incarnations.get(slot as usize).copied().unwrap_or(0);
        let from = self.transport.me();
        self.transport.post(slot, incarnation, Message { meeting, what, index, stage, from, block });
    }

    /// Releases a block after use; what was taken from it counts only if it still was the sender's.
    fn settle(&self, block: &Block, taken: Result<(), Status>) -> Result<(), Status> {
        let current = self.transport.is_current(block);
        self.transport.release(block);
        taken.and_then(|()| if current { Ok(()) } else { Err(lost_block(block)) })
    }

    /// Copies a message's payload, so that its sender has its memory back. `None` where the payload is gone: then so
    /// is the sender, and the launch will fail.
    pub fn unpack(&self, message: &Message) -> Option<Parcel> {
        let Some(block) = &message.block else { return Some(Parcel { message: *message, bytes: Box::default() }) };
        let from = self.transport.address(block)?;
        let mut bytes = vec![0_u8; block.len as usize].into_boxed_slice();
        // SAFETY: the transport vouches for the block's address and length; the copy is new memory.
        unsafe { NonNull::from(&mut bytes[..]).cast::<u8>().copy_from_nonoverlapping(from, bytes.len()) };
        self.settle(block, Ok(())).ok()?;
        Some(Parcel { message: Message { block: None, ..*message }, bytes })
    }

    /// Lets go of a message that nobody wants any more.
    pub fn drop_block(&self, message: &Message) {
        if let Some(block) = &message.block {
            self.transport.release(block);
        }
    }
}

fn malformed(message: &Message) -> Status {
    Status::failed_precondition(format!(
        "slice {} sent a message that has no place in the collective: {:?} {} {} of {:?}",
        message.from, message.what, message.index, message.stage, message.meeting
    ))
}

fn stale(message: &Message) -> Status {
    Status::failed_precondition(format!("slice {} went away in the middle of a collective", message.from))
}

fn lost_block(block: &Block) -> Status {
    Status::failed_precondition(format!("slice {} went away in the middle of a collective", block.owner))
}
