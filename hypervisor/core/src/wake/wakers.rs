//! Who woke this CPU, and how: written by the CPU itself, from what it finds in its wake word.
//!
//! Fixed memory: the wakers that came most often lately, and one sum of all others. When a new one comes and there is no room, the
//! rarest gives way to it, and its count goes to the others: so the sum is always exact, and what comes often stays.

use super::{Cause, Origin, SleepState, Taken};
use crate::sync::atomic::{AtomicU64, Ordering};

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WokenHow {
    /// Another CPU's store alone.
    Store = 0,
    /// Another CPU's interrupt.
    Ipi = 1,
    /// The own timer.
    Timer = 2,
    /// A device's interrupt.
    Device = 3,
    /// An NMI or machine-check handler.
    Nmi = 4,
    /// Nothing that anybody knows of.
    Spurious = 5,
}

impl WokenHow {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Store,
        Self::Ipi,
        Self::Timer,
        Self::Device,
        Self::Nmi,
        Self::Spurious,
    ];

    /// As the machine channel and the console name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Ipi => "ipi",
            Self::Timer => "timer",
            Self::Device => "device",
            Self::Nmi => "nmi",
            Self::Spurious => "spurious",
        }
    }

    /// How the first of these events came; `None` if there are none, or the CPU was not asleep when it came.
    pub fn of(taken: &Taken) -> Option<Self> {
        if taken.events.is_empty() {
            return None;
        }
        let by_store = match taken.state {
            SleepState::Awake | SleepState::Guest => return None,
            SleepState::Watching => true,
            SleepState::Halted => false,
        };
        Some(match taken.origin.cause() {
            Cause::OwnTimer => Self::Timer,
            Cause::Vector(_) => Self::Device,
            Cause::Nmi => Self::Nmi,
            _ if by_store => Self::Store,
            _ => Self::Ipi,
        })
    }
}

/// How often a reading is tried that came in the middle of a change.
const TRIES: usize = 100;

/// How many wakers are known by name.
pub const WAKERS: usize = 16;

/// The wakers of one CPU. One writer; the counters order nothing.
#[derive(Debug)]
pub struct WakerLog {
    how: [AtomicU64; WokenHow::ALL.len()],
    others: AtomicU64,
    /// An origin and its count; no count, no entry.
    wakers: [(AtomicU64, AtomicU64); WAKERS],
}

/// The log at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakerCounts {
    /// By [`WokenHow`].
    pub how: [u64; WokenHow::ALL.len()],
    /// Wakes by wakers that are not known by name any more.
    pub others: u64,
    /// The others, in no order. A count of 0 is no entry.
    pub wakers: [(Origin, u64); WAKERS],
}

impl Default for WakerLog {
    fn default() -> Self {
        Self {
            how: core::array::from_fn(|_| AtomicU64::new(0)),
            others: AtomicU64::new(0),
            wakers: core::array::from_fn(|_| (AtomicU64::new(0), AtomicU64::new(0))),
        }
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn set(counter: &AtomicU64, value: u64) {
    counter.store(value, Ordering::Relaxed);
}

impl WakerLog {
    /// A sleep has ended for nothing.
    pub fn spurious(&self) {
        let counter = &self.how[WokenHow::Spurious as usize];
        set(counter, get(counter) + 1);
    }

    /// This origin has ended a sleep, in this way.
    pub fn record(&self, how: WokenHow, origin: Origin) {
        let counter = &self.how[how as usize];
        set(counter, get(counter) + 1);
        let raw = origin.to_raw();
        let known = self
            .wakers
            .iter()
            .find(|(known, count)| get(count) > 0 && get(known) == raw);
        let rarest = || self.wakers.iter().min_by_key(|(_, count)| get(count));
        let Some((place, count)) = known.or_else(rarest) else {
            return;
        };
        if get(place) != raw {
            set(&self.others, get(&self.others) + get(count));
            set(count, 0);
            set(place, raw);
        }
        set(count, get(count) + 1);
    }

    /// The counters now: of one moment, also while the CPU is being woken, so that they add up. (After many tries in vain, as they are.)
    pub fn counts(&self) -> WakerCounts {
        for _ in 0..TRIES {
            let counts = self.read();
            if counts.attributed() == counts.owned() && counts == self.read() {
                return counts;
            }
        }
        self.read()
    }

    fn read(&self) -> WakerCounts {
        WakerCounts {
            how: core::array::from_fn(|how| get(&self.how[how])),
            others: get(&self.others),
            wakers: core::array::from_fn(|at| {
                let (origin, count) = &self.wakers[at];
                (Origin::from_raw(get(origin)), get(count))
            }),
        }
    }
}

impl WakerCounts {
    /// Ends of sleeps of this kind.
    pub const fn of(&self, how: WokenHow) -> u64 {
        self.how[how as usize]
    }

    /// Ends of sleeps that somebody has to answer for.
    pub fn owned(&self) -> u64 {
        self.how.iter().sum::<u64>() - self.of(WokenHow::Spurious)
    }

    /// All that is attributed. As many as are [owned](Self::owned).
    pub fn attributed(&self) -> u64 {
        self.others + self.wakers.iter().map(|(_, count)| count).sum::<u64>()
    }

    /// The wakers known by name, those that came most often first.
    pub fn top(&self) -> impl Iterator<Item = (Origin, u64)> {
        let mut wakers = self.wakers;
        wakers.sort_unstable_by_key(|&(_, count)| core::cmp::Reverse(count));
        wakers.into_iter().take_while(|&(_, count)| count > 0)
    }

    /// What came in addition since an earlier reading. Whoever was known then, gave way, and came back, is among the others: so the sum is
    /// exact.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |origin: Origin| {
            let mut then = earlier.wakers.iter();
            then.find(|&&(known, count)| known == origin && count > 0)
                .map_or(0, |&(_, count)| count)
        };
        let mut since = Self {
            how: core::array::from_fn(|how| self.how[how].saturating_sub(earlier.how[how])),
            others: 0,
            wakers: core::array::from_fn(|at| {
                let (origin, count) = self.wakers[at];
                (origin, count.saturating_sub(before(origin)))
            }),
        };
        since.others = since.owned().saturating_sub(since.attributed());
        since
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::units::{CpuId, VcpuId};
    use crate::wake::{Events, WakeWord};
    use std::vec::Vec;

    fn from(cpu: u32) -> Origin {
        Origin::new(CpuId::new(cpu), Cause::Vcpu(VcpuId::new(7)))
    }

    #[test]
    fn the_first_poster_is_found_in_the_word() {
        let word = WakeWord::new();
        assert_eq!(word.publish(SleepState::Watching), Ok(()));
        let _ = word.post_as(Events::CALL, from(3));
        let _ = word.post_as(Events::RESCHED, from(4));
        let taken = word.take_all();
        assert_eq!(taken.origin, from(3));
        assert_eq!(WokenHow::of(&taken), Some(WokenHow::Store));
        assert_eq!(word.publish(SleepState::Halted), Ok(()));
        assert!(word.post_from_handler(Events::TIMER, Origin::new(CpuId::new(1), Cause::OwnTimer)));
        assert!(!word.post_from_handler(Events::CONSOLE, from(1)));
        assert_eq!(WokenHow::of(&word.take_all()), Some(WokenHow::Timer));
        let _ = word.post_as(Events::CALL, from(5));
        assert_eq!(WokenHow::of(&word.take_all()), None, "it was awake");
    }

    #[test]
    fn sums_are_exact_however_many_wakers_there_are() {
        let log = WakerLog::default();
        for round in 0..50 {
            for _ in 0..round % 5 {
                log.record(WokenHow::Store, from(0));
            }
            log.record(WokenHow::Ipi, from(round));
        }
        log.spurious();
        let counts = log.counts();
        assert_eq!(counts.owned(), 150);
        assert_eq!(counts.attributed(), 150);
        assert_eq!(
            (counts.of(WokenHow::Ipi), counts.of(WokenHow::Spurious)),
            (50, 1)
        );
        let top: Vec<_> = counts.top().collect();
        assert_eq!((top[0], top.len()), ((from(0), 101), WAKERS));
        assert_eq!(counts.since(&counts).owned(), 0);
        // Everybody known gives way to others, and some come back.
        for waker in (100..140).chain(45..50) {
            (0..80).for_each(|_| log.record(WokenHow::Store, from(waker)));
        }
        let since = log.counts().since(&counts);
        assert_eq!(since.owned(), 45 * 80);
        assert_eq!(since.attributed(), 45 * 80);
    }
}
