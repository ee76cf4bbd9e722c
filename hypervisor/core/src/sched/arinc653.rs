//! ARINC 653: a table says which vCPU runs when, again and again.
//!
//! A *major frame* is divided into *minor frames*, each of one unit; what the table leaves at the end is slack. A unit
//! that is blocked in its frame leaves it idle: nobody else gets the time. Each frame begins where the last one ended, not
//! when the CPU came to look, so a late look shortens one frame and shifts none.
//!
//! One CPU runs the table: the lowest that is online. The others stay idle.
//! Until a table is [set](Arinc653::set_table), each unit that is added gets a minor frame of 10 ms behind the others.
//! Weights, caps and affinities mean nothing here.
//!
//! Source: ARINC Specification 653 Part 1, 2.3.1 (partition management).
//!
//! Lock order: one lock, a leaf.

use super::cpumask::AtomicCpuSet;
use super::unit::{RunState, UnitTable};
use super::{
    CpuRow, CpuTable, Decision, DumpRow, Leave, Prev, Removal, SchedError, Scheduler, UnitDetail,
    UnitParams, UnitRow, WakeBy, Weight,
};
use crate::sync::Lock;
use crate::units::{CpuId, CpuSet, Micros, TickRate, Ticks, VcpuId};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

mod timeline;

use timeline::Timeline;
pub use timeline::{MAX_FRAMES, MinorFrame};

/// The frame of a unit that is added before any table is set.
pub const DEFAULT_FRAME: Micros = Micros::new(10_000);

/// Why a table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadTable {
    /// It has no frame.
    Empty,
    /// It has more than [`MAX_FRAMES`].
    TooLong(usize),
    /// A frame has no length.
    NoTime(VcpuId),
    /// The minor frames are longer than the major frame.
    Overfull {
        /// All minor frames.
        minor: Ticks,
        /// The major frame.
        major: Ticks,
    },
    /// A frame is of a unit that does not exist.
    NoUnit(VcpuId),
}

impl fmt::Display for BadTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no frame"),
            Self::TooLong(frames) => write!(f, "{frames} frames are more than {MAX_FRAMES}"),
            Self::NoTime(v) => write!(f, "the frame of {v} has no length"),
            Self::Overfull { minor, major } => {
                write!(f, "minor frames of {minor} do not fit into {major}")
            }
            Self::NoUnit(v) => write!(f, "{v} does not exist"),
        }
    }
}

impl core::error::Error for BadTable {}

/// The scheduler.
pub struct Arinc653 {
    units: UnitTable,
    cpus: CpuTable,
    frame: Ticks,
    inner: Lock<Inner>,
    idle: AtomicCpuSet,
}

struct Inner {
    slots: Box<[Slot]>,
    online: CpuSet,
    timeline: Timeline,
    /// The table was set, and does not grow by itself.
    fixed: bool,
    running: Option<VcpuId>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    there: bool,
    runnable: bool,
    on: Option<CpuId>,
    dying: bool,
    hard: CpuSet,
    weight: Weight,
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

    /// The CPU that runs the table.
    fn cpu(&self) -> CpuSet {
        self.online.lowest().map_or(CpuSet::EMPTY, CpuSet::single)
    }
}

impl Arinc653 {
    /// A scheduler for CPUs 0 to `cpus - 1`, none of them online yet, and `units` slots.
    pub fn new(cpus: usize, units: usize, rate: TickRate) -> Self {
        Self {
            units: UnitTable::new(units),
            cpus: CpuTable::new(cpus),
            frame: rate.ticks(DEFAULT_FRAME.to_nanos()),
            inner: Lock::new(Inner {
                slots: (0..units).map(|_| Slot::default()).collect(),
                online: CpuSet::EMPTY,
                timeline: Timeline::new(),
                fixed: false,
                running: None,
            }),
            idle: AtomicCpuSet::new(),
        }
    }

    /// The CPUs that run nothing.
    pub fn idle_cpus(&self) -> CpuSet {
        self.idle.load()
    }

    /// Another table from now on: the first frame begins at `now`. The answer is who must be told.
    ///
    /// # Errors
    /// The table is malformed; the old one stays.
    pub fn set_table(
        &self,
        frames: &[MinorFrame],
        major: Ticks,
        now: Ticks,
    ) -> Result<CpuSet, BadTable> {
        let timeline = Timeline::of(frames, major, now)?;
        let mut inner = self.inner.lock();
        let stranger = |frame: &&MinorFrame| {
            let slot = inner.slots.get(frame.unit.index());
            slot.is_none_or(|slot| !slot.there)
        };
        if let Some(frame) = frames.iter().find(stranger) {
            return Err(BadTable::NoUnit(frame.unit));
        }
        inner.timeline = timeline;
        inner.fixed = true;
        Ok(inner.cpu())
    }

    fn state(&self, v: VcpuId) -> Option<&RunState> {
        self.units.get(v).map(|unit| &unit.state)
    }

    fn free(&self, inner: &mut Inner, v: VcpuId) {
        if let Some(state) = self.state(v) {
            state.offline();
        }
        if !inner.fixed {
            inner.timeline.remove(v);
        }
        if let Some(slot) = inner.slots.get_mut(v.index()) {
            *slot = Slot::default();
        }
    }
}

impl Scheduler for Arinc653 {
    fn name(&self) -> &'static str {
        "arinc653"
    }

    fn units(&self) -> &UnitTable {
        &self.units
    }

    fn cpus(&self) -> &CpuTable {
        &self.cpus
    }

    fn add(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError> {
        let mut inner = self.inner.lock();
        match inner.slot(v) {
            Err(SchedError::NoUnit(_)) => {}
            Err(other) => return Err(other),
            Ok(_) => return Err(SchedError::SlotTaken(v)),
        }
        if inner.online.intersection(&params.affinity).is_empty() {
            return Err(SchedError::NoOnlineCpu(params.affinity));
        }
        if !inner.fixed && !inner.timeline.append(v, self.frame) {
            return Err(SchedError::NoSuchSlot {
                unit: v,
                capacity: MAX_FRAMES,
            });
        }
        if let Some(unit) = self.units.get(v) {
            unit.reset();
        }
        if let Some(slot) = inner.slots.get_mut(v.index()) {
            *slot = Slot {
                there: true,
                hard: params.affinity,
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
        self.free(&mut inner, v);
        Ok(Removal::Done)
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
        // It may be its frame.
        inner.cpu()
    }

    fn schedule(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision {
        let mut inner = self.inner.lock();
        let mut decision = Decision::IDLE;
        if inner.cpu().contains(cpu) {
            let (owner, until) = inner.timeline.at(now);
            let stays = prev.filter(|prev| matches!(prev.leave, Leave::Runnable | Leave::Yields));
            let goes_on = stays.map(|prev| prev.unit);
            decision.until = until;
            decision.run = owner.filter(|&v| {
                inner.slots.get(v.index()).is_some_and(|slot| {
                    let free = slot.runnable && slot.on.is_none();
                    !slot.dying && (goes_on == Some(v) || free)
                })
            });
            inner.running = decision.run;
            if let Some(v) = decision.run.filter(|&v| goes_on != Some(v))
                && let Ok(slot) = inner.slot(v)
            {
                slot.on = Some(cpu);
                slot.runnable = false;
                if let Some(state) = self.state(v) {
                    state.set_running(cpu);
                }
            }
        }
        if decision.run.is_some() {
            self.idle.remove(cpu);
        } else if inner.online.contains(cpu) {
            self.idle.insert(cpu);
        }
        decision
    }

    fn give_up(&self, _cpu: CpuId, prev: Prev, _now: Ticks) {
        let mut inner = self.inner.lock();
        if inner.running == Some(prev.unit) {
            inner.running = None;
        }
    }

    fn context_saved(&self, cpu: CpuId, prev: Prev, _now: Ticks) -> CpuSet {
        let mut inner = self.inner.lock();
        let v = prev.unit;
        let first = inner.cpu();
        let (Some(state), Ok(slot)) = (self.state(v), inner.slot(v)) else {
            return CpuSet::EMPTY;
        };
        slot.on = None;
        if slot.dying || prev.leave == Leave::Gone {
            self.free(&mut inner, v);
        } else if prev.leave != Leave::Blocks {
            state.set_queued();
            slot.runnable = true;
        } else if state.try_block(cpu).is_err() {
            state.set_queued();
            slot.runnable = true;
            return first;
        }
        CpuSet::EMPTY
    }

    /// A frame is for nobody else.
    fn others_wait(&self, _cpu: CpuId) -> bool {
        false
    }

    fn set_weight(&self, v: VcpuId, weight: Weight, _now: Ticks) -> Result<(), SchedError> {
        self.inner.lock().slot(v)?.weight = weight;
        Ok(())
    }

    fn set_affinity(&self, v: VcpuId, affinity: CpuSet, _now: Ticks) -> Result<CpuSet, SchedError> {
        let mut inner = self.inner.lock();
        if inner.online.intersection(&affinity).is_empty() {
            return Err(SchedError::NoOnlineCpu(affinity));
        }
        inner.slot(v)?.hard = affinity;
        Ok(CpuSet::EMPTY)
    }

    fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError> {
        if cpu.index() >= self.cpus.len() {
            return Err(SchedError::NoSuchCpu(cpu));
        }
        self.inner.lock().online.insert(cpu);
        Ok(())
    }

    fn cpu_offline(&self, cpu: CpuId, _now: Ticks) -> Result<CpuSet, SchedError> {
        if cpu.index() >= self.cpus.len() {
            return Err(SchedError::NoSuchCpu(cpu));
        }
        let mut inner = self.inner.lock();
        if inner.online.iter().all(|other| other == cpu) {
            return Err(SchedError::LastCpu(cpu));
        }
        if inner.slots.iter().any(|slot| slot.on == Some(cpu)) {
            return Err(SchedError::CpuBusy(cpu));
        }
        let ran_the_table = inner.cpu().contains(cpu);
        inner.online.remove(cpu);
        self.idle.remove(cpu);
        Ok(if ran_the_table {
            inner.cpu()
        } else {
            CpuSet::EMPTY
        })
    }

    fn dump(&self, now: Ticks, mut show: impl FnMut(DumpRow)) {
        let mut rows = Vec::with_capacity(self.units.capacity() + self.cpus.len());
        {
            let inner = self.inner.lock();
            for cpu in inner.online.iter() {
                let runs_the_table = inner.cpu().contains(cpu);
                rows.push(DumpRow::Cpu(CpuRow {
                    cpu,
                    idle: self.idle.contains(cpu),
                    current: inner.running.filter(|_| runs_the_table),
                    until: inner.timeline.next_switch().filter(|_| runs_the_table),
                    waiting: 0,
                }));
            }
            for (index, slot) in inner.slots.iter().enumerate() {
                let v = VcpuId::new(index as u32);
                let Some(unit) = self.units.get(v).filter(|_| slot.there) else {
                    continue;
                };
                rows.push(DumpRow::Parked(UnitRow {
                    unit: v,
                    phase: unit.state.phase(),
                    weight: slot.weight,
                    affinity: slot.hard,
                    soft: CpuSet::ALL,
                    run_time: unit.run_time(now),
                    detail: UnitDetail::None,
                }));
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
