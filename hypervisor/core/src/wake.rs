//! The wake word: the one word per CPU that says what is asked of it and how to get its attention.
//!
//! A waker posts an event with one read-modify-write and learns from the value it replaced everything it needs: whether
//! an interrupt is due, whether its store alone wakes the CPU, or whether somebody else owes the wake already. Not one
//! of these decisions reads a second word, so there is no order of two reads to get wrong.
//!
//! Invariants:
//! - A CPU leaves [`SleepState::Awake`] only by [`WakeWord::publish`]: a compare-and-swap, with interrupts off, that
//!   fails if any event is pending. It comes back only by [`WakeWord::take`]: one swap that takes all events; from a guest also
//!   by [`WakeWord::leave_guest`], which leaves them for the next take.
//!   So in any other state, an event that is pending was posted *after* the state was published.
//! - Whoever posts the **first** event owes the wake that [`Wake`] names. Post and interrupt are one section with
//!   interrupts off (else an interrupted poster leaves later ones riding on a wake that is late). A batch
//!   ([`WakeWord::post_batched`]) marks its posts, and nobody rides along with one that is marked.
//! - Every post is a read-modify-write with release semantics, also one that changes nothing: the taker must see the
//!   stores of **every** poster, not only of the first.
//! - The word is what MONITOR is armed on. Between arming and sleeping, [`WakeWord::is_pending`] is read once more.
//! - From a watched state to HLT in the same idle stretch the way leads through AWAKE: a waker that saw WATCHING sent
//!   no interrupt.
//!
//! Called by: the idle path and the VM-entry gate (publish, take), everybody else (post).
//! No lock is involved, on either side.

use crate::mutant::mutant;
use crate::sync::atomic::{AtomicU64, Ordering};
use core::fmt;

mod batch;
mod commit;
mod origin;
mod stats;
mod wakers;

pub use batch::Batch;
pub use commit::NotAsleep;
use origin::ORIGIN_MASK;
pub use origin::{Cause, Origin};
pub use stats::{WakeCounts, WakeStats};
pub use wakers::{WAKERS, WakerCounts, WakerLog, WokenHow};

bitflags::bitflags! {
    /// What is asked of a CPU.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Events: u16 {
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
#[repr(u8)]
pub enum Wake {
    /// The CPU sleeps and sees no store: send it the event-check interrupt, in the same section with interrupts off.
    SendIpi = 0,
    /// The CPU runs a guest: send it the event-check interrupt, in the same section with interrupts off.
    KickGuest = 1,
    /// The CPU watches the word: the store that was just made wakes it.
    StoreWakes = 2,
    /// The CPU is awake, and looks before it sleeps or enters a guest.
    WillLook = 3,
    /// An event was pending already: whoever posted that one owes the wake.
    RidesAlong = 4,
    /// Send it the event-check interrupt, although somebody else owes the wake already: that one may be late (a batch),
    /// or what the word says cannot be relied on (NMI context).
    Insist = 5,
}

impl Wake {
    /// All answers, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::SendIpi,
        Self::KickGuest,
        Self::StoreWakes,
        Self::WillLook,
        Self::RidesAlong,
        Self::Insist,
    ];

    /// Is an interrupt due?
    #[inline]
    pub const fn needs_ipi(self) -> bool {
        matches!(self, Wake::SendIpi | Wake::KickGuest | Wake::Insist)
    }

    /// Did this post, and no other, end a sleep?
    #[inline]
    pub const fn ends_sleep(self) -> bool {
        matches!(self, Wake::SendIpi | Wake::StoreWakes)
    }

    /// As the machine channel names it.
    pub const fn name(self) -> &'static str {
        match self {
            Wake::SendIpi => "ipi",
            Wake::KickGuest => "kick",
            Wake::StoreWakes => "store",
            Wake::WillLook => "will_look",
            Wake::RidesAlong => "rides_along",
            Wake::Insist => "insisted",
        }
    }
}

/// What [`WakeWord::take_all`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the events have been taken from the wake word: dropping them loses wakeups"]
pub struct Taken {
    /// All events that were pending.
    pub events: Events,
    /// What the CPU did until now.
    pub state: SleepState,
    /// Who posted the first of the events. Nobody in particular, if there are none.
    pub origin: Origin,
}

/// One CPU's wake word.
///
/// Alone in two 64-byte lines, because the adjacent-line prefetcher would otherwise pull it in, and wake a monitor,
/// with a neighbour's line. The word is at offset 0: it is what the monitor hardware covers on every known CPU.
#[repr(C, align(128))]
pub struct WakeWord {
    /// Bits 0 to 15: [`Events`]. Bits 16 and 17: [`SleepState`]. Bit 18: the first event was posted by a batch.
    /// Bits 20 to 63: the [`Origin`] of the first event.
    word: AtomicU64,
    /// Where the mutant that keeps the state apart from the events has it.
    #[cfg(loom)]
    apart: AtomicU64,
}

const _: () = assert!(core::mem::align_of::<WakeWord>() == 128);
#[cfg(not(loom))]
const _: () =
    assert!(core::mem::size_of::<WakeWord>() == 128 && core::mem::offset_of!(WakeWord, word) == 0);

const EVENTS_MASK: u64 = u16::MAX as u64;
const STATE_SHIFT: u32 = 16;
const STATE_MASK: u64 = 0b11 << STATE_SHIFT;
/// The first event was posted by a batch, whose interrupt comes later.
const BATCHED: u64 = 1 << 18;

const _: () = assert!((EVENTS_MASK | STATE_MASK | BATCHED) & ORIGIN_MASK == 0);

const fn state_bits(state: SleepState) -> u64 {
    (state as u64) << STATE_SHIFT
}

const fn events_of(word: u64) -> Events {
    Events::from_bits_retain((word & EVENTS_MASK) as u16)
}

#[inline]
const fn state_of(word: u64) -> SleepState {
    match (word & STATE_MASK) >> STATE_SHIFT {
        0 => SleepState::Awake,
        1 => SleepState::Watching,
        2 => SleepState::Halted,
        _ => SleepState::Guest,
    }
}

/// What is left to do for whoever found `before`, and has posted.
#[inline]
fn owed(before: u64) -> Wake {
    let asleep = match state_of(before) {
        SleepState::Awake => Wake::WillLook,
        SleepState::Watching => Wake::StoreWakes,
        SleepState::Halted if mutant!(IpiSkippedForHalt) => Wake::StoreWakes,
        SleepState::Halted => Wake::SendIpi,
        SleepState::Guest if mutant!(IpiSkippedForGuest) => Wake::WillLook,
        SleepState::Guest => Wake::KickGuest,
    };
    if before & EVENTS_MASK == 0 {
        asleep
    } else if before & BATCHED != 0 && asleep.needs_ipi() && !mutant!(SecondRaiserWaitsForBatch) {
        Wake::Insist
    } else {
        Wake::RidesAlong
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
            apart: AtomicU64::new(0),
        }
    }

    /// Posts events to the CPU, and says what is left to do. Call it, and act on the answer, with interrupts off.
    ///
    /// All stores made before are visible to the CPU once it has taken the event.
    /// Not for NMI or machine-check handlers: see [`post_from_nmi`](Self::post_from_nmi).
    #[inline]
    pub fn post(&self, events: Events) -> Wake {
        self.post_as(events, Origin::NOBODY)
    }

    /// [`post`](Self::post), and says on whose behalf.
    #[inline]
    pub fn post_as(&self, events: Events, origin: Origin) -> Wake {
        if mutant!(SkipIfSet) && self.pending().contains(events) {
            return Wake::RidesAlong;
        }
        // Whoever rides along with a batch and sends owes the wake from then on.
        owed(self.put(events, origin.bits(), BATCHED))
    }

    /// Posts events to a CPU that watches its word and has none, and to no other. `true`: it did, and the store wakes the CPU.
    ///
    /// As [`post_as`](Self::post_as) where that answers [`Wake::StoreWakes`], in the fewest instructions.
    #[inline]
    pub fn post_if_watched(&self, events: Events, origin: Origin) -> bool {
        let watching = state_bits(SleepState::Watching);
        let woken = watching | u64::from(events.bits()) | origin.bits();
        self.word
            .compare_exchange(watching, woken, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Posts events as one of many posts whose interrupts are sent together, a little later; call it with interrupts off.
    ///
    /// If the answer asks for an interrupt, send it to all of the batch at once, and leave out those that are
    /// [pending](Self::is_pending) no more. Others who post meanwhile do not wait for that: they send their own.
    #[inline]
    pub fn post_batched(&self, events: Events, origin: Origin) -> Wake {
        owed(self.put(events, origin.bits() | BATCHED, 0))
    }

    /// Posts events from NMI or machine-check context, to any CPU, the own one included: always an interrupt.
    ///
    /// Such a handler may have interrupted a poster between its post and its interrupt, or the CPU itself between its
    /// last check and its sleep: nothing that the word says about "will look" or "somebody owes it" can be relied on.
    pub fn post_from_nmi(&self, events: Events, origin: Origin) -> Wake {
        let owed = owed(self.put(events, origin.bits(), BATCHED));
        if mutant!(NmiPostWithoutIpi) {
            return Wake::WillLook;
        }
        if mutant!(NmiPostRidesAlong) {
            return owed;
        }
        match owed {
            Wake::SendIpi | Wake::KickGuest => owed,
            // The store does end the sleep, but the interrupt goes out all the same.
            _ => Wake::Insist,
        }
    }

    /// Posts events to the **own** CPU, from its own code, which looks before it sleeps. No wake is ever owed.
    pub fn post_local(&self, events: Events) {
        self.put(events, Origin::NOBODY.bits(), 0);
    }

    /// Posts events to the **own** CPU, from its interrupt handler. No interrupt is ever owed: the handler has ended the
    /// sleep, or the guest, by being there. `true` if it is this post that the sleep has ended for.
    #[inline]
    pub fn post_from_handler(&self, events: Events, origin: Origin) -> bool {
        let before = self.put(events, origin.bits(), BATCHED);
        before & EVENTS_MASK == 0
            && matches!(state_of(before), SleepState::Watching | SleepState::Halted)
    }

    /// Sets events; `note` (origin and batch bit) counts only if they are the first, and `clear` only if they are not.
    /// Returns what was there.
    #[inline]
    fn put(&self, events: Events, note: u64, clear: u64) -> u64 {
        let events = u64::from(events.bits());
        let success = if mutant!(RelaxedPost) {
            Ordering::Relaxed
        } else {
            Ordering::AcqRel
        };
        let mut before = self.word.load(Ordering::Relaxed);
        if mutant!(PeekThenPost) {
            self.word.fetch_or(events, Ordering::AcqRel);
            return before;
        }
        loop {
            let after = if before & EVENTS_MASK == 0 {
                before | events | note
            } else {
                (before | events) & !clear
            };
            match self
                .word
                .compare_exchange_weak(before, after, success, Ordering::Relaxed)
            {
                #[cfg(loom)]
                Ok(before) if mutant!(StateApart) => {
                    return before & !STATE_MASK | self.apart.load(Ordering::Acquire);
                }
                Ok(before) => return before,
                Err(now) => before = now,
            }
        }
    }

    /// Leaves AWAKE for `state`, with interrupts off. This is the last check before a sleep or a VM entry.
    ///
    /// # Errors
    /// The events that are pending; the CPU stays AWAKE and must handle them first.
    ///
    /// Only the word's own CPU calls this, and only when it is AWAKE.
    #[inline]
    pub fn publish(&self, state: SleepState) -> Result<(), Events> {
        let awake = state_bits(SleepState::Awake);
        #[cfg(loom)]
        if let Some(wrong) = self.published_wrongly(state) {
            return wrong;
        }
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

    /// The mutants of [`publish`](Self::publish).
    #[cfg(loom)]
    fn published_wrongly(&self, state: SleepState) -> Option<Result<(), Events>> {
        let pending = || match self.pending() {
            events if events.is_empty() => Ok(()),
            events => Err(events),
        };
        if mutant!(BlindPublish) {
            self.word.store(state_bits(state), Ordering::Release);
            Some(Ok(()))
        } else if mutant!(CheckThenPublish) {
            Some(pending().map(|()| {
                self.word.fetch_or(state_bits(state), Ordering::AcqRel);
            }))
        } else if mutant!(StateApart) {
            self.apart.store(state_bits(state), Ordering::Release);
            Some(pending().inspect_err(|_| self.apart.store(0, Ordering::Release)))
        } else {
            None
        }
    }

    /// Back to AWAKE, taking all events. Whoever posts from here on sees AWAKE, and no event.
    pub fn take(&self) -> Events {
        self.take_all().events
    }

    /// [`take`](Self::take), and says what the CPU did until now, and who posted first.
    #[inline]
    pub fn take_all(&self) -> Taken {
        let order = if mutant!(RelaxedTake) {
            Ordering::Relaxed
        } else {
            Ordering::AcqRel
        };
        let awake = state_bits(SleepState::Awake);
        let word = if mutant!(ClearAfterTaking) {
            let word = self.word.load(Ordering::Acquire);
            self.word.store(awake, Ordering::Release);
            word
        } else {
            self.word.swap(awake, order)
        };
        #[cfg(loom)]
        if mutant!(StateApart) {
            self.apart.store(0, Ordering::Release);
        }
        Taken {
            events: events_of(word),
            state: state_of(word),
            origin: Origin::from_word(word),
        }
    }

    /// From GUEST back to AWAKE, with all events left where they are, and the origin of the first with them: in one step, so that no
    /// poster finds the word without them. Whoever posts from here on sees AWAKE. An event that was posted before had its interrupt sent:
    /// it ended the guest, or is still pending, and finds nothing new to do.
    #[inline]
    pub fn leave_guest(&self) {
        if mutant!(LeaveGuestInTwoSteps) {
            let word = self.word.load(Ordering::Acquire);
            self.word.store(word & !STATE_MASK, Ordering::Release);
            return;
        }
        let before = self.word.fetch_and(!STATE_MASK, Ordering::AcqRel);
        debug_assert!(
            state_of(before) == SleepState::Guest,
            "no guest was entered: {before:#x}"
        );
    }

    /// Does the CPU run a guest? Asked by whoever has stored something that its processor may take without leaving the guest, and that
    /// the CPU looks at whenever it has left it.
    ///
    /// A read-modify-write that changes nothing. After a yes, all stores made before are visible to the CPU once it has left the guest.
    #[inline]
    pub fn is_in_guest(&self) -> bool {
        let word = if mutant!(GuestSeenByALook) {
            self.word.load(Ordering::Relaxed)
        } else {
            self.word.fetch_or(0, Ordering::AcqRel)
        };
        state_of(word) == SleepState::Guest
    }

    /// Is any event pending? The check between arming the monitor and sleeping, between two steps of a poll, and before a guest is
    /// entered again that was not left for good.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.word.load(Ordering::Acquire) & EVENTS_MASK != 0
    }

    /// Are these events pending, and no others?
    #[inline]
    pub fn is_exactly(&self, events: Events) -> bool {
        self.word.load(Ordering::Relaxed) & EVENTS_MASK == u64::from(events.bits())
    }

    /// The events that are pending, without taking them. For the owner, and for dumps.
    pub fn pending(&self) -> Events {
        events_of(self.word.load(Ordering::Acquire))
    }

    /// What the CPU does at the moment. For dumps and choices of placement, never to decide on an interrupt.
    #[inline]
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
