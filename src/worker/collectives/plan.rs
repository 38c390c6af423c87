//! What one worker has to do in one group of a collective: who sends which bytes to whom, and in which way.
//!
//! Every worker makes its plan from the same description, so all agree without talking:
//! - *here*: all ranks are this worker's own; nothing is sent;
//! - *scatter*: each rank's bytes have places in others' results; they are sent as one stream for each receiver and
//!   put in place as they arrive;
//! - *gather*: everyone needs all operands to compute with; they are sent whole and kept until all are there (small
//!   reductions, ragged all-to-all);
//! - *chain*: large reductions travel in chunks from worker to worker in the order of ranks, each taking in its own
//!   ranks in place, and from the last one to everyone: the order of additions is that of the ranks, so the bits are.
//!
//! Small collectives send at once; large ones when the receiver has said that all its ranks have arrived
//! ([`Plan::waits`]), so that a receiver never has to keep much that it has no place for.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::abi::Status;
use crate::program::spanning::spec::{Kind, Logical, Spec};

use super::reduce::Reducer;
use super::transport::{Slot, Slots};

/// A stream travels in pieces of this many bytes, a reduction in chunks of at most this many.
pub const CHUNK: usize = 256 << 10;

/// A collective whose ranks together have no more bytes than this sends at once.
const SMALL: usize = 64 << 10;

/// Parts of a stream begin at multiples of this, so that elements are aligned.
const ALIGN: usize = 64;

/// An operand's or a result's type and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Array {
    /// XLA's number of the element type.
    pub element: u32,
    /// Its size.
    pub bytes: usize,
}

/// A rank of a group.
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    /// Its device.
    pub logical: Logical,
    /// Its worker.
    pub slot: Slot,
}

/// A place in a rank's result.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The rank.
    pub rank: usize,
    /// Which of its results.
    pub result: usize,
    /// Bytes from its start.
    pub offset: usize,
}

/// Bytes of one rank's operand that go to places in others' results.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The rank they come from.
    pub from: usize,
    /// Which of its operands.
    pub operand: usize,
    /// Bytes from its start.
    pub offset: usize,
    /// How many bytes.
    pub len: usize,
    /// Where they lie in the stream.
    pub at: usize,
    /// Where they go; empty in gathers.
    pub to: SmallVec<[Target; 4]>,
}

/// Transfers between two workers, one after the other.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The receivers of an outgoing stream; the sender of an incoming one.
    pub with: Slots,
    /// Ordered by [`Transfer::at`].
    pub transfers: Vec<Transfer>,
    /// Bytes.
    pub len: usize,
}

impl Stream {
    fn new(with: Slots, mut transfers: Vec<Transfer>) -> Self {
        let mut len = 0_usize;
        for transfer in &mut transfers {
            transfer.at = len.next_multiple_of(ALIGN);
            len = transfer.at + transfer.len;
        }
        Self { with, transfers, len }
    }

    /// The parts of the stream's bytes from `start` to `end`: transfer, first byte within it, bytes.
    pub fn parts(&self, start: usize, end: usize) -> impl Iterator<Item = (&Transfer, usize, usize)> {
        let first = self.transfers.partition_point(move |transfer| transfer.at + transfer.len <= start);
        self.transfers[first..].iter().take_while(move |transfer| transfer.at < end).map(move |transfer| {
            let from = start.max(transfer.at);
            let to = end.min(transfer.at + transfer.len);
            (transfer, from - transfer.at, to.saturating_sub(from))
        })
    }
}

/// A part of a reduction that travels on its own.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Which operand.
    pub operand: usize,
    /// Bytes from its start.
    pub offset: usize,
    /// How many bytes.
    pub len: usize,
    /// The one rank whose result it is, and where there; all ranks', at `offset`, where absent.
    pub only: Option<(usize, usize)>,
}

/// The way of large reductions.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Successive ranks of one worker, in the order of ranks.
    pub runs: Vec<(Slot, Vec<usize>)>,
    /// In the order in which they set out.
    pub chunks: Vec<Chunk>,
}

impl Chain {
    /// Who gets a reduced chunk.
    pub fn receivers(&self, chunk: &Chunk, ranks: &[Rank]) -> Slots {
        match chunk.only {
            Some((rank, _)) => Slots::one(ranks[rank].slot),
            None => ranks.iter().fold(Slots::default(), |slots, rank| slots.with(rank.slot)),
        }
    }

    /// Whether a worker has no more to do with a chunk after its part in run `stage`.
    pub fn is_done_after(&self, stage: usize, slot: Slot, receivers: Slots) -> bool {
        !receivers.contains(slot) && !self.runs[stage + 1..].iter().any(|(of, _)| *of == slot)
    }

    /// The worker that takes in the last ranks.
    pub fn last(&self) -> Slot {
        self.runs.last().map_or(0, |(slot, _)| *slot)
    }
}

/// How the ranks of a group come by their results.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "see the module's documentation")]
pub enum Way {
    Here,
    Scatter,
    Gather,
    Chain(Chain),
}

/// One worker's part in one group of a collective.
#[derive(Debug)]
pub struct Plan {
    /// What the collective does.
    pub kind: Kind,
    /// All ranks.
    pub ranks: Vec<Rank>,
    /// Ranks of this worker.
    pub here: Vec<usize>,
    /// Operands of each rank.
    pub operands: Vec<Array>,
    /// Results of each rank.
    pub results: Vec<Array>,
    /// For reductions, one for each operand.
    pub reducers: Vec<Reducer>,
    /// The way.
    pub way: Way,
    /// Whether streams and chains wait until their receivers are ready.
    pub waits: bool,
    /// Streams to others.
    pub outgoing: Vec<Stream>,
    /// Streams from others.
    pub incoming: Vec<Stream>,
    /// Transfers between ranks of this worker.
    pub within: Vec<Transfer>,
    /// Ranks of this worker that nobody sends anything: their results are zeros.
    pub unsent: Vec<usize>,
}

impl Plan {
    /// The plan of worker `me` for a group of `spec`, whose devices' workers are `slots`, by logical device.
    pub fn new(
        spec: &Spec,
        group: usize,
        slots: &[Slot],
        me: Slot,
        operands: &[Array],
        results: &[Array],
    ) -> Result<Self, Status> {
        let members = spec.groups.get(group).ok_or_else(|| Status::invalid(format!("no group {group}")))?;
        let ranks: Vec<Rank> = members
            .iter()
            .map(|&logical| {
                let slot = slots.get(logical as usize).copied();
                slot.map(|slot| Rank { logical, slot })
                    .ok_or_else(|| Status::invalid(format!("a collective names device {logical} of {}", slots.len())))
            })
            .collect::<Result<_, _>>()?;
        check_sizes(spec.kind, ranks.len(), operands, results)?;
        let reducers = match spec.kind {
            Kind::AllReduce(reduction) | Kind::ReduceScatter(reduction) => {
                operands.iter().map(|operand| Reducer::new(reduction, operand.element)).collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        let total = operands.iter().map(|operand| operand.bytes).sum::<usize>().saturating_mul(ranks.len());
        let waits = total > SMALL;
        let is_here = ranks.iter().all(|rank| rank.slot == me);
        let way = match spec.kind {
            _ if is_here => Way::Here,
            Kind::AllReduce(_) | Kind::ReduceScatter(_) if waits => {
                Way::Chain(chain(spec.kind, &ranks, operands, &reducers))
            }
            Kind::AllReduce(_) | Kind::ReduceScatter(_) | Kind::RaggedAllToAll { .. } => Way::Gather,
            _ => Way::Scatter,
        };
        let mut plan = Self {
            kind: spec.kind,
            here: (0..ranks.len()).filter(|&rank| ranks[rank].slot == me).collect(),
            operands: operands.to_vec(),
            results: results.to_vec(),
            reducers,
            way,
            waits,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            within: Vec::new(),
            unsent: Vec::new(),
            ranks,
        };
        match plan.way {
            Way::Gather => plan.exchange(me, gathered(operands, plan.ranks.len())),
            Way::Scatter => plan.exchange(me, plan.moves(&spec.pairs)),
            Way::Here if plan.reducers.is_empty() && !matches!(plan.kind, Kind::RaggedAllToAll { .. }) => {
                plan.within = plan.moves(&spec.pairs);
                plan.find_unsent();
            }
            Way::Here | Way::Chain(_) => {}
        }
        Ok(plan)
    }

    /// All transfers of a collective that only moves data, with all their targets.
    fn moves(&self, pairs: &[(Logical, Logical)]) -> Vec<Transfer> {
        let count = self.ranks.len();
        let mut moves = Vec::new();
        let mut add = |from, operand: usize, offset, len, to: SmallVec<[Target; 4]>| {
            moves.push(Transfer { from, operand, offset, len, at: 0, to });
        };
        match self.kind {
            Kind::AllGather => {
                for from in 0..count {
                    for (operand, array) in self.operands.iter().enumerate() {
                        let offset = from * array.bytes;
                        let to = (0..count).map(|rank| Target { rank, result: operand, offset }).collect();
                        add(from, operand, 0, array.bytes, to);
                    }
                }
            }
            Kind::AllToAll => {
                for from in 0..count {
                    for (operand, array) in self.operands.iter().enumerate() {
                        let part = array.bytes / count;
                        for rank in 0..count {
                            let target = Target { rank, result: operand, offset: from * part };
                            add(from, operand, rank * part, part, SmallVec::from_iter([target]));
                        }
                    }
                }
            }
            Kind::AllToAllTuple => {
                for from in 0..count {
                    for rank in 0..count {
                        let target = Target { rank, result: from, offset: 0 };
                        add(from, rank, 0, self.operands[rank].bytes, SmallVec::from_iter([target]));
                    }
                }
            }
            Kind::Broadcast => {
                for (operand, array) in self.operands.iter().enumerate() {
                    let to = (0..count).map(|rank| Target { rank, result: operand, offset: 0 }).collect();
                    add(0, operand, 0, array.bytes, to);
                }
            }
            Kind::Permute => {
                // Ranks are devices here, all of them in order.
                let mut targets = BTreeMap::<usize, Vec<usize>>::new();
                for &(source, target) in pairs {
                    targets.entry(source as usize).or_default().push(target as usize);
                }
                for (from, targets) in targets {
                    for (operand, array) in self.operands.iter().enumerate() {
                        let to = targets.iter().map(|&rank| Target { rank, result: operand, offset: 0 }).collect();
                        add(from, operand, 0, array.bytes, to);
                    }
                }
            }
            Kind::AllReduce(_) | Kind::ReduceScatter(_) | Kind::RaggedAllToAll { .. } => {}
        }
        moves
    }

    /// Splits transfers into streams to and from others and what stays here.
    fn exchange(&mut self, me: Slot, transfers: Vec<Transfer>) {
        let gather = matches!(self.way, Way::Gather);
        let everyone = self.ranks.iter().fold(Slots::default(), |slots, rank| slots.with(rank.slot));
        let mut outgoing = BTreeMap::<u32, Vec<Transfer>>::new();
        let mut incoming = BTreeMap::<Slot, Vec<Transfer>>::new();
        for transfer in transfers {
            let from = self.ranks[transfer.from].slot;
            let receivers = if gather {
                everyone
            } else {
                transfer.to.iter().fold(Slots::default(), |slots, target| slots.with(self.ranks[target.rank].slot))
            };
            let for_slot = |slot: Slot| Transfer {
                to: transfer.to.iter().copied().filter(|target| self.ranks[target.rank].slot == slot).collect(),
                ..transfer.clone()
            };
            if from != me {
                if receivers.contains(me) {
                    incoming.entry(from).or_default().push(for_slot(me));
                }
                continue;
            }
            if receivers.contains(me) && !gather {
                self.within.push(for_slot(me));
            }
            let others = receivers.without(me);
            if !others.is_empty() {
                outgoing.entry(others.0).or_default().push(transfer);
            }
        }
        // A receiver can tell only one stream of a sender, so where one would get several, each gets its own.
        let distinct: Vec<Slots> = outgoing.keys().map(|&slots| Slots(slots)).collect();
        let overlap = distinct.iter().map(|slots| slots.0.count_ones()).sum::<u32>()
            > distinct.iter().fold(0, |all, slots| all | slots.0).count_ones();
        self.outgoing = if overlap {
            everyone.without(me).iter().map(|slot| self.own_stream(slot, &outgoing)).filter(|s| s.len > 0).collect()
        } else {
            outgoing.into_iter().map(|(slots, transfers)| Stream::new(Slots(slots), transfers)).collect()
        };
        self.outgoing.retain(|stream| stream.len > 0);
        self.incoming = incoming.into_iter().map(|(from, list)| Stream::new(Slots::one(from), list)).collect();
        self.incoming.retain(|stream| stream.len > 0);
        if !gather {
            self.find_unsent();
        }
    }

    /// All that goes to one receiver, in the order of the whole list, which is the order the receiver expects.
    fn own_stream(&self, slot: Slot, outgoing: &BTreeMap<u32, Vec<Transfer>>) -> Stream {
        let lists = outgoing.iter().filter(|(slots, _)| Slots(**slots).contains(slot));
        let mut transfers: Vec<Transfer> = lists.flat_map(|(_, list)| list.iter().cloned()).collect();
        transfers.sort_by_key(|transfer| (transfer.from, transfer.operand, transfer.offset));
        Stream::new(Slots::one(slot), transfers)
    }

    fn find_unsent(&mut self) {
        let mut sent = vec![false; self.ranks.len()];
        let incoming = self.incoming.iter().flat_map(|stream| &stream.transfers);
        for target in incoming.chain(&self.within).flat_map(|transfer| &transfer.to) {
            sent[target.rank] = true;
        }
        self.unsent = self.here.iter().copied().filter(|&rank| !sent[rank]).collect();
    }

    /// The workers that this one tells when all its ranks have arrived.
    pub fn tells(&self, me: Slot) -> Slots {
        match &self.way {
            _ if !self.waits => Slots::default(),
            Way::Here => Slots::default(),
            Way::Chain(chain) => Slots::one(chain.runs[0].0).without(me),
            Way::Scatter | Way::Gather => {
                self.incoming.iter().fold(Slots::default(), |slots, stream| Slots(slots.0 | stream.with.0))
            }
        }
    }

    /// The workers that have to be ready before this one sets a chain going.
    pub fn chain_waits_for(&self, me: Slot) -> Slots {
        self.ranks.iter().fold(Slots::default(), |slots, rank| slots.with(rank.slot)).without(me)
    }

    /// The local number of a rank of this worker.
    pub fn local(&self, rank: usize) -> Option<usize> {
        self.here.binary_search(&rank).ok()
    }
}

/// Every rank's whole operands, for everyone.
fn gathered(operands: &[Array], ranks: usize) -> Vec<Transfer> {
    let whole = |from: usize, operand: usize, len: usize| Transfer {
        from,
        operand,
        offset: 0,
        len,
        at: 0,
        to: SmallVec::new(),
    };
    (0..ranks)
        .flat_map(|from| operands.iter().enumerate().map(move |(operand, array)| whole(from, operand, array.bytes)))
        .collect()
}

fn chain(kind: Kind, ranks: &[Rank], operands: &[Array], reducers: &[Reducer]) -> Chain {
    let mut runs: Vec<(Slot, Vec<usize>)> = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        match runs.last_mut() {
            Some((slot, run)) if *slot == rank.slot => run.push(number),
            _ => runs.push((rank.slot, vec![number])),
        }
    }
    let mut chunks = Vec::new();
    let mut cut = |operand: usize, start: usize, len: usize, only: Option<usize>| {
        let step = CHUNK - CHUNK % reducers[operand].element_bytes();
        for at in (0..len).step_by(step) {
            let only = only.map(|rank| (rank, at));
            chunks.push(Chunk { operand, offset: start + at, len: step.min(len - at), only });
        }
    };
    for (operand, array) in operands.iter().enumerate() {
        if matches!(kind, Kind::ReduceScatter(_)) {
            let part = array.bytes / ranks.len();
            for rank in 0..ranks.len() {
                cut(operand, rank * part, part, Some(rank));
            }
        } else {
            cut(operand, 0, array.bytes, None);
        }
    }
    Chain { runs, chunks }
}

/// Whether operands and results fit each other.
fn check_sizes(kind: Kind, ranks: usize, operands: &[Array], results: &[Array]) -> Result<(), Status> {
    let pairs = || operands.iter().zip(results).map(|(operand, result)| (operand.bytes, result.bytes));
    let fits = ranks > 0
        && match kind {
            Kind::AllReduce(_) | Kind::Permute | Kind::Broadcast => pairs().all(|(operand, result)| operand == result),
            Kind::AllToAll => pairs().all(|(operand, result)| operand == result && operand % ranks == 0),
            Kind::AllGather => pairs().all(|(operand, result)| operand.checked_mul(ranks) == Some(result)),
            Kind::ReduceScatter(_) => pairs().all(|(operand, result)| result.checked_mul(ranks) == Some(operand)),
            Kind::AllToAllTuple => {
                let first = operands.first().map(|operand| operand.bytes);
                operands.len() == ranks
                    && pairs().all(|(operand, result)| Some(operand) == first && Some(result) == first)
            }
            Kind::RaggedAllToAll { .. } => {
                operands.len() == 6 && results.len() == 1 && operands[1].bytes == results[0].bytes
            }
        };
    let counts = matches!(kind, Kind::RaggedAllToAll { .. }) || operands.len() == results.len();
    if fits && counts {
        return Ok(());
    }
    let sizes = |arrays: &[Array]| arrays.iter().map(|array| array.bytes).collect::<Vec<_>>();
    Err(Status::invalid(format!(
        "{kind:?} over {ranks} devices does not take operands of {:?} bytes to results of {:?}",
        sizes(operands),
        sizes(results)
    )))
}
