//! Units that come, go and move; CPUs that join and part.

use super::Credit2;
use super::queue::Queue;
use super::rules::Rules;
use super::slot::{Place, Slot};
use crate::sched::unit::RunState;
use crate::sched::{Leave, Prev, Removal, SchedError, UnitParams, WakeBy};
use crate::sync::LockGuard;
use crate::units::{CpuId, CpuSet, DomId, Ticks, VcpuId};

impl Credit2 {
    pub(super) fn insert(&self, v: VcpuId, params: &UnitParams) -> Result<(), SchedError> {
        let slot = self.slot(v)?;
        let _control = self.control.lock();
        self.check_affinity(params.affinity)?;
        if slot.place.get() != Place::Free {
            return Err(SchedError::SlotTaken(v));
        }
        if self.count_unit(params.domain, true)? == 1 {
            // Its first unit says what the domain may have. There is nobody yet who would have to be told.
            let told = self.change_cap(params.domain, params.cap, Ticks::ZERO)?;
            debug_assert!(told.is_empty(), "{} had no units", params.domain);
        }
        if let Some(unit) = self.units.get(v) {
            unit.reset();
        }
        slot.set_affinity(&params.affinity, &params.soft);
        slot.credit.set(self.rules.credit_init);
        slot.weight.set(params.weight.get().into());
        slot.residual.set(0);
        slot.loan.set(0);
        slot.dying.set(false);
        slot.yielded.set(false);
        slot.yielded_to.set(None);
        slot.moves_to.set(None);
        slot.tickled.set(None);
        slot.domain.set(params.domain.get().into());
        slot.capped.set(self.is_capped(params.domain));
        slot.budget.set(0);
        slot.latency.set(Rules::pack_limit(params.latency));
        // Half a unit of load, until more is known.
        slot.set_load(super::load::Load::new(1 << (super::load::PRECISION - 1), 0));
        let id = self
            .least_loaded(slot)
            .ok_or(SchedError::NoOnlineCpu(params.affinity))?;
        let rq = self
            .queues
            .get(id.index())
            .ok_or(SchedError::NoOnlineCpu(params.affinity))?;
        let mut queue = rq.lock();
        slot.place.set(Place::Blocked);
        let cpu = self.cycle(&mut queue, slot);
        self.assign(&mut queue, v, slot, cpu);
        Ok(())
    }

    pub(super) fn take_out(&self, v: VcpuId) -> Result<Removal, SchedError> {
        self.slot(v)?;
        let (slot, mut queue) = self.lock_unit(v).ok_or(SchedError::NoUnit(v))?;
        match slot.place.get() {
            Place::Running | Place::Leaving => {
                slot.dying.set(true);
                return Ok(Removal::RunsOn(slot.cpu.get().unwrap_or(queue.bias)));
            }
            Place::Queued => {
                self.dequeue(&mut queue, v);
                // Without a time: what is averaged does not change.
                self.change_load(&mut queue, slot, -1, Ticks::ZERO);
            }
            // One that is in the list of the parked stays there, as a stranger, until the list is taken.
            Place::Blocked | Place::Parked | Place::Free => {}
        }
        self.free(&mut queue, v, slot);
        Ok(Removal::Done)
    }

    /// The slot of a unit that is in no queue and on no CPU.
    fn free(&self, queue: &mut Queue, v: VcpuId, slot: &Slot) {
        if let Some(state) = self.state(v) {
            state.offline();
        }
        let domain = DomId::new(slot.domain.get() as u16);
        let counted = self.count_unit(domain, false);
        debug_assert!(counted.is_ok(), "{domain} had a unit");
        self.deassign(queue, slot);
        slot.place.set(Place::Free);
    }

    /// The registers of what was taken off a CPU are saved.
    pub(super) fn hand_back(&self, cpu: CpuId, prev: Prev, now: Ticks, tickle: &mut CpuSet) {
        // Others of its domain may run with what it gave back: they are in runqueues of their own, so no lock is held.
        let others = self.put_back(cpu, prev, now, tickle);
        self.unpark(others, now, tickle);
    }

    fn put_back(&self, cpu: CpuId, prev: Prev, now: Ticks, tickle: &mut CpuSet) -> Option<VcpuId> {
        let here = self.here.get(cpu.index())?;
        let (slot, mut queue) = self.lock_unit(prev.unit)?;
        let (v, state) = (prev.unit, self.state(prev.unit)?);
        debug_assert!(
            here.leaving.get() == Some(v) && slot.place.get() == Place::Leaving,
            "{v} was not leaving"
        );
        here.leaving.set(None);
        slot.yielded.set(prev.leave == Leave::Yields);
        let others = self.give_back(slot, now);
        if slot.dying.get() || prev.leave == Leave::Gone {
            self.change_load(&mut queue, slot, -1, now);
            self.free(&mut queue, v, slot);
        } else if prev.leave == Leave::Blocks && self.block(state, slot, cpu) {
            self.change_load(&mut queue, slot, -1, now);
            if slot.moves_to.get().is_some() || !self.may_stay(&queue, slot) {
                drop(self.move_on(queue, v, slot));
            }
        } else {
            state.set_queued();
            if slot.moves_to.get().is_some() || !self.may_stay(&queue, slot) {
                self.change_load(&mut queue, slot, -1, now);
                slot.place.set(Place::Blocked);
                queue = self.move_on(queue, v, slot);
                self.change_load(&mut queue, slot, 1, now);
            }
            if self.has_budget(slot, now) {
                self.enqueue(&mut queue, v, slot);
                if queue.alone && prev.leave != Leave::Blocks {
                    // What this CPU runs was preferred to it a moment ago.
                    self.claim_idle(&queue, v, slot, tickle);
                } else {
                    self.offer(&queue, v, slot, now, WakeBy::Event, tickle);
                }
            } else {
                self.change_load(&mut queue, slot, -1, now);
                let due = self.refills.due(cpu);
                self.park(v, slot, cpu);
                if self.refills.due(cpu) != due {
                    // This CPU keeps the timer since now, and its next one is decided already.
                    tickle.insert(cpu);
                }
            }
        }
        others
    }

    /// Blocks a unit, unless it was kicked.
    fn block(&self, state: &RunState, slot: &Slot, cpu: CpuId) -> bool {
        // First the place, then the state: its waker looks for it there, with this lock held.
        slot.place.set(Place::Blocked);
        state.try_block(cpu).is_ok()
    }

    fn may_stay(&self, queue: &Queue, slot: &Slot) -> bool {
        !slot.hard.load().intersection(&queue.cpus).is_empty()
    }

    /// Carries a unit that is in no queue and on no CPU to where balancing wants it, or where it may run. The lock of
    /// where it is then comes back.
    fn move_on<'a>(
        &'a self,
        mut queue: LockGuard<'a, Queue>,
        v: VcpuId,
        slot: &Slot,
    ) -> LockGuard<'a, Queue> {
        let mut wanted = slot.moves_to.swap(None);
        self.deassign(&mut queue, slot);
        drop(queue);
        loop {
            let id = wanted.take().or_else(|| self.least_loaded(slot));
            let Some(rq) = id.and_then(|id| self.queues.get(id.index())) else {
                // No CPU that it may run on is online any more.
                slot.set_affinity(&CpuSet::ALL, &slot.soft.load());
                continue;
            };
            let mut queue = rq.lock();
            if self.may_stay(&queue, slot) {
                let cpu = self.cycle(&mut queue, slot);
                self.assign(&mut queue, v, slot, cpu);
                return queue;
            }
        }
    }

    /// Where a unit may run, and prefers to, from now on.
    pub(super) fn change_affinity(
        &self,
        v: VcpuId,
        hard: &CpuSet,
        soft: &CpuSet,
        now: Ticks,
    ) -> Result<CpuSet, SchedError> {
        let mut tickle = CpuSet::EMPTY;
        let _control = self.control.lock();
        let (slot, mut queue) = self.lock_unit(v).ok_or(SchedError::NoUnit(v))?;
        slot.set_affinity(hard, soft);
        match slot.place.get() {
            Place::Running | Place::Leaving => {
                if let Some(cpu) = slot.cpu.get().filter(|&cpu| !hard.contains(cpu)) {
                    self.tell(cpu, None, &mut tickle);
                }
            }
            Place::Queued => {
                if !self.may_stay(&queue, slot) {
                    self.dequeue(&mut queue, v);
                    self.change_load(&mut queue, slot, -1, now);
                    slot.place.set(Place::Blocked);
                    queue = self.move_on(queue, v, slot);
                    self.change_load(&mut queue, slot, 1, now);
                    self.enqueue(&mut queue, v, slot);
                }
                slot.tickled.set(None);
                self.offer(&queue, v, slot, now, WakeBy::Event, &mut tickle);
            }
            Place::Blocked | Place::Parked | Place::Free => {
                if !self.may_stay(&queue, slot) {
                    drop(self.move_on(queue, v, slot));
                }
            }
        }
        Ok(tickle)
    }

    pub(super) fn join(&self, cpu: CpuId) -> Result<(), SchedError> {
        let none = SchedError::NoSuchCpu(cpu);
        let here = self.here.get(cpu.index()).ok_or(none)?;
        let _control = self.control.lock();
        if here.queue.get().is_some() {
            return Ok(());
        }
        let id = self.arrange(cpu).ok_or(none)?;
        let rq = self.queues.get(id.index()).ok_or(none)?;
        let mut queue = rq.lock();
        let mut cpus = queue.cpus;
        cpus.insert(cpu);
        queue.set_cpus(cpus, rq);
        here.queue.set(Some(id));
        self.online.insert(cpu);
        Ok(())
    }

    pub(super) fn part(&self, cpu: CpuId, now: Ticks) -> Result<CpuSet, SchedError> {
        let none = SchedError::NoSuchCpu(cpu);
        let here = self.here.get(cpu.index()).ok_or(none)?;
        let _control = self.control.lock();
        let mut tickle = CpuSet::EMPTY;
        let Some(rq) = here.queue.get().and_then(|id| self.queues.get(id.index())) else {
            return Ok(tickle);
        };
        if self.online.iter().all(|other| other == cpu) {
            return Err(SchedError::LastCpu(cpu));
        }
        let claimed_for = {
            let mut queue = rq.lock();
            if here.current.get().is_some() || here.leaving.get().is_some() {
                return Err(SchedError::CpuBusy(cpu));
            }
            let mut cpus = queue.cpus;
            cpus.remove(cpu);
            queue.set_cpus(cpus, rq);
            here.queue.set(None);
            here.tickled.set(false);
            self.online.remove(cpu);
            self.idle.remove(cpu);
            here.claimed_for.swap(None)
        };
        while self.evacuate_one(rq, now, &mut tickle) {}
        if let Some(v) = claimed_for
            && let Some((slot, queue)) = self.lock_unit(v)
            && slot.place.get() == Place::Queued
        {
            slot.tickled.set(None);
            self.offer(&queue, v, slot, now, WakeBy::Event, &mut tickle);
        }
        if self.refills.owner.get() == Some(cpu)
            && let Some(other) = self.online.iter().next()
        {
            self.refills.owner.set(Some(other));
            tickle.insert(other);
        }
        Ok(tickle)
    }

    /// Moves one unit out of a runqueue none of whose CPUs it may use. `false` if there is none.
    fn evacuate_one(&self, rq: &super::queue::RunQueue, now: Ticks, tickle: &mut CpuSet) -> bool {
        let mut queue = rq.lock();
        let online = self.online.load();
        let found = self.members(&queue).find(|(_, slot)| {
            // What is on a CPU moves when it is handed back.
            !matches!(slot.place.get(), Place::Running | Place::Leaving)
                && !self.may_stay(&queue, slot)
        });
        let Some((v, _)) = found else { return false };
        let Some(slot) = self.slots.get(v.index()) else {
            return false;
        };
        if slot.hard.load().intersection(&online).is_empty() {
            slot.set_affinity(&CpuSet::ALL, &slot.soft.load());
            if self.may_stay(&queue, slot) {
                if slot.place.get() == Place::Queued {
                    self.offer(&queue, v, slot, now, WakeBy::Event, tickle);
                }
                return true;
            }
        }
        let waits = slot.place.get() == Place::Queued;
        if waits {
            self.dequeue(&mut queue, v);
            self.change_load(&mut queue, slot, -1, now);
            slot.place.set(Place::Blocked);
        }
        let mut there = self.move_on(queue, v, slot);
        if waits {
            self.change_load(&mut there, slot, 1, now);
            self.enqueue(&mut there, v, slot);
            self.offer(&there, v, slot, now, WakeBy::Event, tickle);
        }
        true
    }
}
