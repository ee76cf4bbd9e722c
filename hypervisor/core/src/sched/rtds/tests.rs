//! Budgets in every period, inside the bound.

use super::*;
use crate::sched::UnitDetail;
use crate::sched::tests::sim::{Habit, MS, SECOND, Sim, US, cpu, rate, set, v};
use crate::units::Micros;
use proptest::prelude::*;

const BUSY: Habit = Habit { work: 0, sleep: 0 };

fn reserves(period_us: u64, budget_us: u64, extratime: bool) -> UnitParams {
    UnitParams {
        rt: RtParams::new(Micros::new(period_us), Micros::new(budget_us), extratime).unwrap(),
        ..UnitParams::default()
    }
}

fn machine(cpus: usize, units: usize) -> Sim<Rtds> {
    let mut sim = Sim::new(Rtds::new(cpus, units, rate()));
    sim.watchful = false;
    sim
}

fn missed(sim: &Sim<Rtds>, unit: u32) -> u64 {
    match sim.row(unit).detail {
        UnitDetail::Rt { missed, .. } => missed,
        other => panic!("{other:?}"),
    }
}

/// Everything that must hold when all CPUs have looked.
fn check(sim: &Sim<Rtds>) {
    let inner = sim.sched.inner.lock();
    let idle = sim.idle();
    for (index, slot) in inner.slots.iter().enumerate() {
        let waits = inner
            .waiting
            .iter(&sim.sched.run_links)
            .any(|at| at == index);
        let due = inner
            .deadlines
            .iter(&sim.sched.deadline_links)
            .any(|at| at == index);
        let runnable = matches!(slot.place, Place::Queued | Place::Depleted | Place::Running);
        assert_eq!(waits, slot.place == Place::Queued, "v{index}");
        assert_eq!(due, runnable, "v{index}: {:?}", slot.place);
        if waits {
            assert!(slot.left > Ticks::ZERO, "v{index} waits without budget");
            assert!(
                slot.hard.intersection(&idle).is_empty(),
                "v{index} waits beside an idle CPU"
            );
        }
    }
    if let Some(first) = inner.first_deadline() {
        let (keeper, _) = inner.keeper.expect("somebody keeps the timer");
        assert!(
            sim.until(keeper.index())
                .is_some_and(|until| until <= first.get())
        );
    }
}

#[test]
fn each_gets_its_budget_and_no_more_without_extra_time() {
    let mut sim = machine(1, 2);
    sim.run(0, reserves(10_000, 4_000, false), BUSY);
    sim.run(1, reserves(5_000, 1_000, false), BUSY);
    sim.run_for(100 * MS);
    let got = sim.measure(SECOND, 2);
    assert_eq!(got, [400 * MS, 200 * MS]);
    assert_eq!((missed(&sim, 0), missed(&sim, 1)), (0, 0));
}

#[test]
fn extra_time_goes_to_whoever_has_used_up_less() {
    let mut sim = machine(1, 2);
    sim.run(0, reserves(10_000, 1_000, true), BUSY);
    sim.run(1, reserves(10_000, 4_000, false), BUSY);
    sim.run_for(100 * MS);
    let got = sim.measure(SECOND, 2);
    assert_eq!(got, [600 * MS, 400 * MS], "nothing is left over");
    assert_eq!(missed(&sim, 1), 0);
}

#[test]
fn levels_do_not_wrap() {
    let mut slot = Slot {
        place: Place::Running,
        period: Ticks::new(3600 * SECOND),
        budget: Ticks::new(10 * US),
        left: Ticks::new(10 * US),
        deadline: Ticks::new(3600 * SECOND),
        extratime: true,
        ..Slot::default()
    };
    let fresh = slot.key(rate());
    let mut last = fresh;
    for now in [SECOND, 10 * SECOND, 1000 * SECOND, u64::MAX / 2] {
        slot.burn(Ticks::new(now));
        let key = slot.key(rate());
        assert!(key >= last && key > fresh, "after {now}");
        last = key;
    }
    assert!(slot.left > Ticks::ZERO);
}

#[test]
fn a_set_that_cannot_fit_is_refused_and_nothing_changes() {
    let mut sim = machine(2, 4);
    for unit in 0..2 {
        sim.run(unit, reserves(10_000, 9_000, false), BUSY);
    }
    let third = sim.add(v(2), reserves(10_000, 3_000, false), BUSY);
    assert_eq!(
        third,
        Err(SchedError::Overbooked {
            asked: 2_100_000,
            there: 2_000_000
        })
    );
    assert_eq!(
        std::format!("{}", third.unwrap_err()),
        "all budgets together need 2.100 CPUs: expected at most 2"
    );
    assert!(sim.sched.remove(v(2)).is_err(), "it is not there");
    sim.run(2, reserves(10_000, 2_000, false), BUSY);
    let more = RtParams::new(Micros::new(10_000), Micros::new(2_001), false).unwrap();
    assert!(sim.sched.set_rt(v(2), more, sim.time()).is_err());
    let less = RtParams::new(Micros::new(10_000), Micros::new(1_000), false).unwrap();
    assert_eq!(sim.sched.set_rt(v(2), less, sim.time()), Ok(()));
    sim.run_for(100 * MS);
    let got = sim.measure(SECOND, 3);
    assert_eq!(got[2], 100 * MS);
}

#[test]
fn the_bound_says_what_is_guaranteed() {
    let mut sim = machine(2, 3);
    // 2 - 1 × 0.5 = 1.5
    for unit in 0..3 {
        sim.run(unit, reserves(10_000, 5_000, false), BUSY);
    }
    assert_eq!(sim.sched.admission(), Admission::Guaranteed);
    let more = RtParams::new(Micros::new(10_000), Micros::new(6_000), false).unwrap();
    sim.sched.set_rt(v(0), more, sim.time()).unwrap();
    assert_eq!(
        sim.sched.admission(),
        Admission::Tardy {
            reserved: 1_600_000,
            guaranteed: 1_400_000
        }
    );
}

#[test]
fn a_blocked_unit_costs_no_timer() {
    let mut sim = machine(1, 1);
    sim.run(0, reserves(10_000, 4_000, true), BUSY);
    sim.run_for(MS);
    sim.leave(0, Leave::Blocks);
    sim.settle();
    assert_eq!((sim.current(0), sim.until(0)), (None, None));
    check(&sim);
}

#[test]
fn a_depleted_unit_that_is_given_extra_time_does_not_run_without_budget() {
    let mut sim = machine(1, 1);
    sim.run(0, reserves(10_000, 1_000, false), BUSY);
    sim.run_for(5 * MS);
    assert_eq!(sim.current(0), None);
    let extra = RtParams::new(Micros::new(10_000), Micros::new(1_000), true).unwrap();
    sim.sched.set_rt(v(0), extra, sim.time()).unwrap();
    sim.pass(0, Leave::Runnable);
    assert_eq!(sim.current(0), None);
    sim.run_for(6 * MS);
    assert_eq!(sim.current(0), Some(v(0)), "in its next period");
    check(&sim);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whoever never halts has its whole budget in every period, if the set is inside the bound.
    #[test]
    fn no_deadline_is_missed_inside_the_bound(
        cpus in 1_usize..5,
        wanted in prop::collection::vec((1_u64..40, 1_u64..100, any::<bool>()), 1..10),
    ) {
        let mut sim = machine(cpus, wanted.len());
        let mut admitted = std::vec::Vec::new();
        for (unit, &(period, percent, extratime)) in (0..).zip(&wanted) {
            let (period, budget) = (period * 1000, (period * 10 * percent).max(10));
            if sim.add(v(unit), reserves(period, budget, extratime), BUSY).is_err() {
                continue;
            }
            if sim.sched.admission() == Admission::Guaranteed {
                admitted.push(unit);
            } else {
                sim.remove(v(unit)).unwrap();
            }
        }
        for &unit in &admitted {
            sim.start(v(unit));
        }
        for _ in 0..20 {
            sim.run_for(17 * MS);
            check(&sim);
        }
        for unit in admitted {
            prop_assert_eq!(missed(&sim, unit), 0, "v{} of {:?}", unit, wanted);
        }
    }

    #[test]
    fn every_history_keeps_the_rules(acts in prop::collection::vec((0_u8..10, 0_u32..6, 1_u8..8, 1_u64..15_000), 1..80)) {
        let mut sim = machine(3, 6);
        let cpus = |bits: u8| (0..3).filter(|cpu| bits & (1 << cpu) != 0).map(cpu).collect::<CpuSet>();
        for (act, unit, bits, micros) in acts {
            let index = unit as usize % 3;
            match act {
                0 | 1 => {
                    let params = UnitParams { affinity: cpus(bits), ..reserves(micros + 10, (micros / 3).max(10), bits > 3) };
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
                6 => drop(sim.cpu_offline(index)),
                7 if !sim.is_online(index) => sim.cpu_online(index),
                8 => sim.leave(index, Leave::Yields),
                _ => sim.run_for(micros * US),
            }
            sim.settle();
            check(&sim);
        }
        let _ = (set(&[]), SECOND);
    }
}
