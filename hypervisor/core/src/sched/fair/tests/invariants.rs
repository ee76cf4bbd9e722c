//! Random histories: whatever happens, a unit is in one place, runs only where it may, and does not wait while a CPU that
//! could run it is idle; and nobody is forgotten.

use super::super::*;
use super::sim::*;
use proptest::prelude::*;
use std::vec::Vec;

const CPUS: usize = 4;
const UNITS: u32 = 10;

#[derive(Clone, Copy, Debug)]
enum Act {
    Add(u32, u16, u8),
    Remove(u32),
    Start(u32),
    Kick(u32),
    Leave(usize, Leave),
    Weight(u32, u16),
    Affinity(u32, u8),
    Run(u64),
    Settle,
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
    prop_oneof![
        3 => (unit.clone(), weight.clone(), 1_u8..16).prop_map(|(u, w, a)| Act::Add(u, w, a)),
        1 => unit.clone().prop_map(Act::Remove),
        4 => unit.clone().prop_map(Act::Start),
        6 => unit.clone().prop_map(Act::Kick),
        6 => (0..CPUS, leave).prop_map(|(c, l)| Act::Leave(c, l)),
        1 => (unit.clone(), weight).prop_map(|(u, w)| Act::Weight(u, w)),
        2 => (unit, 1_u8..16).prop_map(|(u, a)| Act::Affinity(u, a)),
        4 => (1..3 * SLICE).prop_map(Act::Run),
        3 => Just(Act::Settle),
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

struct World {
    sim: Sim,
    online: Vec<bool>,
}

impl World {
    fn act(&mut self, act: Act) {
        let sim = &mut self.sim;
        let now = sim.time();
        match act {
            Act::Add(unit, w, bits) => {
                let params = UnitParams {
                    weight: weight(w),
                    affinity: affinity(bits),
                    ..UnitParams::default()
                };
                // The slot may be taken, the CPUs offline: then nothing changes.
                let _ = sim.fair.add(v(unit), params);
            }
            Act::Remove(unit) => {
                if let Ok(Removal::RunsOn(target)) = sim.fair.remove(v(unit)) {
                    sim.tickle(CpuSet::single(target));
                }
            }
            Act::Start(unit) => sim.start(v(unit)),
            Act::Kick(unit) => sim.kick(v(unit)),
            Act::Leave(index, leave) => sim.leave(index, leave),
            Act::Weight(unit, w) => {
                let _ = sim.fair.set_weight(v(unit), weight(w), now);
            }
            Act::Affinity(unit, bits) => {
                if let Ok(target) = sim.fair.set_affinity(v(unit), affinity(bits), now) {
                    sim.tickle(target);
                }
            }
            Act::Run(span) => sim.run_for(span),
            Act::Settle => sim.settle(),
            Act::Pass(index) if self.online[index] => sim.pass(index, Leave::Runnable),
            Act::Pass(_) => {}
            Act::Offline(index) => {
                if sim.cpu_offline(index).is_ok() {
                    self.online[index] = false;
                }
            }
            Act::Online(index) if !self.online[index] => {
                self.online[index] = true;
                sim.cpu_online(index);
            }
            Act::Online(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_history_keeps_every_promise(acts in prop::collection::vec(act(), 1..120)) {
        let mut world = World { sim: Sim::new(CPUS, UNITS as usize), online: vec![true; CPUS] };
        for act in acts {
            world.act(act);
            if matches!(act, Act::Settle | Act::Run(_)) {
                world.sim.check();
            }
        }
        world.sim.settle();
        world.sim.check();
        // Nobody is forgotten: given time, every unit that can run does.
        let runnable: Vec<_> = world.sim.rows().into_iter().filter(|(on, _)| on.is_some()).map(|(_, row)| row.unit).collect();
        for unit in &runnable {
            let now = world.sim.time();
            prop_assert_eq!(world.sim.fair.set_weight(*unit, Weight::DEFAULT, now), Ok(()));
        }
        let got = world.sim.measure(20 * SECOND, UNITS);
        for unit in runnable {
            prop_assert!(got[unit.index()] >= SECOND, "{unit}: {got:?}");
        }
    }
}
