//! Governors: which C-state to ask for, from what is known at idle entry and what earlier sleeps were like.
//!
//! One governor per CPU, called on that CPU with interrupts off, by the idle path only: [`Governor::select`] before each
//! attempt to sleep, [`Governor::reflect`] after it with what came of it. A governor does not know why the CPU is idle,
//! and never touches hardware.
//!
//! There is no periodic tick in Lull, so none appears here. A governor that was designed around one must treat it as
//! running, or it discards its own predictions ([`Tick`]).
//!
//! The governors of Linux and Xen are here as they are there, decision for decision, which recorded decisions of the
//! originals prove in the tests. What the originals overlook is repaired outside of them, in [`IdleContext::nearest`]:
//! a state that is disabled, or over the latency limit, is never returned while there is another.

use crate::cstate::{CStateTable, MAX_STATES, StateId};
use crate::units::Nanos;

mod any;
mod deepest_fit;
mod haltpoll;
mod ladder;
mod lull;
mod menu;
mod menu_xen;
mod moment;
mod teo;

#[cfg(test)]
mod golden_tests;

pub use any::AnyGovernor;
pub use deepest_fit::DeepestFit;
pub use haltpoll::HaltPoll;
pub use ladder::Ladder;
pub use lull::{LatencyPrice, Lull};
pub use menu::Menu;
pub use menu_xen::MenuXen;
pub use moment::Tick;
pub use teo::Teo;

/// A set of the states of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StateSet(u16);

impl StateSet {
    /// No state.
    pub const NONE: Self = Self(0);

    /// The set with `state` in it, or without.
    pub const fn with(self, state: StateId, present: bool) -> Self {
        let bit = 1 << state.index();
        Self(if present { self.0 | bit } else { self.0 & !bit })
    }

    /// Is the state in the set?
    pub const fn contains(self, state: StateId) -> bool {
        self.has_index(state.index())
    }

    /// The set as a number: bit n is the state with index n.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The set of that number.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    const fn has_index(self, index: usize) -> bool {
        index < MAX_STATES && self.0 & (1 << index) != 0
    }
}

/// What is known when a CPU is about to sleep.
#[derive(Clone, Copy, Debug)]
pub struct IdleContext<'a> {
    /// The states to choose from, shallow to deep.
    pub table: &'a CStateTable,
    /// Time to this CPU's next deadline; `None` if it has none. No sleep is longer, other things can only shorten it.
    pub sleep_length: Option<Nanos>,
    /// The longest exit latency that anybody who depends on this CPU accepts; `None` if nobody has set a limit.
    pub latency_limit: Option<Nanos>,
    /// States that must not be chosen for now.
    pub disabled: StateSet,
    /// The time, since an arbitrary start.
    pub now: Nanos,
}

impl IdleContext<'_> {
    /// Does the latency limit allow this state?
    pub fn allows(&self, state: StateId) -> bool {
        let latency = self.table.state(state).exit_latency.to_nanos();
        self.latency_limit.is_none_or(|limit| latency <= limit)
    }

    /// May the state be chosen: is it enabled, and within the latency limit?
    pub fn admits(&self, state: StateId) -> bool {
        !self.disabled.contains(state) && self.allows(state)
    }

    /// The same, with the shallowest state that the latency limit allows enabled if all that it allows are disabled: a limit
    /// is what somebody needs, disabling is a wish.
    #[must_use]
    pub fn with_limit_first(mut self) -> Self {
        let ids = || self.table.iter().map(|(id, _)| id);
        if !ids().any(|id| self.admits(id))
            && let Some(id) = ids().find(|id| self.allows(*id))
        {
            self.disabled = self.disabled.with(id, false);
        }
        self
    }

    /// The state with this index, or the nearest shallower one that may be chosen.
    ///
    /// If there is none: the shallowest that is enabled, as the one that comes closest to the latency limit; if all are
    /// disabled, the shallowest.
    pub fn nearest(&self, index: usize) -> StateId {
        let ids = || self.table.iter().map(|(id, _)| id);
        ids()
            .rev()
            .find(|id| id.index() <= index && self.admits(*id))
            .or_else(|| ids().find(|id| !self.disabled.contains(*id)))
            .unwrap_or(self.table.shallowest())
    }
}

/// A governor's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Selection {
    /// The state to enter.
    pub state: StateId,
    /// How long to stay at most before asking again; `None` for no limit.
    ///
    /// The end of a POLL, or, for a state that was chosen because the sleep is likely to be short, the time after which
    /// that must be taken for wrong. Without a tick nothing else would end a long stay in a shallow state.
    pub limit: Option<Nanos>,
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
    /// The limit of the selection: the CPU is still as idle as before.
    Limit,
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

    /// The last selection serves once more: the CPU did something short, and goes back to the state without asking.
    ///
    /// The moment may be past by now: [`reflect`](Self::reflect) follows at once. Whatever the governor learns, it learns as if it
    /// had been asked, and had answered the same.
    fn again(&mut self, context: &IdleContext<'_>) {
        let _same = self.select(context);
    }

    /// Learns from what came of the last selection.
    fn reflect(&mut self, table: &CStateTable, outcome: &IdleOutcome);

    /// Becomes the governor of this name, with nothing learned yet. `false` if it cannot.
    fn change_to(&mut self, name: &str) -> bool {
        self.name() == name
    }
}
