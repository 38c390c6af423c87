//! Maps keyed by the ids of messages: they count up, and the client gives them, so a hash needs no defence.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map keyed by buffers, launches, loans, ….
pub type IdMap<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;

/// Spreads ids that count up; no defence against chosen keys, which the client has no reason to send.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}
