//! Who gets how much.

use super::sim::*;
use crate::units::CpuSet;

/// Within so many per mille of `expected` parts of `whole`.
fn assert_share(got: u64, expected: f64, whole: u64, per_mille: f64, who: &str) {
    let share = got as f64 / whole as f64;
    assert!(
        (share - expected).abs() <= expected * per_mille / 1000.0,
        "{who}: {share:.4}, expected {expected:.4}"
    );
}

#[test]
fn one_cpu_is_shared_by_weight() {
    let mut sim = Sim::new(1, 3);
    sim.busy(&[256, 512, 1024]);
    let got = sim.measure(10 * SECOND, 3);
    assert_eq!(got.iter().sum::<u64>(), 10 * SECOND, "no time is lost");
    for (unit, part) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
        let whole = 10 * SECOND;
        assert_share(got[unit], part / 7.0, whole, 10.0, "1:2:4");
        let ideal = (part * 10.0 * SECOND as f64 / 7.0) as u64;
        assert!(got[unit].abs_diff(ideal) <= SLICE, "exact to one slice");
    }
}

#[test]
fn two_cpus_are_shared_as_near_as_work_conservation_allows() {
    // 4/7 of two CPUs would be more than one: the heavy one gets a CPU, the others share the rest.
    for order in [[256, 512, 1024], [1024, 512, 256], [512, 1024, 256]] {
        let mut sim = Sim::new(2, 3);
        sim.busy(&order);
        sim.run_for(SECOND / 10);
        let got = sim.measure(10 * SECOND, 3);
        for (unit, weight) in order.iter().enumerate() {
            let expected = match weight {
                256 => 1.0 / 3.0,
                512 => 2.0 / 3.0,
                _ => 1.0,
            };
            assert_share(got[unit], expected, 10 * SECOND, 50.0, "1:2:4 on 2");
        }
        sim.check();
    }
}

#[test]
fn units_rotate_over_cpus_that_do_not_divide_them() {
    for (cpus, units) in [(2, 3), (3, 4), (4, 7), (4, 5)] {
        let mut sim = Sim::new(cpus, units);
        sim.busy(&vec![256; units]);
        sim.run_for(SECOND / 10);
        let got = sim.measure(10 * SECOND, units as u32);
        for ran in &got {
            assert_share(
                *ran,
                cpus as f64 / units as f64,
                10 * SECOND,
                50.0,
                "rotation",
            );
        }
        assert_eq!(got.iter().sum::<u64>(), cpus as u64 * 10 * SECOND);
        let slices = 10 * SECOND * cpus as u64 / SLICE;
        assert!(sim.migrations <= slices, "{} of {slices}", sim.migrations);
    }
}

#[test]
fn what_shares_evenly_stays_where_it_is() {
    let mut sim = Sim::new(4, 8);
    sim.busy(&[256; 8]);
    sim.run_for(SECOND / 10);
    let before = sim.migrations;
    sim.run_for(SECOND);
    assert!(sim.migrations - before <= 4, "{}", sim.migrations - before);
}

#[test]
fn an_extreme_weight_neither_starves_nor_is_starved() {
    let mut sim = Sim::new(1, 2);
    sim.busy(&[1, 65535]);
    let got = sim.measure(700 * SECOND, 2);
    assert!(got[0] >= SLICE && got[0] <= 3 * SLICE, "{}", got[0]);
    assert_eq!(got[0] + got[1], 700 * SECOND);
}

#[test]
fn a_new_weight_counts_from_then_on() {
    let mut sim = Sim::new(1, 2);
    sim.busy(&[256, 256]);
    let got = sim.measure(SECOND, 2);
    assert_share(got[0], 0.5, SECOND, 20.0, "before");
    let now = sim.time();
    crate::sched::Scheduler::set_weight(&sim.fair, v(0), weight(768), now).unwrap();
    let got = sim.measure(4 * SECOND, 2);
    assert_share(got[0], 0.75, 4 * SECOND, 10.0, "after");
}

#[test]
fn a_unit_that_had_a_cpu_to_itself_is_owed_nothing() {
    // Capped at one CPU, it falls behind what its weight says for ten minutes...
    let mut sim = Sim::new(2, 3);
    sim.busy(&[1024, 256, 512]);
    sim.run_for(600 * SECOND);
    let now = sim.time();
    crate::sched::Scheduler::set_weight(&sim.fair, v(0), weight(256), now).unwrap();
    // ... and then must not take ten minutes of the others' time: 1/2, 1/2, 1.
    sim.run_for(SECOND);
    let got = sim.measure(10 * SECOND, 3);
    assert_share(got[0], 0.5, 10 * SECOND, 50.0, "formerly heavy");
    assert_share(got[1], 0.5, 10 * SECOND, 50.0, "light");
    assert_share(got[2], 1.0, 10 * SECOND, 50.0, "heavy");
}

#[test]
fn nobody_starves_after_a_change_of_affinity() {
    // Three share CPU 0 for ten minutes, one has CPU 1: it is far ahead of them in virtual time.
    let mut sim = Sim::new(2, 4);
    for unit in 0..4 {
        let pin = cpu(usize::from(unit == 3));
        sim.add(v(unit), weight(256), CpuSet::single(pin));
        sim.start(v(unit));
    }
    sim.run_for(600 * SECOND);
    let now = sim.time();
    let target =
        crate::sched::Scheduler::set_affinity(&sim.fair, v(3), CpuSet::single(cpu(0)), now)
            .unwrap();
    sim.tickle(target);
    sim.settle();
    sim.check();
    let got = sim.measure(SECOND, 4);
    for ran in &got {
        assert_share(*ran, 0.25, SECOND, 200.0, "after the move");
    }
}

#[test]
fn a_long_sleeper_does_not_pay_itself_back() {
    let mut sim = Sim::new(1, 2);
    sim.busy(&[256, 256]);
    let sleeper = sim.current(0).unwrap();
    sim.leave(0, crate::sched::Leave::Blocks);
    sim.run_for(600 * SECOND);
    sim.kick(sleeper);
    sim.settle();
    assert_eq!(
        sim.current(0),
        Some(sleeper),
        "it is owed enough to run at once"
    );
    let got = sim.measure(SECOND, 2);
    assert_share(got[0], 0.5, SECOND, 30.0, "after the sleep");
}

#[test]
fn virtual_time_may_wrap() {
    // Weight 1: 2^64 / 256 ticks. Two of them, and one of default weight, for eight times as long.
    let mut sim = Sim::new(1, 2);
    sim.busy(&[1, 1]);
    let step = u64::MAX / 256 / 4;
    for _ in 0..32 {
        // Slices as long as that are what a stopped machine would look like.
        sim.now += step;
        for _ in 0..4 {
            sim.pass(0, crate::sched::Leave::Runnable);
        }
        sim.check();
    }
    let got = sim.measure(10 * SECOND, 2);
    assert_eq!(got.iter().sum::<u64>(), 10 * SECOND);
    assert!(got.iter().all(|&ran| ran > 0) || got.contains(&(10 * SECOND)));
    // However far apart they were: a third that joins is within bounds, and gets its part.
    sim.run_for(SECOND);
}
