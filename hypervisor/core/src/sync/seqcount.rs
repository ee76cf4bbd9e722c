//! A sequence counter: one writer publishes many words, readers copy a consistent set, and nobody waits for a reader.

use super::atomic::{AtomicU64, Ordering, fence};
use super::spin_loop;

/// Guards a group of `Relaxed` atomics that one CPU writes and any CPU reads.
///
/// The writer never waits. A reader that met a write tries again. The guarded words must be atomics (this crate has no
/// `unsafe` to read torn plain data with), accessed `Relaxed` and only inside [`write`](Self::write) and
/// [`read`](Self::read).
#[derive(Debug)]
pub struct SeqCount {
    /// Odd while a write is in progress.
    count: AtomicU64,
}

impl SeqCount {
    /// A counter with no write in progress.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
        }
    }

    /// A counter with no write in progress.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
        }
    }

    /// Runs `update` as one indivisible change. Only one CPU may ever do this, and not from inside itself.
    pub fn write<T>(&self, update: impl FnOnce() -> T) -> T {
        let before = self.count.load(Ordering::Relaxed);
        debug_assert!(before.is_multiple_of(2), "a write inside a write");
        self.count.store(before.wrapping_add(1), Ordering::Relaxed);
        // No store of the update may become visible before the odd count.
        fence(Ordering::Release);
        let result = update();
        self.count.store(before.wrapping_add(2), Ordering::Release);
        result
    }

    /// Runs `copy` once. `None` if a write was in progress, or came in between: what was copied may be torn.
    ///
    /// For NMI handlers and dumps, which may have interrupted the writer and must not wait for it.
    pub fn try_read<T>(&self, copy: impl FnOnce() -> T) -> Option<T> {
        let before = self.count.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return None;
        }
        let copied = copy();
        // If the copy saw any store of a write, the load below must see that write's odd count.
        fence(Ordering::Acquire);
        (self.count.load(Ordering::Relaxed) == before).then_some(copied)
    }

    /// Runs `copy` until it was undisturbed.
    pub fn read<T>(&self, mut copy: impl FnMut() -> T) -> T {
        loop {
            if let Some(copied) = self.try_read(&mut copy) {
                return copied;
            }
            spin_loop();
        }
    }
}

impl Default for SeqCount {
    fn default() -> Self {
        Self::new()
    }
}
