//! Null: every vCPU has a CPU of its own, and no timer is ever needed.
//!
//! A unit is assigned to a free CPU that it may use, one that it prefers if there is any, and stays there until it is
//! removed or its affinity changes; a CPU whose unit is blocked is idle. Units for which there is no CPU wait in a list,
//! first come first served: when a CPU becomes free, the first that prefers it gets it, else the first that may run there.
//!
//! Weights, caps and reservations mean nothing here, and are ignored. A unit that yields runs on.
//!
//! Invariants:
//! - A unit that is not offline is assigned to exactly one CPU, or waits in the list, never both.
//! - A CPU has at most one unit, and no unit waits that may use a CPU that has none.
//!
//! Lock order: one lock, a leaf. It is taken on the paths of a pass, which are seldom here.

use super::cpumask::AtomicCpuSet;
use super::unit::{Phase, RunState, UnitTable};
use super::{
    CpuRow, CpuTable, Decision, DumpRow, Leave, Prev, Removal, SchedError, Scheduler, UnitDetail,
    UnitParams, UnitRow, WakeBy, Weight,
};
use crate::sync::Lock;
use crate::units::{CpuId, CpuSet, Ticks, VcpuId};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The scheduler.
pub struct Null {
    units: UnitTable,
    cpus: CpuTable,
    inner: Lock<Inner>,
    /// The CPUs that run nothing. For whoever asks.
    idle: AtomicCpuSet,
}

struct Inner {
    slots: Box<[Slot]>,
    here: Box<[Here]>,
    online: CpuSet,
    /// The order in which units began to wait.
    turns: u64,
}

#[derive(Clone, Copy, Default)]
struct Here {
    /// The unit that it belongs to.
    owner: Option<VcpuId>,
    /// What runs: its owner, or one that has yet to leave.
    running: Option<VcpuId>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    there: bool,
    /// It was started, and not removed.
    wants: bool,
    runnable: bool,
    /// The CPU that it runs on, or that its registers are on.
    on: Option<CpuId>,
    /// Its CPU.
    cpu: Option<CpuId>,
    /// Its CPU, or the one that it had last.
    last: Option<CpuId>,
    /// Since when it waits for a CPU.
    turn: u64,
    dying: bool,
    hard: CpuSet,
    soft: CpuSet,
    weight: Weight,
}

impl Slot {
    fn prefers(&self, cpu: CpuId) -> bool {
        self.hard.contains(cpu) && self.soft.contains(cpu)
    }
}

impl Inner {
    fn slot(&mut self, v: VcpuId) -> Result<&mut Slot, SchedError> {
        let capacity = self.slots.len();
        let none = SchedError::NoSuchSlot { unit: v, capacity };
        let slot = self.slots.get_mut(v.index()).ok_or(none)?;
        if slot.there {
            Ok(slot)
        } else {
            Err(SchedError::NoUnit(v))
        }
    }

    fn owner(&self, cpu: CpuId) -> Option<VcpuId> {
        self.here.get(cpu.index())?.owner
    }

    fn set_owner(&mut self, cpu: CpuId, owner: Option<VcpuId>) {
        if let Some(here) = self.here.get_mut(cpu.index()) {
            here.owner = owner;
        }
    }

    /// A unit that has no CPU gets one, or waits. Its last one first, of those that it prefers, then of all.
    fn assign(&mut self, v: VcpuId) -> Option<CpuId> {
        let slot = *self.slots.get(v.index())?;
        let hard = slot.hard.intersection(&self.online);
        let soft = hard.intersection(&slot.soft);
        let free = |cpu: &CpuId| self.owner(*cpu).is_none();
        let pick = |mask: &CpuSet| {
            let last = slot.last.filter(|cpu| mask.contains(*cpu) && free(cpu));
            last.or_else(|| mask.iter().find(free))
        };
        let cpu = pick(&soft).or_else(|| pick(&hard));
        self.turns += 1;
        let turn = self.turns;
        let slot = self.slots.get_mut(v.index())?;
        slot.cpu = cpu;
        slot.turn = turn;
        if let Some(cpu) = cpu {
            slot.last = Some(cpu);
            self.set_owner(cpu, Some(v));
        }
        cpu
    }

    /// A CPU is free: the first that waits, and prefers it or may use it, gets it.
    fn hand_on(&mut self, cpu: CpuId) -> Option<CpuId> {
        if !self.online.contains(cpu) || self.owner(cpu).is_some() {
            return None;
        }
        let first = |wants: fn(&Slot, CpuId) -> bool| {
            let waiting = self.slots.iter().enumerate().filter(|(_, slot)| {
                slot.there && slot.wants && !slot.dying && slot.cpu.is_none() && wants(slot, cpu)
            });
            waiting
                .min_by_key(|(_, slot)| slot.turn)
                .map(|(index, _)| VcpuId::new(index as u32))
        };
        let v = first(Slot::prefers).or_else(|| first(|slot, cpu| slot.hard.contains(cpu)))?;
        let slot = self.slots.get_mut(v.index())?;
        slot.cpu = Some(cpu);
        slot.last = Some(cpu);
        self.set_owner(cpu, Some(v));
        Some(cpu)
    }

    /// A unit that waits although a CPU that it may use is free.
    fn anybody_who_could_run(&self) -> Option<VcpuId> {
        let free = |slot: &Slot| {
            let mask = slot.hard.intersection(&self.online);
            mask.iter().any(|cpu| self.owner(cpu).is_none())
        };
        let at = self.slots.iter().position(|slot| {
            slot.there && slot.wants && !slot.dying && slot.cpu.is_none() && free(slot)
        });
        at.map(|index| VcpuId::new(index as u32))
    }

    /// A unit gives up its CPU; whoever waits for that gets it, and its CPU is told.
    fn unassign(&mut self, v: VcpuId, tickle: &mut CpuSet) {
        let Some(cpu) = self
            .slots
            .get_mut(v.index())
            .and_then(|slot| slot.cpu.take())
        else {
            return;
        };
        self.set_owner(cpu, None);
        if let Some(cpu) = self.hand_on(cpu) {
            tickle.insert(cpu);
        }
    }

    fn check_affinity(&self, affinity: CpuSet) -> Result<(), SchedError> {
        if self.online.intersection(&affinity).is_empty() {
            Err(SchedError::NoOnlineCpu(affinity))
        } else {
            Ok(())
        }
    }
}

impl Null {
    /// A scheduler for CPUs 0 to `cpus - 1`, none of them online yet, and `units` slots.
    pub fn new(cpus: usize, units: usize) -> Self {
        Self {
            units: UnitTable::new(units),
            cpus: CpuTable::new(cpus),
            inner: Lock::new(Inner {
                slots: (0..units).map(|_| Slot::default()).collect(),
                here: (0..cpus).map(|_| Here::default()).collect(),
                online: CpuSet::EMPTY,
                turns: 0,
            }),
            idle: AtomicCpuSet::new(),
        }
    }

    /// The CPUs that run nothing.
    pub fn idle_cpus(&self) -> CpuSet {
        self.idle.load()
    }

    fn state(&self, v: VcpuId) -> Option<&RunState> {
        self.units.get(v).map(|unit| &unit.state)
    }

    fn free(&self, inner: &mut Inner, v: VcpuId, tickle: &mut CpuSet) {
        if let Some(state) = self.state(v) {
            state.offline();
        }
        if let Some(slot) = inner.slots.get_mut(v.index()) {
            slot.wants = false; // Its CPU goes to another.
        }
        inner.unassign(v, tickle);
        if let Some(slot) = inner.slots.get_mut(v.index()) {
            *slot = Slot::default();
        }
    }

    fn row(&self, v: VcpuId, slot: &Slot, now: Ticks) -> UnitRow {
        let unit = self.units.get(v);
        UnitRow {
            unit: v,
            phase: unit.map_or(Phase::Offline, |unit| unit.state.phase()),
            weight: slot.weight,
            affinity: slot.hard,
            soft: slot.soft,
            run_time: unit.map_or(Ticks::ZERO, |unit| unit.run_time(now)),
            detail: UnitDetail::None,
        }
    }
}

impl Scheduler for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn units(&self) -> &UnitTable {
        &self.units
    }

    fn cpus(&self) -> &CpuTable {
        &self.cpus
    }

    fn add(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError> {
        let mut inner = self.inner.lock();
        inner.check_affinity(params.affinity)?;
        match inner.slot(v) {
            Err(SchedError::NoUnit(_)) => {}
            Err(other) => return Err(other),
            Ok(_) => return Err(SchedError::SlotTaken(v)),
        }
        if let Some(unit) = self.units.get(v) {
            unit.reset();
        }
        if let Some(slot) = inner.slots.get_mut(v.index()) {
            *slot = Slot {
                there: true,
                hard: params.affinity,
                soft: params.soft,
                weight: params.weight,
                ..Slot::default()
            };
        }
        Ok(())
    }

    fn remove(&self, v: VcpuId) -> Result<Removal, SchedError> {
        let mut inner = self.inner.lock();
        let slot = inner.slot(v)?;
        if let Some(cpu) = slot.on {
            slot.dying = true;
            return Ok(Removal::RunsOn(cpu));
        }
        let mut tickle = CpuSet::EMPTY;
        self.free(&mut inner, v, &mut tickle);
        Ok(tickle.lowest().map_or(Removal::Done, Removal::MadeRoom))
    }

    fn wake(&self, v: VcpuId, _now: Ticks, _by: WakeBy) -> CpuSet {
        let mut inner = self.inner.lock();
        let (Some(state), Ok(slot)) = (self.state(v), inner.slot(v)) else {
            return CpuSet::EMPTY;
        };
        if !state.is_woken() {
            return CpuSet::EMPTY;
        }
        state.set_queued();
        slot.runnable = true;
        let cpu = if slot.wants {
            slot.cpu
        } else {
            slot.wants = true;
            inner.assign(v)
        };
        cpu.map_or(CpuSet::EMPTY, CpuSet::single)
    }

    fn schedule(&self, cpu: CpuId, _now: Ticks, prev: Option<Prev>) -> Decision {
        let mut inner = self.inner.lock();
        let owner = inner.owner(cpu);
        let stays = prev.filter(|prev| matches!(prev.leave, Leave::Runnable | Leave::Yields));
        let goes_on = stays.is_some_and(|prev| owner == Some(prev.unit));
        let run = owner.filter(|&v| {
            inner.slots.get(v.index()).is_some_and(|slot| {
                // Its registers may still be on another CPU, which tells this one when they are saved.
                !slot.dying && (goes_on || (slot.runnable && slot.on.is_none()))
            })
        });
        if let Some(here) = inner.here.get_mut(cpu.index()) {
            here.running = run;
        }
        match run {
            Some(v) => {
                self.idle.remove(cpu);
                if let Some(slot) = inner.slots.get_mut(v.index()).filter(|_| !goes_on) {
                    slot.on = Some(cpu);
                    slot.runnable = false;
                    if let Some(state) = self.state(v) {
                        state.set_running(cpu);
                    }
                }
            }
            None if inner.online.contains(cpu) => self.idle.insert(cpu),
            None => {}
        }
        Decision {
            run,
            ..Decision::IDLE
        }
    }

    fn give_up(&self, cpu: CpuId, _prev: Prev, _now: Ticks) {
        if let Some(here) = self.inner.lock().here.get_mut(cpu.index()) {
            here.running = None;
        }
    }

    fn context_saved(&self, cpu: CpuId, prev: Prev, _now: Ticks) -> CpuSet {
        let mut tickle = CpuSet::EMPTY;
        let mut inner = self.inner.lock();
        let v = prev.unit;
        let (Some(state), Ok(slot)) = (self.state(v), inner.slot(v)) else {
            return tickle;
        };
        slot.on = None;
        if slot.dying || prev.leave == Leave::Gone {
            self.free(&mut inner, v, &mut tickle);
        } else if prev.leave == Leave::Blocks && state.try_block(cpu).is_ok() {
            slot.runnable = false;
        } else {
            state.set_queued();
            slot.runnable = true;
            if let Some(cpu) = slot.cpu {
                tickle.insert(cpu);
            }
        }
        tickle
    }

    /// Nobody takes a CPU from the unit that it belongs to.
    fn others_wait(&self, _cpu: CpuId) -> bool {
        false
    }

    fn set_weight(&self, v: VcpuId, weight: Weight, _now: Ticks) -> Result<(), SchedError> {
        self.inner.lock().slot(v)?.weight = weight;
        Ok(())
    }

    fn set_affinity(&self, v: VcpuId, affinity: CpuSet, _now: Ticks) -> Result<CpuSet, SchedError> {
        let mut tickle = CpuSet::EMPTY;
        let mut inner = self.inner.lock();
        inner.check_affinity(affinity)?;
        let slot = inner.slot(v)?;
        slot.hard = affinity;
        if let Some(cpu) = slot.cpu.filter(|cpu| !affinity.contains(*cpu)) {
            if slot.on == Some(cpu) {
                tickle.insert(cpu);
            }
            inner.unassign(v, &mut tickle);
        }
        if let Ok(&mut Slot {
            wants: true,
            cpu: None,
            ..
        }) = inner.slot(v)
            && let Some(cpu) = inner.assign(v)
        {
            tickle.insert(cpu);
        }
        Ok(tickle)
    }

    fn set_soft_affinity(
        &self,
        v: VcpuId,
        soft: CpuSet,
        _now: Ticks,
    ) -> Result<CpuSet, SchedError> {
        // It counts when a CPU is chosen the next time.
        self.inner.lock().slot(v)?.soft = soft;
        Ok(CpuSet::EMPTY)
    }

    fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError> {
        let mut inner = self.inner.lock();
        if inner.here.get(cpu.index()).is_none() {
            return Err(SchedError::NoSuchCpu(cpu));
        }
        inner.online.insert(cpu);
        // It looks by itself, right after this.
        inner.hand_on(cpu);
        Ok(())
    }

    fn cpu_offline(&self, cpu: CpuId, _now: Ticks) -> Result<CpuSet, SchedError> {
        let mut inner = self.inner.lock();
        let mut tickle = CpuSet::EMPTY;
        if inner.here.get(cpu.index()).is_none() {
            return Err(SchedError::NoSuchCpu(cpu));
        }
        if inner.online.iter().all(|other| other == cpu) {
            return Err(SchedError::LastCpu(cpu));
        }
        if inner.slots.iter().any(|slot| slot.on == Some(cpu)) {
            return Err(SchedError::CpuBusy(cpu));
        }
        inner.online.remove(cpu);
        self.idle.remove(cpu);
        let online = inner.online;
        for slot in &mut inner.slots {
            if slot.there && slot.hard.intersection(&online).is_empty() {
                slot.hard = CpuSet::ALL;
            }
        }
        if let Some(v) = inner.owner(cpu) {
            inner.unassign(v, &mut tickle);
            tickle.extend(inner.assign(v));
        }
        // Units whose affinity had to be widened.
        while let Some(v) = inner.anybody_who_could_run() {
            tickle.extend(inner.assign(v));
        }
        Ok(tickle)
    }

    fn dump(&self, now: Ticks, mut show: impl FnMut(DumpRow)) {
        let mut rows: Vec<DumpRow> = Vec::new();
        {
            // Room for all, without the lock.
            let cpus = self.cpus.len();
            rows.reserve(self.units.capacity() + cpus + 1);
            let inner = self.inner.lock();
            for cpu in inner.online.iter() {
                let Some(here) = inner.here.get(cpu.index()) else {
                    continue;
                };
                rows.push(DumpRow::Cpu(CpuRow {
                    cpu,
                    idle: self.idle.contains(cpu),
                    current: here.running,
                    until: None,
                    waiting: 0,
                }));
                let owner = here
                    .owner
                    .and_then(|v| Some((v, inner.slots.get(v.index())?)));
                rows.extend(owner.map(|(v, slot)| DumpRow::Unit(self.row(v, slot, now))));
            }
            for (index, slot) in inner.slots.iter().enumerate() {
                if slot.there && slot.cpu.is_none() {
                    let v = VcpuId::new(index as u32);
                    rows.push(DumpRow::Parked(self.row(v, slot, now)));
                }
            }
        }
        for row in rows {
            show(row);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
