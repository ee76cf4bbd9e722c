//! Deadlines of one pCPU, earliest first.
//!
//! One queue per pCPU, used by that CPU only, with interrupts off: the dispatch loop sets and removes deadlines, arms
//! the one-shot for [`DeadlineQueue::next_deadline`], and pops what has expired when the TIMER event comes. The queue
//! knows no hardware.
//!
//! Invariants:
//! - A key has at most one deadline: setting it again replaces it.
//! - All memory is taken when the queue is made, so no deadline is ever refused for want of it, and nothing on the way
//!   of a wake allocates.
//! - Equal deadlines expire in the order of their keys, so that a run can be repeated exactly.

use crate::units::{Ticks, VcpuId};
use alloc::vec::Vec;
use core::fmt;

mod broadcast;

pub use broadcast::Broadcast;

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerKey {
    /// The end of the slice of the vCPU that runs here.
    Slice,
    /// The end of the whole run (command line `for=`).
    RunFor,
    /// The next look at the console's input.
    Console,
    /// The next of the timers that a test sets, to see that none is lost.
    Probe,
    /// MSR writes that wait for their time.
    LateWrites,
    /// The next interrupt of a vCPU's virtual timer.
    Vcpu(VcpuId),
}

impl TimerKey {
    const FIXED: usize = 5;

    const fn slot(self) -> usize {
        match self {
            TimerKey::Slice => 0,
            TimerKey::RunFor => 1,
            TimerKey::Console => 2,
            TimerKey::Probe => 3,
            TimerKey::LateWrites => 4,
            TimerKey::Vcpu(vcpu) => Self::FIXED.saturating_add(vcpu.index()),
        }
    }

    const fn of_slot(slot: usize) -> Self {
        match slot {
            0 => TimerKey::Slice,
            1 => TimerKey::RunFor,
            2 => TimerKey::Console,
            3 => TimerKey::Probe,
            4 => TimerKey::LateWrites,
            slot => TimerKey::Vcpu(VcpuId::new((slot - Self::FIXED) as u32)),
        }
    }
}

/// The queue was made for fewer vCPUs than this one's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownVcpu(pub VcpuId);

impl fmt::Display for UnknownVcpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is beyond the vCPUs that the deadline queue was made for",
            self.0
        )
    }
}

impl core::error::Error for UnknownVcpu {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    deadline: Ticks,
    slot: usize,
}

/// A binary heap of deadlines that also knows where each key is, so that replacing and removing are O(log n).
#[derive(Debug)]
pub struct DeadlineQueue {
    /// The heap: no entry is later than its children, at `2i + 1` and `2i + 2`.
    heap: Vec<Entry>,
    /// One more than where each slot's entry is in the heap; 0 if it has none. Zeros, so that a large table on a
    /// machine of many CPUs takes no memory before it is used.
    place: Vec<u32>,
}

impl DeadlineQueue {
    /// An empty queue for vCPUs 0 to `vcpus - 1` and the fixed keys. Allocates; nothing after this does.
    pub fn new(vcpus: usize) -> Self {
        let slots = TimerKey::FIXED + vcpus;
        Self {
            heap: Vec::with_capacity(slots),
            place: alloc::vec![0; slots],
        }
    }

    /// Sets the deadline of a key, in place of the one it had. O(log n).
    ///
    /// # Errors
    /// [`UnknownVcpu`] if the queue was made for fewer vCPUs; nothing is changed.
    pub fn set(&mut self, key: TimerKey, deadline: Ticks) -> Result<(), UnknownVcpu> {
        let slot = key.slot();
        if let Some(at) = self.place_of(slot) {
            self.heap[at].deadline = deadline;
            self.settle(at);
        } else if slot < self.place.len() {
            let at = self.heap.len();
            self.heap.push(Entry { deadline, slot });
            self.put(slot, at);
            self.settle(at);
        } else if let TimerKey::Vcpu(vcpu) = key {
            return Err(UnknownVcpu(vcpu));
        } else {
            unreachable!("every queue has the fixed slots");
        }
        Ok(())
    }

    /// Takes the deadline of a key out, and returns it if there was one. O(log n).
    pub fn remove(&mut self, key: TimerKey) -> Option<Ticks> {
        let at = self.place_of(key.slot())?;
        Some(self.remove_at(at).deadline)
    }

    /// The deadline of a key, if it has one.
    pub fn deadline(&self, key: TimerKey) -> Option<Ticks> {
        let at = self.place_of(key.slot())?;
        Some(self.heap[at].deadline)
    }

    /// The earliest deadline: what the one-shot must be armed for.
    pub fn next_deadline(&self) -> Option<Ticks> {
        self.heap.first().map(|entry| entry.deadline)
    }

    /// Takes the earliest deadline out if it is not after `now`. Call it until it has no more.
    pub fn pop_expired(&mut self, now: Ticks) -> Option<(TimerKey, Ticks)> {
        self.next_deadline().filter(|&deadline| deadline <= now)?;
        let Entry { deadline, slot } = self.remove_at(0);
        Some((TimerKey::of_slot(slot), deadline))
    }

    /// All deadlines, in no order. For dumps.
    pub fn iter(&self) -> impl Iterator<Item = (TimerKey, Ticks)> {
        self.heap
            .iter()
            .map(|entry| (TimerKey::of_slot(entry.slot), entry.deadline))
    }

    /// How many keys have a deadline.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Has no key a deadline?
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    fn place_of(&self, slot: usize) -> Option<usize> {
        let place = self.place.get(slot).copied()?;
        (place as usize).checked_sub(1)
    }

    /// A heap has no more entries than there are slots, whose numbers fit into 32 bits.
    fn put(&mut self, slot: usize, at: usize) {
        self.place[slot] = at as u32 + 1;
    }

    fn remove_at(&mut self, at: usize) -> Entry {
        let removed = self.heap.swap_remove(at);
        self.place[removed.slot] = 0;
        if at < self.heap.len() {
            self.put(self.heap[at].slot, at);
            self.settle(at);
        }
        removed
    }

    /// Moves the entry at `at` up or down to where it belongs, after its deadline changed.
    fn settle(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            at = self.swap(at, (at - 1) / 2);
        }
        while let Some(child) = self
            .earlier_child(at)
            .filter(|&child| self.heap[child] < self.heap[at])
        {
            at = self.swap(at, child);
        }
    }

    fn earlier_child(&self, at: usize) -> Option<usize> {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        if right < self.heap.len() && self.heap[right] < self.heap[left] {
            Some(right)
        } else {
            (left < self.heap.len()).then_some(left)
        }
    }

    fn swap(&mut self, from: usize, to: usize) -> usize {
        self.heap.swap(from, to);
        self.put(self.heap[from].slot, from);
        self.put(self.heap[to].slot, to);
        to
    }
}

#[cfg(test)]
mod tests;
