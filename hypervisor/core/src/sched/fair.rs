//! The fair scheduler: a weighted fair runqueue per CPU, with stealing.
//!
//! Each unit has a virtual run time, its run time × 256 / weight (`VTime`); the one with the least runs. Two units that
//! compete for one CPU thus get time in proportion to their weights, exact to one slice. Across CPUs:
//! - **Work-conserving.** A CPU that finds nothing to run says so in the idle set, *then* looks at all other queues.
//!   Whoever makes a unit wait looks at the idle set *after* it is in the queue, claims an idle CPU that may run it, and
//!   tickles that. One of the two sees the other. A claim is one atomic step, so two wakes never pick the same CPU; a
//!   CPU that was claimed and took other work passes the claim on.
//! - **Near the weighted max-min ideal.** All units are compared by one virtual time. At each slice end a CPU compares
//!   its own best candidate with what waits elsewhere, and takes the unit that is owed the most, if that is more than a
//!   slice of running. What it is owed goes with it. Units that may run everywhere and never halt get their max-min
//!   share (nobody more than one CPU; what one cannot use goes to the others) within 5 % of it, or of a tenth of that
//!   CPU if that is more, over 20 s; the worst of 30 000 random cases was 2.9 %.
//! - **Room for the pinned.** A unit that is behind all others, since it cannot use more than one CPU, never waits, so
//!   nobody takes it. If its CPU could run a unit that waits and may not run where it could go, it goes there. One such
//!   step is looked for, not a chain of them: if one unit in three is pinned to one CPU, about one mix in 1000 misses
//!   the 5 %; where affinities overlap in part, one in 20 does, and then a light unit may keep a CPU for itself that
//!   the ideal, by two moves or more, would have given to others.
//! - **No hoarding.** What cannot be acted on is forgotten. A whole queue that is behind the furthest by more than
//!   `HELD_SLICES` comes nearer to it, by 1 / `FORGET_SLICES` a slice: the units in it keep their distances, and two
//!   such queues theirs for long enough to be acted on. A unit that waits is never further behind its turn than
//!   `MEMORY_SLICES` (its own, or those of the first in its queue). One that wakes, or is moved by hand, begins near
//!   those whom it meets. So nobody starves behind a long sleeper, or after a change of weight or affinity.
//! - **Quiet.** A slice timer runs only on a CPU that runs a unit. An idle CPU has none.
//!
//! Invariants:
//! - A unit's data (`Entry`) is a value that is *moved*: it is in its own slot (blocked, offline), in one runqueue
//!   (waiting, current, leaving), or in the hands of one CPU that carries it. Being in two places does not compile.
//! - The loaded set has a CPU's bit exactly when units wait in its queue (kept under the queue's lock).
//! - Nothing is allocated after [`Fair::new`], except by [`dump`](Scheduler::dump), outside of all locks.
//!
//! Lock order: none. No two locks of this module are ever held together, neither two runqueues nor a runqueue and a slot.
//! Whoever looks for a unit that is being carried finds it nowhere, and tries again; the carrier waits for nobody who
//! waits for it.
//!
//! Caps, soft affinities and reservations are not known here, and ignored when a unit is added.
//!
//! Called by: the dispatch loops, wakers, domain building, the console.

use super::cpumask::AtomicCpuSet;
use super::unit::{RunState, UnitTable};
use super::{
    CpuTable, Decision, DumpRow, Leave, Prev, Removal, SchedError, Scheduler, UnitParams, WakeBy,
    Weight,
};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Lock, spin_loop};
use crate::units::{CpuId, CpuSet, Ticks, VcpuId};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use entry::Entry;
use queue::{Queue, RunQueue};
use vtime::{GlobalClock, VTime};

mod dump;
mod entry;
mod place;
mod queue;
mod schedule;
mod steal;
mod vtime;

/// A unit that is moved to another CPU by hand, or wakes, has had at most so many slices too much; if it is moved, it is
/// owed at most so many.
const ADMIT_SLICES: u64 = 4;
/// Two units in one queue are kept at most so many slices of running apart, of the lighter of the two. Twice what the
/// threshold of a move and the wait for a slice end let them differ by, and some.
const MEMORY_SLICES: u64 = 8;
/// So many slices of virtual time, at the default weight, a queue may be behind the furthest without forgetting any of
/// it. A unit of weight 64 that waits elsewhere is taken when it is owed four of them.
const HELD_SLICES: u64 = 16;
/// In so many slices a queue forgets what it is behind beyond that. The longer, the more exact are shares of units that
/// compete on some CPUs only; the shorter, the sooner ends the advantage of a unit that was held back by its one CPU.
const FORGET_SLICES: u64 = 128;
/// A unit that wakes is owed at most this part of a slice: enough to run at once, too little to be worth sleeping for.
const SLEEPER_CREDIT: u64 = 2;
/// A woken unit preempts only if it is owed more than this part of a slice.
const PREEMPT_PART: u64 = 8;
/// How often a choice is begun anew because others took what it had found, before the CPU asks for another pass.
const MAX_ROUNDS: usize = 8;

/// The fair scheduler.
pub struct Fair {
    slice: Ticks,
    units: UnitTable,
    cpus: CpuTable,
    slots: Box<[Slot]>,
    queues: Box<[RunQueue]>,
    online: AtomicCpuSet,
    idle: AtomicCpuSet,
    loaded: AtomicCpuSet,
    clock: GlobalClock,
    /// Some unit may not, or might once not, run everywhere.
    pinned: AtomicBool,
}

/// What the scheduler knows of one slot of the unit table.
#[derive(Debug)]
struct Slot {
    place: Lock<Place>,
    /// The CPU in whose queue the unit is, or was last. A hint: whoever looks for it there may have to look again.
    home: AtomicU32,
}

#[derive(Debug)]
enum Place {
    /// There is no unit.
    Free,
    /// Blocked or offline.
    Parked(Entry),
    /// In a runqueue, or carried.
    Out,
}

impl Fair {
    /// A scheduler for CPUs 0 to `cpus - 1`, none of them online yet, and `units` slots. `slice` is how long a unit runs
    /// before others come up.
    pub fn new(cpus: usize, units: usize, slice: Ticks) -> Self {
        let slice = slice.max(Ticks::new(1));
        let slot = |_| Slot {
            place: Lock::new(Place::Free),
            home: AtomicU32::new(0),
        };
        Self {
            slice,
            units: UnitTable::new(units),
            cpus: CpuTable::new(cpus),
            slots: (0..units).map(slot).collect(),
            queues: (0..cpus).map(|_| RunQueue::new(units, slice)).collect(),
            online: AtomicCpuSet::new(),
            idle: AtomicCpuSet::new(),
            loaded: AtomicCpuSet::new(),
            clock: GlobalClock::new(),
            pinned: AtomicBool::new(false),
        }
    }

    /// The CPUs that run nothing and take work at once.
    pub fn idle_cpus(&self) -> CpuSet {
        self.idle.iter().collect()
    }

    /// What a unit that is moved by hand may be owed, and what any that enters a queue may have had too much.
    fn memory(&self) -> Ticks {
        Ticks::new(self.slice.get().saturating_mul(ADMIT_SLICES))
    }

    /// What a unit may be owed when it wakes.
    fn sleeper_credit(&self) -> Ticks {
        Ticks::new(self.slice.get() / SLEEPER_CREDIT)
    }

    /// What a woken unit must be owed to preempt.
    fn patience(&self) -> Ticks {
        Ticks::new(self.slice.get() / PREEMPT_PART)
    }

    fn slot(&self, v: VcpuId) -> Result<&Slot, SchedError> {
        let capacity = self.slots.len();
        let none = SchedError::NoSuchSlot { unit: v, capacity };
        self.slots.get(v.index()).ok_or(none)
    }

    fn queue(&self, cpu: CpuId) -> Result<&RunQueue, SchedError> {
        self.queues
            .get(cpu.index())
            .ok_or(SchedError::NoSuchCpu(cpu))
    }

    /// Whoever looks for room looks only if there may be need.
    fn note_pin(&self, affinity: CpuSet) {
        let mut cpus = (0..self.queues.len()).map(|cpu| CpuId::new(cpu as u32));
        if !cpus.all(|cpu| affinity.contains(cpu)) {
            self.pinned.store(true, Ordering::Relaxed);
        }
    }

    /// The run state of a unit whose slot exists.
    fn state(&self, v: VcpuId) -> Option<&RunState> {
        self.units.get(v).map(|unit| &unit.state)
    }

    /// Looks for a unit until it is found, and does `parked` or `queued` to it under the lock of where it is.
    /// `queued` gets its CPU; it may leave the entry where it is, or take it out.
    fn find<T>(
        &self,
        v: VcpuId,
        mut parked: impl FnMut(&mut Place) -> T,
        mut queued: impl FnMut(CpuId, &mut Queue, queue::Found) -> T,
    ) -> Result<T, SchedError> {
        let slot = self.slot(v)?;
        loop {
            {
                let mut place = slot.place.lock();
                match *place {
                    Place::Free => return Err(SchedError::NoUnit(v)),
                    Place::Parked(_) => return Ok(parked(&mut place)),
                    Place::Out => {}
                }
            }
            let home = CpuId::new(slot.home.load(Ordering::Relaxed));
            if let Ok(rq) = self.queue(home) {
                let mut queue = rq.lock();
                if let Some(found) = queue.find(v) {
                    let done = queued(home, &mut queue, found);
                    self.publish(home, rq, &queue);
                    return Ok(done);
                }
            }
            spin_loop();
        }
    }

    /// After any change of what waits in a queue, under its lock.
    fn publish(&self, cpu: CpuId, rq: &RunQueue, queue: &Queue) {
        match queue.head() {
            Some(head) => {
                rq.publish_head(head.vruntime);
                self.loaded.insert(cpu);
            }
            None => {
                self.loaded.remove(cpu);
            }
        }
    }

    /// The entry of a unit that is no more, and that nobody else can find.
    fn free(&self, entry: Entry) {
        if let Some(state) = self.state(entry.unit) {
            state.offline();
        }
        if let Ok(slot) = self.slot(entry.unit) {
            *slot.place.lock() = Place::Free;
        }
    }

    /// Blocks the unit, unless it was kicked: then it comes back.
    fn park(&self, entry: Entry, cpu: CpuId) -> Option<Entry> {
        let slot = self.slot(entry.unit).ok()?;
        let state = self.state(entry.unit)?;
        // In the slot first: once it is blocked, its waker looks for it there.
        let mut place = slot.place.lock();
        *place = Place::Parked(entry);
        if state.try_block(cpu).is_ok() {
            return None;
        }
        match core::mem::replace(&mut *place, Place::Out) {
            Place::Parked(entry) => Some(entry),
            Place::Free | Place::Out => None,
        }
    }

    fn wake_one(&self, v: VcpuId, now: Ticks) -> Option<CpuId> {
        let (slot, state) = (self.slot(v).ok()?, self.state(v)?);
        let entry = {
            let mut place = slot.place.lock();
            // The unit may have been removed since its kick, and the slot may even have another by now.
            if !state.is_woken() {
                return None;
            }
            match core::mem::replace(&mut *place, Place::Out) {
                Place::Parked(entry) => entry,
                other => {
                    *place = other;
                    return None;
                }
            }
        };
        state.set_queued();
        let last = CpuId::new(slot.home.load(Ordering::Relaxed));
        self.place(entry, last, now, self.sleeper_credit())
    }

    fn hand_back(&self, cpu: CpuId, prev: Prev, now: Ticks) -> Option<CpuId> {
        let rq = self.queue(cpu).ok()?;
        let mut queue = rq.lock();
        let mut entry = queue.leaving.take()?;
        debug_assert!(entry.unit == prev.unit, "{} was not leaving", prev.unit);
        let state = self.state(entry.unit)?;
        entry.yielded = prev.leave == Leave::Yields;
        if entry.dying || prev.leave == Leave::Gone {
            drop(queue);
            self.free(entry);
            return None;
        }
        if prev.leave == Leave::Blocks {
            drop(queue);
            let kicked = self.park(entry, cpu)?;
            state.set_queued();
            return self.place(kicked, cpu, now, self.sleeper_credit());
        }
        state.set_queued();
        if let Some(to) = entry
            .steps_to
            .take()
            .filter(|&to| entry.affinity.contains(to))
        {
            drop(queue);
            return self.step(entry, to, now);
        }
        if queue.online && entry.affinity.contains(cpu) {
            // It stays in the queue that it was in: what it is owed there, and owes, stays as exact as it is.
            let affinity = entry.affinity;
            queue.insert(entry);
            self.publish(cpu, rq, &queue);
            drop(queue);
            return self.claim_idle(&affinity, cpu);
        }
        drop(queue);
        self.place(entry, cpu, now, self.memory())
    }
}

/// The answer of one CPU at most, as a set.
fn told(target: Option<CpuId>) -> CpuSet {
    target.map_or(CpuSet::EMPTY, CpuSet::single)
}

impl Scheduler for Fair {
    fn name(&self) -> &'static str {
        "fair"
    }

    fn units(&self) -> &UnitTable {
        &self.units
    }

    fn cpus(&self) -> &CpuTable {
        &self.cpus
    }

    fn add(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError> {
        let slot = self.slot(v)?;
        self.check_affinity(params.affinity)?;
        self.note_pin(params.affinity);
        let mut place = slot.place.lock();
        if !matches!(*place, Place::Free) {
            return Err(SchedError::SlotTaken(v));
        }
        if let Some(unit) = self.units.get(v) {
            unit.reset();
        }
        *place = Place::Parked(Entry::new(v, params, self.clock.now()));
        Ok(())
    }

    fn remove(&self, v: VcpuId) -> Result<Removal, SchedError> {
        let (removal, entry) = self.find(
            v,
            |place| match core::mem::replace(place, Place::Out) {
                Place::Parked(entry) => (Removal::Done, Some(entry)),
                Place::Free | Place::Out => (Removal::Done, None),
            },
            |cpu, queue, found| match queue.take_waiting(found) {
                Some(entry) => (Removal::Done, Some(entry)),
                None => {
                    if let Some(entry) = queue.entry(found) {
                        entry.dying = true;
                    }
                    (Removal::RunsOn(cpu), None)
                }
            },
        )?;
        if let Some(entry) = entry {
            self.free(entry);
        }
        Ok(removal)
    }

    fn wake(&self, v: VcpuId, now: Ticks, _by: WakeBy) -> CpuSet {
        told(self.wake_one(v, now))
    }

    fn schedule(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision {
        self.choose(cpu, now, prev)
    }

    fn give_up(&self, cpu: CpuId, _prev: Prev, now: Ticks) {
        if let Ok(rq) = self.queue(cpu) {
            let mut queue = rq.lock();
            queue.charge(now);
            queue.leaving = queue.current.take();
        }
    }

    fn context_saved(&self, cpu: CpuId, prev: Prev, now: Ticks) -> CpuSet {
        told(self.hand_back(cpu, prev, now))
    }

    fn others_wait(&self, cpu: CpuId) -> bool {
        self.loaded.contains(cpu)
    }

    fn set_weight(&self, v: VcpuId, weight: Weight, now: Ticks) -> Result<(), SchedError> {
        self.find(
            v,
            |place| {
                if let Place::Parked(entry) = place {
                    entry.set_weight(weight, self.clock.now());
                }
            },
            |_, queue, found| {
                // What it has run so far counts with the old weight.
                queue.charge(now);
                queue.set_weight(found, weight);
            },
        )
    }

    fn set_affinity(&self, v: VcpuId, affinity: CpuSet, now: Ticks) -> Result<CpuSet, SchedError> {
        enum Then {
            Nothing,
            Leave(CpuId),
            Move(Entry, CpuId),
            Offer(CpuId),
        }
        self.check_affinity(affinity)?;
        self.note_pin(affinity);
        let then = self.find(
            v,
            |place| {
                if let Place::Parked(entry) = place {
                    entry.affinity = affinity;
                }
                Then::Nothing
            },
            |cpu, queue, found| {
                if let Some(entry) = queue.entry(found) {
                    entry.affinity = affinity;
                }
                if !affinity.contains(cpu) {
                    match queue.take_waiting(found) {
                        Some(entry) => Then::Move(entry, cpu),
                        None => Then::Leave(cpu),
                    }
                } else if found.is_waiting() {
                    Then::Offer(cpu)
                } else {
                    Then::Nothing
                }
            },
        )?;
        Ok(told(match then {
            Then::Nothing => None,
            Then::Leave(cpu) => Some(cpu),
            Then::Move(entry, cpu) => self.place(entry, cpu, now, self.memory()),
            Then::Offer(cpu) => self.claim_idle(&affinity, cpu),
        }))
    }

    fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError> {
        self.queue(cpu)?.lock().online = true;
        self.online.insert(cpu);
        Ok(())
    }

    fn cpu_offline(&self, cpu: CpuId, now: Ticks) -> Result<CpuSet, SchedError> {
        let mut moved = CpuSet::EMPTY;
        let rq = self.queue(cpu)?;
        if self.online.iter().all(|other| other == cpu) {
            return Err(SchedError::LastCpu(cpu));
        }
        {
            let mut queue = rq.lock();
            if queue.current.is_some() || queue.leaving.is_some() {
                return Err(SchedError::CpuBusy(cpu));
            }
            queue.online = false;
            self.online.remove(cpu);
            self.idle.remove(cpu);
        }
        loop {
            let entry = {
                let mut queue = rq.lock();
                let entry = queue.waiting.pop_front();
                self.publish(cpu, rq, &queue);
                entry
            };
            let Some(entry) = entry else { break };
            let tickle = self.place(entry, cpu, now, self.memory());
            if let Some(target) = tickle {
                moved.insert(target);
            }
        }
        // It may have been claimed, for a unit that waits elsewhere, and not have looked yet.
        if let Some(target) = self.pass_claim_on(cpu) {
            moved.insert(target);
        }
        Ok(moved)
    }

    fn dump(&self, now: Ticks, show: impl FnMut(DumpRow)) {
        self.show(now, show);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
