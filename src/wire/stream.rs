//! Going past the caches, and filling them ahead of use.
//!
//! What is copied and not read soon would only push out of the caches what is, and is fetched from memory before it is
//! overwritten.

use std::sync::Arc;

/// Fewer bytes are copied as ever.
const FEW: usize = 16 << 10;

/// Copies `len` bytes, past the caches if they are many.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`]: `from` can be read and `to` written for `len` bytes, which don't overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        if len < FEW {
            std::ptr::copy_nonoverlapping(from, to, len);
        } else {
            past_caches(from, to, len);
        }
    }
}

/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn past_caches(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    // SAFETY: head, lines and tail make up the `len` bytes that the caller answers for. Stores past the caches want
    // addresses at multiples of 16, which `to + head` and every line after it is. The fence makes them visible to
    // whoever is told of them, as other stores are.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let words = [0, 1, 2, 3].map(|word| _mm_loadu_si128(source.add(word)));
            for (word, value) in words.into_iter().enumerate() {
                _mm_stream_si128(target.add(word), value);
            }
        }
        let done = head + lines * LINE;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
        _mm_sfence();
    }
}

/// # Safety
/// As for [`copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn past_caches(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Has all of a value, and the counts that stand before it, brought into the caches, without waiting for it: for a list of
/// values that lie here and there, and that are used one after the other a little later.
pub fn prefetch<T>(value: &Arc<T>) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let start = (Arc::as_ptr(value) as usize - 2 * size_of::<usize>()) & !(LINE - 1);
        for line in (start..Arc::as_ptr(value) as usize + size_of::<T>()).step_by(LINE) {
            // SAFETY: an address is named, nothing is read or written there.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line as *const i8) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use super::past_caches;

    #[test]
    fn any_alignment_and_length() {
        let source: Vec<u8> = (0..2000_u32).map(|number| (number * 7) as u8).collect();
        for (from, to, len) in
            [(0, 0, 0), (1, 0, 1), (0, 3, 63), (5, 9, 64), (64, 1, 1000), (3, 64, 1024), (0, 0, 1500)]
        {
            let mut target = vec![0_u8; 2000];
            // SAFETY: both have room for it, and are two vectors.
            unsafe { past_caches(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
            assert_eq!(target[to..to + len], source[from..from + len]);
            assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0));
        }
    }
}
