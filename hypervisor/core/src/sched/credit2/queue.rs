//! A runqueue: the CPUs that share it, the units assigned to it, and those that wait, most credit first.

use super::Credit2;
use super::load::{self, Load};
use super::slot::{Place, QueueId, Slot};
use crate::sched::cpumask::AtomicCpuSet;
use crate::sched::held::Held;
use crate::sched::sorted::Sorted;
use crate::sync::{Lock, LockGuard};
use crate::units::{CpuId, CpuSet, Ticks, VcpuId};

/// A runqueue behind its lock, and what others may know of it without.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct RunQueue {
    state: Lock<Queue>,
    /// The CPUs that share it.
    pub cpus: AtomicCpuSet,
    /// Its average load, as of the last change.
    pub average: Held<i64>,
}

/// What the lock protects.
#[derive(Debug)]
pub(super) struct Queue {
    pub id: QueueId,
    /// The CPUs that share it.
    pub cpus: CpuSet,
    /// There is only one of them.
    pub alone: bool,
    pub waiting: Sorted,
    /// The first of all units that are assigned to it.
    pub first: Option<VcpuId>,
    pub members: u32,
    pub max_weight: u32,
    /// How many units have that weight.
    heaviest: u32,
    /// What all resets so far have added.
    pub resets: i64,
    pub load: Load,
    /// The same, as it will be when moves have taken effect.
    pub balanced: Load,
    /// The CPU that a unit was assigned to last.
    pub bias: CpuId,
}

impl RunQueue {
    pub fn new(id: QueueId) -> Self {
        Self {
            state: Lock::new(Queue {
                id,
                cpus: CpuSet::EMPTY,
                alone: false,
                waiting: Sorted::new(),
                first: None,
                members: 0,
                max_weight: 1,
                heaviest: 0,
                resets: 0,
                load: Load::default(),
                balanced: Load::default(),
                bias: CpuId::new(0),
            }),
            cpus: AtomicCpuSet::new(),
            average: Held::new(0),
        }
    }

    pub fn lock(&self) -> LockGuard<'_, Queue> {
        self.state.lock()
    }

    pub fn try_lock(&self) -> Option<LockGuard<'_, Queue>> {
        self.state.try_lock()
    }
}

impl Queue {
    /// The CPUs, and what others see of them.
    pub fn set_cpus(&mut self, cpus: CpuSet, published: &RunQueue) {
        self.cpus = cpus;
        self.alone = cpus.len() == 1;
        published.cpus.store(&cpus);
    }

    fn add_weight(&mut self, weight: u32) {
        if weight > self.max_weight || self.heaviest == 0 {
            self.max_weight = weight;
            self.heaviest = 1;
        } else if weight == self.max_weight {
            self.heaviest += 1;
        }
    }
}

impl Credit2 {
    /// All units that are assigned to a runqueue.
    pub(super) fn members(&self, queue: &Queue) -> impl Iterator<Item = (VcpuId, &Slot)> {
        let mut at = queue.first;
        core::iter::from_fn(move || {
            let v = at?;
            let slot = self.slots.get(v.index())?;
            at = slot.next.get();
            Some((v, slot))
        })
    }

    /// Finds the runqueue of a unit, and locks it. `None` if there is no such unit.
    pub(super) fn lock_unit(&self, v: VcpuId) -> Option<(&Slot, LockGuard<'_, Queue>)> {
        let slot = self.slots.get(v.index())?;
        loop {
            if let Some(id) = slot.queue.get()
                && let Some(rq) = self.queues.get(id.index())
            {
                let queue = rq.lock();
                if slot.queue.get() == Some(id) {
                    return Some((slot, queue));
                }
            } else if slot.place.get() == Place::Free {
                return None;
            }
            // It is being carried to another runqueue.
            crate::sync::spin_loop();
        }
    }

    /// Assigns a unit that is in no runqueue. `cpu` is where it should run.
    pub(super) fn assign(&self, queue: &mut Queue, v: VcpuId, slot: &Slot, cpu: CpuId) {
        slot.resets.set(queue.resets);
        slot.cpu.set(Some(cpu));
        slot.previous.set(None);
        slot.next.set(queue.first);
        if let Some(first) = queue.first.and_then(|first| self.slots.get(first.index())) {
            first.previous.set(Some(v));
        }
        queue.first = Some(v);
        queue.members += 1;
        queue.add_weight(slot.weight.get());
        queue.balanced.average += slot.load().average;
        self.publish_load(queue);
        slot.queue.set(Some(queue.id));
    }

    /// Takes a unit that does not wait out of its runqueue.
    pub(super) fn deassign(&self, queue: &mut Queue, slot: &Slot) {
        self.repay(queue, slot);
        slot.credit.set(self.credit(queue, slot));
        let (previous, next) = (slot.previous.get(), slot.next.get());
        match previous.and_then(|previous| self.slots.get(previous.index())) {
            Some(previous) => previous.next.set(next),
            None => queue.first = next,
        }
        if let Some(next) = next.and_then(|next| self.slots.get(next.index())) {
            next.previous.set(previous);
        }
        queue.members -= 1;
        self.remove_weight(queue, slot.weight.get());
        queue.balanced.average = (queue.balanced.average - slot.load().average).max(0);
        self.publish_load(queue);
        slot.queue.set(None);
    }

    /// The largest weight is looked for anew only when the last unit that has it goes.
    fn remove_weight(&self, queue: &mut Queue, weight: u32) {
        if weight != queue.max_weight {
            return;
        }
        queue.heaviest -= 1;
        if queue.heaviest == 0 {
            let rest = self.members(queue).map(|(_, slot)| slot.weight.get());
            let (mut max, mut count) = (1, 0);
            for weight in rest {
                if weight > max || count == 0 {
                    (max, count) = (weight, 1);
                } else if weight == max {
                    count += 1;
                }
            }
            (queue.max_weight, queue.heaviest) = (max, count);
        }
    }

    /// Another weight from now on. Everybody who runs is charged before: the largest weight may change.
    pub(super) fn reweigh(&self, queue: &mut Queue, slot: &Slot, weight: u32, now: Ticks) {
        for cpu in queue.cpus.iter() {
            if let Some(running) = self.current_of(cpu) {
                self.burn(queue, running, now);
            }
        }
        let old = slot.weight.get();
        slot.weight.set(weight);
        slot.residual.set(0);
        // The new one counts first, so that a scan for the largest, if there is one, finds it counted once.
        if weight != old {
            if old == queue.max_weight && weight < old {
                self.remove_weight(queue, old);
            } else {
                queue.add_weight(weight);
                if old == queue.max_weight {
                    self.remove_weight(queue, old);
                }
            }
        }
    }

    /// Puts a unit among those that wait, in its order.
    pub(super) fn enqueue(&self, queue: &mut Queue, v: VcpuId, slot: &Slot) {
        slot.place.set(Place::Queued);
        slot.tickled.set(None);
        let key = queue.resets - self.credit(queue, slot);
        queue.waiting.insert(&self.links, v.index(), key);
        self.busy.insert(queue.id.bit());
    }

    /// Takes a unit from those that wait.
    pub(super) fn dequeue(&self, queue: &mut Queue, v: VcpuId) {
        let found = queue.waiting.remove(&self.links, v.index());
        debug_assert!(found, "{v} does not wait here");
        if queue.waiting.is_empty() {
            self.busy.remove(queue.id.bit());
        }
    }

    /// A unit becomes runnable (1), ceases to be (-1), or time has passed (0).
    pub(super) fn change_load(&self, queue: &mut Queue, slot: &Slot, change: i64, now: Ticks) {
        let at = load::stamp(now, self.rules.load_shift);
        queue.load.update(at, change);
        queue.balanced.update(at, change);
        let mut own = slot.load();
        own.update(at, change);
        slot.set_load(own);
        self.publish_load(queue);
    }

    pub(super) fn publish_load(&self, queue: &Queue) {
        if let Some(rq) = self.queues.get(queue.id.index()) {
            rq.average.set(queue.balanced.average);
        }
    }

    pub(super) fn current_of(&self, cpu: CpuId) -> Option<&Slot> {
        let v = self.here.get(cpu.index())?.current.get()?;
        self.slots.get(v.index())
    }
}
