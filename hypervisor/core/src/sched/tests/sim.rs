//! A machine in virtual time: CPUs that run what they are told until their slice ends, and look at RESCHED at once; units
//! that work, sleep, and wake.
//!
//! 1 GHz: a tick is a nanosecond. The same calls give the same history.

use crate::sched::placement::Doing;
use crate::sched::unit::{Kick, Phase};
use crate::sched::{
    DumpRow, Leave, Prev, Removal, SchedError, Scheduler, UnitDetail, UnitParams, UnitRow, WakeBy,
};
use crate::units::{CpuId, CpuSet, TickRate, Ticks, VcpuId};
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

pub const US: u64 = 1000;
pub const MS: u64 = 1000 * US;
pub const SECOND: u64 = 1000 * MS;

pub fn rate() -> TickRate {
    TickRate::from_hz(SECOND).unwrap()
}

pub fn v(number: u32) -> VcpuId {
    VcpuId::new(number)
}

pub fn cpu(number: usize) -> CpuId {
    CpuId::new(number as u32)
}

pub fn set(cpus: &[usize]) -> CpuSet {
    cpus.iter().copied().map(cpu).collect()
}

#[derive(Clone, Copy, Default)]
struct Cpu {
    online: bool,
    current: Option<VcpuId>,
    since: u64,
    until: Option<u64>,
    resched: bool,
}

/// What a unit does when it is let.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habit {
    /// It works for so long, then sleeps; 0: for ever.
    pub work: u64,
    /// It sleeps for so long; 0: until it is kicked.
    pub sleep: u64,
}

#[derive(Clone, Copy, Default)]
struct Unit {
    habit: Habit,
    /// What is left of its work.
    left: u64,
    ran: u64,
    last: Option<usize>,
}

pub struct Sim<S> {
    pub sched: S,
    pub now: u64,
    cpus: Vec<Cpu>,
    units: BTreeMap<VcpuId, Unit>,
    wakes: BTreeSet<(u64, VcpuId)>,
    pub passes: u64,
    /// How often a unit came to run on another CPU than before.
    pub migrations: u64,
    /// Check everything after each event.
    pub watchful: bool,
}

impl<S: Scheduler> Sim<S> {
    /// All CPUs online, and idle.
    pub fn new(sched: S) -> Self {
        let cpus = sched.cpus().len();
        let mut sim = Self {
            sched,
            now: 1000,
            cpus: vec![Cpu::default(); cpus],
            units: BTreeMap::new(),
            wakes: BTreeSet::new(),
            passes: 0,
            migrations: 0,
            watchful: true,
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
        self.sched.cpu_online(cpu(index)).unwrap();
        if self.sched.cpus().doing(cpu(index)) == Doing::Nothing {
            let account = self.sched.cpus().account(cpu(index)).unwrap();
            account.start(self.time());
        }
        self.cpus[index].online = true;
        self.cpus[index].resched = true;
    }

    pub fn cpu_offline(&mut self, index: usize) -> Result<(), SchedError> {
        let moved = self.sched.cpu_offline(cpu(index), self.time())?;
        self.cpus[index] = Cpu::default();
        self.tickle(moved);
        Ok(())
    }

    pub fn is_online(&self, index: usize) -> bool {
        self.cpus[index].online
    }

    pub fn current(&self, index: usize) -> Option<VcpuId> {
        self.cpus[index].current
    }

    pub fn until(&self, index: usize) -> Option<u64> {
        self.cpus[index].until
    }

    pub fn where_runs(&self, unit: VcpuId) -> Option<usize> {
        self.cpus.iter().position(|cpu| cpu.current == Some(unit))
    }

    pub fn tickle(&mut self, targets: CpuSet) {
        for target in targets.iter() {
            self.cpus[target.index()].resched = true;
        }
    }

    pub fn add(
        &mut self,
        unit: VcpuId,
        params: UnitParams,
        habit: Habit,
    ) -> Result<(), SchedError> {
        self.sched.add(unit, params)?;
        let left = habit.work;
        self.units.insert(
            unit,
            Unit {
                habit,
                left,
                ..Unit::default()
            },
        );
        Ok(())
    }

    pub fn phase(&self, unit: VcpuId) -> Phase {
        self.sched.units().get(unit).unwrap().state.phase()
    }

    pub fn start(&mut self, unit: VcpuId) {
        if self.sched.units().get(unit).unwrap().state.online() {
            let targets = self.sched.wake(unit, self.time(), WakeBy::Event);
            self.tickle(targets);
        }
    }

    /// Adds and starts a unit.
    pub fn run(&mut self, unit: u32, params: UnitParams, habit: Habit) {
        self.add(v(unit), params, habit).unwrap();
        self.start(v(unit));
    }

    pub fn remove(&mut self, unit: VcpuId) -> Result<(), SchedError> {
        if let Removal::RunsOn(target) | Removal::MadeRoom(target) = self.sched.remove(unit)? {
            self.tickle(CpuSet::single(target));
        }
        Ok(())
    }

    pub fn kick(&mut self, unit: VcpuId, by: WakeBy) {
        match self.sched.units().get(unit).unwrap().state.kick() {
            Kick::WokeBlocked => {
                let targets = self.sched.wake(unit, self.time(), by);
                self.tickle(targets);
            }
            Kick::Running(_) | Kick::Pending => {}
        }
    }

    /// What runs there does something.
    pub fn leave(&mut self, index: usize, leave: Leave) {
        if let Some(unit) = self.cpus[index].current {
            if leave == Leave::Blocks {
                self.sched.units().get(unit).unwrap().state.consume_kick();
            }
            self.pass(index, leave);
        }
    }

    pub fn pass(&mut self, index: usize, leave: Leave) {
        self.passes += 1;
        let (now, here) = (self.time(), cpu(index));
        self.cpus[index].resched = false;
        let before = self.cpus[index].current;
        self.account(index);
        let prev = before.map(|unit| Prev { unit, leave });
        let decision = self.sched.schedule(here, now, prev);
        self.tickle(decision.tickle);
        if let Some(prev) = prev.filter(|prev| Some(prev.unit) != decision.run) {
            assert_eq!(
                self.phase(prev.unit),
                Phase::Running(here),
                "until it is saved"
            );
            let targets = self.sched.context_saved(here, prev, now);
            self.tickle(targets);
        }
        if let Some(unit) = decision.run {
            assert_eq!(self.phase(unit), Phase::Running(here));
            let known = self.units.entry(unit).or_default();
            if known.last.replace(index).is_some_and(|last| last != index) {
                self.migrations += 1;
            }
        }
        let cpu = &mut self.cpus[index];
        cpu.current = decision.run;
        cpu.since = self.now;
        cpu.until = decision.until.map(Ticks::get);
        assert!(
            cpu.until.is_none_or(|until| until > self.now),
            "a slice must not end at once"
        );
    }

    fn account(&mut self, index: usize) {
        let ran = self.now - self.cpus[index].since;
        self.cpus[index].since = self.now;
        if let Some(unit) = self.cpus[index]
            .current
            .and_then(|v| self.units.get_mut(&v))
        {
            unit.ran += ran;
            unit.left = unit.left.saturating_sub(ran);
        }
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

    /// What happens next on a CPU: its slice ends, or its unit has done its work.
    fn next_of(&self, index: usize) -> Option<u64> {
        let cpu = self.cpus[index];
        let done = cpu.current.and_then(|unit| {
            let unit = self.units.get(&unit)?;
            (unit.habit.work > 0).then(|| cpu.since + unit.left)
        });
        cpu.until.into_iter().chain(done).min()
    }

    /// Lets time pass, with all that happens in it.
    pub fn run_until(&mut self, end: u64) {
        self.settle();
        loop {
            let next = (0..self.cpus.len())
                .filter_map(|index| Some((self.next_of(index)?, index)))
                .min();
            let wake = self.wakes.first().copied();
            let at = next
                .map(|(at, _)| at)
                .into_iter()
                .chain(wake.map(|(at, _)| at))
                .min();
            let Some(at) = at.filter(|&at| at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            if let Some((_, unit)) = wake.filter(|&(wake, _)| wake == at) {
                self.wakes.remove(&(at, unit));
                self.kick(unit, WakeBy::Event);
            } else if let Some((_, index)) = next {
                self.happens(index);
            }
            self.settle();
            if self.watchful {
                self.check();
            }
        }
    }

    fn happens(&mut self, index: usize) {
        self.account(index);
        let current = self.cpus[index].current;
        let known = current.and_then(|v| Some((v, self.units.get_mut(&v)?)));
        match known {
            Some((v, unit)) if unit.habit.work > 0 && unit.left == 0 => {
                unit.left = unit.habit.work;
                if unit.habit.sleep > 0 {
                    self.wakes.insert((self.now + unit.habit.sleep, v));
                }
                self.leave(index, Leave::Blocks);
            }
            _ => self.pass(index, Leave::Runnable),
        }
    }

    pub fn run_for(&mut self, span: u64) {
        self.run_until(self.now + span);
    }

    /// The run time of a unit so far.
    pub fn ran(&self, unit: u32) -> u64 {
        let closed = self.units.get(&v(unit)).map_or(0, |unit| unit.ran);
        let open = self
            .where_runs(v(unit))
            .map_or(0, |index| self.now - self.cpus[index].since);
        closed + open
    }

    /// The run time of each unit in a stretch of time.
    pub fn measure(&mut self, span: u64, units: u32) -> Vec<u64> {
        let before: Vec<_> = (0..units).map(|unit| self.ran(unit)).collect();
        self.run_for(span);
        (0..units)
            .map(|unit| self.ran(unit) - before[unit as usize])
            .collect()
    }

    /// What the dump says of each unit.
    pub fn rows(&self) -> Vec<UnitRow> {
        let (mut rows, mut idle) = (Vec::new(), CpuSet::EMPTY);
        self.sched.dump(self.time(), |row| match row {
            DumpRow::Unit(row) | DumpRow::Parked(row) => rows.push(row),
            DumpRow::Cpu(row) => {
                assert_eq!(row.current, self.cpus[row.cpu.index()].current);
                if row.idle {
                    idle.insert(row.cpu);
                }
            }
            DumpRow::Queue(_) | DumpRow::Domain(_) => {}
        });
        for (index, known) in self.cpus.iter().enumerate() {
            assert_eq!(
                idle.contains(cpu(index)),
                known.online && known.current.is_none(),
                "cpu{index}"
            );
        }
        rows
    }

    pub fn row(&self, unit: u32) -> UnitRow {
        let mut rows = self.rows().into_iter();
        rows.find(|row| row.unit == v(unit)).unwrap()
    }

    /// The CPUs that run nothing.
    pub fn idle(&self) -> CpuSet {
        let idle = |(index, known): (usize, &Cpu)| {
            (known.online && known.current.is_none()).then(|| cpu(index))
        };
        self.cpus.iter().enumerate().filter_map(idle).collect()
    }

    /// Everything that must hold of any work-conserving scheduler when all CPUs have looked.
    pub fn check(&self) {
        let idle = self.idle();
        let mut seen = BTreeSet::new();
        for row in self.rows() {
            assert!(seen.insert(row.unit), "{} is in two places", row.unit);
            match row.phase {
                Phase::Running(here) => {
                    assert!(row.affinity.contains(here), "{} is not pinned", row.unit);
                    assert_eq!(self.current(here.index()), Some(row.unit));
                }
                Phase::Queued => {
                    let held = matches!(row.detail, UnitDetail::Credit { parked: true, .. });
                    let could = idle.intersection(&row.affinity);
                    assert!(
                        held || could.is_empty(),
                        "{} waits while {could} is idle at {}",
                        row.unit,
                        self.now
                    );
                }
                Phase::Blocked | Phase::Offline => {}
            }
        }
        for current in self.cpus.iter().filter_map(|cpu| cpu.current) {
            assert!(seen.contains(&current), "{current} runs and is nowhere");
        }
    }
}
