//! One rule each.

use super::*;
use crate::sched::Leave;
use crate::sched::unit::Phase;

fn woken_by(sim: &mut Sim<Credit2>, unit: u32, by: WakeBy) {
    sim.kick(v(unit), by);
    sim.settle();
}

/// Unit 0 runs on the one CPU, unit 1 is blocked and has as much credit or more.
fn runner_and_sleeper() -> Sim<Credit2> {
    let mut sim = flat(1, 2);
    sim.run(1, weighing(256), BUSY);
    sim.run_for(US);
    sim.leave(0, Leave::Blocks);
    sim.run(0, weighing(256), BUSY);
    sim.settle();
    sim.run_for(100 * US);
    assert_eq!(sim.current(0), Some(v(0)));
    sim
}

#[test]
fn a_fresh_runner_is_not_preempted_by_a_timer() {
    let mut sim = runner_and_sleeper();
    woken_by(&mut sim, 1, WakeBy::Event);
    assert_eq!(sim.current(0), Some(v(0)), "the rate limit protects it");
    // Until its slice, which ends no later than its credit is down to that of the other, and no sooner than the limit.
    sim.run_for(MS);
    assert_eq!(sim.current(0), Some(v(1)));
}

#[test]
fn what_the_runner_woke_itself_goes_first() {
    let mut sim = runner_and_sleeper();
    woken_by(&mut sim, 1, WakeBy::Runner(cpu(0)));
    assert_eq!(sim.current(0), Some(v(1)));
    // Also if it lags behind by less than the grace, so a pair may go on like that for ever.
    for _ in 0..1000 {
        sim.run_for(3 * US);
        sim.leave(0, Leave::Blocks);
        assert_eq!(sim.current(0), Some(v(0)));
        sim.run_for(3 * US);
        woken_by(&mut sim, 1, WakeBy::Runner(cpu(0)));
        assert_eq!(sim.current(0), Some(v(1)));
    }
}

#[test]
fn grace_is_no_way_to_more_than_a_share() {
    // A third unit suffers nothing from a pair that wake each other all the time.
    let mut sim = blind(1, 3);
    sim.run(0, weighing(256), BUSY);
    sim.run(1, weighing(256), BUSY);
    sim.run(2, weighing(256), BUSY);
    sim.run_for(SECOND);
    let before = sim.ran(2);
    let began = sim.now;
    while sim.now < began + SECOND {
        sim.run_for(50 * US);
        match sim.current(0) {
            Some(unit) if unit == v(1) => sim.leave(0, Leave::Blocks),
            Some(unit) if unit == v(0) => woken_by(&mut sim, 1, WakeBy::Runner(cpu(0))),
            _ => {}
        }
    }
    assert!(
        sim.ran(2) - before >= SECOND * 3 / 10,
        "{}",
        sim.ran(2) - before
    );
}

#[test]
fn an_idle_cpu_is_preferred_to_any_preemption() {
    let mut sim = flat(2, 3);
    sim.run(0, weighing(256), BUSY);
    sim.run(1, weighing(1024), BUSY);
    sim.settle();
    assert!(sim.idle().is_empty());
    assert!(sim.current(0) != sim.current(1));
    sim.check();
}

#[test]
fn soft_affinity_is_tried_first_and_hard_holds() {
    let mut sim = flat(4, 3);
    let prefers = UnitParams {
        soft: set(&[2]),
        affinity: set(&[1, 2, 3]),
        ..UnitParams::default()
    };
    sim.run(0, prefers, BUSY);
    sim.settle();
    assert_eq!(sim.current(2), Some(v(0)));
    // Its place is taken by one that may run nowhere else: it goes to another that it may use, and never to CPU 0.
    sim.run(1, pinned(&[2]), BUSY);
    let got = sim.measure(SECOND, 2);
    assert!(
        got[0] >= SECOND * 99 / 100 && got[1] >= SECOND * 99 / 100,
        "{got:?}"
    );
    // When it is free again, the unit returns.
    sim.remove(v(1)).unwrap();
    sim.run_for(50 * MS);
    assert_eq!(sim.current(2), Some(v(0)));
    sim.check();
}

#[test]
fn whole_idle_cores_are_taken_first() {
    let mut sim = machine(Topology::regular(1, 4, 2), 4, config(Arrangement::Socket));
    for unit in 0..4 {
        sim.run(unit, weighing(256), BUSY);
        sim.settle();
    }
    for core in 0..4 {
        let busy = (0..2).filter(|thread| sim.current(core * 2 + thread).is_some());
        assert_eq!(busy.count(), 1, "core {core}");
    }
}

#[test]
fn a_yield_lets_the_other_run_once() {
    let mut sim = flat(1, 2);
    sim.run(0, weighing(256), BUSY);
    sim.run(1, weighing(256), BUSY);
    sim.run_for(MS);
    let first = sim.current(0).unwrap();
    sim.leave(0, Leave::Yields);
    let second = sim.current(0).unwrap();
    assert_ne!(first, second, "in spite of the rate limit");
    let got = sim.measure(SECOND, 2);
    assert!(got[0].abs_diff(got[1]) <= 20 * MS, "{got:?}");
    // Alone, it runs on.
    sim.leave(0, Leave::Blocks);
    let alone = sim.current(0);
    sim.leave(0, Leave::Yields);
    assert_eq!(sim.current(0), alone);
}

/// Units of these domains on one CPU; none of them ever halts.
fn domains(of: &[u16]) -> Sim<Credit2> {
    let mut sim = flat(1, of.len());
    for (unit, &domain) in of.iter().enumerate() {
        let params = UnitParams {
            domain: DomId::new(domain),
            ..weighing(256)
        };
        sim.run(unit as u32, params, BUSY);
    }
    sim.settle();
    look(&sim, of.len());
    sim
}

/// What was kicked looks.
fn look(sim: &Sim<Credit2>, units: usize) {
    for unit in 0..units {
        let unit = sim.sched.units().get(v(unit as u32)).unwrap();
        unit.state.consume_kick();
    }
}

#[test]
fn a_spinner_gives_its_time_to_a_preempted_unit_of_its_domain() {
    // Unit 0 spins for unit 3; the others of the CPU have more credit.
    let mut sim = domains(&[1, 2, 2, 1]);
    while sim.current(0) != Some(v(0)) {
        sim.run_for(MS);
    }
    sim.leave(0, Leave::Yields);
    assert_eq!(sim.current(0), Some(v(3)));
    assert_eq!(sim.sched.units().get(v(0)).unwrap().directed_yields(), 1);
    // It has spun for something else: so it is unit 0's turn.
    sim.leave(0, Leave::Yields);
    assert_eq!(sim.current(0), Some(v(0)));
    assert_eq!(sim.sched.units().get(v(3)).unwrap().directed_yields(), 1);
}

#[test]
fn whoever_has_nobody_of_its_domain_yields_to_the_first() {
    let mut sim = domains(&[1, 2, 2]);
    while sim.current(0) != Some(v(0)) {
        sim.run_for(MS);
    }
    sim.leave(0, Leave::Yields);
    assert_ne!(sim.current(0), Some(v(0)));
    assert_eq!(sim.sched.units().get(v(0)).unwrap().directed_yields(), 0);
}

#[test]
fn siblings_are_yielded_to_in_turn_and_those_that_were_kicked_first() {
    let mut sim = domains(&[1, 1, 1, 1]);
    let mut given = Vec::new();
    for _ in 0..3 {
        while sim.current(0) != Some(v(0)) {
            sim.run_for(MS);
        }
        sim.leave(0, Leave::Yields);
        given.push(sim.current(0).unwrap().get());
    }
    assert_eq!(given, [1, 2, 3]);
    while sim.current(0) != Some(v(0)) {
        sim.run_for(MS);
    }
    sim.kick(v(2), WakeBy::Runner(cpu(0)));
    sim.leave(0, Leave::Yields);
    assert_eq!(sim.current(0), Some(v(2)), "the target of the interrupt");
}

#[test]
fn a_sibling_in_another_runqueue_is_yielded_to() {
    let mut sim = machine(Topology::flat(2), 4, config(Arrangement::Cpu));
    // CPU 0 spins; its sibling shares CPU 1 with another guest.
    for (unit, domain) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
        let params = UnitParams {
            domain: DomId::new(domain),
            ..weighing(256)
        };
        sim.run(unit, params, BUSY);
    }
    sim.settle();
    look(&sim, 4);
    let mut directed = 0;
    for _ in 0..200 {
        sim.run_for(100 * US);
        let [here, there] = [0, 1].map(|cpu| sim.current(cpu));
        let spins = (here == Some(v(0)))
            .then_some(0)
            .or((there == Some(v(0))).then_some(1));
        let waits = here != Some(v(2)) && there != Some(v(2));
        if let Some(cpu) = spins.filter(|_| waits) {
            sim.leave(cpu, Leave::Yields);
            assert_eq!(sim.current(cpu), Some(v(2)));
            directed += 1;
        }
    }
    assert!(directed > 10, "{directed}");
}

#[test]
fn to_spin_is_no_way_to_more_than_a_share() {
    // Two of a domain yield to each other all the time, beside one that does not.
    let mut sim = domains(&[1, 1, 2]);
    sim.run_for(100 * MS);
    let before: Vec<u64> = (0..3).map(|unit| sim.ran(unit)).collect();
    let began = sim.now;
    while sim.now < began + SECOND {
        sim.run_for(20 * US);
        if sim.current(0) != Some(v(2)) {
            sim.leave(0, Leave::Yields);
        }
    }
    let got: Vec<u64> = (0..3)
        .map(|unit| sim.ran(unit) - before[unit as usize])
        .collect();
    assert!(got[2] * 100 >= SECOND * 33, "{got:?}");
}

#[test]
fn a_unit_resists_migration_for_less_than_half_a_millisecond() {
    // Three on two: each slice end could move one, if nothing resisted.
    let [resisting, free] = [500, 0].map(|micros| {
        let config = Config {
            migrate_resist: crate::units::Micros::new(micros),
            ..config(Arrangement::All)
        };
        let mut sim = machine(Topology::flat(2), 3, config);
        sim.watchful = false;
        for unit in 0..3 {
            sim.run(unit, weighing(256), BUSY);
        }
        sim.run_for(2 * SECOND);
        sim.migrations
    });
    assert!(resisting * 10 <= free * 9, "{resisting} against {free}");
}

#[test]
fn an_idle_cpu_pulls_from_another_runqueue() {
    let mut sim = machine(Topology::flat(2), 2, config(Arrangement::Cpu));
    sim.run(0, pinned(&[0]), BUSY);
    sim.run(1, pinned(&[0]), BUSY);
    sim.run_for(MS);
    assert_eq!(sim.current(1), None);
    let waits = (0..2)
        .find(|&unit| sim.current(0) != Some(v(unit)))
        .unwrap();
    let told = sim
        .sched
        .set_affinity(v(waits), CpuSet::ALL, sim.time())
        .unwrap();
    assert_eq!(told, set(&[1]), "the idle CPU is told");
    sim.tickle(told);
    sim.settle();
    assert_eq!(sim.current(1), Some(v(waits)));
    assert_eq!(sim.phase(v(waits)), Phase::Running(cpu(1)));
}

#[test]
fn a_wake_prefers_the_cpu_that_sleeps_least_deeply() {
    use crate::cstate::{CState, CStateFlags, CStateTable, EntryMethod, MwaitHint};
    use crate::platform::IrqGate;
    use crate::units::Micros;
    let deep = CState {
        name: "C6",
        method: EntryMethod::Mwait {
            hint: MwaitHint::new(0x20),
            gate: IrqGate::Masked,
        },
        flags: CStateFlags::empty(),
        exit_latency: Micros::new(85),
        target_residency: Micros::new(200),
    };
    let table = CStateTable::new(&[CState::C1_HALT, deep]).unwrap();
    let states: std::vec::Vec<_> = table.iter().map(|(id, _)| id).collect();
    let mut sim = flat(4, 1);
    for index in 0..4 {
        sim.sched.cpus().set_states(cpu(index), &table, true);
        let account = sim.sched.cpus().account(cpu(index)).unwrap();
        let state = if index == 2 { states[0] } else { states[1] };
        account.enter_idle(state, sim.time());
    }
    sim.run(0, weighing(256), BUSY);
    sim.settle();
    assert_eq!(sim.current(2), Some(v(0)), "all others are deep");
}

#[test]
fn cpus_come_and_go_under_load() {
    let mut sim = machine(Topology::regular(2, 2, 1), 6, config(Arrangement::Socket));
    sim.watchful = false;
    for unit in 0..6 {
        sim.run(unit, weighing(256), BUSY);
    }
    sim.run_for(100 * MS);
    for gone in [3, 2, 1] {
        // What runs there gives way, as on the machine: it is asked to leave first.
        let unit = sim.current(gone).unwrap();
        let elsewhere = (0..gone).collect::<std::vec::Vec<_>>();
        for other in 0..6 {
            let told = sim
                .sched
                .set_affinity(v(other), set(&elsewhere), sim.time())
                .unwrap();
            sim.tickle(told);
        }
        sim.settle();
        assert_ne!(sim.current(gone), Some(unit));
        assert_eq!(sim.cpu_offline(gone), Ok(()));
        sim.settle();
        sim.run_for(50 * MS);
    }
    assert_eq!(sim.cpu_offline(0), Err(SchedError::LastCpu(cpu(0))));
    for unit in 0..6 {
        let told = sim
            .sched
            .set_affinity(v(unit), CpuSet::ALL, sim.time())
            .unwrap();
        sim.tickle(told);
    }
    for back in 1..4 {
        sim.cpu_online(back);
    }
    sim.run_for(SECOND);
    let got = sim.measure(2 * SECOND, 6);
    assert_eq!(got.iter().sum::<u64>(), 8 * SECOND, "no CPU is idle");
    for ran in &got {
        assert!(*ran > SECOND * 8 / 10, "{got:?}");
    }
}
