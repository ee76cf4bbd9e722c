//! What a dispatch loop has done, counted so that the figures check each other.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wake::Events;
use core::fmt;

/// Why the scheduler was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassCause {
    /// Nothing was decided yet.
    First,
    /// RESCHED was posted.
    Resched,
    /// The slice of the vCPU ended.
    SliceEnd,
    /// The vCPU halted.
    Blocked,
    /// The vCPU yielded.
    Yielded,
    /// The vCPU died.
    Gone,
}

impl PassCause {
    /// All causes, in the order of [`DispatchCounts::passes`].
    pub const ALL: [Self; 6] = [
        Self::First,
        Self::Resched,
        Self::SliceEnd,
        Self::Blocked,
        Self::Yielded,
        Self::Gone,
    ];

    /// As the machine channel and the console name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Resched => "resched",
            Self::SliceEnd => "slice_end",
            Self::Blocked => "blocked",
            Self::Yielded => "yielded",
            Self::Gone => "gone",
        }
    }
}

/// What a sleep ended for. One for each sleep: of several events, the one that costs the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WokenBy {
    /// STOP.
    Stop,
    /// RESCHED: a scheduling pass.
    Resched,
    /// CALL: a cross-CPU call.
    Call,
    /// CONSOLE: input.
    Console,
    /// NOTIFY: for a vCPU that has left by now.
    Notify,
    /// TIMER, or a deadline that was reached.
    Timer,
    /// No event.
    Spurious,
}

impl WokenBy {
    /// All reasons, in the order of [`DispatchCounts::wakes`].
    pub const ALL: [Self; 7] = [
        Self::Stop,
        Self::Resched,
        Self::Call,
        Self::Console,
        Self::Notify,
        Self::Timer,
        Self::Spurious,
    ];

    /// The reason to count for these events.
    pub const fn of(events: Events, deadline_reached: bool) -> Self {
        if events.contains(Events::STOP) {
            Self::Stop
        } else if events.contains(Events::RESCHED) {
            Self::Resched
        } else if events.contains(Events::CALL) {
            Self::Call
        } else if events.contains(Events::CONSOLE) {
            Self::Console
        } else if events.contains(Events::NOTIFY) {
            Self::Notify
        } else if deadline_reached || events.contains(Events::TIMER) {
            Self::Timer
        } else {
            Self::Spurious
        }
    }

    /// As the machine channel and the console name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Resched => "resched",
            Self::Call => "call",
            Self::Console => "console",
            Self::Notify => "notify",
            Self::Timer => "timer",
            Self::Spurious => "spurious",
        }
    }
}

/// The counters of one dispatch loop. Only its own pCPU writes; they order nothing.
#[derive(Debug, Default)]
pub struct DispatchStats {
    turns: AtomicU64,
    passes: [AtomicU64; PassCause::ALL.len()],
    avoided: AtomicU64,
    switches: AtomicU64,
    blocks_cancelled: AtomicU64,
    wakes: [AtomicU64; WokenBy::ALL.len()],
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchCounts {
    /// Turns of the loop.
    pub turns: u64,
    /// Scheduling passes, by [`PassCause::ALL`].
    pub passes: [u64; PassCause::ALL.len()],
    /// Turns without a scheduling pass.
    pub avoided: u64,
    /// How often another vCPU was loaded.
    pub switches: u64,
    /// Halts that ended before they began, because the vCPU was kicked in the meantime.
    pub blocks_cancelled: u64,
    /// Ends of sleeps, by [`WokenBy::ALL`].
    pub wakes: [u64; WokenBy::ALL.len()],
}

impl DispatchStats {
    pub(super) fn turn(&self, cause: Option<PassCause>) {
        add(&self.turns);
        match cause {
            Some(cause) => add(&self.passes[cause as usize]),
            None => add(&self.avoided),
        }
    }

    pub(super) fn switched(&self) {
        add(&self.switches);
    }

    pub(super) fn block_cancelled(&self) {
        add(&self.blocks_cancelled);
    }

    pub(super) fn woken(&self, by: WokenBy) {
        add(&self.wakes[by as usize]);
    }

    /// The counters now. Consistent once the pCPU sleeps or runs a guest.
    pub fn counts(&self) -> DispatchCounts {
        DispatchCounts {
            turns: get(&self.turns),
            passes: core::array::from_fn(|index| get(&self.passes[index])),
            avoided: get(&self.avoided),
            switches: get(&self.switches),
            blocks_cancelled: get(&self.blocks_cancelled),
            wakes: core::array::from_fn(|index| get(&self.wakes[index])),
        }
    }
}

/// One writer: needs no locked instruction.
fn add(counter: &AtomicU64) {
    counter.store(get(counter).wrapping_add(1), Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Figures that cannot be true together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Each turn asks the scheduler or does not.
    Turns {
        /// Turns.
        turns: u64,
        /// Passes and turns without.
        accounted: u64,
    },
    /// Each sleep has one end.
    Wakes {
        /// Sleeps that the account saw.
        sleeps: u64,
        /// Ends of sleeps that the loop saw.
        wakes: u64,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Turns { turns, accounted } => {
                write!(f, "{turns} turns, but {accounted} with or without a pass")
            }
            Mismatch::Wakes { sleeps, wakes } => {
                write!(f, "{sleeps} sleeps, but {wakes} ends of sleeps")
            }
        }
    }
}

impl DispatchCounts {
    /// All scheduling passes.
    pub fn all_passes(&self) -> u64 {
        self.passes.iter().sum()
    }

    /// All ends of sleeps.
    pub fn all_wakes(&self) -> u64 {
        self.wakes.iter().sum()
    }

    /// Passes for one cause.
    pub const fn passes_for(&self, cause: PassCause) -> u64 {
        self.passes[cause as usize]
    }

    /// Sleeps that ended for one reason.
    pub const fn wakes_by(&self, reason: WokenBy) -> u64 {
        self.wakes[reason as usize]
    }

    /// Do the figures agree with each other, and with the number of sleeps that the CPU's account has seen?
    /// A CPU that sleeps has one sleep more than ends of sleeps: leave that one out.
    ///
    /// # Errors
    /// Which do not.
    pub fn check(&self, sleeps: u64) -> Result<(), Mismatch> {
        let accounted = self.all_passes() + self.avoided;
        if self.turns != accounted {
            return Err(Mismatch::Turns {
                turns: self.turns,
                accounted,
            });
        }
        let wakes = self.all_wakes();
        if sleeps != wakes {
            return Err(Mismatch::Wakes { sleeps, wakes });
        }
        Ok(())
    }

    /// What came in addition since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        let diff = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            turns: diff(self.turns, earlier.turns),
            passes: core::array::from_fn(|at| diff(self.passes[at], earlier.passes[at])),
            avoided: diff(self.avoided, earlier.avoided),
            switches: diff(self.switches, earlier.switches),
            blocks_cancelled: diff(self.blocks_cancelled, earlier.blocks_cancelled),
            wakes: core::array::from_fn(|at| diff(self.wakes[at], earlier.wakes[at])),
        }
    }
}
