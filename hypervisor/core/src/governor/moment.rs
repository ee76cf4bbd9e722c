//! What the governors that come from Linux are asked with, and how they answer.
//!
//! They were written for a kernel with a periodic tick, which they may ask to be stopped, and whose state changes their
//! decisions. Their logic takes a [`Moment`], in which that is explicit; an [`IdleContext`] is turned into one with a
//! tick that is always running and never comes.

use super::{IdleContext, StateSet, WakeReason};
use crate::cstate::{CState, CStateTable, EntryMethod, StateId};
use crate::units::Nanos;

/// One period of the tick that the constants of the originals are derived from: 250 Hz.
pub(super) const TICK: i64 = 4_000_000;
/// A timer that is farther away than this is no reason to distrust a short prediction. Twice the tick.
pub(super) const SAFE_TIMER_RANGE: i64 = 2 * TICK;
/// Stays below this are not worth looking at timers for, nor leaving POLL for.
pub(super) const SHORT_STAY: i64 = 15_000;
/// "No limit", as the originals' kernel says it: the largest 32-bit number of microseconds with a sign, in ns.
pub(super) const NO_LATENCY_LIMIT: i64 = i32::MAX as i64 * 1000;
/// The farthest timer that is passed on, 26 days: beyond it the product with menu's correction factor overflows.
const FARTHEST_TIMER: u64 = (1 << 51) - 1;

/// What a governor that was designed around a periodic tick is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Tick {
    /// It runs. The right thing to say where none exists: menu and TEO then go by their predictions.
    #[default]
    Running,
    /// It runs, and where a governor wants it kept, a limit of one period on the stay does its work: a state that was
    /// too shallow is left after that. What a real tick does for these governors, for the price of the wakes.
    OnDemand,
    /// It is stopped. Menu and TEO then distrust every short prediction while the next timer is far away, since nothing
    /// would correct it: constant wakes after 300 us then give the deepest state each time.
    Stopped,
}

/// One question to a Linux governor. All times in ns, with a sign, as the originals calculate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment<'a> {
    pub table: &'a CStateTable,
    pub disabled: StateSet,
    /// The largest exit latency that is allowed.
    pub latency_limit: i64,
    /// To the next timer; negative if it is overdue.
    pub sleep_length: i64,
    /// To the next timer or tick.
    pub next_event: i64,
    pub tick: Tick,
}

impl<'a> Moment<'a> {
    pub fn new(context: &IdleContext<'a>, tick: Tick) -> Self {
        let sleep = context
            .sleep_length
            .map_or(FARTHEST_TIMER, |length| length.get().min(FARTHEST_TIMER));
        Self {
            table: context.table,
            disabled: context.disabled,
            latency_limit: context.latency_limit.map_or(NO_LATENCY_LIMIT, signed),
            sleep_length: sleep as i64,
            next_event: match tick {
                Tick::OnDemand => TICK.min(sleep as i64),
                Tick::Running | Tick::Stopped => sleep as i64,
            },
            tick,
        }
    }

    /// The longest stay for this decision, of which `state` was made.
    pub fn limit(
        &self,
        state: StateId,
        decision: Decision,
        poll_limit: &mut PollLimit,
    ) -> Option<Nanos> {
        if self.polls(state.index()) {
            return Some(poll_limit.get(self.table, self.disabled));
        }
        let tick = self.tick == Tick::OnDemand && !decision.stop_tick;
        tick.then_some(Nanos::new(TICK as u64))
    }

    pub fn tick_stopped(&self) -> bool {
        self.tick == Tick::Stopped
    }

    pub fn count(&self) -> usize {
        self.table.count()
    }

    pub fn enabled(&self, state: usize) -> bool {
        !self.disabled.has_index(state)
    }

    pub fn residency(&self, state: usize) -> i64 {
        residency(self.table, state)
    }

    pub fn latency(&self, state: usize) -> i64 {
        latency(self.table, state)
    }

    pub fn polls(&self, state: usize) -> bool {
        polls(self.table, state)
    }

    /// From `state`, the first enabled state on the way to the shallowest whose target residency is at most `length`;
    /// the shallowest enabled one if none is; `state` itself if none is enabled.
    pub fn shallower(&self, state: usize, length: i64) -> usize {
        let mut found = state;
        for candidate in (0..state)
            .rev()
            .filter(|&candidate| self.enabled(candidate))
        {
            found = candidate;
            if self.residency(candidate) <= length {
                break;
            }
        }
        found
    }
}

/// An answer of a Linux governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub state: usize,
    /// May the tick be stopped? Nobody in Lull has one: it is kept because the recorded decisions contain it.
    pub stop_tick: bool,
}

impl Decision {
    pub fn stop(state: usize) -> Self {
        Self {
            state,
            stop_tick: true,
        }
    }

    pub fn keep(state: usize) -> Self {
        Self {
            state,
            stop_tick: false,
        }
    }
}

/// What a Linux governor is told of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stay {
    pub state: usize,
    /// In the state, the exit latency included.
    pub residency: i64,
    /// The state was POLL, and its limit ended it.
    pub poll_timed_out: bool,
    /// A tick came inside.
    pub got_tick: bool,
}

impl Stay {
    pub fn new(table: &CStateTable, entered: StateId, residency: Nanos, wake: WakeReason) -> Self {
        let state = entered.index();
        let limit = wake == WakeReason::Limit;
        Self {
            state,
            residency: signed(residency),
            poll_timed_out: limit && polls(table, state),
            got_tick: limit && !polls(table, state),
        }
    }

    pub const fn none() -> Self {
        Self {
            state: 0,
            residency: 0,
            poll_timed_out: false,
            got_tick: false,
        }
    }
}

/// The longest poll, as Linux has it: the target residency of the first enabled state for which it is 10 us or more,
/// at most a sixteenth of a tick. Determined at the first poll, and kept.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PollLimit(pub u64);

impl PollLimit {
    const MAX: i64 = TICK / 16;
    const MIN: i64 = 10_000;

    /// The limit of a poll that is about to begin.
    pub fn get(&mut self, table: &CStateTable, disabled: StateSet) -> Nanos {
        if self.0 == 0 {
            let first = (1..table.count())
                .filter(|&state| !disabled.has_index(state))
                .map(|state| residency(table, state))
                .find(|&residency| residency >= Self::MIN);
            self.0 = first.unwrap_or(Self::MAX).min(Self::MAX) as u64;
        }
        Nanos::new(self.0)
    }
}

pub(super) fn signed(time: Nanos) -> i64 {
    i64::try_from(time.get()).unwrap_or(i64::MAX)
}

fn at(table: &CStateTable, state: usize) -> &CState {
    // An index beyond the table is the deepest state, as for ids of a larger table.
    table.state(table.id(state).unwrap_or_else(|| deepest(table)))
}

fn deepest(table: &CStateTable) -> StateId {
    table
        .id(table.count().saturating_sub(1))
        .unwrap_or(table.shallowest())
}

pub(super) fn residency(table: &CStateTable, state: usize) -> i64 {
    signed(at(table, state).target_residency.to_nanos())
}

pub(super) fn latency(table: &CStateTable, state: usize) -> i64 {
    signed(at(table, state).exit_latency.to_nanos())
}

pub(super) fn polls(table: &CStateTable, state: usize) -> bool {
    at(table, state).method == EntryMethod::Poll
}
