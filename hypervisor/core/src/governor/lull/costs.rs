//! What a stay in a state costs, energy and latency in one currency: nanoseconds of a busy CPU's power.
//!
//! Tables give exit latencies and target residencies, no powers. A target residency is by its meaning the length at
//! which a state and the one above it cost the same; with any assumption of the powers, the energy of a transition
//! follows from that. The powers assumed are coarse: what matters for choices is where lines cross, and the tables say
//! that.

use crate::cstate::{CState, CStateTable, EntryMethod, MAX_STATES};
use crate::governor::{IdleContext, StateSet};
use crate::units::{Micros, Nanos};
use alloc::format;
use alloc::string::{String, ToString};

/// How much energy a microsecond of wake latency is worth: in 1/1024 of what a busy CPU uses in a microsecond.
///
/// A matter of taste and of what runs there, so it is an option (`governor.price=`). At 0.1 deep states are used as soon as
/// they save energy; at 2 only for sleeps that are much longer than their target residency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyPrice(pub u32);

impl LatencyPrice {
    /// Half of what a busy CPU uses.
    pub const DEFAULT: Self = Self(512);
    /// The highest that can be written.
    const MAX: u64 = 100;

    /// Reads a decimal number from 0 to 100, with up to three digits behind the point.
    ///
    /// # Errors
    /// What it is instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits = |text: &str, most: usize| {
            let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            (all && text.len() <= most)
                .then(|| text.parse::<u64>().ok())
                .flatten()
        };
        let (whole, parts) = text.split_once('.').unwrap_or((text, "0"));
        let thousandths = digits(whole, 3).zip(digits(parts, 3)).map(|(whole, part)| {
            let scale = [100, 10, 1].get(parts.len() - 1).copied().unwrap_or(1);
            whole * 1000 + part * scale
        });
        match thousandths {
            None if text.is_empty() => Err("has no value".to_string()),
            None => {
                Err("not a number like 0.5, with at most three digits on each side".to_string())
            }
            Some(price) if price > Self::MAX * 1000 => Err(format!("over {}", Self::MAX)),
            Some(price) => Ok(Self((price * 1024 / 1000) as u32)),
        }
    }
}

/// The unit of power: what POLL uses.
pub(super) const FULL: u64 = 1024;
/// The first state that stops the clock of the core.
const FIRST: u64 = 464;
/// What an early wake costs: a timer interrupt, and another decision.
pub(super) const RECHECK: u64 = 1_500;
/// No transition and no latency counts for more than this in a plan, in ns: 18 minutes.
const MOST: u64 = 1 << 40;
/// Sleeps from this on, in ns, are worth any state: 1 s.
const LONG: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct StateCost {
    /// Entry and exit, in ns of full power.
    pub transition: u64,
    /// The latency that a wake from it adds, at its price.
    pub latency: u64,
    /// In units of 1 / [`FULL`].
    pub power: u64,
    /// What the above was worked out from.
    exit_latency: Micros,
    target_residency: Micros,
    polls: bool,
}

impl StateCost {
    const NONE: Self = Self {
        transition: 0,
        latency: 0,
        power: 0,
        exit_latency: Micros::ZERO,
        target_residency: Micros::ZERO,
        polls: false,
    };

    /// What a sleep in it costs, however short.
    pub fn overhead(&self) -> u64 {
        self.transition.saturating_add(self.latency)
    }

    /// How long a sleep must be, in ns, for a deeper state to cost less than this one.
    pub fn crosses(&self, deeper: &Admitted) -> u64 {
        let more = deeper
            .overhead()
            .saturating_sub(self.transition + self.latency);
        more.saturating_mul(FULL) / self.power.saturating_sub(deeper.power).max(1)
    }
}

/// What a state is assumed to use, by the geometric mean of its target residency and exit latency, both in ns: neither
/// alone tells apart all states of a table.
///
/// [`FIRST`] up to 2 us; an eighth less with each doubling up to 64 us, where clocks stop and voltage falls. In the
/// doubling from there, in which caches are flushed and cores lose their power, 9 parts of 16 less; then a quarter less
/// with each, and from 1 ms on, where the package follows, 11 parts of 16.
fn assumed_power(residency: u64, latency: u64) -> u64 {
    let depth = residency.saturating_mul(latency).isqrt();
    let (mut power, mut at) = (FIRST, 2_000);
    while at < depth {
        let next = match at {
            ..64_000 => power * 14 / 16,
            64_000..128_000 => power * 7 / 16,
            128_000..1_024_000 => power * 12 / 16,
            _ => power * 5 / 16,
        };
        if depth - at < at {
            return power - (power - next) * (depth - at) / at;
        }
        power = next;
        at *= 2;
    }
    power
}

/// Which powers to assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Powers {
    /// Those that most machines have, more or less.
    Likely,
    /// Each deep state uses much less than the one above it: about as little as any that has been measured.
    Steep,
}

impl Powers {
    /// What a state uses at most, in 16ths of what the next shallower one does.
    fn most(self, residency: u64) -> u64 {
        match (residency, self) {
            (..64_000, _) => 11,
            (_, Self::Likely) => 15,
            (_, Self::Steep) => 5,
        }
    }
}

/// What a state that may be chosen costs, in one place: these are gone through many times in each idle period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    pub state: usize,
    /// As in [`StateCost`].
    pub transition: u64,
    pub latency: u64,
    pub power: u64,
}

impl Admitted {
    /// What a sleep in it costs, however short.
    pub fn overhead(&self) -> u64 {
        self.transition + self.latency
    }
}

/// What is new about the costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// Which states may be chosen.
    Admitted,
    /// The figures, too.
    All,
}

/// All states of a table.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    states: [StateCost; MAX_STATES],
    count: usize,
    price: LatencyPrice,
    /// Those that may be chosen, shallow to deep.
    admitted: [Admitted; MAX_STATES],
    admitted_count: usize,
    /// The same as a set.
    set: StateSet,
    /// By what they are admitted.
    latency_limit: Option<Nanos>,
    disabled: StateSet,
}

impl Costs {
    pub const NONE: Self = Self {
        states: [StateCost::NONE; MAX_STATES],
        count: 0,
        price: LatencyPrice(0),
        admitted: [Admitted {
            state: 0,
            transition: 0,
            latency: 0,
            power: 0,
        }; MAX_STATES],
        admitted_count: 0,
        set: StateSet::NONE,
        latency_limit: None,
        disabled: StateSet::NONE,
    };

    /// Makes these the costs of the context's table, and its limits. All is worked out only if it is new.
    pub fn update(
        &mut self,
        context: &IdleContext<'_>,
        price: LatencyPrice,
        powers: Powers,
    ) -> Change {
        let same = |(state, cost): (&CState, &StateCost)| {
            cost.exit_latency == state.exit_latency
                && cost.target_residency == state.target_residency
                && cost.polls == (state.method == EntryMethod::Poll)
        };
        let states = context.table.states();
        let known = self.count == states.len()
            && self.price == price
            && states.iter().zip(&self.states).all(same);
        let admitted =
            self.latency_limit == context.latency_limit && self.disabled == context.disabled;
        if known && admitted {
            return Change::None;
        }
        if known {
            self.admit(context);
            return Change::Admitted;
        }
        self.work_out(context.table, price, powers);
        self.admit(context);
        Change::All
    }

    fn admit(&mut self, context: &IdleContext<'_>) {
        self.latency_limit = context.latency_limit;
        self.disabled = context.disabled;
        self.admitted_count = 0;
        self.set = StateSet::NONE;
        for ((id, _), cost) in context.table.iter().zip(&self.states) {
            if let Some(slot) = self.admitted.get_mut(self.admitted_count)
                && context.admits(id)
            {
                *slot = Admitted {
                    state: id.index(),
                    transition: cost.transition.min(MOST),
                    latency: cost.latency.min(MOST),
                    power: cost.power,
                };
                self.admitted_count += 1;
                self.set = self.set.with(id, true);
            }
        }
    }

    fn work_out(&mut self, table: &CStateTable, price: LatencyPrice, powers: Powers) {
        self.count = table.count();
        self.price = price;
        let (mut transition, mut power) = (0, FULL);
        for ((_, state), cost) in table.iter().zip(&mut self.states) {
            let residency = state.target_residency.to_nanos().get();
            let latency = state.exit_latency.to_nanos().get();
            let polls = state.method == EntryMethod::Poll;
            let deeper = if polls {
                FULL
            } else {
                let likely = assumed_power(residency, latency);
                likely.min(power * powers.most(residency) / 16)
            };
            transition += residency.saturating_mul(power - deeper) / FULL;
            power = deeper;
            *cost = StateCost {
                transition,
                latency: latency.saturating_mul(u64::from(price.0)) / FULL,
                power,
                exit_latency: state.exit_latency,
                target_residency: state.target_residency,
                polls,
            };
        }
    }

    /// The states that may be chosen, shallow to deep.
    pub fn admitted(&self) -> &[Admitted] {
        self.admitted.get(..self.admitted_count).unwrap_or(&[])
    }

    /// The state with this index, or what [`IdleContext::nearest`] says instead of it.
    pub fn nearest(&self, context: &IdleContext<'_>, state: usize) -> usize {
        let up_to = (2_u32 << state.min(MAX_STATES)) - 1;
        match (u32::from(self.set.bits()) & up_to).checked_ilog2() {
            Some(nearest) => nearest as usize,
            None => context.nearest(state).index(),
        }
    }

    /// The shallowest state that uses less than polling does, should the deadline end the sleep.
    pub fn shallowest_worth(&self, to_timer: u64) -> usize {
        let time = to_timer.min(LONG);
        let used = |cost: &Admitted| cost.transition + cost.power * time / FULL;
        self.admitted()
            .iter()
            .find(|cost| used(cost) < time)
            .map_or(0, |cost| cost.state)
    }

    pub fn get(&self, state: usize) -> &StateCost {
        &self.states[state.min(MAX_STATES - 1)]
    }
}
