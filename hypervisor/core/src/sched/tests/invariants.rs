//! Random histories: whatever happens, a unit is in one place, runs only where it may, and does not wait while a CPU that
//! could run it is idle; and nobody is forgotten.

use super::sim::*;
use crate::sched::credit2::{Arrangement, Config};
use crate::sched::unit::Phase;
use crate::sched::{
    AnyScheduler, Cap, Leave, Scheduler, Setup, Topology, UnitParams, WakeBy, Weight,
};
use crate::units::{CpuSet, DomId, Micros};
use proptest::prelude::*;
use std::vec::Vec;

const CPUS: usize = 4;
const UNITS: u32 = 10;

#[derive(Clone, Copy, Debug)]
enum Act {
    Add(u32, u16, u8, u8, u64, u64),
    Remove(u32),
    Start(u32),
    Kick(u32),
    KickBy(usize, u32),
    Leave(usize, Leave),
    Weight(u32, u16),
    Affinity(u32, u8),
    Soft(u32, u8),
    Cap(u16, u16),
    Run(u64),
    Pass(usize),
    Offline(usize),
    Online(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let unit = 0..UNITS;
    let weight = prop_oneof![Just(1_u16), Just(256), Just(1024), Just(65535)];
    let leave = prop::sample::select(vec![
        Leave::Blocks,
        Leave::Blocks,
        Leave::Yields,
        Leave::Gone,
        Leave::Runnable,
    ]);
    let work = prop_oneof![Just(0), 1000..20 * MS];
    prop_oneof![
        3 => (unit.clone(), weight.clone(), 1_u8..16, 0_u8..16, work, 0..20 * MS)
            .prop_map(|(u, w, a, s, work, sleep)| Act::Add(u, w, a, s, work, sleep)),
        1 => unit.clone().prop_map(Act::Remove),
        4 => unit.clone().prop_map(Act::Start),
        4 => unit.clone().prop_map(Act::Kick),
        3 => (0..CPUS, unit.clone()).prop_map(|(c, u)| Act::KickBy(c, u)),
        6 => (0..CPUS, leave).prop_map(|(c, l)| Act::Leave(c, l)),
        1 => (unit.clone(), weight).prop_map(|(u, w)| Act::Weight(u, w)),
        2 => (unit.clone(), 1_u8..16).prop_map(|(u, a)| Act::Affinity(u, a)),
        2 => (unit, 0_u8..16).prop_map(|(u, a)| Act::Soft(u, a)),
        1 => (0_u16..3, 0_u16..300).prop_map(|(d, c)| Act::Cap(d, c)),
        4 => (1..30 * MS).prop_map(Act::Run),
        2 => (0..CPUS).prop_map(Act::Pass),
        1 => (0..CPUS).prop_map(Act::Offline),
        1 => (0..CPUS).prop_map(Act::Online),
    ]
}

fn affinity(bits: u8) -> CpuSet {
    (0..CPUS)
        .filter(|index| bits & (1 << index) != 0)
        .map(cpu)
        .collect()
}

/// Does it. What is refused changes nothing.
fn perform(sim: &mut Sim<AnyScheduler>, act: Act) {
    let now = sim.time();
    match act {
        Act::Add(unit, w, hard, soft, work, sleep) => {
            let params = UnitParams {
                domain: DomId::new(unit as u16 % 3),
                weight: Weight::new(w).unwrap(),
                affinity: affinity(hard),
                soft: affinity(soft),
                ..UnitParams::default()
            };
            let _ = sim.add(v(unit), params, Habit { work, sleep });
        }
        Act::Remove(unit) => drop(sim.remove(v(unit))),
        Act::Start(unit) => sim.start(v(unit)),
        Act::Kick(unit) => sim.kick(v(unit), WakeBy::Event),
        Act::KickBy(index, unit) if sim.current(index).is_some() => {
            sim.kick(v(unit), WakeBy::Runner(cpu(index)));
        }
        Act::KickBy(..) => {}
        Act::Leave(index, leave) => sim.leave(index, leave),
        Act::Weight(unit, w) => {
            let _ = sim.sched.set_weight(v(unit), Weight::new(w).unwrap(), now);
        }
        Act::Affinity(unit, bits) => {
            if let Ok(targets) = sim.sched.set_affinity(v(unit), affinity(bits), now) {
                sim.tickle(targets);
            }
        }
        Act::Soft(unit, bits) => {
            if let Ok(targets) = sim.sched.set_soft_affinity(v(unit), affinity(bits), now) {
                sim.tickle(targets);
            }
        }
        Act::Cap(domain, percent) => {
            if let Ok(targets) = sim
                .sched
                .set_cap(DomId::new(domain), Cap::new(percent), now)
            {
                sim.tickle(targets);
            }
        }
        Act::Run(span) => sim.run_for(span),
        Act::Pass(index) if sim.is_online(index) => sim.pass(index, Leave::Runnable),
        Act::Pass(_) => {}
        Act::Offline(index) => drop(sim.cpu_offline(index)),
        Act::Online(index) if !sim.is_online(index) => sim.cpu_online(index),
        Act::Online(_) => {}
    }
}

fn setup(arrangement: Arrangement, ratelimit: u64) -> Setup {
    Setup {
        topology: Topology::regular(1, CPUS / 2, 2),
        units: UNITS as usize,
        domains: 3,
        rate: rate(),
        credit2: Config {
            arrangement,
            ratelimit: Micros::new(ratelimit),
            ..Config::default()
        },
    }
}

fn every_history_keeps_every_promise(
    name: &str,
    setup: Setup,
    acts: &[Act],
) -> Result<(), TestCaseError> {
    let mut sim = Sim::new(AnyScheduler::by_name(name, setup));
    for &act in acts {
        perform(&mut sim, act);
    }
    sim.settle();
    sim.check();
    // Nobody is forgotten: without caps, and with equal weights, every unit that can run does.
    for domain in 0..3 {
        if let Ok(targets) = sim.sched.set_cap(DomId::new(domain), None, sim.time()) {
            sim.tickle(targets);
        }
    }
    sim.settle();
    let runnable = |sim: &Sim<AnyScheduler>| -> Vec<_> {
        let rows = sim.rows().into_iter();
        rows.filter(|row| matches!(row.phase, Phase::Running(_) | Phase::Queued))
            .map(|row| row.unit)
            .collect()
    };
    let waiting = runnable(&sim);
    for &unit in &waiting {
        let set = sim.sched.set_weight(unit, Weight::DEFAULT, sim.time());
        prop_assert_eq!(set, Ok(()));
    }
    sim.watchful = false;
    let got = sim.measure(10 * SECOND, UNITS);
    for unit in waiting {
        prop_assert!(got[unit.index()] >= 500_u64, "{unit}: {got:?}");
    }
    sim.check();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn credit2_one_runqueue(acts in prop::collection::vec(act(), 1..100)) {
        every_history_keeps_every_promise("credit2", setup(Arrangement::All, 1000), &acts)?;
    }

    #[test]
    fn credit2_runqueue_per_core(acts in prop::collection::vec(act(), 1..100)) {
        every_history_keeps_every_promise("credit2", setup(Arrangement::Core, 1000), &acts)?;
    }

    #[test]
    fn credit2_runqueue_per_cpu_without_rate_limit(acts in prop::collection::vec(act(), 1..100)) {
        every_history_keeps_every_promise("credit2", setup(Arrangement::Cpu, 0), &acts)?;
    }

    #[test]
    fn fair(acts in prop::collection::vec(act(), 1..100)) {
        every_history_keeps_every_promise("fair", setup(Arrangement::All, 1000), &acts)?;
    }
}
