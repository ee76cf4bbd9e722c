//! Credit2, the default scheduler: credits in time, one runqueue for the CPUs of a socket.
//!
//! A unit has **credit**, which it burns by running: the heaviest unit of a runqueue one tick a tick, others faster by so
//! much as they are lighter. The one with the most credit runs. When nobody who waits, nor who is about to run, has any
//! left, all units of the runqueue get the same amount anew. So weights are shares; a unit that slept keeps little more
//! than one such amount; and what a unit cannot use, since it has one CPU at most, goes to the others.
//!
//! - **Rate limit.** A unit that runs is not preempted for a millisecond, but by what it woke itself: it waits for that.
//! - **Migration resistance.** A unit is taken from another CPU of the runqueue only if it has half a millisecond more.
//! - **Directed yield.** A unit that yields, since it spins, gives its time to one of its domain that waits.
//! - **Soft affinity** is tried first in every choice of a CPU; **hard affinity** holds always.
//! - **Idle CPUs** are ranked by the time until the unit would run there ([`placement`](super::placement)).
//! - **Caps**: a domain's pool of time, filled each period.
//! - **Balancing** between runqueues compares average loads after a reset. Beyond that, a CPU that finds nothing in its own
//!   runqueue takes what waits in another, and a unit that waits is offered to idle CPUs of other runqueues too: so no
//!   CPU is idle while a unit waits that may run there. Weights hold within a runqueue; between runqueues, loads do.
//!
//! Invariants:
//! - A unit is in exactly one place; it is assigned to one runqueue, some of whose CPUs it may use, or is carried.
//! - A CPU in the idle set runs nothing. Who removes it from there tells it, and for one unit: no CPU is promised twice.
//!   A CPU that took another unit than it was told for offers that one again.
//! - A CPU enters the idle set before it looks at what waits; a unit waits before the idle set is looked at.
//! - What a unit runs is burnt exactly once, whoever charges it. A cap's overruns are paid back.
//! - Nothing is allocated after [`Credit2::new`], but in [`cpu_online`](Scheduler::cpu_online) and
//!   [`dump`](Scheduler::dump), outside of all runqueue locks.
//!
//! Lock order: `control` (add, affinity, online, offline), then a runqueue, then a domain, then the timer of caps. With a
//! runqueue's lock held, another's is only tried.
//!
//! Called by: the dispatch loops, wakers, domain building, the console.

use super::cpumask::AtomicCpuSet;
use super::sorted::Links;
use super::topology::Topology;
use super::unit::{RunState, UnitTable};
use super::{
    Cap, CpuTable, Decision, DumpRow, Prev, Removal, SchedError, Scheduler, UnitParams, WakeBy,
    Weight,
};
use crate::sync::Lock;
use crate::units::{CpuId, CpuSet, DomId, TickRate, Ticks, VcpuId};
use alloc::boxed::Box;
use caps::{Budget, Refills};
use queue::RunQueue;
use rules::Rules;
use slot::{Here, Place, QueueId, Slot};

mod arrange;
mod balance;
mod caps;
mod change;
mod credit;
mod idle;
mod load;
mod queue;
pub mod rules;
mod schedule;
mod show;
mod slot;
mod tickle;
mod yield_to;

pub use rules::{Arrangement, Config};

/// The scheduler.
pub struct Credit2 {
    rules: Rules,
    topology: Topology,
    units: UnitTable,
    cpus: CpuTable,
    slots: Box<[Slot]>,
    /// The places of units in what waits.
    links: Links,
    here: Box<[Here]>,
    queues: Box<[RunQueue]>,
    domains: Box<[Lock<Budget>]>,
    refills: Refills,
    idle: AtomicCpuSet,
    /// The runqueues in which something waits, by their numbers. Set before the idle set is read, read after a CPU has entered it.
    busy: AtomicCpuSet,
    online: AtomicCpuSet,
    /// Held by whoever changes which CPUs there are, or where a unit may run.
    control: Lock<()>,
}

impl Credit2 {
    /// A scheduler for the CPUs of a topology, none of them online yet, and so many slots for units. Domains are numbered
    /// below `domains`.
    pub fn new(
        topology: Topology,
        units: usize,
        domains: usize,
        rate: TickRate,
        config: &Config,
    ) -> Self {
        let cpus = topology.cpus();
        let here = (0..cpus).map(|cpu| Here::new(topology.siblings(CpuId::new(cpu as u32))));
        Self {
            rules: Rules::new(config, rate),
            units: UnitTable::new(units),
            cpus: CpuTable::new(cpus),
            slots: (0..units).map(|_| Slot::new()).collect(),
            links: Links::new(units),
            here: here.collect(),
            queues: (0..cpus)
                .map(|index| RunQueue::new(QueueId::new(index)))
                .collect(),
            domains: (0..domains).map(|_| Lock::new(Budget::default())).collect(),
            refills: Refills::new(domains),
            idle: AtomicCpuSet::new(),
            busy: AtomicCpuSet::new(),
            online: AtomicCpuSet::new(),
            control: Lock::new(()),
            topology,
        }
    }

    /// The CPUs that run nothing and take work at once.
    pub fn idle_cpus(&self) -> CpuSet {
        self.idle.load()
    }

    fn slot(&self, v: VcpuId) -> Result<&Slot, SchedError> {
        let capacity = self.slots.len();
        let none = SchedError::NoSuchSlot { unit: v, capacity };
        self.slots.get(v.index()).ok_or(none)
    }

    fn state(&self, v: VcpuId) -> Option<&RunState> {
        self.units.get(v).map(|unit| &unit.state)
    }

    fn check_affinity(&self, affinity: CpuSet) -> Result<(), SchedError> {
        if self.online.load().intersection(&affinity).is_empty() {
            Err(SchedError::NoOnlineCpu(affinity))
        } else {
            Ok(())
        }
    }
}

impl Scheduler for Credit2 {
    fn name(&self) -> &'static str {
        "credit2"
    }

    fn units(&self) -> &UnitTable {
        &self.units
    }

    fn cpus(&self) -> &CpuTable {
        &self.cpus
    }

    fn add(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError> {
        self.insert(v, &params)
    }

    fn remove(&self, v: VcpuId) -> Result<Removal, SchedError> {
        self.take_out(v)
    }

    fn wake(&self, v: VcpuId, now: Ticks, by: WakeBy) -> CpuSet {
        let mut tickle = CpuSet::EMPTY;
        let (Some(state), Some((slot, mut queue))) = (self.state(v), self.lock_unit(v)) else {
            return tickle;
        };
        // The unit may have been removed since its kick, and the slot may even have another by now.
        if slot.place.get() == Place::Blocked && state.is_woken() {
            state.set_queued();
            self.forget_surplus(&queue, slot);
            self.change_load(&mut queue, slot, 1, now);
            self.enqueue(&mut queue, v, slot);
            self.offer(&queue, v, slot, now, by, &mut tickle);
        }
        tickle
    }

    fn schedule(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision {
        self.choose(cpu, now, prev)
    }

    fn give_up(&self, cpu: CpuId, prev: Prev, now: Ticks) {
        let here = self.here.get(cpu.index());
        let queue = here.and_then(|here| self.queues.get(here.queue.get()?.index()));
        if let (Some(here), Some(rq)) = (here, queue) {
            let queue = rq.lock();
            if let Some(slot) = self.current_of(cpu) {
                self.burn(&queue, slot, now);
                slot.place.set(Place::Leaving);
            }
            here.current.set(None);
            here.leaving.set(Some(prev.unit));
        }
    }

    fn context_saved(&self, cpu: CpuId, prev: Prev, now: Ticks) -> CpuSet {
        let mut tickle = CpuSet::EMPTY;
        self.hand_back(cpu, prev, now, &mut tickle);
        tickle
    }

    fn others_wait(&self, cpu: CpuId) -> bool {
        let queue = self.here.get(cpu.index()).and_then(|here| here.queue.get());
        let Some(id) = queue.filter(|id| self.busy.contains(id.bit())) else {
            return false;
        };
        // Whoever has the lock changes what waits: then this asks again.
        let Some(queue) = self.queues.get(id.index()).and_then(RunQueue::try_lock) else {
            return false;
        };
        let mut waiting = queue.waiting.iter(&self.links).take(yield_to::TRIES);
        waiting.any(|index| {
            let slot = self.slots.get(index);
            slot.is_some_and(|slot| {
                slot.hard.contains(cpu) && !self.is_awaited_elsewhere(slot, cpu)
            })
        })
    }

    fn set_weight(&self, v: VcpuId, weight: Weight, now: Ticks) -> Result<(), SchedError> {
        self.slot(v)?;
        let (slot, mut queue) = self.lock_unit(v).ok_or(SchedError::NoUnit(v))?;
        self.reweigh(&mut queue, slot, weight.get().into(), now);
        Ok(())
    }

    fn set_affinity(&self, v: VcpuId, affinity: CpuSet, now: Ticks) -> Result<CpuSet, SchedError> {
        self.check_affinity(affinity)?;
        let soft = self.slot(v)?.soft.load();
        self.change_affinity(v, &affinity, &soft, now)
    }

    fn set_soft_affinity(&self, v: VcpuId, soft: CpuSet, now: Ticks) -> Result<CpuSet, SchedError> {
        let hard = self.slot(v)?.hard.load();
        self.change_affinity(v, &hard, &soft, now)
    }

    fn set_cap(&self, domain: DomId, cap: Option<Cap>, now: Ticks) -> Result<CpuSet, SchedError> {
        let _control = self.control.lock();
        self.change_cap(domain, cap, now)
    }

    fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError> {
        self.join(cpu)
    }

    fn cpu_offline(&self, cpu: CpuId, now: Ticks) -> Result<CpuSet, SchedError> {
        self.part(cpu, now)
    }

    fn dump(&self, now: Ticks, show: impl FnMut(DumpRow)) {
        self.show(now, show);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
