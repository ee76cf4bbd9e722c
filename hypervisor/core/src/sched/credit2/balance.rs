//! Balancing between runqueues: after a reset, one unit may go each way.

use super::Credit2;
use super::load::PRECISION;
use super::queue::Queue;
use super::slot::{Place, QueueId, Slot};
use crate::sched::WakeBy;
use crate::units::{CpuId, CpuSet, Ticks, VcpuId};

/// How often another runqueue is chosen whose lock turns out to be taken.
const MAX_TRIES: usize = 3;
/// So many units of a runqueue are looked at.
const MAX_UNITS: usize = 32;

/// A unit that could move, and its average load.
type Movable = (VcpuId, i64);

/// The best exchange found: how far apart the loads would be, and who goes which way.
struct Exchange {
    apart: i64,
    push: Option<VcpuId>,
    pull: Option<VcpuId>,
}

impl Credit2 {
    /// Looks for the runqueue whose load is furthest from this one's, and brings the two nearer to each other.
    ///
    /// The own lock is held; the other is only tried, a bounded number of times.
    pub(super) fn balance(&self, queue: &mut Queue, now: Ticks, tickle: &mut CpuSet) {
        let mut tried = [None; MAX_TRIES];
        for round in 0..MAX_TRIES {
            let Some((id, apart)) = self.furthest(queue, &tried[..round]) else {
                return;
            };
            if !self.is_worth_it(queue, id, apart) {
                return;
            }
            tried[round] = Some(id);
            let Some(rq) = self.queues.get(id.index()) else {
                return;
            };
            if let Some(mut other) = rq.try_lock() {
                self.exchange(queue, &mut other, now, tickle);
                return;
            }
        }
    }

    fn furthest(&self, queue: &Queue, but: &[Option<QueueId>]) -> Option<(QueueId, i64)> {
        let own = queue.balanced.average;
        let others = self.queues.iter().enumerate().filter_map(|(index, rq)| {
            let id = QueueId::new(index);
            let skip = id == queue.id || but.contains(&Some(id)) || rq.cpus.is_empty();
            (!skip).then(|| (id, (rq.average.get() - own).abs()))
        });
        others.max_by_key(|&(_, apart)| apart)
    }

    /// The threshold follows from the pair that would be balanced: below capacity whole units count, above it parts.
    fn is_worth_it(&self, queue: &Queue, id: QueueId, apart: i64) -> bool {
        let Some(other) = self.queues.get(id.index()) else {
            return false;
        };
        let load = queue.balanced.average.max(other.average.get());
        let cpus = queue.cpus.len().max(other.cpus.load().len());
        let full = i64::try_from(cpus).unwrap_or(i64::MAX >> PRECISION) << PRECISION;
        let shift = if load < full {
            self.rules.balance_under
        } else {
            self.rules.balance_over
        };
        apart >= 1 << (PRECISION as i32 + shift).clamp(0, 62)
    }

    fn exchange(&self, queue: &mut Queue, other: &mut Queue, now: Ticks, tickle: &mut CpuSet) {
        let (own, theirs) = (queue.balanced.average, other.balanced.average);
        let mut best = Exchange {
            apart: (own - theirs).abs(),
            push: None,
            pull: None,
        };
        let mut consider = |push: Option<Movable>, pull: Option<Movable>| {
            let load = |unit: Option<Movable>| unit.map_or(0, |(_, load)| load);
            let moved = load(pull) - load(push);
            let apart = ((own + moved) - (theirs - moved)).abs();
            if apart < best.apart {
                best = Exchange {
                    apart,
                    push: push.map(|(v, _)| v),
                    pull: pull.map(|(v, _)| v),
                };
            }
        };
        for push in self.movable(queue, other) {
            consider(Some(push), None);
            for pull in self.movable(other, queue) {
                consider(Some(push), Some(pull));
            }
        }
        for pull in self.movable(other, queue) {
            consider(None, Some(pull));
        }
        if let Some(v) = best.push {
            self.migrate(v, queue, other, now, tickle);
        }
        if let Some(v) = best.pull {
            self.migrate(v, other, queue, now, tickle);
        }
    }

    /// The first units of `from` that may run in `to`, and are not on the way to anywhere.
    fn movable(&self, from: &Queue, to: &Queue) -> impl Iterator<Item = Movable> {
        let cpus = to.cpus;
        self.members(from)
            .take(MAX_UNITS)
            .filter(move |(_, slot)| {
                slot.moves_to.get().is_none()
                    && !slot.dying.get()
                    && slot.hard.load().iter().any(|cpu| cpus.contains(cpu))
            })
            .map(|(v, slot)| (v, slot.load().average))
    }

    /// One that is on a CPU goes when its registers are saved; any other at once.
    fn migrate(
        &self,
        v: VcpuId,
        from: &mut Queue,
        to: &mut Queue,
        now: Ticks,
        tickle: &mut CpuSet,
    ) {
        let Some(slot) = self.slots.get(v.index()) else {
            return;
        };
        match slot.place.get() {
            Place::Running | Place::Leaving => {
                slot.moves_to.set(Some(to.id));
                if let Some(cpu) = slot.cpu.get() {
                    self.tell(cpu, None, tickle);
                }
            }
            Place::Queued => {
                self.dequeue(from, v);
                self.change_load(from, slot, -1, now);
                self.carry(v, slot, from, to);
                self.change_load(to, slot, 1, now);
                self.enqueue(to, v, slot);
                self.offer(to, v, slot, now, WakeBy::Event, tickle);
            }
            Place::Blocked | Place::Parked => self.carry(v, slot, from, to),
            Place::Free => {}
        }
    }

    fn carry(&self, v: VcpuId, slot: &Slot, from: &mut Queue, to: &mut Queue) {
        self.deassign(from, slot);
        let cpu = self.cycle(to, slot);
        self.assign(to, v, slot, cpu);
    }

    /// The next CPU of a runqueue, in turn, that the unit may run on; among those that it prefers, if there are any.
    pub(super) fn cycle(&self, queue: &mut Queue, slot: &Slot) -> CpuId {
        let hard = slot.hard.load().intersection(&queue.cpus);
        let soft = hard.intersection(&slot.soft.load());
        let mask = if soft.is_empty() { hard } else { soft };
        let cpu = mask.next_after(queue.bias).unwrap_or(queue.bias);
        queue.bias = cpu;
        cpu
    }

    /// The runqueue for a unit that may run on some of its CPUs: the one with the least load, of those with CPUs that the
    /// unit prefers if there are any. Reads what the runqueues publish; takes no lock.
    pub(super) fn least_loaded(&self, slot: &Slot) -> Option<QueueId> {
        let (hard, soft) = (slot.hard.load(), slot.soft.load());
        let wanted = hard.intersection(&soft);
        let find = |mask: &CpuSet| {
            let able = self.queues.iter().enumerate();
            let able = able.filter(|(_, rq)| !rq.cpus.load().intersection(mask).is_empty());
            // An own runqueue, if there is one, without the unit itself.
            let own = slot.queue.get();
            able.min_by_key(|(index, rq)| {
                let here = own == Some(QueueId::new(*index));
                let without = if here { slot.load().average } else { 0 };
                let load = (rq.average.get() - without).max(0);
                // In parts of what it can serve.
                load / i64::try_from(rq.cpus.load().len()).unwrap_or(1).max(1)
            })
            .map(|(index, _)| QueueId::new(index))
        };
        find(&wanted).or_else(|| find(&hard))
    }
}
