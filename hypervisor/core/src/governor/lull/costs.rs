//! What a stay in a state costs, energy and latency in one currency: nanoseconds of a busy CPU's power.
//!
//! Tables give exit latencies and target residencies, no powers. A target residency is by its meaning the length at
//! which a state and the one above it cost the same; with any assumption of the powers, the energy of a transition
//! follows from that. The powers assumed are coarse: what matters for choices is where lines cross, and the tables say
//! that.

use crate::cstate::{EntryMethod, MAX_STATES};
use crate::governor::IdleContext;

/// How much energy a microsecond of wake latency is worth: in 1/1024 of what a busy CPU uses in a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyPrice(pub u32);

impl LatencyPrice {
    /// The price that Lull's constants were judged with.
    pub const DEFAULT: Self = Self(160);
}

/// The unit of power: what POLL uses.
pub(super) const FULL: u64 = 1024;
/// The first state that stops the clock of the core.
const FIRST: u64 = 410;
/// What an early wake costs: a timer interrupt, and another decision.
pub(super) const RECHECK: u64 = 1_500;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StateCost {
    /// Entry and exit, in ns of full power.
    pub transition: u64,
    /// The latency that a wake from it adds, at its price.
    pub latency: u64,
    /// In units of 1 / [`FULL`].
    pub power: u64,
    pub admitted: bool,
}

/// What a state with this target residency, in ns, is assumed to use.
///
/// [`FIRST`] up to 2 us; an eighth less with each doubling up to 64 us, where clocks stop and voltage falls; five
/// sixteenths less with each doubling from there, where caches and power planes are switched off.
fn assumed_power(residency: u64) -> u64 {
    let (mut power, mut at) = (FIRST, 2_000);
    while at < residency {
        let next = if at < 64_000 {
            power * 7 / 8
        } else {
            power * 11 / 16
        };
        if residency - at < at {
            return power - (power - next) * (residency - at) / at;
        }
        power = next;
        at *= 2;
    }
    power
}

/// All states of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    states: [StateCost; MAX_STATES],
    count: usize,
}

impl Costs {
    pub fn new(context: &IdleContext<'_>, price: LatencyPrice) -> Self {
        let mut states = [StateCost::default(); MAX_STATES];
        let (mut transition, mut power) = (0, FULL);
        for ((id, state), cost) in context.table.iter().zip(&mut states) {
            let residency = state.target_residency.to_nanos().get();
            let deeper = match state.method {
                EntryMethod::Poll => FULL,
                _ => assumed_power(residency).min(power * 5 / 8),
            };
            transition += residency.saturating_mul(power - deeper) / FULL;
            power = deeper;
            let latency = state.exit_latency.to_nanos().get();
            *cost = StateCost {
                transition,
                latency: latency.saturating_mul(u64::from(price.0)) / FULL,
                power,
                admitted: context.admits(id),
            };
        }
        Self {
            states,
            count: context.table.count(),
        }
    }

    /// The states that may be chosen, with their indices.
    pub fn admitted(&self) -> impl Iterator<Item = (usize, &StateCost)> + Clone {
        let all = self.states.iter().enumerate().take(self.count);
        all.filter(|(_, cost)| cost.admitted)
    }

    pub fn get(&self, state: usize) -> &StateCost {
        &self.states[state.min(MAX_STATES - 1)]
    }
}
