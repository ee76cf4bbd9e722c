//! Faults that schedulers of this kind have had, one test each.

use super::super::rules::{CREDIT_INIT, DEBT_RESETS};
use super::*;
use crate::sched::Leave;

#[test]
fn a_unit_that_ran_for_an_hour_at_once_is_still_chosen_before_idling() {
    let mut sim = flat(1, 2);
    sim.run(0, weighing(1), BUSY);
    sim.run(1, weighing(65535), BUSY);
    sim.settle();
    sim.leave(0, Leave::Blocks);
    sim.now += 3600 * SECOND;
    sim.pass(0, Leave::Runnable);
    assert!(sim.current(0).is_some(), "a debt is no reason to idle");
    let least = -(DEBT_RESETS * CREDIT_INIT.to_nanos().get() as i64);
    assert!(credit(&sim, 0) >= least && credit(&sim, 1) >= least);
}

#[test]
fn a_reset_looks_at_the_head_of_the_queue_and_gives_to_all() {
    let mut sim = flat(1, 3);
    for unit in 0..3 {
        sim.run(unit, weighing(256), BUSY);
    }
    for _ in 0..100 {
        sim.run_for(3 * MS);
        let most = (0..3).map(|unit| credit(&sim, unit)).max().unwrap();
        // What runs may just have used up its last; what waits has not, or all would have been given new.
        assert!(most > -10 * MS as i64, "{most}");
    }
    let got = sim.measure(3 * SECOND, 3);
    assert!(
        got.iter().all(|&ran| ran.abs_diff(SECOND) < 20 * MS),
        "{got:?}"
    );
}

#[test]
fn a_unit_that_may_not_run_here_does_not_end_the_search() {
    let mut sim = flat(2, 4);
    // Two with the most credit may run on CPU 0 only; a third has less.
    sim.run(0, pinned(&[0]), BUSY);
    sim.run(1, pinned(&[0]), BUSY);
    sim.run(2, pinned(&[0]), BUSY);
    sim.run(3, weighing(256), BUSY);
    sim.settle();
    assert_eq!(sim.current(1), Some(v(3)));
    sim.check();
}

#[test]
fn a_unit_without_budget_does_not_end_the_search() {
    let mut sim = flat(1, 2);
    let capped = UnitParams {
        domain: DomId::new(1),
        cap: Cap::new(1),
        weight: Weight::new(60000).unwrap(),
        ..UnitParams::default()
    };
    sim.run(0, capped, BUSY);
    sim.run(1, weighing(1), BUSY);
    let got = sim.measure(SECOND, 2);
    assert_eq!(got[0] + got[1], SECOND, "the CPU never idles");
}

#[test]
fn running_units_are_charged_before_a_reset() {
    // One runs on CPU 1 all the time, uncharged unless the reset does it; then it would keep all its credit.
    let mut sim = flat(2, 3);
    sim.run(0, pinned(&[1]), BUSY);
    sim.run(1, pinned(&[0]), BUSY);
    sim.run(2, pinned(&[0]), BUSY);
    sim.run_for(SECOND);
    let told = sim.sched.set_affinity(v(0), set(&[0]), sim.time()).unwrap();
    sim.tickle(told);
    sim.settle();
    let got = sim.measure(SECOND, 3);
    assert!(
        got.iter().all(|&ran| ran.abs_diff(SECOND / 3) < 30 * MS),
        "{got:?}"
    );
}

#[test]
fn two_units_do_not_hold_each_other_off_for_whole_slices() {
    // What was just taken off counts as a rival, though it is not in the queue yet.
    let mut sim = flat(1, 2);
    sim.run(0, weighing(256), BUSY);
    sim.run(1, weighing(256), BUSY);
    sim.run_for(MS);
    for _ in 0..100 {
        let until = sim.until(0).unwrap();
        assert!(until - sim.now <= 10 * MS);
        sim.run_until(until);
    }
    assert!(sim.passes > 100);
    let got = sim.measure(200 * MS, 2);
    assert!(got[0].abs_diff(got[1]) <= 11 * MS, "{got:?}");
}

#[test]
fn a_cpu_that_was_told_is_not_told_twice() {
    let mut sim = flat(3, 2);
    for unit in 0..2 {
        sim.add(v(unit), weighing(256), BUSY).unwrap();
        assert!(sim.sched.units().get(v(unit)).unwrap().state.online());
    }
    let first = sim.sched.wake(v(0), sim.time(), WakeBy::Event);
    let second = sim.sched.wake(v(1), sim.time(), WakeBy::Event);
    assert_eq!((first.len(), second.len()), (1, 1));
    assert!(first.intersection(&second).is_empty());
}

#[test]
fn a_kick_in_the_last_moment_cancels_the_block() {
    let mut sim = flat(1, 1);
    sim.run(0, weighing(256), BUSY);
    sim.settle();
    let prev = Prev {
        unit: v(0),
        leave: Leave::Blocks,
    };
    let decision = sim.sched.schedule(cpu(0), sim.time(), Some(prev));
    assert_eq!(decision.run, None);
    sim.kick(v(0), WakeBy::Event);
    let told = sim.sched.context_saved(cpu(0), prev, sim.time());
    assert_eq!(told, set(&[0]), "it runs again, and is not blocked");
}

#[test]
fn the_largest_weight_follows_who_comes_and_goes() {
    let max = |sim: &Sim<Credit2>| {
        let mut max = 0;
        sim.sched.dump(sim.time(), |row| {
            if let DumpRow::Queue(row) = row {
                max = row.max_weight;
            }
        });
        max
    };
    let mut sim = flat(1, 4);
    for (unit, weight) in [(0, 100), (1, 300), (2, 300), (3, 200)] {
        sim.run(unit, weighing(weight), BUSY);
    }
    sim.settle();
    assert_eq!(max(&sim), 300);
    let now = sim.time();
    sim.sched
        .set_weight(v(1), Weight::new(50).unwrap(), now)
        .unwrap();
    assert_eq!(max(&sim), 300, "one more has it");
    sim.remove(v(2)).unwrap();
    sim.settle();
    assert_eq!(max(&sim), 200);
    sim.sched
        .set_weight(v(3), Weight::new(150).unwrap(), now)
        .unwrap();
    assert_eq!(max(&sim), 150);
    sim.sched
        .set_weight(v(0), Weight::new(400).unwrap(), now)
        .unwrap();
    assert_eq!(max(&sim), 400);
    sim.sched
        .set_weight(v(0), Weight::new(400).unwrap(), now)
        .unwrap();
    sim.remove(v(0)).unwrap();
    sim.settle();
    assert_eq!(max(&sim), 150);
}

#[test]
fn balancing_is_decided_by_the_pair_that_would_be_balanced() {
    // Four runqueues; the last has hardly any load, and must not be what the threshold is taken from: the pair is at
    // capacity, so a part of a unit's load is worth a move.
    let mut sim = machine(Topology::flat(4), 8, config(Arrangement::Cpu));
    sim.watchful = false;
    for unit in 0..3 {
        sim.run(unit, pinned(&[0, 1]), BUSY);
    }
    sim.run(3, pinned(&[2]), BUSY);
    sim.run_for(SECOND);
    let got = sim.measure(6 * SECOND, 3);
    let least = got.iter().min().unwrap();
    assert!(*least >= 6 * SECOND * 45 / 100, "{got:?}");
    assert_eq!(got.iter().sum::<u64>(), 12 * SECOND);
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut sim = flat(2, 2);
    sim.run(0, pinned(&[1]), BUSY);
    sim.settle();
    let now = sim.time();
    let nowhere = set(&[7]);
    assert_eq!(
        sim.sched.set_affinity(v(0), nowhere, now),
        Err(SchedError::NoOnlineCpu(nowhere))
    );
    assert_eq!(sim.row(0).affinity, set(&[1]));
    assert_eq!(
        sim.add(
            v(1),
            UnitParams {
                affinity: nowhere,
                ..UnitParams::default()
            },
            BUSY
        ),
        Err(SchedError::NoOnlineCpu(nowhere))
    );
    assert_eq!(
        sim.add(v(0), UnitParams::default(), BUSY),
        Err(SchedError::SlotTaken(v(0)))
    );
    let foreign = UnitParams {
        domain: DomId::new(500),
        ..UnitParams::default()
    };
    assert_eq!(
        sim.add(v(1), foreign, BUSY),
        Err(SchedError::NoSuchDomain(DomId::new(500)))
    );
    assert_eq!(
        sim.sched.set_weight(v(1), Weight::DEFAULT, now),
        Err(SchedError::NoUnit(v(1)))
    );
    assert_eq!(sim.cpu_offline(1), Err(SchedError::CpuBusy(cpu(1))));
    assert_eq!(
        sim.sched.set_rt(v(0), crate::sched::RtParams::DEFAULT, now),
        Err(SchedError::NotKnown("period"))
    );
}

#[test]
fn pinning_does_not_make_a_unit_wait_while_its_cpu_is_free() {
    let mut sim = flat(4, 3);
    for unit in 0..3 {
        sim.run(unit, pinned(&[1 + unit as usize]), BUSY);
    }
    sim.settle();
    for unit in 0..3 {
        assert_eq!(sim.current(1 + unit as usize), Some(v(unit)));
    }
    let got = sim.measure(SECOND, 3);
    assert_eq!(got, [SECOND; 3]);
}
