//! One CPU's runqueue.

use super::entry::Entry;
use super::vtime::{GlobalClock, VTime};
use super::{MEMORY_SLICES, VecDeque};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Lock, LockGuard};
use crate::units::{CpuId, Ticks, VcpuId};

/// A runqueue behind its lock, and what others may know of it without.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct RunQueue {
    queue: Lock<Queue>,
    /// The virtual run time of the first that waits, as of the last change. A hint for whoever looks for work.
    head: AtomicU64,
}

/// What the lock protects.
#[derive(Debug)]
pub(super) struct Queue {
    /// The CPU takes part.
    pub online: bool,
    /// What runs.
    pub current: Option<Entry>,
    /// What was taken off, until its registers are saved.
    pub leaving: Option<Entry>,
    /// What waits: least virtual run time first, first come first among equals.
    pub waiting: VecDeque<Entry>,
    /// Up to when `current` has been charged.
    pub since: Ticks,
    /// One that waits preempts `current`: its slice ends at the next pass.
    pub cut_short: bool,
    /// When `current` has had its slice.
    pub slice_end: Ticks,
    pub slice: Ticks,
}

/// Where in a queue a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Current,
    Leaving,
    Waiting(usize),
}

impl Found {
    pub fn is_waiting(self) -> bool {
        matches!(self, Found::Waiting(_))
    }
}

impl RunQueue {
    pub fn new(units: usize, slice: Ticks) -> Self {
        Self {
            queue: Lock::new(Queue {
                online: false,
                current: None,
                leaving: None,
                waiting: VecDeque::with_capacity(units),
                since: Ticks::ZERO,
                cut_short: false,
                slice_end: Ticks::ZERO,
                slice,
            }),
            head: AtomicU64::new(0),
        }
    }

    pub fn lock(&self) -> LockGuard<'_, Queue> {
        self.queue.lock()
    }

    /// The virtual run time of the first that waits, as of lately.
    pub fn head_hint(&self) -> VTime {
        VTime::new(self.head.load(Ordering::Relaxed))
    }

    pub fn publish_head(&self, head: VTime) {
        self.head.store(head.get(), Ordering::Relaxed);
    }
}

impl Queue {
    /// The first that waits.
    pub fn head(&self) -> Option<&Entry> {
        self.waiting.front()
    }

    /// Charges what runs up to `now`. With `global`: if nobody waits here, it has the CPU to itself, and what it is owed
    /// compared with those who compete elsewhere is forgotten.
    pub fn charge(&mut self, now: Ticks, global: Option<&GlobalClock>) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.charge(now - self.since);
        self.since = self.since.max(now);
        if let Some(global) = global.filter(|_| self.waiting.is_empty()) {
            let memory = Ticks::new(self.slice.get().saturating_mul(MEMORY_SLICES));
            current.forgive(global.now(), memory);
        }
    }

    /// Where the queue is in virtual time: the least of what is in it. `None` if it is empty.
    /// What runs must have been charged.
    pub fn clock(&self) -> Option<VTime> {
        let current = self.current.as_ref().map(|entry| entry.vruntime);
        let head = self.head().map(|entry| entry.vruntime);
        match (current, head) {
            (Some(current), Some(head)) => Some(current.earlier(head)),
            (one, other) => one.or(other),
        }
    }

    /// Adds one that waits, in its order.
    pub fn insert(&mut self, entry: Entry) {
        debug_assert!(
            self.waiting.len() < self.waiting.capacity(),
            "would allocate"
        );
        let at = self
            .waiting
            .partition_point(|other| !entry.vruntime.is_before(other.vruntime));
        self.waiting.insert(at, entry);
    }

    /// Makes one run from `now` on, for a slice.
    pub fn start(&mut self, entry: Entry, now: Ticks) {
        debug_assert!(
            self.leaving.is_none() || self.current.is_none(),
            "two leave at once"
        );
        if let Some(prev) = self.current.replace(entry) {
            self.leaving = Some(prev);
        }
        self.since = now;
        self.begin_slice(now);
    }

    /// What runs has a slice from `now` on.
    pub fn begin_slice(&mut self, now: Ticks) {
        self.slice_end = now + self.slice;
        self.cut_short = false;
    }

    /// What runs goes on, without a choice: its slice has not ended, and nobody preempts it. Others who wait do so until
    /// the slice ends, however often RESCHED comes.
    pub fn goes_on(&self, now: Ticks) -> bool {
        self.current.is_some() && now < self.slice_end && !self.cut_short
    }

    pub fn find(&self, unit: VcpuId) -> Option<Found> {
        let is_it = |entry: &Entry| entry.unit == unit;
        if self.current.as_ref().is_some_and(is_it) {
            Some(Found::Current)
        } else if self.leaving.as_ref().is_some_and(is_it) {
            Some(Found::Leaving)
        } else {
            self.waiting.iter().position(is_it).map(Found::Waiting)
        }
    }

    pub fn entry(&mut self, found: Found) -> Option<&mut Entry> {
        match found {
            Found::Current => self.current.as_mut(),
            Found::Leaving => self.leaving.as_mut(),
            Found::Waiting(at) => self.waiting.get_mut(at),
        }
    }

    /// Takes it out, if it waits.
    pub fn take_waiting(&mut self, found: Found) -> Option<Entry> {
        match found {
            Found::Waiting(at) => self.waiting.remove(at),
            Found::Current | Found::Leaving => None,
        }
    }

    /// The first that waits, may run on `cpu`, and (if there is a `bar`) is owed more than a slice compared with that.
    pub fn stealable(&self, cpu: CpuId, bar: Option<VTime>) -> Option<usize> {
        self.waiting
            .iter()
            .take_while(|entry| bar.is_none_or(|bar| entry.vruntime.is_before(bar)))
            .position(|entry| {
                entry.affinity.contains(cpu) && bar.is_none_or(|bar| entry.is_owed(bar, self.slice))
            })
    }
}
