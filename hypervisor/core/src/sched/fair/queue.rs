//! One CPU's runqueue.

use super::entry::Entry;
use super::vtime::{VTime, virtual_length};
use super::{FORGET_SLICES, HELD_SLICES, MEMORY_SLICES, VecDeque, Weight};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Lock, LockGuard};
use crate::units::{CpuId, Ticks, VcpuId};

/// For how many units a queue has room from the start. With thousands of CPUs, room for all of them everywhere would be
/// more than there is: then a longer queue may grow.
fn room(units: usize) -> usize {
    if cfg!(feature = "many-cpus") {
        units.min(256)
    } else {
        units
    }
}

/// A runqueue behind its lock, and what others may know of it without.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct RunQueue {
    queue: Lock<Queue>,
    /// The virtual run time of the first that waits, as of the last change. A hint for whoever looks for work.
    head: AtomicU64,
    /// The virtual run time of what runs, as of the last choice. A hint likewise.
    running: AtomicU64,
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
    /// Up to when the queue has been brought nearer to the global clock.
    drawn: Ticks,
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
                waiting: VecDeque::with_capacity(room(units)),
                since: Ticks::ZERO,
                cut_short: false,
                slice_end: Ticks::ZERO,
                slice,
                drawn: Ticks::ZERO,
            }),
            head: AtomicU64::new(0),
            running: AtomicU64::new(0),
        }
    }

    pub fn lock(&self) -> LockGuard<'_, Queue> {
        self.queue.lock()
    }

    /// The virtual run time of the first that waits, as of lately.
    pub fn head_hint(&self) -> VTime {
        VTime::new(self.head.load(Ordering::Relaxed))
    }

    /// The virtual run time of what runs, as of lately; not the time of anything if the CPU is idle.
    pub fn running_hint(&self) -> VTime {
        VTime::new(self.running.load(Ordering::Relaxed))
    }

    pub fn publish_running(&self, running: VTime) {
        self.running.store(running.get(), Ordering::Relaxed);
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

    /// Charges what runs up to `now`.
    pub fn charge(&mut self, now: Ticks) {
        if let Some(current) = &mut self.current {
            current.charge(now - self.since);
            self.since = self.since.max(now);
        }
    }

    /// What the whole queue is behind the global clock beyond [`HELD_SLICES`] fades: by 1 / [`FORGET_SLICES`] a slice.
    ///
    /// All that is here moves by the same amount, so nothing changes between those who compete here; and all queues
    /// that are behind fade at the same rate, so what one is behind another is still known for long enough to act on it.
    pub fn fade(&mut self, now: Ticks, global: VTime) {
        let elapsed = now - self.drawn;
        self.drawn = self.drawn.max(now);
        let Some(clock) = self.clock() else { return };
        let held = virtual_length(self.slices(HELD_SLICES), Weight::DEFAULT);
        let behind = u64::try_from(global.ahead_of(clock)).unwrap_or(0);
        let excess = u128::from(behind.saturating_sub(held));
        let whole = self.slices(FORGET_SLICES);
        let part = elapsed.min(whole);
        // At most `excess`, so it fits.
        let shift = (excess * u128::from(part.get()) / u128::from(whole.get().max(1))) as u64;
        if shift > 0 {
            let all = self.current.iter_mut().chain(&mut self.waiting);
            for entry in all.chain(&mut self.leaving) {
                entry.vruntime = entry.vruntime.plus(shift);
            }
        }
    }

    /// The last that waits need not wait for more than [`MEMORY_SLICES`], its own or those of the first, whichever are
    /// longer: what it has had beyond that is forgotten.
    pub fn relent(&mut self) {
        let (Some(first), Some(last)) = (self.first(), self.waiting.back()) else {
            return;
        };
        let latest = first
            .vruntime
            .plus(self.memory(first.weight.min(last.weight)));
        if latest.is_before(last.vruntime)
            && let Some(mut last) = self.waiting.pop_back()
        {
            last.vruntime = latest;
            self.insert(last);
        }
    }

    /// A unit that was taken from another CPU: it is owed at most [`MEMORY_SLICES`], its own or those of the first here,
    /// whichever are longer.
    pub fn welcome(&self, entry: &mut Entry) {
        if let Some(first) = self.first() {
            let memory = self.memory(first.weight.min(entry.weight));
            entry.vruntime = entry.vruntime.later(first.vruntime.minus(memory));
        }
    }

    fn slices(&self, count: u64) -> Ticks {
        Ticks::new(self.slice.get().saturating_mul(count))
    }

    fn memory(&self, weight: Weight) -> u64 {
        virtual_length(self.slices(MEMORY_SLICES), weight)
    }

    /// The one with the least virtual run time.
    fn first(&self) -> Option<&Entry> {
        match (self.current.as_ref(), self.head()) {
            (Some(current), Some(head)) if head.vruntime.is_before(current.vruntime) => Some(head),
            (current, head) => current.or(head),
        }
    }

    /// Where the queue is in virtual time: the least of what is in it. `None` if it is empty.
    /// What runs must have been charged.
    pub fn clock(&self) -> Option<VTime> {
        self.first().map(|entry| entry.vruntime)
    }

    /// Adds one that waits, in its order.
    pub fn insert(&mut self, entry: Entry) {
        debug_assert!(
            cfg!(feature = "many-cpus") || self.waiting.len() < self.waiting.capacity(),
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

    /// Another share from now on. One that waits may have to wait at another place from then on.
    pub fn set_weight(&mut self, found: Found, weight: Weight) {
        let Some(clock) = self.clock() else { return };
        if let Some(mut entry) = self.take_waiting(found) {
            entry.set_weight(weight, clock);
            self.insert(entry);
        } else if let Some(entry) = self.entry(found) {
            entry.set_weight(weight, clock);
        }
    }

    /// Takes it out, if it waits.
    pub fn take_waiting(&mut self, found: Found) -> Option<Entry> {
        match found {
            Found::Waiting(at) => self.waiting.remove(at),
            Found::Current | Found::Leaving => None,
        }
    }

    /// The first that waits and is `wanted`.
    pub fn stealable(&self, wanted: &Wanted) -> Option<usize> {
        let bar = wanted.bar;
        self.waiting
            .iter()
            .take_while(|entry| bar.is_none_or(|bar| entry.vruntime.is_before(bar)))
            .position(|entry| {
                entry.affinity.contains(wanted.by)
                    && wanted
                        .not_by
                        .is_none_or(|cpu| !entry.affinity.contains(cpu))
                    && bar.is_none_or(|bar| entry.is_owed(bar, self.slice))
            })
    }
}

/// What a CPU takes of what waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// It may run on this CPU.
    pub by: CpuId,
    /// It is owed more than a slice compared with this.
    pub bar: Option<VTime>,
    /// It may not run on this CPU.
    pub not_by: Option<CpuId>,
}
