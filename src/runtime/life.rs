//! What became of a buffer's value and how many look at it in place: one word, so that a look takes no lock.

use std::sync::atomic::{AtomicU32, Ordering};

/// How a value ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The framework deleted it.
    Deleted,
    /// A launch consumed it.
    Donated,
}

/// Bits for each way in which a value ends.
const DELETED: u32 = 1;
const DONATED: u32 = 2;
/// Whether the worker knows the value by another name too: then nobody may look at it in place.
const SHARED: u32 = 4;
/// The rest is the number of those who look.
const LOOK: u32 = 8;

/// Begins with a value that nobody looks at.
#[derive(Default)]
pub struct Life(AtomicU32);

impl Life {
    /// How the value ended, if it has.
    pub fn ended(&self) -> Option<End> {
        match self.0.load(Ordering::Acquire) {
            now if now & DELETED != 0 => Some(End::Deleted),
            now if now & DONATED != 0 => Some(End::Donated),
            _ => None,
        }
    }

    /// One more looks; false where the value has ended or has another name.
    pub fn look(&self) -> bool {
        self.change(|now| if now & (DELETED | DONATED | SHARED) == 0 { now.checked_add(LOOK) } else { None }).is_some()
    }

    /// One looks no more. Whether that was the last one to look at a value that has ended, whose memory is to be freed now.
    #[must_use]
    pub fn look_away(&self) -> bool {
        let before = self.0.fetch_sub(LOOK, Ordering::AcqRel);
        before / LOOK == 1 && before & (DELETED | DONATED) != 0
    }

    /// Ends it; `None` where it had ended. Whether somebody looks at it: then the caller does as well, and has to look away.
    pub fn end(&self, how: End) -> Option<bool> {
        let bit = if how == End::Deleted { DELETED } else { DONATED };
        let before = self.change(|now| match now & (DELETED | DONATED) {
            0 if now >= LOOK => (now | bit).checked_add(LOOK),
            0 => Some(now | bit),
            _ => None,
        })?;
        Some(before >= LOOK)
    }

    /// Lets the value have another name, from now on, unless somebody looks at it. Whether it may.
    pub fn share(&self) -> bool {
        self.change(|now| (now < LOOK).then_some(now | SHARED)).is_some()
    }

    /// What it was before, unless there is nothing to change it to.
    fn change(&self, to: impl FnMut(u32) -> Option<u32>) -> Option<u32> {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, to).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{End, Life};

    #[test]
    fn who_looks_last_frees_what_has_ended() {
        let life = Life::default();
        assert!(life.look() && life.look());
        assert!(!life.look_away());
        assert_eq!(life.end(End::Donated), Some(true));
        assert_eq!((life.ended(), life.end(End::Deleted), life.look()), (Some(End::Donated), None, false));
        assert!(!life.look_away());
        assert!(life.look_away());
    }

    #[test]
    fn what_nobody_looks_at_is_freed_by_who_ends_it() {
        let life = Life::default();
        assert!(life.look() && !life.look_away());
        assert_eq!(life.end(End::Deleted), Some(false));
        assert_eq!(life.ended(), Some(End::Deleted));
    }

    #[test]
    fn what_has_another_name_is_not_looked_at() {
        let life = Life::default();
        assert!(life.look() && !life.share() && !life.look_away());
        assert!(life.share() && !life.look());
        assert_eq!(life.end(End::Donated), Some(false));
    }
}
