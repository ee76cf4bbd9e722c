//! Credits: burnt by running, given by resets.
//!
//! A reset adds the same to all units of a runqueue, and cuts off what is more than the clip. Nobody is visited for it: the
//! runqueue counts what it has added, and whoever looks at a unit adds what came since. That is the same, to the tick:
//! adding and clipping again and again is adding all and clipping once. The order of those who wait stays, so the
//! queue needs no sorting either.

use super::Credit2;
use super::queue::Queue;
use super::slot::Slot;
use crate::units::{CpuId, CpuSet, Ticks};

impl Credit2 {
    /// What a unit of this runqueue has.
    pub(super) fn credit(&self, queue: &Queue, slot: &Slot) -> i64 {
        let (credit, resets) = (slot.credit.get(), slot.resets.get());
        if resets == queue.resets {
            credit
        } else {
            (credit + (queue.resets - resets)).min(self.rules.credit_clip)
        }
    }

    pub(super) fn set_credit(&self, queue: &Queue, slot: &Slot, credit: i64) {
        slot.credit.set(credit);
        slot.resets.set(queue.resets);
    }

    /// A unit that was blocked comes back with little more than what one reset gives.
    pub(super) fn forget_surplus(&self, queue: &Queue, slot: &Slot) {
        let credit = self.credit(queue, slot);
        if credit > self.rules.woken_clip {
            self.set_credit(queue, slot, self.rules.woken_clip);
        }
    }

    /// Charges a unit that runs. The heaviest of the runqueue burns one credit a tick, others more by so much as they are
    /// lighter. Exact: what a division leaves over is kept for the next.
    pub(super) fn burn(&self, queue: &Queue, slot: &Slot, now: Ticks) {
        let ran = now - slot.start.get();
        if ran == Ticks::ZERO {
            return; // No time, or it went back.
        }
        slot.start.set(now);
        let weight = u64::from(slot.weight.get()).max(1);
        let burnt = ran
            .get()
            .saturating_mul(queue.max_weight.into())
            .saturating_add(slot.residual.get());
        slot.residual.set(burnt % weight);
        let burnt = i64::try_from(burnt / weight).unwrap_or(i64::MAX);
        let left = self.credit(queue, slot).saturating_sub(burnt);
        self.set_credit(queue, slot, left.max(self.rules.credit_min));
        if slot.capped.get() {
            let ran = i64::try_from(ran.get()).unwrap_or(i64::MAX);
            slot.budget.set(slot.budget.get().saturating_sub(ran));
        }
    }

    /// A unit that comes to another CPU finds cold caches: it is lent some credit, so that it is not preempted before they
    /// are warm. Lent, not given: who is moved often would have more than its share.
    pub(super) fn lend(&self, queue: &Queue, slot: &Slot) {
        if slot.loan.get() == 0 {
            let credit = self.credit(queue, slot) + self.rules.compensation;
            self.set_credit(queue, slot, credit);
            slot.loan.set(self.rules.compensation);
            slot.lent_at.set(queue.resets);
        }
    }

    /// Takes back what was lent.
    pub(super) fn repay(&self, queue: &Queue, slot: &Slot) {
        let loan = slot.loan.get();
        if loan != 0 {
            slot.loan.set(0);
            self.set_credit(queue, slot, self.credit(queue, slot) - loan);
        }
    }

    /// For how long a unit can run on so much credit.
    pub(super) fn time_for(queue: &Queue, slot: &Slot, credit: i64) -> Ticks {
        let Ok(credit) = u64::try_from(credit) else {
            return Ticks::ZERO;
        };
        let weighed = credit.saturating_mul(slot.weight.get().into());
        Ticks::new(weighed / u64::from(queue.max_weight).max(1))
    }

    /// If neither what runs next nor what waits first has any credit left, everybody gets some: once, or as often as it
    /// takes. `true` if so. Those whose budget turns out to be used up must look.
    pub(super) fn reset_if_due(
        &self,
        queue: &mut Queue,
        next: &Slot,
        now: Ticks,
        tickle: &mut CpuSet,
    ) -> bool {
        let own = self.credit(queue, next);
        let head = queue
            .waiting
            .first()
            .and_then(|head| self.slots.get(head))
            .map_or(i64::MIN, |head| self.credit(queue, head));
        if own.max(head) > 0 {
            return false;
        }
        // Those who run have used what they were not charged for yet.
        for cpu in queue.cpus.iter() {
            if let Some(running) = self.current_of(cpu) {
                self.burn(queue, running, now);
                if running.capped.get()
                    && running.budget.get() <= 0
                    && !core::ptr::eq(running, next)
                {
                    self.tell(cpu, None, tickle);
                }
            }
        }
        let times = self.credit(queue, next).min(0).unsigned_abs()
            / self.rules.credit_init.unsigned_abs()
            + 1;
        let times = i64::try_from(times).unwrap_or(1);
        queue.resets += self.rules.credit_init.saturating_mul(times);
        true
    }

    /// Marks a CPU of a runqueue whose lock is held as told to look.
    pub(super) fn tell(&self, cpu: CpuId, unit: Option<crate::units::VcpuId>, tickle: &mut CpuSet) {
        if let Some(here) = self.here.get(cpu.index()) {
            here.tickled.set(true);
            if unit.is_some() {
                here.claimed_for.swap(unit);
            }
            tickle.insert(cpu);
        }
    }
}
