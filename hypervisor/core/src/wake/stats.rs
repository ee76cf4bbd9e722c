//! How wakes were made, counted by who made them.
//!
//! Each CPU owns one [`WakeStats`], and only its own posts write it: no line is shared on the way of a wake, and no locked
//! instruction is needed. Readers sum. The counters are `Relaxed`: they order nothing, and each is exact once its CPU is quiet.

use super::{Events, Wake};
use crate::sync::atomic::{AtomicU64, Ordering};

/// How many events there can be.
const EVENTS: usize = Events::all().bits().count_ones() as usize;
const KINDS: usize = Wake::ALL.len();

/// Counters of the posts that one CPU made to the wake words of others.
#[derive(Debug)]
pub struct WakeStats {
    /// By the lowest event posted, and by what the post came to.
    posts: [[AtomicU64; KINDS]; EVENTS],
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeCounts {
    /// By event (the position of its bit), and by [`Wake`].
    pub posts: [[u64; KINDS]; EVENTS],
}

impl Default for WakeStats {
    fn default() -> Self {
        Self {
            posts: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

impl WakeStats {
    /// Counts one post of these events, and gives the answer back, so that counting cannot be forgotten on the way to acting
    /// on it.
    #[inline]
    pub fn count(&self, events: Events, wake: Wake) -> Wake {
        let event = events.bits().trailing_zeros() as usize;
        if let Some(counter) = self.posts.get(event).map(|kinds| &kinds[wake as usize]) {
            // One writer.
            counter.store(
                counter.load(Ordering::Relaxed).wrapping_add(1),
                Ordering::Relaxed,
            );
        }
        wake
    }

    /// The counters now.
    pub fn counts(&self) -> WakeCounts {
        WakeCounts {
            posts: core::array::from_fn(|event| {
                core::array::from_fn(|kind| self.posts[event][kind].load(Ordering::Relaxed))
            }),
        }
    }
}

impl WakeCounts {
    /// All posts.
    pub fn posted(&self) -> u64 {
        self.posts.iter().flatten().sum()
    }

    /// Posts that came to this.
    pub fn of(&self, wake: Wake) -> u64 {
        self.posts.iter().map(|kinds| kinds[wake as usize]).sum()
    }

    /// Interrupts that were sent.
    pub fn ipis(&self) -> u64 {
        Wake::ALL
            .into_iter()
            .filter(|wake| wake.needs_ipi())
            .map(|wake| self.of(wake))
            .sum()
    }

    /// Posts of this event, and of no lower one.
    pub fn for_event(&self, event: Events) -> [u64; KINDS] {
        let event = event.bits().trailing_zeros() as usize;
        self.posts.get(event).copied().unwrap_or_default()
    }

    /// What came in addition since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            posts: core::array::from_fn(|event| {
                core::array::from_fn(|kind| {
                    self.posts[event][kind].saturating_sub(earlier.posts[event][kind])
                })
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_post_is_counted_once_by_its_event_and_what_it_came_to() {
        let stats = WakeStats::default();
        for (events, wake) in [
            (Events::CALL, Wake::SendIpi),
            (Events::CALL | Events::STOP, Wake::KickGuest),
            (Events::RESCHED, Wake::StoreWakes),
            (Events::RESCHED, Wake::WillLook),
            (Events::NOTIFY, Wake::RidesAlong),
            (Events::NOTIFY, Wake::Insist),
        ] {
            assert_eq!(stats.count(events, wake), wake);
        }
        let counts = stats.counts();
        assert_eq!(
            (counts.posted(), counts.ipis(), counts.of(Wake::StoreWakes)),
            (6, 3, 1)
        );
        assert_eq!(counts.for_event(Events::CALL), [1, 1, 0, 0, 0, 0]);
        assert_eq!(counts.for_event(Events::RESCHED), [0, 0, 1, 1, 0, 0]);
        assert_eq!(counts.for_event(Events::STOP), [0; 6]);
        assert_eq!(counts.since(&counts), WakeCounts::default());
        let _ = stats.count(Events::empty(), Wake::WillLook);
        assert_eq!(stats.counts(), counts, "nothing was posted");
    }
}
