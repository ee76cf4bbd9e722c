//! Governors: which C-state to ask for, from what is known at idle entry and what earlier sleeps were like.
//!
//! One governor per CPU, called on that CPU with interrupts off, by the idle path only: [`Governor::select`] before each
//! attempt to sleep, [`Governor::reflect`] after it with what came of it. A governor does not know why the CPU is idle,
//! and never touches hardware.
//!
//! There is no periodic tick in Lull, so none appears here. A governor that was designed around one must treat it as
//! running, or it discards its own predictions.

use crate::cstate::{CStateTable, StateId};
use crate::units::Nanos;

mod deepest_fit;

pub use deepest_fit::DeepestFit;

/// What is known when a CPU is about to sleep.
#[derive(Clone, Copy, Debug)]
pub struct IdleContext<'a> {
    /// The states to choose from, shallow to deep.
    pub table: &'a CStateTable,
    /// Time to this CPU's next deadline; `None` if it has none. No sleep is longer, other things can only shorten it.
    pub sleep_length: Option<Nanos>,
    /// The longest exit latency that anybody who depends on this CPU accepts; `None` if nobody has set a limit.
    pub latency_limit: Option<Nanos>,
}

impl IdleContext<'_> {
    /// Does the latency limit allow this state?
    pub fn allows(&self, state: StateId) -> bool {
        let latency = self.table.state(state).exit_latency.to_nanos();
        self.latency_limit.is_none_or(|limit| latency <= limit)
    }
}

/// A governor's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Selection {
    /// The state to enter.
    pub state: StateId,
    /// How long to poll at most before asking again; `None` for no limit, and for every state but POLL.
    pub poll_limit: Option<Nanos>,
    /// How long the governor thinks the sleep will be, if it has an idea. For traces.
    pub predicted: Option<Nanos>,
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WakeReason {
    /// The CPU's own deadline, which it knew of.
    Timer,
    /// A store to the watched wake word, without an interrupt.
    Store,
    /// An interrupt other than the own timer's.
    Interrupt,
    /// The poll limit of the selection.
    PollLimit,
    /// Nothing that can be named: the hardware woke, and no event was there.
    Spurious,
}

/// What came of one attempt to sleep. Given to [`Governor::reflect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleOutcome {
    /// The CPU was in a state and came back.
    Slept {
        /// The state that was selected.
        requested: StateId,
        /// The state that was entered: shallower, if something demoted the choice.
        entered: StateId,
        /// Time from the entry to the first interrupt handler, or to the exit if none ran inside.
        ///
        /// Contains the exit latency that the hardware took, and no handler's time.
        residency: Nanos,
        /// Time that handlers took inside the state. Not idleness: no governor should learn from it.
        irq: Nanos,
        /// What ended it.
        wake: WakeReason,
    },
    /// An event was pending before the CPU slept. It says nothing about the state, nor about how long a sleep lasts,
    /// and must not be learned from as a very short or a refused one.
    Aborted,
    /// The state was selected, and could not be entered (a driver or the hardware refused).
    Rejected {
        /// The state that was selected.
        requested: StateId,
    },
}

/// A policy for choosing C-states.
pub trait Governor {
    /// What people call it, on the command line and the console.
    fn name(&self) -> &'static str;

    /// Chooses a state for the sleep that is about to begin. The state must be one of `context.table`.
    fn select(&mut self, context: &IdleContext<'_>) -> Selection;

    /// Learns from what came of the last selection.
    fn reflect(&mut self, table: &CStateTable, outcome: &IdleOutcome);
}
