//! One CPU's queue of calls, and the slots that are linked into it.

use super::{SLOTS, Wait};
use crate::mutant::mutant;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The queue is closed.
pub struct Closed;

/// The head of a queue. Bits 0 to 31: the number of the newest slot, 0 for none. Then the doorbell, and "closed".
pub struct Head(AtomicU64);

const NEWEST: u64 = u32::MAX as u64;
const DOORBELL: u64 = 1 << 32;
const CLOSED: u64 = 1 << 33;

/// What was in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The number of the newest slot, 0 for none.
    pub newest: u32,
    /// Somebody has a broadcast for this CPU.
    pub doorbell: bool,
}

impl Taken {
    const fn of(head: u64) -> Self {
        Self {
            newest: (head & NEWEST) as u32,
            doorbell: head & DOORBELL != 0,
        }
    }
}

impl Head {
    pub fn closed() -> Self {
        Self(AtomicU64::new(CLOSED))
    }

    /// By its own CPU. One that is open stays as it is.
    pub fn open(&self) {
        // What callers have rung at a closed queue was refused.
        if self.0.load(Ordering::Relaxed) & CLOSED != 0 {
            self.0.store(0, Ordering::Release);
        }
    }

    /// For the queue's own CPU, and for its callers to wait by.
    #[inline]
    pub fn is_pending(&self) -> bool {
        let head = self.0.load(Ordering::Relaxed);
        head & CLOSED == 0 && head & (NEWEST | DOORBELL) != 0
    }

    /// Links a slot in front. `true` if the queue was empty: then the caller owes the wake.
    #[inline]
    pub fn push(&self, number: u32, slot: &Slot) -> Result<bool, Closed> {
        let order = if mutant!(CallRelaxedPush) {
            Ordering::Relaxed
        } else {
            Ordering::AcqRel
        };
        let mut head = self.0.load(Ordering::Relaxed);
        let first_look = head;
        loop {
            if head & CLOSED != 0 && !mutant!(CallIgnoresClosed) {
                return Err(Closed);
            }
            slot.next.store((head & NEWEST) as u32, Ordering::Relaxed);
            let with_slot = head & !NEWEST | u64::from(number);
            match self
                .0
                .compare_exchange_weak(head, with_slot, order, Ordering::Relaxed)
            {
                Ok(_) if mutant!(CallPeekThenPush) => {
                    return Ok(first_look & (NEWEST | DOORBELL) == 0);
                }
                Ok(_) => return Ok(head & (NEWEST | DOORBELL) == 0),
                Err(now) => head = now,
            }
        }
    }

    /// Rings the doorbell. `true` if the queue was empty: then the caller owes the wake.
    #[inline]
    pub fn ring(&self) -> Result<bool, Closed> {
        // Also the answer to "is it closed?": either the CPU's last look comes after this, and sees the bit that was set
        // before, or it came before, and then this sees that the queue is closed.
        let head = self.0.fetch_or(DOORBELL, Ordering::AcqRel);
        if head & CLOSED != 0 && !mutant!(BroadcastIgnoresClosed) {
            return Err(Closed);
        }
        Ok(head & (NEWEST | DOORBELL) == 0)
    }

    /// Empties the queue, which is [pending](Self::is_pending), and gives what was in it. By its own CPU.
    #[inline]
    pub fn take(&self) -> Taken {
        if mutant!(CallTakeInTwoSteps) {
            let head = self.0.load(Ordering::Acquire);
            self.0.store(0, Ordering::Release);
            return Taken::of(head);
        }
        let order = if mutant!(CallRelaxedTake) {
            Ordering::Relaxed
        } else {
            Ordering::AcqRel
        };
        // It is open: only this CPU closes it.
        Taken::of(self.0.swap(0, order))
    }

    /// Closes the queue for good, and gives what was in it. By its own CPU.
    pub fn close(&self) -> Taken {
        Taken::of(self.0.swap(CLOSED, Ordering::AcqRel))
    }
}

/// A call on its way. Contents are `Relaxed`: the queue's head hands them over, and `state` hands them back.
pub struct Slot {
    state: AtomicU32,
    next: AtomicU32,
    words: [AtomicU64; 2],
}

const FREE: u32 = 0;
/// Under way, and somebody waits.
const AWAITED: u32 = 1;
/// Under way, and nobody waits.
const SENT: u32 = 2;
const DONE: u32 = 3;

impl Slot {
    pub fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            next: AtomicU32::new(0),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// The caller's side. Acquires: whoever gave it back has read what was in it.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    /// The caller's side: it is under way from here on.
    #[inline]
    pub fn fill(&self, words: [u64; 2], wait: Wait) {
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        let state = match wait {
            Wait::UntilDone => AWAITED,
            Wait::No => SENT,
        };
        self.state.store(state, Ordering::Relaxed);
    }

    /// The caller's side: has the function run? Acquires what it has written.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    /// The caller's side: it is its own again.
    #[inline]
    pub fn give_back(&self) {
        self.state.store(FREE, Ordering::Relaxed);
    }

    /// The target's side.
    #[inline]
    pub fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// The target's side.
    #[inline]
    pub fn contents(&self) -> ([u64; 2], Wait) {
        let wait = match self.state.load(Ordering::Relaxed) {
            AWAITED => Wait::UntilDone,
            _ => Wait::No,
        };
        if mutant!(CallFreedBeforeRead) && wait == Wait::No {
            self.hand_back(wait);
        }
        let words = core::array::from_fn(|word| self.words[word].load(Ordering::Relaxed));
        (words, wait)
    }

    /// The target's side: it has no use for it any more.
    #[inline]
    pub fn hand_back(&self, wait: Wait) {
        let state = match wait {
            Wait::UntilDone => DONE,
            Wait::No => FREE,
        };
        self.state.store(state, Ordering::Release);
    }
}

/// The number of a CPU's slot; never 0.
#[inline]
pub const fn number(cpu: usize, slot: usize) -> u32 {
    (cpu * SLOTS + slot + 1) as u32
}

/// Where the slot of this number is. 0 is nowhere.
#[inline]
pub const fn place(number: u32) -> (usize, usize) {
    let index = (number as usize).wrapping_sub(1);
    (index / SLOTS, index % SLOTS)
}

/// Turns a chain of slots around. By the target, whose they are. Gives the number of the oldest.
#[inline]
pub fn oldest_first<'a>(newest: u32, slot_of: impl Fn(u32) -> Option<&'a Slot>) -> u32 {
    let (mut turned, mut at) = (0, newest);
    while let Some(slot) = slot_of(at) {
        let next = slot.next();
        slot.next.store(turned, Ordering::Relaxed);
        turned = at;
        at = next;
    }
    turned
}
