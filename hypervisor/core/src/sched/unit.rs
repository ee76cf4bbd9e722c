//! The run state of a vCPU: who must do what so that a vCPU that was kicked looks at its interrupts.
//!
//! One atomic word holds where the vCPU is ([`Phase`]) and whether it was **kicked** (a token: "look at your pending
//! interrupts before you sleep"). It is the [wake word](crate::wake) of a vCPU, one floor up: a waker does one
//! read-modify-write, and the value it replaced says everything it needs to know.
//!
//! Invariants:
//! - A vCPU never blocks over a token: [`RunState::try_block`] is one compare-and-swap that fails if it was kicked. So a
//!   kick before the block is never lost, and one after it finds `Blocked`.
//! - Whoever sets the **first** token owes the action that [`Kick`] names; later ones ride along. `Blocked` with a token
//!   therefore means "its waker is on the way to [`Scheduler::wake`](super::Scheduler::wake)", and there is one waker.
//! - Only the owner changes the phase: the pCPU that runs the vCPU, whoever has taken it out of a runqueue, or its one
//!   waker. Everybody else only sets the token.
//! - `Running(cpu)` lasts until the vCPU's registers are saved. Nobody can run it elsewhere before that.
//!
//! No lock is involved.

use crate::mutant::mutant;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::CpuId;
use crate::wake::WakeWord;
use core::fmt;

mod halt_poll;
mod table;

pub use halt_poll::{FIRST_WINDOW, HaltPoll, HaltPollCounts};
pub use table::{Unit, UnitTable};

/// Where a vCPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not started, or gone: no scheduler looks at it.
    Offline,
    /// Runnable, and waiting in a runqueue (or, for a moment, on its way from one to another).
    Queued,
    /// On this pCPU, with its registers there.
    Running(CpuId),
    /// Halted: it waits for a kick.
    Blocked,
}

/// What whoever kicked a vCPU still has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a wake may be due: dropping this loses it"]
pub enum Kick {
    /// It runs on this pCPU, perhaps inside the guest: post NOTIFY there.
    Running(CpuId),
    /// It was blocked, and this kick won the wake: call [`Scheduler::wake`](super::Scheduler::wake), once.
    WokeBlocked,
    /// Nothing: it looks before it next enters the guest or blocks, or somebody else owes the wake already.
    Pending,
}

/// A vCPU cannot block: it was kicked, and must look at its interrupts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kicked;

/// The word. Bits 0 to 31: the pCPU, while running. Bits 32 and 33: the phase. Bit 63: the token.
pub struct RunState {
    word: AtomicU64,
}

const CPU_MASK: u64 = u32::MAX as u64;
const PHASE_MASK: u64 = 0b11 << 32;
const OFFLINE: u64 = 0 << 32;
const QUEUED: u64 = 1 << 32;
const RUNNING: u64 = 2 << 32;
const BLOCKED: u64 = 3 << 32;
const KICK: u64 = 1 << 63;

const fn phase_of(word: u64) -> Phase {
    match word & PHASE_MASK {
        OFFLINE => Phase::Offline,
        QUEUED => Phase::Queued,
        RUNNING => Phase::Running(CpuId::new((word & CPU_MASK) as u32)),
        _ => Phase::Blocked,
    }
}

const fn running_on(cpu: CpuId) -> u64 {
    RUNNING | cpu.get() as u64
}

impl RunState {
    /// Offline, without a token.
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(OFFLINE),
        }
    }

    /// Tells the vCPU to look at its pending interrupts. Everything stored before is visible to it when it does.
    ///
    /// Always a read-modify-write, even if the token is there already: the vCPU that takes the token must see the stores
    /// of **every** kicker that set it, not only of the first.
    pub fn kick(&self) -> Kick {
        if mutant!(KickSkipsIfSet) && self.is_kicked() {
            return Kick::Pending;
        }
        let before = self.word.fetch_or(KICK, Ordering::AcqRel);
        if before & KICK != 0 {
            return Kick::Pending;
        }
        match phase_of(before) {
            Phase::Running(cpu) => Kick::Running(cpu),
            Phase::Blocked => Kick::WokeBlocked,
            Phase::Offline | Phase::Queued => Kick::Pending,
        }
    }

    /// The pCPU that runs this vCPU's guest, for whoever has stored something that the processor takes if it is notified. `None`: it may
    /// not run anywhere, and has to be [kicked](Self::kick). `word` gives the wake word of a pCPU.
    ///
    /// After a pCPU was named, what was stored before is seen by the vCPU when it next looks, on whichever pCPU: no token is needed.
    /// For it was there when the word said GUEST, and whoever leaves a guest passes that word; had another vCPU been there, then this one
    /// would have gone before, and would not be found there again, or come later, past the word.
    pub fn in_guest<'a>(&self, word: impl Fn(CpuId) -> Option<&'a WakeWord>) -> Option<CpuId> {
        let Phase::Running(cpu) = self.phase() else {
            return None;
        };
        let there = word(cpu)?.is_in_guest()
            && (self.phase() == Phase::Running(cpu) || mutant!(NotifiedWhereItWas));
        there.then_some(cpu)
    }

    /// Takes the token: call it on the vCPU's own pCPU, **before** evaluating which interrupts are pending.
    ///
    /// `true` if there was one. A kick that comes later posts NOTIFY, which the VM-entry gate cannot miss.
    pub fn consume_kick(&self) -> bool {
        // The common case costs one load of a line that the pCPU owns. A token that this load misses was set after it,
        // by a kicker who saw `Running` without a token, and who therefore posts NOTIFY.
        self.word.load(Ordering::Relaxed) & KICK != 0
            && self.word.fetch_and(!KICK, Ordering::AcqRel) & KICK != 0
    }

    /// Was it kicked since the last [`consume_kick`](Self::consume_kick)?
    pub fn is_kicked(&self) -> bool {
        self.word.load(Ordering::Acquire) & KICK != 0
    }

    /// `Running(cpu)` → `Blocked`, the last step of descheduling: registers saved, time accounted.
    ///
    /// # Errors
    /// [`Kicked`] if it was kicked: it stays `Running(cpu)`, with the token.
    pub fn try_block(&self, cpu: CpuId) -> Result<(), Kicked> {
        if mutant!(BlockOverKick) {
            self.word.swap(BLOCKED, Ordering::AcqRel);
            return Ok(());
        }
        match self.word.compare_exchange(
            running_on(cpu),
            BLOCKED,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Ok(()),
            Err(word) => {
                debug_assert!(
                    word & !KICK == running_on(cpu),
                    "blocked on {cpu} while {word:#x}"
                );
                Err(Kicked)
            }
        }
    }

    /// `Queued` → `Running(cpu)`, keeping the token. By whoever took it out of its runqueue.
    pub fn set_running(&self, cpu: CpuId) {
        self.set_phase(running_on(cpu));
    }

    /// → `Queued`, keeping the token. By its owner, before it enters a runqueue.
    pub fn set_queued(&self) {
        if mutant!(QueuedLosesKick) {
            self.word.store(QUEUED, Ordering::Release);
            return;
        }
        self.set_phase(QUEUED);
    }

    /// `Offline` → woken, as if it had been blocked and kicked. `true` if this call did it: then call
    /// [`Scheduler::wake`](super::Scheduler::wake), once.
    pub fn online(&self) -> bool {
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                (word & PHASE_MASK == OFFLINE).then_some(BLOCKED | KICK)
            })
            .is_ok()
    }

    /// → `Offline`, dropping the token. By its owner: nobody else can find it any more.
    pub fn offline(&self) {
        self.word.swap(OFFLINE, Ordering::AcqRel);
    }

    /// Blocked, kicked, and not in a runqueue yet.
    pub fn is_woken(&self) -> bool {
        self.word.load(Ordering::Acquire) & (PHASE_MASK | KICK) == BLOCKED | KICK
    }

    /// Where it is. Unless the caller owns the vCPU, it may be elsewhere by now.
    pub fn phase(&self) -> Phase {
        phase_of(self.word.load(Ordering::Acquire))
    }

    fn set_phase(&self, phase: u64) {
        // Only the token can change under the owner's hands, so this repeats at most once or twice.
        let mut word = self.word.load(Ordering::Relaxed);
        while let Err(now) = self.word.compare_exchange_weak(
            word,
            phase | (word & KICK),
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            word = now;
        }
    }
}

impl Default for RunState {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        let token = if word & KICK != 0 { "+KICK" } else { "" };
        write!(f, "{:?}{token}", phase_of(word))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
