//! Directed yield: a unit that spins gives its time to the one that it may be spinning for.
//!
//! Which one that is, nobody tells. It is one of the same domain, it is runnable, and it does not run. The first of them
//! that was kicked and has not looked since is taken, the target of an interrupt; else the next in turn that was taken off
//! its CPU against its will, the holder of a lock; else the next in turn that yielded itself; never the one that yields.
//! The number of units that are looked at is bounded. Where there is none, others go first, as after any yield.
//!
//! Credit is not given away: the unit burns its own, and is protected by the rate limit. One that is more than a slice
//! behind the first that waits is not taken, so units that yield to each other all the time keep nobody out.

use super::Credit2;
use super::idle::cyclic;
use super::queue::Queue;
use super::slot::{Place, Slot};
use crate::units::{CpuId, Ticks, VcpuId};

/// How many units that wait are looked at in a runqueue.
pub(super) const TRIES: usize = 16;
/// How many other runqueues are looked at.
pub(super) const OTHER_QUEUES: usize = 4;

/// How much a unit looks like the one that is waited for. Less is better: then the turn decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Likely {
    Kicked,
    Preempted,
    Spins,
}

impl Credit2 {
    /// The unit that `yielding`, which runs on this CPU, gives its time to. It waits in this runqueue: it may have come
    /// from another one just now.
    pub(super) fn yield_to(
        &self,
        queue: &mut Queue,
        cpu: CpuId,
        yielding: VcpuId,
        slot: &Slot,
        now: Ticks,
    ) -> Option<VcpuId> {
        let v = match self.likeliest(queue, cpu, yielding, slot, now) {
            Some(v) => v,
            None => self.fetch(queue, cpu, yielding, slot, now)?,
        };
        slot.yielded_to.set(Some(v));
        if let Some(unit) = self.units.get(yielding) {
            unit.count_directed_yield();
        }
        Some(v)
    }

    fn likeliest(
        &self,
        queue: &Queue,
        cpu: CpuId,
        yielding: VcpuId,
        slot: &Slot,
        now: Ticks,
    ) -> Option<VcpuId> {
        // Those behind the last one in turn first.
        let last = slot.yielded_to.get().unwrap_or(yielding);
        let turn = |index: usize| (index as u32).wrapping_sub(last.get()).wrapping_sub(1);
        let first = queue.waiting.first().and_then(|at| self.slots.get(at));
        let least = first.map_or(i64::MIN, |first| {
            self.credit(queue, first)
                .saturating_sub_unsigned(self.rules.max_timer.get())
        });
        let rank = |index: usize| {
            let other = self.slots.get(index)?;
            let v = VcpuId::new(index as u32);
            let may = other.domain.get() == slot.domain.get()
                && v != yielding
                && other.hard.contains(cpu)
                && !other.dying.get()
                && self.credit(queue, other) >= least
                && !self.is_nearly_there(other, cpu);
            let likely = if !may {
                return None;
            } else if self.state(v).is_some_and(|state| state.is_kicked()) {
                Likely::Kicked
            } else if other.yielded.get() {
                Likely::Spins
            } else {
                Likely::Preempted
            };
            Some((likely, turn(index), v))
        };
        let waiting = queue.waiting.iter(&self.links).take(TRIES);
        let (.., v) = waiting.filter_map(rank).min()?;
        // Last, since it takes from the domain.
        let other = self.slots.get(v.index())?;
        self.has_budget(other, now).then_some(v)
    }

    /// One that waits in another runqueue comes into this one. Other locks are only tried.
    fn fetch(
        &self,
        queue: &mut Queue,
        cpu: CpuId,
        yielding: VcpuId,
        slot: &Slot,
        now: Ticks,
    ) -> Option<VcpuId> {
        let busy = cyclic(self.queues.len(), queue.id.bit(), |index| {
            self.busy.word(index)
        });
        let others = busy.filter(|id| *id != queue.id.bit()).take(OTHER_QUEUES);
        for id in others {
            let Some(mut other) = self.queues.get(id.index()).and_then(|rq| rq.try_lock()) else {
                continue;
            };
            let found = self.likeliest(&other, cpu, yielding, slot, now);
            if let Some((v, moved)) = found.and_then(|v| Some((v, self.slots.get(v.index())?))) {
                self.dequeue(&mut other, v);
                self.change_load(&mut other, moved, -1, now);
                moved.place.set(Place::Blocked);
                self.deassign(&mut other, moved);
                self.assign(queue, v, moved, cpu);
                self.change_load(queue, moved, 1, now);
                self.enqueue(queue, v, moved);
                return Some(v);
            }
        }
        None
    }
}
