//! Halt polling: a pCPU looks for a kick for a moment before it gives up a vCPU that has halted.
//!
//! Blocking costs a scheduling pass, often a sleep and its exit latency, and the way back. A vCPU that is woken again
//! within that time is better waited for. How long a look has paid off is learned, vCPU by vCPU:
//!
//! - The *window* begins at nothing, and never exceeds the *limit*, which is what the guest is allowed (`halt-poll=`).
//! - A halt that lasted longer than the window, but not longer than the limit, doubles the window, from [`FIRST_WINDOW`].
//! - A halt that lasted longer than the limit halves it; below [`FIRST_WINDOW`] it is nothing.
//! - A halt that the look has covered leaves it as it is.
//!
//! Source: KVM's documentation of halt polling, for the idea, the first window and the factor of growth.
//!
//! Written by the pCPU that runs the vCPU; the limit by anybody. Nothing is ordered by it.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Nanos, Ticks};
use core::fmt;

/// The shortest look that is worth beginning.
pub const FIRST_WINDOW: Nanos = Nanos::new(10_000);

/// What a vCPU's halts have taught.
pub struct HaltPoll {
    /// In ns; 0: never.
    limit: AtomicU64,
    /// In ns.
    window: AtomicU64,
    /// When the halt began that has not ended; 0: there is none, or nobody asks.
    halted_at: AtomicU64,
    successes: AtomicU64,
    failures: AtomicU64,
    /// In ticks, of both.
    polled: AtomicU64,
}

/// What came of all looks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HaltPollCounts {
    /// Looks during which the kick came: the vCPU did not block.
    pub successes: u64,
    /// Looks that ended without one: the window was over, or another vCPU wanted the pCPU.
    pub failures: u64,
    /// How long all of them took.
    pub polled: Ticks,
}

impl HaltPoll {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            limit: zero(),
            window: zero(),
            halted_at: zero(),
            successes: zero(),
            failures: zero(),
            polled: zero(),
        }
    }

    /// The longest look that is allowed; zero: none.
    pub fn limit(&self) -> Nanos {
        Nanos::new(self.limit.load(Ordering::Relaxed))
    }

    /// Allows looks of so long at most from now on; zero: none.
    pub fn set_limit(&self, limit: Nanos) {
        self.limit.store(limit.get(), Ordering::Relaxed);
    }

    /// How long the next look is, at most.
    pub fn window(&self) -> Nanos {
        let window = Nanos::new(self.window.load(Ordering::Relaxed));
        window.min(self.limit())
    }

    /// What came of all looks so far.
    pub fn counts(&self) -> HaltPollCounts {
        HaltPollCounts {
            successes: self.successes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            polled: Ticks::new(self.polled.load(Ordering::Relaxed)),
        }
    }

    /// The vCPU has halted, and nothing is pending. How long to look; `None`: block at once.
    #[inline]
    pub(crate) fn halts(&self, now: impl FnOnce() -> Ticks) -> Option<(Ticks, Nanos)> {
        if self.limit() == Nanos::ZERO {
            return None;
        }
        let now = now();
        self.halted_at.store(now.get().max(1), Ordering::Relaxed);
        let window = self.window();
        (window > Nanos::ZERO).then_some((now, window))
    }

    /// A look has ended.
    pub(crate) fn looked(&self, kicked: bool, time: Ticks) {
        let count = if kicked {
            &self.successes
        } else {
            &self.failures
        };
        // One writer.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let polled = self.counts().polled + time;
        self.polled.store(polled.get(), Ordering::Relaxed);
    }

    /// When the halt began that now ends, if that is of interest. Once for each halt.
    #[inline]
    pub(crate) fn take_halted_at(&self) -> Option<Ticks> {
        let at = self.halted_at.load(Ordering::Relaxed);
        if at == 0 {
            return None;
        }
        self.halted_at.store(0, Ordering::Relaxed);
        Some(Ticks::new(at))
    }

    /// A halt has lasted so long.
    pub(crate) fn learn(&self, halted: Nanos) {
        let (limit, window) = (self.limit(), self.window());
        let next = if halted <= window {
            window
        } else if halted > limit {
            let half = Nanos::new(window.get() / 2);
            if half < FIRST_WINDOW {
                Nanos::ZERO
            } else {
                half
            }
        } else {
            let double = Nanos::new(window.get().saturating_mul(2));
            double.max(FIRST_WINDOW).min(limit)
        };
        self.window.store(next.get(), Ordering::Relaxed);
    }

    /// A new vCPU takes over the slot.
    pub(crate) fn reset(&self) {
        for number in [
            &self.limit,
            &self.window,
            &self.halted_at,
            &self.successes,
            &self.failures,
            &self.polled,
        ] {
            number.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for HaltPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HaltPoll")
            .field("limit", &self.limit())
            .field("window", &self.window())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn us(us: u64) -> Nanos {
        Nanos::new(us * 1000)
    }

    fn allowed(limit: u64) -> HaltPoll {
        let poll = HaltPoll::new();
        poll.set_limit(us(limit));
        poll
    }

    #[test]
    fn the_window_grows_while_halts_are_short_and_shrinks_when_they_are_long() {
        let poll = allowed(100);
        let mut seen = Vec::new();
        for halted in [50, 50, 50, 50, 101, 101, 101, 101, 101, 50] {
            poll.learn(us(halted));
            seen.push(poll.window().get() / 1000);
        }
        // 10, 20, 40, 80 cover it in the end; four long halts take it down to nothing; then it begins anew.
        assert_eq!(seen, [10, 20, 40, 80, 40, 20, 10, 0, 0, 10]);
    }

    #[test]
    fn who_is_not_allowed_to_is_never_asked() {
        let poll = allowed(0);
        assert_eq!(poll.halts(|| unreachable!("the time is not needed")), None);
        assert_eq!(poll.take_halted_at(), None);
        poll.set_limit(us(100));
        assert_eq!(poll.halts(|| Ticks::new(5)), None, "nothing learned yet");
        assert_eq!(poll.take_halted_at(), Some(Ticks::new(5)));
        assert_eq!(poll.take_halted_at(), None, "each halt once");
        poll.learn(us(30));
        assert_eq!(
            poll.halts(|| Ticks::new(7)),
            Some((Ticks::new(7), FIRST_WINDOW))
        );
        poll.set_limit(us(4));
        assert_eq!(poll.window(), us(4), "a lower limit holds at once");
        poll.reset();
        assert_eq!((poll.limit(), poll.window()), (Nanos::ZERO, Nanos::ZERO));
    }

    #[test]
    fn what_came_of_looks_is_counted() {
        let poll = allowed(100);
        poll.looked(true, Ticks::new(3));
        poll.looked(false, Ticks::new(10));
        poll.looked(true, Ticks::new(4));
        assert_eq!(
            poll.counts(),
            HaltPollCounts {
                successes: 2,
                failures: 1,
                polled: Ticks::new(17)
            }
        );
    }

    proptest! {
        /// Whatever comes: never beyond the limit, and nothing or at least the first window, if the limit allows that.
        #[test]
        fn the_window_is_within_its_bounds(
            halts in prop::collection::vec((0_u64..2_000_000, 0_u64..400_000), 1..200),
        ) {
            let poll = HaltPoll::new();
            for (halted, limit) in halts {
                poll.set_limit(Nanos::new(limit));
                let before = poll.window();
                poll.learn(Nanos::new(halted));
                let after = poll.window();
                prop_assert!(after <= Nanos::new(limit));
                prop_assert!(after == Nanos::ZERO || after >= FIRST_WINDOW.min(Nanos::new(limit)) || after == before);
                if halted > limit {
                    prop_assert!(after.get() <= before.get() / 2);
                }
            }
        }
    }
}
