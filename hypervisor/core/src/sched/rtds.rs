//! RTDS: each unit gets its budget in each of its periods. Global earliest deadline first.
//!
//! A unit has a **period** and a **budget**. At the beginning of a period its budget is full; it runs it down; the end of
//! the period is its **deadline**. Those with the earliest deadlines run, as many as there are CPUs. A unit that has used
//! up its budget waits for its next period; with **extra time** it goes on instead with a new budget, but behind all those
//! that have used up fewer in their periods: its *level* rises, and saturates, so it never wraps around to the front.
//!
//! **Admission.** Budgets that sum up to more CPUs than there are, are refused. On m CPUs, with u the largest budget per
//! period of a unit, sums up to m - (m - 1) × u are guaranteed: every budget is had in every period. Sums in between are
//! accepted; deadlines may then be missed, by a bounded time, and what was missed is counted. Affinities are not looked at
//! by the test: who pins units makes its own sums.
//!
//! Source: Goossens, Funk, Baruah: "Priority-driven scheduling of periodic task systems on multiprocessors",
//! Real-Time Systems 25, 2003 (the bound); Devi and Anderson: "Tardiness bounds under global EDF scheduling on a
//! multiprocessor", Real-Time Systems 38, 2008 (the bounded tardiness in between).
//!
//! Invariants:
//! - A unit in the runqueue has budget. One without is depleted, and in the queue of deadlines only.
//! - A unit is in the queue of deadlines exactly while it is runnable: who leaves the runqueue for good leaves both.
//! - One CPU at a time keeps the timer for the earliest deadline.
//!
//! Weights and caps mean nothing here. Lock order: one lock, a leaf.

use super::cpumask::AtomicCpuSet;
use super::sorted::{Links, Sorted};
use super::unit::{RunState, UnitTable};
use super::{
    CpuTable, Decision, DumpRow, Leave, Prev, Removal, RtParams, SchedError, Scheduler, UnitParams,
    WakeBy, Weight,
};
use crate::sync::Lock;
use crate::units::{CpuId, CpuSet, TickRate, Ticks, VcpuId};
use alloc::boxed::Box;
use queues::{Inner, Place, Slot};

mod queues;
mod show;

/// What the reservations of all units come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Every budget is had in every period.
    Guaranteed,
    /// Deadlines may be missed, by a bounded time. In millionths of a CPU.
    Tardy {
        /// What is reserved.
        reserved: u64,
        /// Up to what there would be a guarantee.
        guaranteed: u64,
    },
}

/// The scheduler.
pub struct Rtds {
    units: UnitTable,
    cpus: CpuTable,
    rate: TickRate,
    /// Places in the runqueue, and in the queue of deadlines.
    run_links: Links,
    deadline_links: Links,
    inner: Lock<Inner>,
    idle: AtomicCpuSet,
}

impl Rtds {
    /// A scheduler for CPUs 0 to `cpus - 1`, none of them online yet, and `units` slots.
    pub fn new(cpus: usize, units: usize, rate: TickRate) -> Self {
        Self {
            units: UnitTable::new(units),
            cpus: CpuTable::new(cpus),
            rate,
            run_links: Links::new(units),
            deadline_links: Links::new(units),
            inner: Lock::new(Inner::new(cpus, units)),
            idle: AtomicCpuSet::new(),
        }
    }

    /// The CPUs that run nothing.
    pub fn idle_cpus(&self) -> CpuSet {
        self.idle.load()
    }

    /// Whether all reservations together are guaranteed.
    pub fn admission(&self) -> Admission {
        let inner = self.inner.lock();
        let cpus = inner.online.len() as u64;
        let there = inner.slots.iter().filter(|slot| slot.place != Place::Free);
        let (reserved, largest) = there
            .map(Slot::utilization)
            .fold((0, 0), |(sum, max), u| (sum + u, u.max(max)));
        let guaranteed = (cpus * Slot::WHOLE).saturating_sub(cpus.saturating_sub(1) * largest);
        if reserved <= guaranteed {
            Admission::Guaranteed
        } else {
            Admission::Tardy {
                reserved,
                guaranteed,
            }
        }
    }

    fn state(&self, v: VcpuId) -> Option<&RunState> {
        self.units.get(v).map(|unit| &unit.state)
    }

    fn ticks(&self, rt: RtParams) -> (Ticks, Ticks) {
        (
            self.rate.ticks(rt.period().to_nanos()),
            self.rate.ticks(rt.budget().to_nanos()),
        )
    }

    /// A unit that has budget is put among those that wait, and a CPU is told.
    fn enqueue(&self, inner: &mut Inner, v: VcpuId, now: Ticks, tickle: &mut CpuSet) {
        let Some(slot) = inner.slots.get_mut(v.index()) else {
            return;
        };
        slot.place = Place::Queued;
        let key = slot.key(self.rate);
        inner.waiting.insert(&self.run_links, v.index(), key);
        self.offer(inner, v, now, tickle);
    }

    /// Tells an idle CPU, else the one that runs the least urgent unit, if that is less urgent.
    fn offer(&self, inner: &mut Inner, v: VcpuId, now: Ticks, tickle: &mut CpuSet) {
        let Some(slot) = inner.slots.get(v.index()) else {
            return;
        };
        let (key, last) = (slot.key(self.rate), slot.cpu);
        let mask = slot.hard.intersection(&inner.online);
        let claim = |cpu: &CpuId| mask.contains(*cpu) && self.idle.remove(*cpu);
        let idle = last.filter(claim).or_else(|| self.idle.iter().find(claim));
        let target = idle.or_else(|| {
            let busy = mask.iter().filter_map(|cpu| {
                let here = inner.here.get(cpu.index()).filter(|here| !here.tickled)?;
                let running = inner.slots.get(here.current?.index())?;
                Some((running.key_now(self.rate, now), cpu))
            });
            busy.max_by_key(|&(key, _)| key)
                .filter(|&(least, _)| key < least)
                .map(|(_, cpu)| cpu)
        });
        if let Some(cpu) = target {
            if let Some(here) = inner.here.get_mut(cpu.index()) {
                here.tickled = true;
            }
            tickle.insert(cpu);
        }
    }

    /// New periods for all whose deadlines have come.
    fn replenish(&self, inner: &mut Inner, now: Ticks, tickle: &mut CpuSet) {
        while let Some(index) = inner.deadlines.first() {
            let v = VcpuId::new(index as u32);
            let Some(slot) = inner
                .slots
                .get_mut(index)
                .filter(|slot| slot.deadline <= now)
            else {
                return;
            };
            let place = slot.place;
            if place == Place::Running {
                slot.burn(now);
            }
            slot.end_period(now);
            let key = slot.deadline_key();
            inner.deadlines.remove(&self.deadline_links, index);
            inner.deadlines.insert(&self.deadline_links, index, key);
            match place {
                Place::Depleted => self.enqueue(inner, v, now, tickle),
                Place::Queued => {
                    inner.waiting.remove(&self.run_links, index);
                    self.enqueue(inner, v, now, tickle);
                }
                Place::Running => {
                    // It may be less urgent than one that waits, from now on.
                    let first = inner.waiting.first().map(|first| VcpuId::new(first as u32));
                    if let Some(first) = first {
                        self.offer(inner, first, now, tickle);
                    }
                }
                Place::Free | Place::Blocked | Place::Leaving => {}
            }
        }
    }

    /// Takes a unit out of all queues.
    fn withdraw(&self, inner: &mut Inner, v: VcpuId) {
        inner.waiting.remove(&self.run_links, v.index());
        inner.deadlines.remove(&self.deadline_links, v.index());
    }

    fn free(&self, inner: &mut Inner, v: VcpuId) {
        self.withdraw(inner, v);
        if let Some(state) = self.state(v) {
            state.offline();
        }
        if let Some(slot) = inner.slots.get_mut(v.index()) {
            *slot = Slot::default();
        }
    }

    /// A unit becomes runnable: in its period, or in a new one if that has passed.
    fn make_runnable(&self, inner: &mut Inner, v: VcpuId, now: Ticks, tickle: &mut CpuSet) {
        let Some(slot) = inner.slots.get_mut(v.index()) else {
            return;
        };
        if slot.deadline <= now {
            slot.whole_period = false;
            slot.end_period(now);
        }
        slot.whole_period = false;
        let (key, depleted) = (slot.deadline_key(), slot.left == Ticks::ZERO);
        inner.deadlines.remove(&self.deadline_links, v.index());
        inner.deadlines.insert(&self.deadline_links, v.index(), key);
        if depleted {
            slot.place = Place::Depleted;
        } else {
            self.enqueue(inner, v, now, tickle);
        }
        self.call_keeper(inner, tickle);
    }

    /// Whoever keeps the timer must know of a deadline that is earlier than what it waits for.
    fn call_keeper(&self, inner: &Inner, tickle: &mut CpuSet) {
        let first = inner.first_deadline();
        match inner.keeper {
            Some((cpu, at)) if first.is_some_and(|first| first < at) => {
                tickle.insert(cpu);
            }
            None if first.is_some() && tickle.is_empty() => tickle.extend(inner.online.lowest()),
            _ => {}
        }
    }

    /// The best of those that wait which may run on this CPU.
    fn first_for(&self, inner: &Inner, cpu: CpuId) -> Option<VcpuId> {
        let mut waiting = inner.waiting.iter(&self.run_links);
        let index = waiting.find(|&index| {
            let slot = inner.slots.get(index);
            slot.is_some_and(|slot| slot.hard.contains(cpu))
        })?;
        Some(VcpuId::new(index as u32))
    }
}

impl Scheduler for Rtds {
    fn name(&self) -> &'static str {
        "rtds"
    }

    fn units(&self) -> &UnitTable {
        &self.units
    }

    fn cpus(&self) -> &CpuTable {
        &self.cpus
    }

    fn add(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError> {
        let (period, budget) = self.ticks(params.rt);
        let mut inner = self.inner.lock();
        match inner.slot(v) {
            Err(SchedError::NoUnit(_)) => {}
            Err(other) => return Err(other),
            Ok(_) => return Err(SchedError::SlotTaken(v)),
        }
        if inner.online.intersection(&params.affinity).is_empty() {
            return Err(SchedError::NoOnlineCpu(params.affinity));
        }
        let slot = Slot {
            place: Place::Blocked,
            period,
            budget,
            left: budget,
            extratime: params.rt.extratime,
            hard: params.affinity,
            soft: params.soft,
            weight: params.weight,
            ..Slot::default()
        };
        inner.admit(v, &slot)?;
        if let Some(unit) = self.units.get(v) {
            unit.reset();
        }
        if let Some(place) = inner.slots.get_mut(v.index()) {
            *place = slot;
        }
        Ok(())
    }

    fn remove(&self, v: VcpuId) -> Result<Removal, SchedError> {
        let mut inner = self.inner.lock();
        let slot = inner.slot(v)?;
        if let (Place::Running | Place::Leaving, Some(cpu)) = (slot.place, slot.cpu) {
            slot.dying = true;
            return Ok(Removal::RunsOn(cpu));
        }
        self.free(&mut inner, v);
        Ok(Removal::Done)
    }

    fn wake(&self, v: VcpuId, now: Ticks, _by: WakeBy) -> CpuSet {
        let mut tickle = CpuSet::EMPTY;
        let mut inner = self.inner.lock();
        let (Some(state), Ok(slot)) = (self.state(v), inner.slot(v)) else {
            return tickle;
        };
        if slot.place == Place::Blocked && state.is_woken() {
            state.set_queued();
            self.make_runnable(&mut inner, v, now, &mut tickle);
        }
        tickle
    }

    fn schedule(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision {
        let mut tickle = CpuSet::EMPTY;
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if !inner.online.contains(cpu) {
            return Decision::IDLE;
        }
        self.replenish(inner, now, &mut tickle);
        if let Some(here) = inner.here.get_mut(cpu.index()) {
            here.tickled = false;
        }
        tickle.remove(cpu);

        let current = prev.map(|prev| prev.unit);
        let goes_on = prev.and_then(|prev| {
            let slot = inner.slots.get_mut(prev.unit.index())?;
            slot.burn(now);
            let would = matches!(prev.leave, Leave::Runnable | Leave::Yields);
            let may = slot.hard.contains(cpu) && !slot.dying && slot.left > Ticks::ZERO;
            (would && may).then(|| (slot.key(self.rate), prev))
        });
        if let Some(prev) = prev.filter(|prev| matches!(prev.leave, Leave::Blocks | Leave::Gone)) {
            // Nobody waits for its deadline any more, unless it turns out that it was kicked.
            self.withdraw(inner, prev.unit);
        }
        let first = self.first_for(inner, cpu);
        let run = match (goes_on, first) {
            (Some((_, prev)), None) => Some(prev.unit),
            (Some((key, prev)), Some(first)) => {
                let rival = self.run_links.key(first.index());
                let stays = key <= rival && prev.leave != Leave::Yields;
                Some(if stays { prev.unit } else { first })
            }
            (None, first) => first,
        };
        if let Some(slot) = current
            .filter(|_| run != current)
            .and_then(|v| inner.slots.get_mut(v.index()))
        {
            slot.place = Place::Leaving;
        }
        if let Some(v) = run.filter(|_| run != current) {
            inner.waiting.remove(&self.run_links, v.index());
            if let Some(slot) = inner.slots.get_mut(v.index()) {
                slot.place = Place::Running;
                slot.cpu = Some(cpu);
                slot.start = now;
            }
            if let Some(state) = self.state(v) {
                state.set_running(cpu);
            }
        }
        if run.is_some() {
            self.idle.remove(cpu);
        } else {
            self.idle.insert(cpu);
        }
        let ends = run
            .and_then(|v| inner.slots.get(v.index()))
            .map(|slot| now + slot.left);
        if let Some(here) = inner.here.get_mut(cpu.index()) {
            here.current = run;
            here.until = ends;
        }
        let until = ends.into_iter().chain(inner.keep_timer(cpu)).min();
        Decision { run, until, tickle }
    }

    fn give_up(&self, cpu: CpuId, prev: Prev, now: Ticks) {
        let mut inner = self.inner.lock();
        if matches!(prev.leave, Leave::Blocks | Leave::Gone) {
            self.withdraw(&mut inner, prev.unit);
        }
        if let Ok(slot) = inner.slot(prev.unit) {
            slot.burn(now);
            slot.place = Place::Leaving;
        }
        if let Some(here) = inner.here.get_mut(cpu.index()) {
            here.current = None;
            here.until = None;
        }
    }

    fn context_saved(&self, cpu: CpuId, prev: Prev, now: Ticks) -> CpuSet {
        let mut tickle = CpuSet::EMPTY;
        let mut inner = self.inner.lock();
        let v = prev.unit;
        let (Some(state), Ok(slot)) = (self.state(v), inner.slot(v)) else {
            return tickle;
        };
        if slot.dying || prev.leave == Leave::Gone {
            self.free(&mut inner, v);
            return tickle;
        }
        if prev.leave == Leave::Blocks {
            slot.place = Place::Blocked;
            slot.whole_period = false;
            if state.try_block(cpu).is_ok() {
                self.withdraw(&mut inner, v);
                return tickle;
            }
        }
        state.set_queued();
        let key = slot.deadline_key();
        let depleted = slot.left == Ticks::ZERO;
        inner.deadlines.remove(&self.deadline_links, v.index());
        inner.deadlines.insert(&self.deadline_links, v.index(), key);
        if depleted {
            if let Ok(slot) = inner.slot(v) {
                slot.place = Place::Depleted;
            }
        } else {
            self.enqueue(&mut inner, v, now, &mut tickle);
        }
        self.call_keeper(&inner, &mut tickle);
        tickle
    }

    fn others_wait(&self, _cpu: CpuId) -> bool {
        let inner = self.inner.lock();
        // Each CPU that was told comes for one of them.
        let told = inner.online.iter().filter(|cpu| {
            let here = inner.here.get(cpu.index());
            here.is_some_and(|here| here.tickled)
        });
        inner.waiting.iter(&self.run_links).count() > told.count()
    }

    fn set_weight(&self, v: VcpuId, weight: Weight, _now: Ticks) -> Result<(), SchedError> {
        self.inner.lock().slot(v)?.weight = weight;
        Ok(())
    }

    fn set_affinity(&self, v: VcpuId, affinity: CpuSet, now: Ticks) -> Result<CpuSet, SchedError> {
        let mut tickle = CpuSet::EMPTY;
        let mut inner = self.inner.lock();
        if inner.online.intersection(&affinity).is_empty() {
            return Err(SchedError::NoOnlineCpu(affinity));
        }
        let slot = inner.slot(v)?;
        slot.hard = affinity;
        match (slot.place, slot.cpu) {
            (Place::Running, Some(cpu)) if !affinity.contains(cpu) => {
                tickle.insert(cpu);
            }
            (Place::Queued, _) => self.offer(&mut inner, v, now, &mut tickle),
            _ => {}
        }
        Ok(tickle)
    }

    fn set_rt(&self, v: VcpuId, params: RtParams, _now: Ticks) -> Result<(), SchedError> {
        let (period, budget) = self.ticks(params);
        let mut inner = self.inner.lock();
        let changed = Slot {
            period,
            budget,
            extratime: params.extratime,
            ..*inner.slot(v)?
        };
        inner.admit(v, &changed)?;
        // What is left of this period stays as it is, so no unit without budget comes to run.
        *inner.slot(v)? = changed;
        Ok(())
    }

    fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError> {
        let mut inner = self.inner.lock();
        if inner.here.get(cpu.index()).is_none() {
            return Err(SchedError::NoSuchCpu(cpu));
        }
        inner.online.insert(cpu);
        Ok(())
    }

    fn cpu_offline(&self, cpu: CpuId, now: Ticks) -> Result<CpuSet, SchedError> {
        let mut tickle = CpuSet::EMPTY;
        let mut inner = self.inner.lock();
        if inner.here.get(cpu.index()).is_none() {
            return Err(SchedError::NoSuchCpu(cpu));
        }
        if inner.online.iter().all(|other| other == cpu) {
            return Err(SchedError::LastCpu(cpu));
        }
        let on = |slot: &Slot| {
            matches!(slot.place, Place::Running | Place::Leaving) && slot.cpu == Some(cpu)
        };
        if inner.slots.iter().any(on) {
            return Err(SchedError::CpuBusy(cpu));
        }
        inner.online.remove(cpu);
        self.idle.remove(cpu);
        let online = inner.online;
        for index in 0..inner.slots.len() {
            let Some(slot) = inner.slots.get_mut(index) else {
                continue;
            };
            if slot.hard.intersection(&online).is_empty() {
                slot.hard = CpuSet::ALL;
            }
            // It may have been offered to this CPU.
            if slot.place == Place::Queued {
                self.offer(&mut inner, VcpuId::new(index as u32), now, &mut tickle);
            }
        }
        if inner.keeper.is_some_and(|(keeper, _)| keeper == cpu) {
            inner.keeper = None;
            tickle.extend(online.lowest());
        }
        Ok(tickle)
    }

    fn dump(&self, now: Ticks, show: impl FnMut(DumpRow)) {
        self.show(now, show);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
