//! Plans: one state until the wake, or a shallow one first and a deeper one if nothing has come by then.

use super::costs::{Admitted, Costs, FULL, RECHECK};

/// Deadlines that are farther away than this, in ns, are all alike: 20 s.
pub(super) const FAR: u64 = 20_000_000_000;

/// A limit must be worth setting a timer for, in ns.
pub(super) const SHORTEST: u64 = 4_000;

/// How much longer than nearly all known sleeps one must last to be taken for one of another kind.
const WAY_OUT: u64 = 4;

/// No limit.
const NEVER: u64 = u64::MAX;

/// What to do until the next wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// After so long, in ns, change over to `then`; or never.
    limit: u64,
    state: u8,
    then: u8,
}

impl Plan {
    /// The shallowest state.
    pub const NONE: Self = Self::of(0);

    /// One state, to the end.
    pub const fn of(state: usize) -> Self {
        Self {
            limit: NEVER,
            state: state as u8,
            then: state as u8,
        }
    }

    /// One state for `limit` ns, and then another.
    pub const fn change(state: usize, limit: u64, then: usize) -> Self {
        Self {
            limit,
            state: state as u8,
            then: then as u8,
        }
    }

    /// The state to begin with.
    pub fn state(&self) -> usize {
        usize::from(self.state)
    }

    /// How long to stay in it, in ns.
    pub fn limit(&self) -> Option<u64> {
        (self.limit != NEVER).then_some(self.limit)
    }

    /// The state to end with.
    pub fn then(&self) -> usize {
        usize::from(self.then)
    }

    /// The deepest state in it.
    pub fn deepest(&self) -> usize {
        self.state().max(self.then())
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
        if self.limit != NEVER || deeper.state <= self.state() {
            return self;
        }
        let limit = match way_out.far {
            // It has lasted longer than that already: spurious wakes cut it in pieces.
            Some(far) if far <= way_out.from => {
                return Self::of(deeper.state);
            }
            Some(far) => far - way_out.from,
            None => costs.get(self.state()).crosses(&deeper),
        };
        if limit >= way_out.to_timer {
            return self;
        }
        Self::change(self.state(), limit.max(SHORTEST), deeper.state)
    }

    /// What the plan would have cost for a sleep that lasted `slept`.
    pub fn cost(&self, costs: &Costs, slept: u64) -> u64 {
        let stay = |state: u8, time: u64| {
            let cost = costs.get(usize::from(state));
            (cost.transition + cost.power * time / FULL, cost.latency)
        };
        if self.limit < slept {
            let (before, _) = stay(self.state, self.limit);
            let (behind, latency) = stay(self.then, slept - self.limit);
            before + RECHECK + behind + latency
        } else {
            let (used, latency) = stay(self.state, slept);
            used + latency
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
        if far.is_some_and(|far| far >= end) {
            // The deadline comes first.
            return Self {
                from,
                to_timer,
                far,
                deeper: None,
            };
        }
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
