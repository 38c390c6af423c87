//! Taking locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also where a holder panicked: whatever is guarded in this crate is changed in single steps, none of which a panic
/// leaves half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
