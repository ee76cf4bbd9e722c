//! The machine: CPUs that run what they are told until their slice ends, and look at RESCHED at once.

use super::super::*;
use crate::sched::UnitRow;
use crate::sched::unit::{Kick, Phase};
use std::collections::BTreeMap;
use std::vec::Vec;

/// 1 GHz: a tick is a nanosecond.
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
pub const SLICE: u64 = 10 * MS;

#[derive(Clone, Copy, Default)]
struct Cpu {
    online: bool,
    current: Option<VcpuId>,
    since: u64,
    until: Option<u64>,
    resched: bool,
}

pub struct Sim {
    pub fair: Fair,
    pub now: u64,
    cpus: Vec<Cpu>,
    pub ran: BTreeMap<VcpuId, u64>,
    pub passes: u64,
    /// How often a unit came to run on another CPU than before.
    pub migrations: u64,
    last: BTreeMap<VcpuId, usize>,
}

pub fn v(number: u32) -> VcpuId {
    VcpuId::new(number)
}

pub fn cpu(number: usize) -> CpuId {
    CpuId::new(number as u32)
}

pub fn weight(number: u16) -> Weight {
    Weight::new(number).unwrap()
}

impl Sim {
    /// All CPUs online, and idle.
    pub fn new(cpus: usize, units: usize) -> Self {
        let mut sim = Self {
            fair: Fair::new(cpus, units, Ticks::new(SLICE)),
            now: 1000,
            cpus: vec![Cpu::default(); cpus],
            ran: BTreeMap::new(),
            passes: 0,
            migrations: 0,
            last: BTreeMap::new(),
        };
        for index in 0..cpus {
            sim.cpu_online(index);
        }
        sim.settle();
        sim
    }

    pub fn time(&self) -> Ticks {
        Ticks::new(self.now)
    }

    pub fn cpu_online(&mut self, index: usize) {
        self.fair.cpu_online(cpu(index)).unwrap();
        self.cpus[index].online = true;
        self.cpus[index].resched = true;
    }

    /// Takes the CPU out as the machine would: what runs there is handed back first.
    pub fn cpu_offline(&mut self, index: usize) -> Result<(), SchedError> {
        let moved = self.fair.cpu_offline(cpu(index), self.time())?;
        self.cpus[index] = Cpu::default();
        self.tickle(moved);
        Ok(())
    }

    pub fn current(&self, index: usize) -> Option<VcpuId> {
        self.cpus[index].current
    }

    pub fn where_runs(&self, unit: VcpuId) -> Option<usize> {
        self.cpus.iter().position(|cpu| cpu.current == Some(unit))
    }

    pub fn tickle(&mut self, targets: CpuSet) {
        for target in targets.iter() {
            self.cpus[target.index()].resched = true;
        }
    }

    pub fn add(&mut self, unit: VcpuId, weight: Weight, affinity: CpuSet) {
        self.fair
            .add(
                unit,
                UnitParams {
                    weight,
                    affinity,
                    ..UnitParams::default()
                },
            )
            .unwrap();
    }

    pub fn start(&mut self, unit: VcpuId) {
        if self.fair.units().get(unit).unwrap().state.online() {
            let target = self.fair.wake(unit, self.time(), WakeBy::Event);
            self.tickle(target);
        }
    }

    /// Adds and starts units 0, 1, ... that never halt.
    pub fn busy(&mut self, weights: &[u16]) {
        for (index, &w) in weights.iter().enumerate() {
            self.add(v(index as u32), weight(w), CpuSet::ALL);
            self.start(v(index as u32));
        }
        self.settle();
    }

    pub fn kick(&mut self, unit: VcpuId) {
        match self.fair.units().get(unit).unwrap().state.kick() {
            Kick::WokeBlocked => {
                let target = self.fair.wake(unit, self.time(), WakeBy::Event);
                self.tickle(target);
            }
            Kick::Running(_) | Kick::Pending => {}
        }
    }

    /// What runs there does something.
    pub fn leave(&mut self, index: usize, leave: Leave) {
        if let Some(unit) = self.cpus[index].current {
            if leave == Leave::Blocks {
                self.fair.units().get(unit).unwrap().state.consume_kick();
            }
            self.pass(index, leave);
        }
    }

    pub fn pass(&mut self, index: usize, leave: Leave) {
        self.passes += 1;
        let (now, here) = (self.time(), cpu(index));
        self.cpus[index].resched = false;
        let before = self.cpus[index].current;
        if let Some(unit) = before {
            *self.ran.entry(unit).or_default() += self.now - self.cpus[index].since;
        }
        let prev = before.map(|unit| Prev { unit, leave });
        let decision = self.fair.schedule(here, now, prev);
        self.tickle(decision.tickle);
        if let Some(prev) = prev.filter(|prev| Some(prev.unit) != decision.run) {
            let state = &self.fair.units().get(prev.unit).unwrap().state;
            assert_eq!(state.phase(), Phase::Running(here), "until it is saved");
            let target = self.fair.context_saved(here, prev, now);
            self.tickle(target);
        }
        if let Some(unit) = decision.run {
            let state = &self.fair.units().get(unit).unwrap().state;
            assert_eq!(state.phase(), Phase::Running(here));
            if self
                .last
                .insert(unit, index)
                .is_some_and(|last| last != index)
            {
                self.migrations += 1;
            }
        }
        let cpu = &mut self.cpus[index];
        cpu.current = decision.run;
        cpu.since = self.now;
        cpu.until = decision.until.map(Ticks::get);
        assert_eq!(
            cpu.until.is_some(),
            cpu.current.is_some(),
            "no timer when idle"
        );
    }

    /// All CPUs that were told to look have looked.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            let Some(index) = self.cpus.iter().position(|cpu| cpu.resched) else {
                return;
            };
            self.pass(index, Leave::Runnable);
        }
        panic!("CPUs tickle each other without end");
    }

    /// Lets time pass, with a pass at each slice end.
    pub fn run_until(&mut self, end: u64) {
        self.settle();
        loop {
            let next = self
                .cpus
                .iter()
                .enumerate()
                .filter_map(|(index, cpu)| Some((cpu.until?, index)))
                .min();
            match next {
                Some((until, index)) if until <= end => {
                    self.now = self.now.max(until);
                    self.pass(index, Leave::Runnable);
                    self.settle();
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
    }

    pub fn run_for(&mut self, span: u64) {
        self.run_until(self.now + span);
    }

    /// The run time of each unit in a stretch of time.
    pub fn measure(&mut self, span: u64, units: u32) -> Vec<u64> {
        let ran = |sim: &Self, unit: u32| {
            let closed = sim.ran.get(&v(unit)).copied().unwrap_or(0);
            let open = sim
                .where_runs(v(unit))
                .map_or(0, |index| sim.now - sim.cpus[index].since);
            closed + open
        };
        let before: Vec<_> = (0..units).map(|unit| ran(self, unit)).collect();
        self.run_for(span);
        (0..units)
            .map(|unit| ran(self, unit) - before[unit as usize])
            .collect()
    }

    /// What the dump says of each unit, and on which CPU; checked for agreement with the sets that CPUs look at.
    pub fn rows(&self) -> Vec<(Option<CpuId>, UnitRow)> {
        let (mut rows, mut on) = (Vec::new(), None);
        let mut waiting = 0;
        self.fair.dump(self.time(), |row| match row {
            DumpRow::Cpu(row) => {
                assert_eq!(waiting, 0, "fewer rows than announced");
                waiting = row.waiting + usize::from(row.current.is_some());
                assert_eq!(row.current, self.cpus[row.cpu.index()].current);
                assert_eq!(self.fair.loaded.contains(row.cpu), row.waiting > 0);
                assert_eq!(
                    row.idle,
                    row.current.is_none() && !self.cpus[row.cpu.index()].resched
                );
                on = Some(row.cpu);
            }
            DumpRow::Unit(row) => {
                waiting -= 1;
                rows.push((on, row));
            }
            DumpRow::Parked(row) => rows.push((None, row)),
            DumpRow::Queue(_) | DumpRow::Domain(_) => unreachable!("not of `fair`"),
        });
        assert_eq!(waiting, 0);
        rows
    }

    /// Everything that must hold when all CPUs have looked.
    pub fn check(&self) {
        let idle = self.fair.idle_cpus();
        let mut seen = BTreeMap::new();
        for (on, row) in self.rows() {
            assert_eq!(
                seen.insert(row.unit, on),
                None,
                "{} is in two places",
                row.unit
            );
            match row.phase {
                Phase::Running(here) => {
                    assert_eq!(on, Some(here));
                    assert!(row.affinity.contains(here), "{} is not pinned", row.unit);
                    assert_eq!(self.current(here.index()), Some(row.unit));
                }
                Phase::Queued => {
                    assert!(row.affinity.contains(on.unwrap()), "{} waits", row.unit);
                    let could = idle.intersection(&row.affinity);
                    assert!(could.is_empty(), "{} waits while {could} is idle", row.unit);
                }
                Phase::Blocked | Phase::Offline => assert_eq!(on, None),
            }
        }
        for index in 0..self.cpus.len() {
            if let Ok(rq) = self.fair.queue(cpu(index)) {
                let queue = rq.lock();
                assert!(queue.waiting.capacity() <= self.fair.slots.len().next_power_of_two() + 8);
                assert!(queue.leaving.is_none());
                let order = queue.waiting.iter().map(|entry| entry.vruntime);
                assert!(order.is_sorted_by(|a, b| !b.is_before(*a)));
            }
        }
    }
}
