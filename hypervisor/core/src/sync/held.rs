//! How many locks the CPU holds that runs this: counted in debug builds, to refuse to wait for others while holding any.
//!
//! The count is kept where the machine says ([`keep_at`]), since only the machine knows which CPU this is. Without that, and in
//! release builds, nothing is counted, and nobody is ever found holding a lock.

use core::sync::atomic::{AtomicU32, Ordering};

/// Where the count of the CPU that runs this is kept.
type Place = fn() -> Option<&'static AtomicU32>;

static PLACE: spin::Once<Place> = spin::Once::new();

/// Says where the counts are kept. Only the first call counts; make it before any lock is taken on a second CPU.
pub fn keep_at(place: Place) {
    PLACE.call_once(|| place);
}

/// How many locks this CPU holds; 0 where nothing is counted.
pub fn count() -> u32 {
    place().map_or(0, |count| count.load(Ordering::Relaxed))
}

fn place() -> Option<&'static AtomicU32> {
    if cfg!(debug_assertions) {
        PLACE.get().and_then(|place| place())
    } else {
        None
    }
}

/// A lock was taken.
#[cfg(not(loom))]
#[inline]
pub(super) fn taken() {
    if let Some(count) = place() {
        // Only this CPU writes it; handlers take no lock.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// A lock was given back.
#[cfg(not(loom))]
#[inline]
pub(super) fn given_back() {
    if let Some(count) = place() {
        // One that was taken before there was a place to count at is not in the count.
        let left = count.load(Ordering::Relaxed).saturating_sub(1);
        count.store(left, Ordering::Relaxed);
    }
}
