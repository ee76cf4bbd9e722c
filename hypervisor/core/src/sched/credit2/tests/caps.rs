//! Caps hold, and cost only those who have one.

use super::*;

fn capped(domain: u16, percent: u16) -> UnitParams {
    UnitParams {
        domain: DomId::new(domain),
        cap: Cap::new(percent),
        ..UnitParams::default()
    }
}

#[test]
fn a_cap_holds_within_a_percent() {
    for (percent, units, cpus) in [
        (25, 1, 1),
        (25, 1, 2),
        (25, 2, 2),
        (150, 2, 2),
        (10, 4, 2),
        (40, 3, 1),
    ] {
        let mut sim = blind(cpus, units as usize);
        for unit in 0..units {
            sim.run(unit, capped(1, percent), BUSY);
        }
        sim.run_for(SECOND);
        let got: u64 = sim.measure(4 * SECOND, units).iter().sum();
        let what = std::format!("{percent} % for {units} on {cpus}");
        assert_share(got, f64::from(percent) / 100.0, 4 * SECOND, 10.0, &what);
    }
}

#[test]
fn what_a_capped_guest_may_not_use_goes_to_others() {
    let mut sim = blind(1, 2);
    sim.run(0, capped(1, 25), BUSY);
    sim.run(1, weighing(256), BUSY);
    sim.run_for(SECOND);
    let got = sim.measure(4 * SECOND, 2);
    assert_share(got[0], 0.25, 4 * SECOND, 10.0, "capped");
    assert_eq!(got[0] + got[1], 4 * SECOND, "no time is lost");
}

#[test]
fn in_no_window_more_than_the_cap_and_a_quota() {
    let mut sim = blind(2, 2);
    for unit in 0..2 {
        sim.run(unit, capped(1, 50), BUSY);
    }
    sim.run_for(SECOND);
    for _ in 0..100 {
        let got: u64 = sim.measure(37 * MS, 2).iter().sum();
        // 50 % of the window, a period's budget that was left, and a grain for each overrun.
        assert!(got <= 37 * MS / 2 + 5 * MS + 2 * 500 * US, "{got}");
    }
}

#[test]
fn an_idle_capped_guest_needs_no_timer() {
    let mut sim = blind(1, 1);
    let habit = Habit {
        work: MS,
        sleep: SECOND,
    };
    sim.run(0, capped(1, 50), habit);
    sim.run_for(20 * MS);
    assert_eq!(sim.current(0), None);
    assert_eq!(sim.until(0), None, "nobody waits for the budget");
}

#[test]
fn a_cap_may_change_while_units_wait_for_it() {
    let mut sim = blind(1, 1);
    sim.run(0, capped(1, 1), BUSY);
    sim.run_for(5 * MS);
    assert_eq!(
        sim.current(0),
        None,
        "it has had its tenth of a millisecond"
    );
    assert!(sim.until(0).is_some(), "and this CPU keeps the timer");
    let told = sim.sched.set_cap(DomId::new(1), None, sim.time()).unwrap();
    sim.tickle(told);
    let got = sim.measure(SECOND, 1);
    assert_eq!(got[0], SECOND);
    let told = sim
        .sched
        .set_cap(DomId::new(1), Cap::new(25), sim.time())
        .unwrap();
    sim.tickle(told);
    let got = sim.measure(4 * SECOND, 1);
    assert_share(got[0], 0.25, 4 * SECOND, 10.0, "capped anew");
    let none = sim.sched.set_cap(DomId::new(99), None, sim.time());
    assert_eq!(none, Err(SchedError::NoSuchDomain(DomId::new(99))));
}

#[test]
fn a_parked_unit_can_be_removed() {
    let mut sim = blind(1, 2);
    sim.run(0, capped(1, 1), BUSY);
    sim.run(1, capped(1, 1), BUSY);
    sim.run_for(5 * MS);
    sim.remove(v(0)).unwrap();
    sim.run_for(SECOND);
    assert!(sim.sched.remove(v(0)).is_err());
    let got = sim.measure(SECOND, 2);
    assert_share(got[1], 0.01, SECOND, 20.0, "the other goes on");
}
