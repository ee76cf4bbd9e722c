//! One vCPU a CPU, and nothing else.

use super::*;
use crate::sched::tests::sim::{Habit, MS, SECOND, Sim, cpu, set, v};
use proptest::prelude::*;

const BUSY: Habit = Habit { work: 0, sleep: 0 };

fn on(cpus: &[usize]) -> UnitParams {
    UnitParams {
        affinity: set(cpus),
        ..UnitParams::default()
    }
}

fn machine(cpus: usize, units: usize) -> Sim<Null> {
    let mut sim = Sim::new(Null::new(cpus, units));
    sim.watchful = false;
    sim
}

/// A unit is on one CPU or in the list, a CPU has one unit, and nobody waits for a CPU that is free.
fn check(sim: &Sim<Null>) {
    let inner = sim.sched.inner.lock();
    for (index, here) in inner.here.iter().enumerate() {
        if let Some(v) = here.owner {
            let slot = &inner.slots[v.index()];
            assert_eq!(slot.cpu, Some(cpu(index)));
            assert!(slot.there && slot.hard.contains(cpu(index)));
            assert!(inner.online.contains(cpu(index)));
        }
    }
    for (index, slot) in inner.slots.iter().enumerate() {
        if let Some(cpu) = slot.cpu {
            assert_eq!(inner.owner(cpu), Some(v(index as u32)));
            if slot.runnable && slot.on.is_none() {
                panic!("v{index} is runnable, has {cpu}, and does not run");
            }
        }
    }
    assert_eq!(inner.anybody_who_could_run(), None);
}

#[test]
fn each_has_a_cpu_and_no_timer() {
    let mut sim = machine(3, 3);
    for unit in 0..3 {
        sim.run(unit, UnitParams::default(), BUSY);
    }
    sim.settle();
    let passes = sim.passes;
    assert_eq!(sim.measure(100 * SECOND, 3), [100 * SECOND; 3]);
    assert_eq!(sim.passes, passes, "nobody looks again");
    assert!((0..3).all(|index| sim.until(index).is_none()));
    check(&sim);
}

#[test]
fn the_list_is_served_in_order_preference_first() {
    let mut sim = machine(1, 4);
    let prefers_elsewhere = UnitParams {
        soft: set(&[5]),
        ..UnitParams::default()
    };
    sim.run(0, UnitParams::default(), BUSY);
    sim.run(1, prefers_elsewhere, BUSY);
    sim.run(2, UnitParams::default(), BUSY);
    sim.run(3, UnitParams::default(), BUSY);
    sim.settle();
    assert_eq!(sim.current(0), Some(v(0)));
    for next in [2, 3, 1] {
        sim.leave(0, Leave::Gone);
        sim.settle();
        assert_eq!(sim.current(0), Some(v(next)));
        check(&sim);
    }
}

#[test]
fn a_blocked_owner_keeps_its_cpu_and_a_removed_one_gives_it_up() {
    let mut sim = machine(1, 2);
    sim.run(0, UnitParams::default(), BUSY);
    sim.run(1, UnitParams::default(), BUSY);
    sim.settle();
    sim.leave(0, Leave::Blocks);
    assert_eq!(sim.current(0), None, "v1 waits all the same");
    sim.remove(v(0)).unwrap();
    sim.settle();
    assert_eq!(sim.current(0), Some(v(1)));
    check(&sim);
}

#[test]
fn a_unit_that_was_not_started_takes_no_cpu() {
    let mut sim = machine(1, 2);
    sim.add(v(0), UnitParams::default(), BUSY).unwrap();
    sim.run(1, UnitParams::default(), BUSY);
    sim.settle();
    assert_eq!(sim.current(0), Some(v(1)));
}

#[test]
fn affinity_moves_a_unit_and_makes_room() {
    let mut sim = machine(2, 3);
    sim.run(0, on(&[0]), BUSY);
    sim.run(1, on(&[0]), BUSY);
    sim.run_for(MS);
    assert_eq!((sim.current(0), sim.current(1)), (Some(v(0)), None));
    let told = sim.sched.set_affinity(v(0), set(&[1]), sim.time()).unwrap();
    sim.tickle(told);
    sim.settle();
    assert_eq!((sim.current(0), sim.current(1)), (Some(v(1)), Some(v(0))));
    check(&sim);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Units come, go, halt, wake and move, CPUs come and go: the rules hold after each step.
    #[test]
    fn every_history_keeps_the_rules(acts in prop::collection::vec((0_u8..9, 0_u32..6, 1_u8..8), 1..80)) {
        let mut sim = machine(3, 6);
        let cpus = |bits: u8| (0..3).filter(|cpu| bits & (1 << cpu) != 0).map(cpu).collect::<CpuSet>();
        for (act, unit, bits) in acts {
            let index = unit as usize % 3;
            match act {
                0 | 1 => {
                    let params = UnitParams { affinity: cpus(bits), soft: cpus(7 - bits), ..UnitParams::default() };
                    let _ = sim.add(v(unit), params, BUSY);
                    sim.start(v(unit));
                }
                2 => drop(sim.remove(v(unit))),
                3 => sim.leave(index, Leave::Blocks),
                4 => sim.kick(v(unit), WakeBy::Event),
                5 => {
                    if let Ok(told) = sim.sched.set_affinity(v(unit), cpus(bits), sim.time()) {
                        sim.tickle(told);
                    }
                }
                6 => sim.leave(index, Leave::Gone),
                7 => drop(sim.cpu_offline(index)),
                _ if !sim.is_online(index) => sim.cpu_online(index),
                _ => {}
            }
            sim.settle();
            check(&sim);
        }
    }
}
