//! One rule each.

use super::super::*;
use super::sim::*;
use crate::sched::unit::Phase;

fn phase(sim: &Sim, unit: VcpuId) -> Phase {
    sim.fair.units().get(unit).unwrap().state.phase()
}

#[test]
fn two_wakes_claim_two_cpus() {
    let mut sim = Sim::new(3, 2);
    for unit in 0..2 {
        sim.add(v(unit), Weight::DEFAULT, CpuSet::ALL);
        assert!(sim.fair.units().get(v(unit)).unwrap().state.online());
    }
    // Neither CPU has looked yet when the second wake comes.
    let first = sim.fair.wake(v(0), sim.time(), WakeBy::Event).lowest();
    let second = sim.fair.wake(v(1), sim.time(), WakeBy::Event).lowest();
    assert!(first.is_some() && second.is_some());
    assert_ne!(first, second);
    assert_eq!(sim.fair.idle_cpus().len(), 1);
}

#[test]
fn a_wake_is_for_one_unit_and_once() {
    let mut sim = Sim::new(1, 1);
    assert_eq!(
        sim.fair.wake(v(0), sim.time(), WakeBy::Event).lowest(),
        None,
        "no such unit"
    );
    sim.add(v(0), Weight::DEFAULT, CpuSet::ALL);
    assert_eq!(
        sim.fair.wake(v(0), sim.time(), WakeBy::Event).lowest(),
        None,
        "it is offline"
    );
    sim.start(v(0));
    assert_eq!(
        sim.fair.wake(v(0), sim.time(), WakeBy::Event).lowest(),
        None,
        "it is queued already"
    );
    sim.settle();
    sim.check();
    assert_eq!(sim.current(0), Some(v(0)));
}

#[test]
fn a_kick_in_the_last_moment_cancels_the_block() {
    let mut sim = Sim::new(1, 1);
    sim.busy(&[256]);
    let prev = Prev {
        unit: v(0),
        leave: Leave::Blocks,
    };
    let decision = sim.fair.schedule(cpu(0), sim.time(), Some(prev));
    assert_eq!(decision.run, None);
    // The registers are not saved yet: it still counts as running, and nobody may take it.
    assert_eq!(phase(&sim, v(0)), Phase::Running(cpu(0)));
    sim.kick(v(0));
    let tickle = sim.fair.context_saved(cpu(0), prev, sim.time()).lowest();
    assert_eq!(tickle, Some(cpu(0)), "it runs again, and is not blocked");
    assert_eq!(phase(&sim, v(0)), Phase::Queued);
}

#[test]
fn a_woken_unit_preempts_if_it_is_owed_enough() {
    let mut sim = Sim::new(1, 2);
    sim.busy(&[256, 256]);
    let sleeper = sim.current(0).unwrap();
    sim.leave(0, Leave::Blocks);
    let other = sim.current(0).unwrap();
    // A moment later they are even: no reason to cut the other's slice short.
    sim.run_for(1000);
    sim.kick(sleeper);
    sim.settle();
    assert_eq!(sim.current(0), Some(other));
    sim.leave(0, Leave::Blocks);
    assert_eq!(sim.current(0), Some(sleeper));
    sim.run_for(5 * SLICE);
    sim.kick(other);
    sim.settle();
    assert_eq!(sim.current(0), Some(other));
}

#[test]
fn a_spurious_resched_cuts_no_slice_short() {
    let mut sim = Sim::new(1, 2);
    sim.busy(&[256, 256]);
    let runs = sim.current(0);
    for _ in 0..10 {
        sim.run_for(SLICE / 11);
        sim.pass(0, Leave::Runnable);
        assert_eq!(sim.current(0), runs);
    }
    sim.run_for(SLICE / 11 + 100);
    assert_ne!(
        sim.current(0),
        runs,
        "and the slice still ends when it was to end"
    );
}

#[test]
fn a_yield_lets_the_other_run_and_costs_nothing() {
    let mut sim = Sim::new(1, 2);
    sim.busy(&[256, 256]);
    let first = sim.current(0).unwrap();
    sim.leave(0, Leave::Yields);
    let second = sim.current(0).unwrap();
    assert_ne!(first, second);
    sim.leave(0, Leave::Yields);
    assert_eq!(sim.current(0), Some(first));
    let got = sim.measure(SECOND, 2);
    assert!(got[0].abs_diff(got[1]) <= 2 * SLICE);
    // Alone, it runs on.
    sim.leave(0, Leave::Blocks);
    let alone = sim.current(0);
    sim.leave(0, Leave::Yields);
    assert_eq!(sim.current(0), alone);
}

#[test]
fn pinned_units_stay_where_they_are_while_others_are_idle() {
    let mut sim = Sim::new(4, 3);
    for unit in 0..3 {
        sim.add(v(unit), Weight::DEFAULT, CpuSet::single(cpu(2)));
        sim.start(v(unit));
    }
    for _ in 0..100 {
        sim.run_for(SLICE);
        sim.check();
    }
    assert_eq!(sim.migrations, 0);
    assert_eq!(sim.fair.idle_cpus().len(), 3);
}

#[test]
fn affinity_moves_what_runs_and_what_waits() {
    let mut sim = Sim::new(2, 3);
    for unit in 0..3 {
        sim.add(v(unit), Weight::DEFAULT, CpuSet::single(cpu(0)));
        sim.start(v(unit));
    }
    sim.settle();
    let running = sim.current(0).unwrap();
    let waiting = (0..3).map(v).find(|&unit| unit != running).unwrap();
    let target = sim
        .fair
        .set_affinity(waiting, CpuSet::single(cpu(1)), sim.time())
        .unwrap();
    assert_eq!(target, CpuSet::single(cpu(1)));
    sim.tickle(target);
    sim.settle();
    assert_eq!(sim.where_runs(waiting), Some(1));
    let target = sim
        .fair
        .set_affinity(running, CpuSet::single(cpu(1)), sim.time())
        .unwrap();
    assert_eq!(target, CpuSet::single(cpu(0)), "that CPU must let go of it");
    sim.tickle(target);
    sim.settle();
    sim.check();
    assert_ne!(sim.where_runs(running), Some(0));
    assert_eq!(
        sim.fair.set_affinity(running, CpuSet::EMPTY, sim.time()),
        Err(SchedError::NoOnlineCpu(CpuSet::EMPTY))
    );
}

#[test]
fn a_wider_affinity_is_used_at_once() {
    let mut sim = Sim::new(2, 2);
    for unit in 0..2 {
        sim.add(v(unit), Weight::DEFAULT, CpuSet::single(cpu(0)));
        sim.start(v(unit));
    }
    sim.settle();
    let waiting = (0..2).map(v).find(|&u| Some(u) != sim.current(0)).unwrap();
    let target = sim
        .fair
        .set_affinity(waiting, CpuSet::ALL, sim.time())
        .unwrap();
    sim.tickle(target);
    sim.settle();
    assert_eq!(sim.where_runs(waiting), Some(1));
}

#[test]
fn removal_frees_the_slot_from_every_state() {
    let mut sim = Sim::new(1, 4);
    sim.busy(&[256, 256, 256]);
    sim.add(v(3), Weight::DEFAULT, CpuSet::ALL);
    assert_eq!(sim.fair.remove(v(3)), Ok(Removal::Done), "offline");
    let running = sim.current(0).unwrap();
    sim.leave(0, Leave::Blocks);
    assert_eq!(phase(&sim, running), Phase::Blocked);
    assert_eq!(sim.fair.remove(running), Ok(Removal::Done), "blocked");
    assert_eq!(sim.fair.remove(running), Err(SchedError::NoUnit(running)));
    let waiting = (0..3)
        .map(v)
        .find(|&unit| phase(&sim, unit) == Phase::Queued)
        .unwrap();
    assert_eq!(sim.fair.remove(waiting), Ok(Removal::Done), "queued");
    let last = sim.current(0).unwrap();
    assert_eq!(
        sim.fair.remove(last),
        Ok(Removal::RunsOn(cpu(0))),
        "running"
    );
    sim.tickle(CpuSet::single(cpu(0)));
    sim.settle();
    assert_eq!(sim.current(0), None);
    for unit in (0..4).map(v) {
        assert_eq!(phase(&sim, unit), Phase::Offline);
        sim.add(unit, Weight::DEFAULT, CpuSet::ALL);
        sim.start(unit);
    }
    sim.settle();
    sim.check();
    sim.leave(0, Leave::Gone);
    sim.check();
    assert_eq!(sim.rows().len(), 3);
}

#[test]
fn a_late_waker_does_not_wake_the_next_owner_of_the_slot() {
    let mut sim = Sim::new(1, 1);
    sim.busy(&[256]);
    sim.leave(0, Leave::Blocks);
    let won = sim.fair.units().get(v(0)).unwrap().state.kick();
    assert_eq!(won, crate::sched::unit::Kick::WokeBlocked);
    // Before the waker comes to wake it, the unit is removed, and the slot has another.
    assert_eq!(sim.fair.remove(v(0)), Ok(Removal::Done));
    sim.add(v(0), Weight::DEFAULT, CpuSet::ALL);
    assert_eq!(
        sim.fair.wake(v(0), sim.time(), WakeBy::Event).lowest(),
        None
    );
    assert_eq!(phase(&sim, v(0)), Phase::Offline);
}

#[test]
fn a_cpu_that_leaves_moves_what_waits_there() {
    let mut sim = Sim::new(2, 4);
    sim.busy(&[256, 256, 256]);
    sim.add(v(3), Weight::DEFAULT, CpuSet::single(cpu(1)));
    sim.start(v(3));
    sim.settle();
    assert_eq!(sim.cpu_offline(1), Err(SchedError::CpuBusy(cpu(1))));
    while let Some(unit) = sim.current(1) {
        sim.leave(1, Leave::Blocks);
        let _ = unit;
    }
    sim.kick(v(3));
    // Not settled: it waits there, promised.
    assert_eq!(sim.cpu_offline(1), Ok(()));
    sim.settle();
    sim.check();
    assert_eq!(phase(&sim, v(3)), Phase::Queued, "it may run elsewhere now");
    assert_eq!(sim.cpu_offline(0), Err(SchedError::LastCpu(cpu(0))));
    sim.cpu_online(1);
    sim.settle();
    sim.check();
    assert!(sim.current(1).is_some(), "a CPU that joins takes work");
}

#[test]
fn a_cpu_that_leaves_passes_its_claim_on() {
    let mut sim = Sim::new(3, 2);
    for unit in 0..2 {
        sim.add(v(unit), Weight::DEFAULT, CpuSet::single(cpu(0)));
        sim.start(v(unit));
    }
    sim.settle();
    let waiting = (0..2).map(v).find(|&u| Some(u) != sim.current(0)).unwrap();
    let claimed = sim
        .fair
        .set_affinity(waiting, CpuSet::ALL, sim.time())
        .unwrap();
    // It goes before it has looked, and its tickle with it.
    assert_eq!(sim.cpu_offline(claimed.lowest().unwrap().index()), Ok(()));
    sim.settle();
    sim.check();
    assert!(matches!(phase(&sim, waiting), Phase::Running(_)));
}

#[test]
fn bad_numbers_are_errors() {
    let sim = Sim::new(1, 1);
    let params = UnitParams::default();
    assert_eq!(
        sim.fair.add(v(1), params).unwrap_err().to_string(),
        "no slot for v1: expected less than 1"
    );
    assert_eq!(sim.fair.add(v(0), params), Ok(()));
    assert_eq!(sim.fair.add(v(0), params), Err(SchedError::SlotTaken(v(0))));
    let nowhere = UnitParams {
        affinity: CpuSet::single(cpu(7)),
        ..params
    };
    assert_eq!(
        sim.fair.add(v(0), nowhere).unwrap_err().to_string(),
        "no CPU of 7 is online: expected at least one that is"
    );
    assert_eq!(
        sim.fair.cpu_online(cpu(1)),
        Err(SchedError::NoSuchCpu(cpu(1)))
    );
    let idle = sim.fair.schedule(cpu(9), sim.time(), None);
    assert_eq!(
        (idle.run, idle.until, idle.tickle),
        (None, None, CpuSet::EMPTY)
    );
}
