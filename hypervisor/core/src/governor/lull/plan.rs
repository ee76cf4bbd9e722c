//! Plans: one state until the wake, or a shallow one first and a deeper one if nothing has come by then.

use super::arrivals::{BINS, EDGES, ONE, Survival};
use super::costs::{Admitted, Costs, FULL, RECHECK};

/// Deadlines that are farther away than this, in ns, are all alike: 20 s.
const FAR: u64 = 20_000_000_000;

/// A limit must be worth setting a timer for, in ns.
const SHORTEST: u64 = 4_000;

/// Costs that differ by less than this part, in two to the power of it, are alike.
const ALIKE: u32 = 6;

/// A plan with a limit must be cheaper by this part, in two to the power of it: it rests on more guesses.
const WORTH: u32 = 7;

/// How much longer than nearly all known sleeps one must last to be taken for one of another kind.
const WAY_OUT: u64 = 4;

/// What to do until the next wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub state: usize,
    /// After so long, in ns, change over to `then`.
    pub limit: Option<u64>,
    pub then: usize,
}

impl Plan {
    /// The shallowest state.
    pub const NONE: Self = Self::of(0);

    /// One state, to the end.
    pub const fn of(state: usize) -> Self {
        Self {
            state,
            limit: None,
            then: state,
        }
    }

    /// The deepest state in it.
    pub fn deepest(&self) -> usize {
        self.state.max(self.then)
    }

    /// The plan with the least expected cost for a sleep that has lasted until `survival.from`, with a deadline in
    /// `to_timer`.
    pub fn cheapest(costs: &Costs, survival: &Survival, to_timer: u64) -> Self {
        let from = survival.from;
        let end = from.saturating_add(to_timer.min(FAR));
        let drops = survival.drops();

        // The expected time slept from `from` to the end of each drop, and in all.
        let mut slept = [0_u64; BINS];
        let (mut expected, mut at, mut left) = (0, from, ONE);
        let mut usable = 0;
        for (drop, slept) in drops.iter().zip(&mut slept) {
            let begins = EDGES[drop.bin].max(at);
            // Behind the last bin nothing is known.
            if begins >= end || drop.end() <= from {
                break;
            }
            expected += (begins - at) * left / ONE;
            at = drop.end().min(end);
            expected += (at - begins) * (drop.before + drop.after) / (2 * ONE);
            left = drop.after;
            if at == end {
                break;
            }
            *slept = expected;
            usable += 1;
        }
        expected += (end - at) * left / ONE;

        let states = costs.admitted();
        let mut best = Self::NONE;
        let mut least = u64::MAX;
        for cost in states {
            let total = cost.transition + cost.latency + cost.power * expected / FULL;
            // Deeper at about the same cost: cheaper, should it take longer than expected.
            if total <= least.saturating_add(least >> ALIKE) {
                least = least.min(total);
                best = Self::of(cost.state);
            }
        }

        let bound = Bound::new(costs, least);
        least -= least >> WORTH;
        for (drop, &slept) in drops.iter().zip(&slept).take(usable) {
            if drop.end() < from + SHORTEST {
                continue;
            }
            let left = drop.after;
            let gone = ONE - left;
            let rest = expected.saturating_sub(slept);
            let recheck = RECHECK * left / ONE;
            if bound.is_over(least, recheck, gone, rest) {
                continue;
            }
            let mut cheapest_rest = u64::MAX;
            let mut then = 0;
            for cost in states {
                let total =
                    (cost.transition + cost.latency) * left / ONE + cost.power * rest / FULL;
                if total <= cheapest_rest {
                    cheapest_rest = total;
                    then = cost.state;
                }
            }
            let recheck = recheck.saturating_add(cheapest_rest);
            if recheck >= least {
                continue;
            }
            for cost in states.iter().take_while(|cost| cost.state < then) {
                let total = cost.transition
                    + cost.latency * gone / ONE
                    + cost.power * slept / FULL
                    + recheck;
                if total < least {
                    least = total;
                    best = Self {
                        state: cost.state,
                        limit: Some(drop.end() - from),
                        then,
                    };
                }
            }
        }
        best
    }

    /// Limits a stay that would be too shallow for a sleep of a kind not seen lately, which has lasted until `from`.
    ///
    /// A long sleep would otherwise be spent in a shallow state to its end, however long that is. The limit is far behind
    /// the `horizon`, which hardly any sleep outlasts, so that it is hardly ever reached. Without one, it is at the time
    /// from which on the deeper state would have been the better choice: whatever comes, that costs at most twice of what
    /// was needed.
    pub fn with_way_out(self, costs: &Costs, way_out: &WayOut) -> Self {
        let Some(deeper) = way_out.deeper else {
            return self;
        };
        if self.limit.is_some() || deeper.state <= self.state {
            return self;
        }
        let limit = match way_out.far {
            // It has lasted longer than that already: spurious wakes cut it in pieces.
            Some(far) if far <= way_out.from => {
                return Self::of(deeper.state);
            }
            Some(far) => far - way_out.from,
            None => costs.get(self.state).crosses(&deeper),
        };
        if limit >= way_out.to_timer {
            return self;
        }
        Self {
            limit: Some(limit.max(SHORTEST)),
            then: deeper.state,
            ..self
        }
    }

    /// What the plan would have cost for a sleep that lasted `slept`.
    pub fn cost(&self, costs: &Costs, slept: u64) -> u64 {
        let stay = |state: usize, time: u64| {
            let cost = costs.get(state);
            cost.transition + cost.power * time / FULL
        };
        match self.limit {
            Some(limit) if limit < slept => {
                stay(self.state, limit)
                    + RECHECK
                    + stay(self.then, slept - limit)
                    + costs.get(self.then).latency
            }
            _ => stay(self.state, slept) + costs.get(self.state).latency,
        }
    }
}

/// Where a stay that is too shallow has its end: the same for all plans that are made at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct WayOut {
    from: u64,
    to_timer: u64,
    /// What is far behind the horizon.
    far: Option<u64>,
    /// The best state for a sleep that lasts so long.
    deeper: Option<Admitted>,
}

impl WayOut {
    /// For a sleep that has lasted until `from`, and hardly ever lasts longer than `horizon`.
    pub fn new(costs: &Costs, horizon: Option<u64>, from: u64, to_timer: u64) -> Self {
        let far = horizon.map(|horizon| horizon.saturating_mul(WAY_OUT));
        let end = from.saturating_add(to_timer.min(FAR));
        let rest = end.saturating_sub(far.unwrap_or(from));
        // Behind all known wakes it goes on for a few times as long, for all that is known.
        let rest = far.map_or(rest, |far| rest.min(far.max(from).saturating_mul(WAY_OUT)));
        let deeper = costs
            .admitted()
            .iter()
            .min_by_key(|cost| cost.transition + cost.latency + cost.power * rest / FULL);
        Self {
            from,
            to_timer,
            far,
            deeper: deeper.copied(),
        }
    }
}

/// What no plan with a limit can cost less than. Most need not be worked out for that.
///
/// Such a plan is a stay in one of its two states, but for two things: the overhead of the deeper one is not paid where
/// something comes before the limit, and the shallower one's power is not paid behind it.
struct Bound {
    /// The least that a stay in one state costs.
    single: u64,
    /// The overhead of the deepest state.
    overhead: u64,
    /// By how much less the deepest state uses than the shallowest.
    power: u64,
    /// Do the states of the table bear the argument out?
    holds: bool,
}

impl Bound {
    /// Each of the terms that are summed up is rounded down.
    const ROUNDING: u64 = 8;

    fn new(costs: &Costs, single: u64) -> Self {
        let states = costs.admitted();
        let power = |state: Option<&Admitted>| state.map_or(0, |cost| cost.power);
        Self {
            single,
            // More than that is more than any sleep costs.
            overhead: states
                .last()
                .map_or(0, |cost| cost.overhead().min(u64::MAX / ONE)),
            power: power(states.first()).saturating_sub(power(states.last())),
            holds: costs.ordered(),
        }
    }

    /// Is no plan under `least` that asks again for `recheck` after a time by which `gone` of all sleeps have ended, and
    /// behind which `rest` is expected?
    fn is_over(&self, least: u64, recheck: u64, gone: u64, rest: u64) -> bool {
        let gain = (self.overhead * gone / ONE).min(self.power * rest / FULL);
        self.holds && self.single.saturating_add(recheck) >= least + gain + Self::ROUNDING
    }
}
