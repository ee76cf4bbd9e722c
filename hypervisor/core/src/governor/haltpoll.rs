//! `haltpoll`: polls before it halts, as long as that has paid off lately.
//!
//! As in Linux 7.1, where it is meant for guests. It knows two states, the poll and the first real one, and adapts the
//! length of the poll: wakes shortly after the halt make it longer, late ones shorter.

use super::moment::{Decision, Moment, PollLimit, Stay, Tick};
use super::{Governor, IdleContext, IdleOutcome, Selection};
use crate::cstate::CStateTable;

/// The longest poll, in ns.
const MAX_POLL: u64 = 200_000;
/// The first length that a poll grows to, and the shortest one.
const GROW_START: u64 = 50_000;
const GROW: u64 = 2;
const SHRINK: u64 = 2;

/// The haltpoll governor of Linux, with its default parameters.
#[derive(Clone, Debug)]
pub struct HaltPoll {
    /// Zero: no poll. Shared with the poll itself, which sets it if it is zero.
    pub(super) poll_limit: PollLimit,
    last: Stay,
}

impl HaltPoll {
    /// A governor that has seen nothing yet.
    pub const fn new() -> Self {
        Self {
            poll_limit: PollLimit(0),
            last: Stay::none(),
        }
    }

    pub(super) fn decide(&mut self, moment: &Moment<'_>) -> Decision {
        if moment.latency_limit == 0 {
            return Decision::keep(0);
        }
        if self.poll_limit.0 == 0 || (self.last.state == 0 && self.last.poll_timed_out) {
            return Decision::stop(1);
        }
        Decision::keep(0)
    }

    pub(super) fn learn(&mut self, stay: Stay) {
        self.last = stay;
        if stay.state != 0 {
            self.adjust(stay.residency as u64);
        }
    }

    fn adjust(&mut self, block: u64) {
        let limit = &mut self.poll_limit.0;
        if block > *limit && block <= MAX_POLL {
            *limit = (*limit * GROW).clamp(GROW_START, MAX_POLL);
        } else if block > MAX_POLL {
            let shrunk = *limit / SHRINK;
            *limit = if shrunk < GROW_START { 0 } else { shrunk };
        }
    }
}

impl Default for HaltPoll {
    fn default() -> Self {
        Self::new()
    }
}

impl Governor for HaltPoll {
    fn name(&self) -> &'static str {
        "haltpoll"
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        let moment = Moment::new(context, Tick::Running);
        let decision = self.decide(&moment);
        let state = context.nearest(decision.state);
        let limit = moment.limit(state, decision, &mut self.poll_limit);
        Selection {
            state,
            limit,
            predicted: None,
        }
    }

    fn reflect(&mut self, table: &CStateTable, outcome: &IdleOutcome) {
        if let IdleOutcome::Slept {
            entered,
            residency,
            wake,
            ..
        } = *outcome
        {
            self.learn(Stay::new(table, entered, residency, wake));
        }
    }
}
