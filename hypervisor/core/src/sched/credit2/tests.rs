//! Credit2 on the simulated machine.

mod caps;
mod faults;
mod rules;
mod shares;

use super::*;
use crate::sched::tests::sim::{Habit, MS, SECOND, Sim, US, cpu, rate, set, v};

/// Works for ever.
const BUSY: Habit = Habit { work: 0, sleep: 0 };

fn config(arrangement: Arrangement) -> Config {
    Config {
        arrangement,
        ..Config::default()
    }
}

fn machine(topology: Topology, units: usize, config: Config) -> Sim<Credit2> {
    Sim::new(Credit2::new(topology, units, 8, rate(), &config))
}

fn flat(cpus: usize, units: usize) -> Sim<Credit2> {
    machine(Topology::flat(cpus), units, config(Arrangement::All))
}

/// Not checked at each event: for long runs.
fn blind(cpus: usize, units: usize) -> Sim<Credit2> {
    let mut sim = flat(cpus, units);
    sim.watchful = false;
    sim
}

fn weighing(weight: u16) -> UnitParams {
    UnitParams {
        weight: Weight::new(weight).unwrap(),
        ..UnitParams::default()
    }
}

fn pinned(cpus: &[usize]) -> UnitParams {
    UnitParams {
        affinity: set(cpus),
        ..UnitParams::default()
    }
}

fn credit(sim: &Sim<Credit2>, unit: u32) -> i64 {
    match sim.row(unit).detail {
        crate::sched::UnitDetail::Credit { credit, .. } => credit,
        other => panic!("{other:?}"),
    }
}

/// Within so many per mille of `expected` parts of `whole`.
fn assert_share(got: u64, expected: f64, whole: u64, per_mille: f64, who: &str) {
    let share = got as f64 / whole as f64;
    assert!(
        (share - expected).abs() <= expected * per_mille / 1000.0,
        "{who}: {share:.4}, expected {expected:.4}"
    );
}
