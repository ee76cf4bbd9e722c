//! What idleness costs: energy by state, and the latency that exits add.
//!
//! The unit of energy is the microjoule of a core that uses one watt when busy (or polling): powers are shares of that.
//! A target residency is by its meaning the length from which a state saves energy against the one above it; so the
//! energy of a transition is fixed by the residencies and the powers: `E[i] = E[i-1] + (P[i-1] - P[i]) * R[i]`. A stay of
//! `d` in state `i` costs `E[i] + P[i] * d`; the wake from it comes late by the exit latency, and whoever waits for the
//! CPU pays the price of that.
//!
//! A stay may also end early, by a limit. The way out then begins before the event, takes the exit latency, and draws
//! full power until the event, as everything does that is neither sleep nor work; what is left of it then is latency.

use lull_core::cstate::{CState, CStateFlags, CStateTable, EntryMethod, MwaitHint};
use lull_core::platform::IrqGate;
use lull_core::units::Micros;

/// What a wake for nothing but another decision costs, in ns at full power: an interrupt and the governor's time.
pub const RECHECK_NS: u64 = 2_000;

/// One state, as a machine has it.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// As people call it.
    pub name: &'static str,
    /// In us.
    pub exit_latency: u64,
    /// In us.
    pub target_residency: u64,
    /// As a share of the power when busy.
    pub power: f64,
}

/// The states of one machine, POLL not among them.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// As people call it.
    pub name: &'static str,
    /// Shallow to deep.
    pub states: &'static [State],
}

/// The costs of all states of a table, by index; POLL is the first.
#[derive(Clone, Debug)]
pub struct CostModel {
    /// What the governors see.
    pub table: CStateTable,
    transition: Vec<f64>,
    power: Vec<f64>,
    latency_ns: Vec<u64>,
}

impl CostModel {
    /// The costs of a machine.
    ///
    /// # Panics
    /// If it has more states than a table can hold: machines are built in.
    #[expect(clippy::expect_used, reason = "machines are built in, and tested")]
    pub fn new(machine: &Machine) -> Self {
        let states = machine.states.iter().map(|state| CState {
            name: state.name,
            method: EntryMethod::Mwait {
                hint: MwaitHint::C1,
                gate: IrqGate::Masked,
            },
            flags: CStateFlags::empty(),
            exit_latency: Micros::new(state.exit_latency),
            target_residency: Micros::new(state.target_residency),
        });
        let all: Vec<_> = [CState::POLL].into_iter().chain(states).collect();
        let (mut transition, mut power, mut latency_ns) = (vec![0.0], vec![1.0], vec![0]);
        for (index, state) in machine.states.iter().enumerate() {
            let saved = power[index] - state.power;
            transition.push(transition[index] + saved * state.target_residency as f64);
            power.push(state.power);
            latency_ns.push(state.exit_latency * 1000);
        }
        Self {
            table: CStateTable::new(&all).expect("a machine's states fit into a table"),
            transition,
            power,
            latency_ns,
        }
    }

    /// The energy of a stay of `ns` in the state with this index, in uJ.
    pub fn energy(&self, state: usize, ns: u64) -> f64 {
        self.transition[state] + self.power[state] * ns as f64 / 1000.0
    }

    /// How late a wake from the state is, in ns.
    pub fn latency_ns(&self, state: usize) -> u64 {
        self.latency_ns[state]
    }

    /// The energy of a wake for another decision, without the state's own.
    pub fn recheck(&self) -> f64 {
        RECHECK_NS as f64 / 1000.0
    }

    /// The energy of a way out that a limit began `ns` before the event that ends the idle period, or before the way out
    /// was done, and of the wake itself.
    pub fn early_exit(&self, ns: u64) -> f64 {
        self.recheck() + ns as f64 / 1000.0
    }

    /// The least that an idle period of `ns` can cost whatever is done in it: uJ, latency at `price` uJ/us. And the state
    /// that is the best, or the only but POLL.
    ///
    /// No plan of any number of stays costs less. The cost of a plan is linear in the lengths of its stays. So of two
    /// stays, one may as well be as short as it can be; a stay that is nothing but its way out costs more than to poll for
    /// so long. That leaves one stay: to the event, or with the way out ending just there. (Between the two the cost is
    /// linear again; and behind an earlier way out one can only poll.)
    pub fn least(&self, ns: u64, price: f64) -> (f64, usize) {
        let costs = (0..self.power.len()).flat_map(|state| {
            let exit = self.latency_ns(state);
            let late = self.energy(state, ns) + price * exit as f64 / 1000.0;
            let in_time = ns
                .checked_sub(exit)
                .map(|stay| self.energy(state, stay) + self.early_exit(exit));
            [(late, state)]
                .into_iter()
                .chain(in_time.map(|cost| (cost, state)))
        });
        costs
            .min_by(|left, right| left.0.total_cmp(&right.0))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::{self, SKX};
    use crate::rng::Rng;

    #[test]
    fn neighbours_cost_the_same_at_the_target_residency() {
        let model = CostModel::new(&SKX);
        for state in 1..model.table.count() {
            let id = model.table.id(state).unwrap();
            let at = model.table.state(id).target_residency.to_nanos().get();
            let difference = model.energy(state, at) - model.energy(state - 1, at);
            assert!(difference.abs() < 1e-9, "{state}: {difference}");
            assert!(model.energy(state, at + 1000) < model.energy(state - 1, at + 1000));
        }
    }

    /// What a plan of stays with limits costs: the arithmetic of a replay, once more and without a governor.
    fn cost_of(model: &CostModel, plan: &[(usize, u64)], length: u64, price: f64) -> f64 {
        let (mut at, mut cost) = (0, 0.0);
        let forever = [(0, u64::MAX)];
        for &(state, limit) in plan.iter().chain(&forever) {
            let stay = limit.min(length - at);
            let resumed = at + stay + model.latency_ns(state);
            cost += model.energy(state, stay);
            if at + stay < length {
                cost += model.early_exit(resumed.min(length) - at - stay);
            }
            if resumed >= length {
                return cost + price * (resumed - length) as f64 / 1000.0;
            }
            at = resumed;
        }
        cost
    }

    #[test]
    fn no_plan_costs_less_than_the_least() {
        let mut rng = Rng::new(0x0_A11);
        let mut nearly = 0;
        for machine in machines::ALL {
            let model = CostModel::new(&machine);
            let deepest = model.table.count() as u64 - 1;
            for _ in 0..20_000 {
                let about = 1_000 << rng.between(0, 15);
                let length = 1 + rng.exponential(about);
                let price = [0.0, 0.1, 0.5, 2.0, 20.0][rng.between(0, 4) as usize];
                let stays = rng.between(1, 4);
                let plan: Vec<_> = (0..stays)
                    .map(|_| {
                        let state = rng.between(0, deepest) as usize;
                        let exit = model.latency_ns(state);
                        let limit = match rng.between(0, 3) {
                            0 => length.saturating_sub(exit).max(1),
                            1 => rng.between(1, length),
                            2 => 1,
                            _ => u64::MAX,
                        };
                        (state, limit)
                    })
                    .collect();
                let (least, _) = model.least(length, price);
                let cost = cost_of(&model, &plan, length, price);
                assert!(
                    cost >= least - 1e-9 * least,
                    "{} {length} {price} {plan:?}",
                    machine.name
                );
                nearly += u32::from(cost <= least * (1.0 + 1e-9));
            }
        }
        // It is a bound that is reached, too.
        assert!(nearly > 2_000, "{nearly}");
    }

    #[test]
    fn who_knows_the_future_leaves_early_where_latency_costs_more_than_waiting() {
        let model = CostModel::new(&SKX);
        let (length, exit) = (5_000_000, 133_000);
        let in_time = model.energy(3, length - exit) + 2.0 + 133.0;
        assert_eq!(model.least(length, 2.0), (in_time, 3));
        let late = model.energy(3, length) + 0.5 * 133.0;
        assert_eq!(model.least(length, 0.5), (late, 3));
    }

    #[test]
    fn a_price_on_latency_moves_the_best_choice_up() {
        let model = CostModel::new(&SKX);
        assert_eq!(model.least(700_000, 0.0).1, 3);
        assert_eq!(model.least(700_000, 2.0).1, 2);
        assert_eq!(model.least(30_000, 2.0).1, 1);
        assert_eq!(model.least(100_000_000, 2.0).1, 3);
    }
}
