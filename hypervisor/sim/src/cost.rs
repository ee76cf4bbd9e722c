//! What idleness costs: energy by state, and the latency that exits add.
//!
//! The unit of energy is the microjoule of a core that uses one watt when busy (or polling): powers are shares of that.
//! A target residency is by its meaning the length from which a state saves energy against the one above it; so the
//! energy of a transition is fixed by the residencies and the powers: `E[i] = E[i-1] + (P[i-1] - P[i]) * R[i]`. A stay of
//! `d` in state `i` costs `E[i] + P[i] * d`; the wake from it comes late by the exit latency, and whoever waits for the
//! CPU pays the price of that.

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

    /// The least that an idle period of `ns` costs in one state, if its length is known: uJ, latency at `price` uJ/us.
    pub fn least(&self, ns: u64, price: f64) -> (f64, usize) {
        let costs = (0..self.power.len()).map(|state| {
            let latency = self.latency_ns[state] as f64 / 1000.0;
            (self.energy(state, ns) + price * latency, state)
        });
        costs
            .min_by(|left, right| left.0.total_cmp(&right.0))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::SKX;

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

    #[test]
    fn a_price_on_latency_moves_the_best_choice_up() {
        let model = CostModel::new(&SKX);
        assert_eq!(model.least(700_000, 0.0).1, 3);
        assert_eq!(model.least(700_000, 2.0).1, 2);
        assert_eq!(model.least(30_000, 2.0).1, 1);
        assert_eq!(model.least(100_000_000, 2.0).1, 3);
    }
}
