//! Virtual run time.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Ticks;

/// A point in virtual time: run time × 256 / weight, in TSC ticks.
///
/// It wraps: a unit of weight 1 needs less than a year at 3 GHz for that. So points are only ever compared by their
/// distance, which is right as long as that is below 2^63. No queue gets that far from the global clock: one that is
/// ahead takes it along, and one that is behind is drawn near (see [`Queue::fade`](super::queue::Queue::fade)).
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

/// The furthest that any queue has come: what newcomers to an idle CPU, and queues that stay behind, are measured against.
///
/// It need not be near where most are: a light unit with a CPU to itself takes it far ahead. So nobody is put at it who
/// competes with others; it only says what to forget, at the same rate for all.
#[derive(Debug)]
pub(super) struct GlobalClock(AtomicU64);

impl GlobalClock {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn now(&self) -> VTime {
        VTime(self.0.load(Ordering::Relaxed))
    }

    /// A queue has come this far.
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
