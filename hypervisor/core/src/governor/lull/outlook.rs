//! The cheapest plan for what a view of the past expects.
//!
//! What does not depend on the deadline is worked out once for many sleeps. A plan with a limit at the end of a drop
//! costs: the first state's transition, its latency where something comes by then, its power for the time slept until
//! then; and from there, with the probability that is left, another decision, the second state's transition and latency,
//! and its power for what the sleep is expected to go on. Only the last of these depends on when the deadline is, and on
//! no more than the second state. So for each second state there is one best limit with one best first state, whatever
//! the deadline, unless that is before it.

use super::arrivals::{Arrivals, ONE, Survival};
use super::costs::{Costs, FULL, RECHECK};
use super::plan::{FAR, Plan, SHORTEST};
use crate::cstate::MAX_STATES;

/// Costs that differ by less than this part, in two to the power of it, are alike.
const ALIKE: u32 = 6;
/// A plan with a limit must be cheaper by this part, in two to the power of it: it rests on more guesses.
const WORTH: u32 = 7;

/// The best way to change over to a state.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// What it costs more than the state's power for all the time that is slept, in ns of full power.
    cost: i64,
    /// When, in ns from the beginning of the sleep; the end of time if there is no good moment.
    at: u64,
    /// The state until then.
    first: u8,
}

impl Change {
    const NONE: Self = Self {
        cost: i64::MAX / 2,
        at: u64::MAX,
        first: 0,
    };
}

/// What is expected, and the best changes of states for that.
#[derive(Clone, Debug)]
pub(super) struct Outlook {
    survival: Survival,
    /// For each state that may be chosen, the best change to it.
    changes: [Change; MAX_STATES],
}

impl Outlook {
    /// Nothing ever comes.
    pub const NONE: Self = Self {
        survival: Survival::NONE,
        changes: [Change::NONE; MAX_STATES],
    };

    /// Makes this what is expected of a sleep that has lasted until `from`.
    pub fn work_out(&mut self, arrivals: &Arrivals, from: u64, few: u32, costs: &Costs) {
        self.survival.work_out(arrivals, from, few);
        let states = costs.admitted();
        let changes = self.changes.get_mut(..states.len()).unwrap_or_default();
        changes.fill(Change::NONE);
        for drop in self.survival.drops() {
            let end = drop.end();
            if end < from.saturating_add(SHORTEST) {
                continue;
            }
            let left = drop.left();
            let gone = ONE - left;
            let recheck = (RECHECK * left / ONE) as i64;
            let (mut cheapest, mut first) = (i64::MAX / 2, 0);
            for (cost, change) in states.iter().zip(changes.iter_mut()) {
                let used = (cost.power * drop.slept / FULL) as i64;
                let again = (cost.overhead() * left / ONE) as i64;
                let total = cheapest + recheck + again - used;
                if total < change.cost {
                    *change = Change {
                        cost: total,
                        at: end,
                        first,
                    };
                }
                let until = (cost.transition + cost.latency * gone / ONE) as i64 + used;
                if until < cheapest {
                    (cheapest, first) = (until, cost.state as u8);
                }
            }
        }
    }

    /// Is nothing expected ever to come?
    pub fn is_empty(&self) -> bool {
        self.survival.drops().is_empty()
    }

    /// The time that hardly any sleep has outlasted lately; the end of time if there is none.
    pub fn horizon(&self) -> u64 {
        self.survival.horizon()
    }

    /// The plan with the least expected cost, with a deadline in `to_timer`.
    pub fn plan(&self, costs: &Costs, to_timer: u64) -> Plan {
        let from = self.survival.from;
        let end = from.saturating_add(to_timer.min(FAR));
        let expected = self.survival.until(end);
        let mut best = Plan::NONE;
        let mut least = u64::MAX >> 1;
        let mut cheapest = i64::MAX;
        let mut to = (0, Change::NONE);
        for (cost, change) in costs.admitted().iter().zip(&self.changes) {
            let used = cost.power * expected / FULL;
            let total = cost.overhead() + used;
            // Deeper at about the same cost: cheaper, should it take longer than expected.
            if total <= least + (least >> ALIKE) {
                least = least.min(total);
                best = Plan::of(cost.state);
            }
            let total = change.cost + used as i64;
            if total < cheapest && change.at < end {
                cheapest = total;
                to = (cost.state, *change);
            }
        }
        if cheapest < (least - (least >> WORTH)) as i64 {
            let (then, change) = to;
            return Plan::change(usize::from(change.first), change.at - from, then);
        }
        best
    }
}
