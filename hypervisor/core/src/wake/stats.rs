//! How wakes were made, counted by who made them.
//!
//! Each CPU owns one [`WakeStats`], and only its own posts write it: no line is shared on the way of a wake. Readers sum.
//! The counters are `Relaxed`: they order nothing, and each is exact once its CPU is quiet.

use super::Wake;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Counters of the posts that one CPU made to the wake words of others.
#[derive(Debug, Default)]
pub struct WakeStats {
    ipi: AtomicU64,
    store: AtomicU64,
    will_look: AtomicU64,
    rides_along: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeCounts {
    /// Wakes that took an interrupt.
    pub ipi: u64,
    /// Wakes that the store alone made, because the CPU watched its word: interrupts saved.
    pub store: u64,
    /// Posts to a CPU that was awake and was about to look.
    pub will_look: u64,
    /// Posts that rode along with an event that was pending already.
    pub rides_along: u64,
}

impl WakeStats {
    /// Counts one post, and gives the answer back, so that counting cannot be forgotten on the way to acting on it.
    pub fn count(&self, wake: Wake) -> Wake {
        let counter = match wake {
            Wake::SendIpi => &self.ipi,
            Wake::StoreWakes => &self.store,
            Wake::WillLook => &self.will_look,
            Wake::RidesAlong => &self.rides_along,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        wake
    }

    /// The counters now.
    pub fn counts(&self) -> WakeCounts {
        WakeCounts {
            ipi: self.ipi.load(Ordering::Relaxed),
            store: self.store.load(Ordering::Relaxed),
            will_look: self.will_look.load(Ordering::Relaxed),
            rides_along: self.rides_along.load(Ordering::Relaxed),
        }
    }
}

impl WakeCounts {
    /// All posts.
    pub const fn posted(&self) -> u64 {
        self.ipi + self.store + self.will_look + self.rides_along
    }

    /// What came in addition since an earlier reading.
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            ipi: self.ipi.saturating_sub(earlier.ipi),
            store: self.store.saturating_sub(earlier.store),
            will_look: self.will_look.saturating_sub(earlier.will_look),
            rides_along: self.rides_along.saturating_sub(earlier.rides_along),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_post_is_counted_once_by_its_kind() {
        let stats = WakeStats::default();
        for wake in [
            Wake::SendIpi,
            Wake::SendIpi,
            Wake::StoreWakes,
            Wake::WillLook,
            Wake::RidesAlong,
        ] {
            assert_eq!(stats.count(wake), wake);
        }
        let earlier = WakeCounts {
            ipi: 1,
            ..WakeCounts::default()
        };
        let counts = stats.counts();
        assert_eq!(
            counts,
            WakeCounts {
                ipi: 2,
                store: 1,
                will_look: 1,
                rides_along: 1
            }
        );
        assert_eq!(counts.posted(), 5);
        assert_eq!(counts.since(&earlier).ipi, 1);
    }
}
