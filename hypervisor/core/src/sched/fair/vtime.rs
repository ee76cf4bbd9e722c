//! Virtual run time.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Ticks;

/// A point in virtual time: run time × 256 / weight, in TSC ticks.
///
/// It wraps: a unit of weight 1 needs less than a year at 3 GHz for that. So points are only ever compared by their
/// distance, which is right as long as that is below 2^63; and bounds are put on distances wherever units meet (see
/// [`Entry::admit`](super::Entry::admit)), so that even two queues that drift apart for years do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct VTime(u64);

impl VTime {
    /// The point with this number.
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// The number; only differences mean something.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// How far this is ahead of `other`; negative if it is behind.
    pub const fn ahead_of(self, other: Self) -> i64 {
        self.0.wrapping_sub(other.0) as i64
    }

    /// Is this the lesser, that is, due first?
    pub const fn is_before(self, other: Self) -> bool {
        self.ahead_of(other) < 0
    }

    /// The one that is further ahead.
    pub const fn later(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }

    /// The one that is further behind.
    pub const fn earlier(self, other: Self) -> Self {
        if other.is_before(self) { other } else { self }
    }

    /// Forward by a virtual length.
    pub const fn plus(self, length: u64) -> Self {
        Self(self.0.wrapping_add(length))
    }

    /// Backward by a virtual length.
    pub const fn minus(self, length: u64) -> Self {
        Self(self.0.wrapping_sub(length))
    }
}

/// Where the CPUs are on which units compete: what newcomers and late-comers are measured against.
///
/// The furthest of all queues in which units wait. One that lags behind that has fewer, or lighter, units to share it;
/// nobody who joins it now is owed the difference.
#[derive(Debug)]
pub(super) struct GlobalClock(AtomicU64);

impl GlobalClock {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn now(&self) -> VTime {
        VTime(self.0.load(Ordering::Relaxed))
    }

    /// A queue in which units wait has come this far.
    pub fn advance(&self, to: VTime) {
        // Orders nothing: an old value only makes somebody a little better or worse off, within the bounds.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                VTime(now).is_before(to).then_some(to.0)
            });
    }
}

/// The virtual length of `ran`, at a weight. Saturates far below the distance at which comparisons turn over.
pub(super) fn virtual_length(ran: Ticks, weight: super::Weight) -> u64 {
    let length = u128::from(ran.get()) * 256 / u128::from(weight.get());
    length.min(u128::from(u64::MAX >> 3)) as u64
}
