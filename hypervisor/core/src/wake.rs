//! The wake word: the one word per CPU that says what is asked of it and how to get its attention.
//!
//! A waker posts an event with one read-modify-write and learns from the value it replaced everything it needs: whether
//! an interrupt is due, whether its store alone wakes the CPU, or whether somebody else owes the wake already. Not one
//! of these decisions reads a second word, so there is no order of two reads to get wrong.
//!
//! Invariants:
//! - A CPU leaves [`SleepState::Awake`] only by [`WakeWord::publish`]: a compare-and-swap, with interrupts off, that
//!   fails if any event is pending. It comes back only by [`WakeWord::take`]: one swap that takes all events.
//!   So in any other state, an event that is pending was posted *after* the state was published.
//! - Whoever posts the **first** event owes the wake that [`Wake`] names. Post and interrupt are one section with
//!   interrupts off (else an interrupted poster leaves later ones riding on a wake that is late).
//! - The word is what MONITOR is armed on. Between arming and sleeping, [`WakeWord::is_pending`] is read once more.
//! - From a watched state to HLT in the same idle stretch the way leads through AWAKE: a waker that saw WATCHING sent
//!   no interrupt.
//!
//! Called by: the idle path and the VM-entry gate (publish, take), everybody else (post).
//! No lock is involved, on either side.

use crate::sync::atomic::{AtomicU64, Ordering};
use core::fmt;

mod stats;

pub use stats::{WakeCounts, WakeStats};

bitflags::bitflags! {
    /// What is asked of a CPU.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Events: u32 {
        /// The runqueue changed in a way that may change the choice. The only event that costs a scheduling pass.
        const RESCHED = 1 << 0;
        /// The queue of cross-CPU calls has entries.
        const CALL = 1 << 1;
        /// The one-shot timer fired: look at the deadline queue.
        const TIMER = 1 << 2;
        /// A vCPU on this CPU has an interrupt pending: leave the guest and evaluate again.
        const NOTIFY = 1 << 3;
        /// The machine is about to stop or restart: park.
        const STOP = 1 << 4;
        /// The console has input.
        const CONSOLE = 1 << 5;
    }
}

/// What a CPU does, as far as a waker needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SleepState {
    /// It runs hypervisor code, and looks at the word before it sleeps or enters a guest.
    Awake = 0,
    /// It watches the word (MWAIT, POLL): the store alone wakes it.
    Watching = 1,
    /// It sleeps and sees no store (HLT, ACPI port): only an interrupt wakes it.
    Halted = 2,
    /// It runs a guest: only an interrupt brings it out.
    Guest = 3,
}

/// What the poster of an event still has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "an interrupt may be due: dropping this loses a wakeup"]
pub enum Wake {
    /// The CPU sees no store now: send it the event-check interrupt, in the same section with interrupts off.
    SendIpi,
    /// The CPU watches the word: the store that was just made wakes it.
    StoreWakes,
    /// The CPU is awake, and looks before it sleeps or enters a guest.
    WillLook,
    /// An event was pending already: whoever posted that one owes the wake.
    RidesAlong,
}

impl Wake {
    /// Is an interrupt due?
    pub const fn needs_ipi(self) -> bool {
        matches!(self, Wake::SendIpi)
    }
}

/// One CPU's wake word.
///
/// Alone in two 64-byte lines, because the adjacent-line prefetcher would otherwise pull it in, and wake a monitor,
/// with a neighbour's line. The word is at offset 0: it is what the monitor hardware covers on every known CPU.
#[repr(C, align(128))]
pub struct WakeWord {
    /// Bits 0 to 31: [`Events`]. Bits 32 and 33: [`SleepState`].
    word: AtomicU64,
}

const _: () = assert!(core::mem::align_of::<WakeWord>() == 128);
#[cfg(not(loom))]
const _: () =
    assert!(core::mem::size_of::<WakeWord>() == 128 && core::mem::offset_of!(WakeWord, word) == 0);

const STATE_SHIFT: u32 = 32;
const STATE_MASK: u64 = 0b11 << STATE_SHIFT;
const EVENTS_MASK: u64 = u32::MAX as u64;

const fn state_bits(state: SleepState) -> u64 {
    (state as u64) << STATE_SHIFT
}

const fn events_of(word: u64) -> Events {
    Events::from_bits_retain((word & EVENTS_MASK) as u32)
}

const fn state_of(word: u64) -> SleepState {
    match (word & STATE_MASK) >> STATE_SHIFT {
        0 => SleepState::Awake,
        1 => SleepState::Watching,
        2 => SleepState::Halted,
        _ => SleepState::Guest,
    }
}

impl WakeWord {
    /// A word of a CPU that is awake, without events.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
        }
    }

    /// A word of a CPU that is awake, without events.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
        }
    }

    /// Posts events to the CPU, and says what is left to do. Call it, and act on the answer, with interrupts off.
    ///
    /// All stores made before are visible to the CPU once it has taken the event.
    /// Not for NMI or machine-check handlers: see [`post_from_nmi`](Self::post_from_nmi).
    pub fn post(&self, events: Events) -> Wake {
        let before = self
            .word
            .fetch_or(u64::from(events.bits()), Ordering::AcqRel);
        if before & EVENTS_MASK != 0 {
            return Wake::RidesAlong;
        }
        match state_of(before) {
            SleepState::Awake => Wake::WillLook,
            SleepState::Watching => Wake::StoreWakes,
            SleepState::Halted | SleepState::Guest => Wake::SendIpi,
        }
    }

    /// Posts events from NMI or machine-check context, to any CPU, the own one included: always an interrupt.
    ///
    /// Such a handler may have interrupted a poster between its post and its interrupt, or the CPU itself between its
    /// last check and its sleep: nothing that the word says about "will look" or "somebody owes it" can be relied on.
    pub fn post_from_nmi(&self, events: Events) -> Wake {
        self.word
            .fetch_or(u64::from(events.bits()), Ordering::AcqRel);
        Wake::SendIpi
    }

    /// Posts events to the **own** CPU, from its interrupt handler or from its own code. No wake is ever owed.
    ///
    /// An interrupt handler has ended the sleep, or the guest, by being there; own code looks before it sleeps.
    pub fn post_local(&self, events: Events) {
        self.word
            .fetch_or(u64::from(events.bits()), Ordering::AcqRel);
    }

    /// Leaves AWAKE for `state`, with interrupts off. This is the last check before a sleep or a VM entry.
    ///
    /// # Errors
    /// The events that are pending; the CPU stays AWAKE and must handle them first.
    ///
    /// Only the word's own CPU calls this, and only when it is AWAKE.
    pub fn publish(&self, state: SleepState) -> Result<(), Events> {
        let awake = state_bits(SleepState::Awake);
        match self.word.compare_exchange(
            awake,
            state_bits(state),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Ok(()),
            Err(word) => {
                debug_assert!(
                    state_of(word) == SleepState::Awake,
                    "published twice without a take: {word:#x}"
                );
                Err(events_of(word))
            }
        }
    }

    /// Back to AWAKE, taking all events. Whoever posts from here on sees AWAKE, and no event.
    pub fn take(&self) -> Events {
        events_of(
            self.word
                .swap(state_bits(SleepState::Awake), Ordering::AcqRel),
        )
    }

    /// Is any event pending? The check between arming the monitor and sleeping, and between two steps of a poll.
    pub fn is_pending(&self) -> bool {
        self.word.load(Ordering::Acquire) & EVENTS_MASK != 0
    }

    /// The events that are pending, without taking them. For the owner, and for dumps.
    pub fn pending(&self) -> Events {
        events_of(self.word.load(Ordering::Acquire))
    }

    /// What the CPU does at the moment. For dumps and choices of placement, never to decide on an interrupt.
    pub fn state(&self) -> SleepState {
        state_of(self.word.load(Ordering::Relaxed))
    }

    /// The bare value, for a monitor made of software: it fires when this differs from what it was at arming.
    pub fn value(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// What MONITOR is armed on.
    pub const fn address(&self) -> *const u8 {
        core::ptr::from_ref(self).cast()
    }
}

impl Default for WakeWord {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WakeWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        write!(f, "{:?} {:?}", state_of(word), events_of(word))
    }
}

#[cfg(test)]
mod tests;
