//! Plans: one state until the wake, or a shallow one first and a deeper one if nothing has come by then.

use super::arrivals::{BINS, EDGES, ONE, Survival};
use super::costs::{Costs, FULL, RECHECK};

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

        let mut best = Self::NONE;
        let mut least = u64::MAX;
        for (state, cost) in costs.admitted() {
            let total = cost.transition + cost.latency + cost.power * expected / FULL;
            // Deeper at about the same cost: cheaper, should it take longer than expected.
            if total <= least.saturating_add(least >> ALIKE) {
                least = least.min(total);
                best = Self::of(state);
            }
        }

        least -= least >> WORTH;
        for (drop, &slept) in drops.iter().zip(&slept).take(usable) {
            if drop.end() < from + SHORTEST {
                continue;
            }
            let left = drop.after;
            let gone = ONE - left;
            let rest = expected.saturating_sub(slept);
            let mut cheapest_rest: Option<(u64, usize)> = None;
            for (state, cost) in costs.admitted() {
                let total =
                    (cost.transition + cost.latency) * left / ONE + cost.power * rest / FULL;
                if cheapest_rest.is_none_or(|(least, _)| total <= least) {
                    cheapest_rest = Some((total, state));
                }
            }
            let Some((rest, then)) = cheapest_rest else {
                continue;
            };
            let recheck = RECHECK * left / ONE + rest;
            for (state, cost) in costs.admitted().take_while(|(state, _)| *state < then) {
                let total = cost.transition
                    + cost.latency * gone / ONE
                    + cost.power * slept / FULL
                    + recheck;
                if total < least {
                    least = total;
                    best = Self {
                        state,
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
    pub fn with_way_out(
        self,
        costs: &Costs,
        horizon: Option<u64>,
        from: u64,
        to_timer: u64,
    ) -> Self {
        if self.limit.is_some() {
            return self;
        }
        let far = horizon.map(|horizon| horizon.saturating_mul(WAY_OUT));
        let end = from.saturating_add(to_timer.min(FAR));
        let rest = end.saturating_sub(far.unwrap_or(from));
        // Behind all known wakes it goes on for a few times as long, for all that is known.
        let rest = far.map_or(rest, |far| rest.min(far.max(from).saturating_mul(WAY_OUT)));
        let deeper = costs
            .admitted()
            .min_by_key(|(_, cost)| cost.transition + cost.latency + cost.power * rest / FULL);
        let Some((then, deeper)) = deeper.filter(|(then, _)| *then > self.state) else {
            return self;
        };
        let limit = match far {
            // It has lasted longer than that already: spurious wakes cut it in pieces.
            Some(far) if far <= from => {
                return Self::of(then);
            }
            Some(far) => far - from,
            None => costs.get(self.state).crosses(deeper),
        };
        if limit >= to_timer {
            return self;
        }
        Self {
            limit: Some(limit.max(SHORTEST)),
            then,
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
