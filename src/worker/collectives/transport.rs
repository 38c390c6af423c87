//! What the exchange asks of the way messages and payloads travel between the workers of a program.
//!
//! The way here is memory shared by the workers of one machine ([`super::shared`]). The interface is what another
//! machine's transport has to give: blocks that are written once and read by those they are for, and messages that
//! name them, in order between any two workers.

use std::ptr::NonNull;
use std::time::Duration;

use crate::abi::Status;
use crate::wire::message::LaunchId;

/// A worker's place in the exchange: the number of its slice.
pub type Slot = u32;

/// At most this many slices take part in one exchange.
pub const MAX_SLOTS: usize = 32;

/// A set of slots, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slots(pub u32);

impl Slots {
    /// The set of one.
    pub fn one(slot: Slot) -> Self {
        Self(1 << (slot as usize % MAX_SLOTS))
    }

    /// Whether a slot is in it.
    pub fn contains(self, slot: Slot) -> bool {
        self.0 & Self::one(slot).0 != 0
    }

    /// With a slot more.
    pub fn with(self, slot: Slot) -> Self {
        Self(self.0 | Self::one(slot).0)
    }

    /// Without a slot.
    pub fn without(self, slot: Slot) -> Self {
        Self(self.0 & !Self::one(slot).0)
    }

    /// Whether every slot of `other` is in it.
    pub fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether nobody is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The slots, in order.
    pub fn iter(self) -> impl Iterator<Item = Slot> {
        (0..MAX_SLOTS as Slot).filter(move |slot| self.contains(*slot))
    }
}

/// Which collective of which launch, and which of its repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meeting {
    /// The launch.
    pub launch: LaunchId,
    /// The collective's key within the program.
    pub key: u32,
    /// The group's number within the collective.
    pub group: u32,
    /// How often the collective has run before in this launch, on the same device.
    pub occurrence: u32,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum What {
    /// All devices of the sender have arrived: send what is for them.
    Ready = 1,
    /// A piece of the sender's stream for the receiver, from byte `index * CHUNK`.
    Data = 2,
    /// Chunk `index` of a reduction, reduced over all ranks before the receiver's run `stage`.
    Partial = 3,
    /// Chunk `index` of a reduction, reduced over all ranks.
    Reduced = 4,
}

impl What {
    /// The message kind of this number.
    pub fn from_raw(raw: u32) -> Option<Self> {
        [Self::Ready, Self::Data, Self::Partial, Self::Reduced].into_iter().find(|what| *what as u32 == raw)
    }
}

/// A block of memory of one worker that others may access: a message's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Whose memory it is.
    pub owner: Slot,
    /// Distinguishes this use of the memory from those before and after.
    pub tag: u32,
    /// Where it is, in the transport's own terms.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A message between two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is about.
    pub meeting: Meeting,
    /// What it says.
    pub what: What,
    /// See [`What`].
    pub index: u32,
    /// See [`What`].
    pub stage: u32,
    /// Who sent it; filled in by the transport.
    pub from: Slot,
    /// Its payload.
    pub block: Option<Block>,
}

/// Moves messages and payloads between workers. Nothing here blocks, except [`Transport::sleep`].
pub trait Transport: Send + Sync {
    /// This worker's slot.
    fn me(&self) -> Slot;

    /// A block of `len` bytes that belongs to this worker until it is posted, then to `users`, until each of them has
    /// [released](Self::release) it. `None` while there is no room: [`Self::await_room`], then try again.
    fn allocate(&self, len: usize, users: Slots, launch: LaunchId) -> Result<Option<Block>, Status>;

    /// Until the next [`Self::receive`], this worker is woken when somebody else releases a block of its own. Room that
    /// appeared before this call is not told: try again after it.
    fn await_room(&self);

    /// Sends a message to an incarnation of a slot's worker; others drop it. Messages to one receiver arrive in the
    /// order of sending.
    fn post(&self, to: Slot, incarnation: u32, message: Message);

    /// Takes the messages that have arrived; returns how many there were. Messages to a predecessor of this worker in
    /// its slot are dropped.
    fn receive(&self, each: &mut dyn FnMut(Message)) -> usize;

    /// Where a block is. `None` where it is none that may be used: out of bounds, or used for something else by now.
    fn address(&self, block: &Block) -> Option<NonNull<u8>>;

    /// Whether a block is still what it was: what was read from it is what was put there.
    fn is_current(&self, block: &Block) -> bool;

    /// This worker is done with a block.
    fn release(&self, block: &Block);

    /// How many of these own blocks somebody still uses; those that nobody does are taken out of the list.
    fn in_use(&self, blocks: &mut Vec<Block>) -> usize;

    /// Takes back all own blocks of a launch that is over everywhere.
    fn reclaim(&self, launch: LaunchId);

    /// Sleeps until a message arrives, [`Self::wake`] is called, awaited room is there, or the time is over. Returns
    /// at once if something has happened since the last call of [`Self::receive`] began.
    fn sleep(&self, at_most: Duration);

    /// Ends a sleep of this worker.
    fn wake(&self);
}
