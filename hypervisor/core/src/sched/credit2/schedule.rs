//! The choice: what a CPU runs next, and for how long.

use super::Credit2;
use super::idle::cyclic;
use super::queue::Queue;
use super::slot::{Here, Place, Slot};
use crate::sched::placement::{Doing, SWITCH};
use crate::sched::{Decision, Leave, Prev};
use crate::sync::LockGuard;
use crate::units::{CpuId, CpuSet, Ticks, VcpuId};

/// How often a CPU that finds nothing looks again at runqueues whose locks were taken, before it asks for another pass.
const MAX_ROUNDS: usize = 3;

/// What pulling from other runqueues came to.
enum Pulled {
    Got(VcpuId),
    Nothing,
    /// Something waits, but its runqueue's lock could not be had.
    Missed,
}

impl Credit2 {
    pub(super) fn choose(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision {
        let mut tickle = CpuSet::EMPTY;
        self.refill_due(cpu, now, &mut tickle);
        tickle.remove(cpu); // It looks right now.
        let Some(here) = self.here.get(cpu.index()) else {
            return Decision::IDLE;
        };
        let Some(rq) = here.queue.get().and_then(|id| self.queues.get(id.index())) else {
            return Decision::IDLE;
        };
        if let Some(until) = prev.and_then(|prev| self.goes_on_alone(cpu, here, now, &prev)) {
            return Decision {
                run: prev.map(|prev| prev.unit),
                until: Some(until),
                tickle,
            };
        }
        let mut queue = rq.lock();
        here.tickled.set(false);
        let urgent = here.urgent.get();
        here.urgent.set(false);
        let claimed_for = here
            .claimed_for
            .get()
            .and_then(|_| here.claimed_for.swap(None));

        let current = prev.map(|prev| prev.unit);
        debug_assert!(here.current.get() == current, "{cpu} ran something else");
        if let Some(slot) = self.current_of(cpu) {
            self.burn(&queue, slot, now);
        }
        let runs_on = prev.filter(|prev| self.may_go_on(prev, cpu, now));
        let yields = runs_on.is_some_and(|prev| prev.leave == Leave::Yields);
        let goes_on = runs_on.map(|prev| prev.unit);
        let mut next = self.candidate(&mut queue, cpu, here, now, goes_on, yields, urgent);

        if let Some(v) = current.filter(|_| next != current) {
            if let Some(slot) = self.slots.get(v.index()) {
                slot.place.set(Place::Leaving);
            }
            here.leaving.set(Some(v));
            here.current.set(None);
        }
        if next.is_none() {
            // First it says so, then it looks at the others: who makes a unit wait does it the other way round.
            self.idle.insert(cpu);
            let pulled = self.pull(&mut queue, cpu, now);
            match pulled {
                Pulled::Got(v) => next = Some(v),
                Pulled::Nothing => {}
                Pulled::Missed => {
                    tickle.insert(cpu);
                }
            }
        } else if let Some(v) = next.filter(|_| next != current) {
            self.dequeue(&mut queue, v);
        }
        let until = next.and_then(|v| {
            let slot = self.slots.get(v.index())?;
            self.idle.remove(cpu);
            Some(self.start(&mut queue, cpu, here, v, slot, now, runs_on, &mut tickle))
        });
        if let Some(until) = until {
            here.until.set(until);
        }
        drop(queue);
        if let Some(v) = claimed_for.filter(|_| claimed_for != next) {
            self.offer_again(v, &mut tickle);
        }
        let until = until.into_iter().chain(self.refills.due(cpu)).min();
        Decision {
            run: next,
            until,
            tickle,
        }
    }

    /// Until when what runs goes on, if there is nothing to decide: its slice has not ended, nothing waits here, and nobody has
    /// asked for anything. Then the lock is not needed: whoever changes that afterwards tells this CPU, which looks again. A vCPU that
    /// spins for another asks often.
    fn goes_on_alone(&self, cpu: CpuId, here: &Here, now: Ticks, prev: &Prev) -> Option<Ticks> {
        let until = here.until.get();
        let slot = self.slots.get(prev.unit.index())?;
        let quiet = matches!(prev.leave, Leave::Runnable | Leave::Yields)
            && now < until
            && !here.tickled.get()
            && here.claimed_for.get().is_none()
            && here.queue.get().is_some_and(|id| match prev.leave {
                // It may give its time to one that waits elsewhere.
                Leave::Yields => self.busy.is_empty(),
                _ => !self.busy.contains(id.bit()),
            })
            && !slot.dying.get()
            && !slot.prefers.get()
            && slot.moves_to.get().is_none()
            && slot.hard.contains(cpu);
        quiet.then(|| self.refills.due(cpu).map_or(until, |due| due.min(until)))
    }

    /// What ran until now could run on.
    fn may_go_on(&self, prev: &Prev, cpu: CpuId, now: Ticks) -> bool {
        let would = matches!(prev.leave, Leave::Runnable | Leave::Yields);
        would
            && self.slots.get(prev.unit.index()).is_some_and(|slot| {
                !slot.dying.get()
                    && slot.moves_to.get().is_none()
                    && slot.hard.contains(cpu)
                    && (self.has_budget(slot, now) || {
                        // It will be parked: this CPU asks for the timer already.
                        self.await_refill(slot, cpu);
                        false
                    })
            })
    }

    /// The best unit for this CPU: what goes on, or the first of those that wait which beats it and may run here.
    #[expect(clippy::too_many_arguments, reason = "all of them decide")]
    fn candidate(
        &self,
        queue: &mut Queue,
        cpu: CpuId,
        here: &Here,
        now: Ticks,
        goes_on: Option<VcpuId>,
        yields: bool,
        urgent: bool,
    ) -> Option<VcpuId> {
        let runner = goes_on.and_then(|v| self.slots.get(v.index()));
        if let (Some(v), Some(_)) = (goes_on, runner) {
            let fresh = now - here.since.get() < self.rules.ratelimit;
            if fresh && !yields && !urgent {
                return Some(v);
            }
        }
        if let (true, Some(v), Some(slot)) = (yields, goes_on, runner)
            && let Some(sibling) = self.yield_to(queue, cpu, v, slot, now)
        {
            return Some(sibling);
        }
        // It gives way to anybody if a CPU that it prefers is idle.
        let base = runner.filter(|slot| !self.would_rather_be_elsewhere(slot, cpu));
        let bar = base.map_or(i64::MIN, |slot| {
            let grace = if urgent { self.rules.grace } else { 0 };
            self.credit(queue, slot) - grace
        });
        let resist = bar.saturating_add(self.rules.migrate_resist);
        let mut at = queue.waiting.first();
        while let Some(index) = at {
            at = self.links.after(index);
            let Some(slot) = self.slots.get(index) else {
                break;
            };
            let (v, credit) = (VcpuId::new(index as u32), self.credit(queue, slot));
            if base.is_some() && !yields && credit <= bar {
                break;
            }
            // Who yields may spin for the very one that waits.
            let taken = if base.is_some() && !yields {
                self.is_awaited_elsewhere(slot, cpu)
            } else {
                self.is_nearly_there(slot, cpu)
            };
            if !slot.hard.contains(cpu) || taken {
                continue;
            }
            let foreign = slot.cpu.get() != Some(cpu);
            if foreign && base.is_some() && !yields && resist > credit {
                continue;
            }
            // Last, since it takes from the domain.
            if !self.has_budget(slot, now) {
                self.park_waiting(queue, v, slot, cpu, now);
                continue;
            }
            return Some(v);
        }
        // Whoever would rather be elsewhere goes there: it is handed back, and a CPU that it prefers is told.
        base.and(goes_on)
    }

    fn would_rather_be_elsewhere(&self, slot: &Slot, cpu: CpuId) -> bool {
        slot.prefers.get() && !slot.soft.contains(cpu) && {
            let wanted = slot.soft.load().intersection(&slot.hard.load());
            wanted.iter().any(|other| self.idle.contains(other))
        }
    }

    /// Another CPU was told to take it, and is on the way.
    pub(super) fn is_awaited_elsewhere(&self, slot: &Slot, cpu: CpuId) -> bool {
        slot.tickled
            .get()
            .filter(|&other| other != cpu)
            .is_some_and(|other| {
                self.here
                    .get(other.index())
                    .is_some_and(|here| here.tickled.get())
            })
    }

    /// The same, and that CPU will be there sooner than a CPU that has nothing else to do, or whose runner yields. It is not while it still comes out of a
    /// C-state.
    pub(super) fn is_nearly_there(&self, slot: &Slot, cpu: CpuId) -> bool {
        self.is_awaited_elsewhere(slot, cpu)
            && slot.tickled.get().is_some_and(|other| {
                !matches!(self.cpus.doing(other), Doing::Asleep { exit_latency, .. } if exit_latency >= SWITCH)
            })
    }

    /// What was chosen runs from now on. The answer is until when.
    #[expect(
        clippy::too_many_arguments,
        reason = "one step, and one place that does it"
    )]
    fn start(
        &self,
        queue: &mut LockGuard<'_, Queue>,
        cpu: CpuId,
        here: &Here,
        v: VcpuId,
        slot: &Slot,
        now: Ticks,
        runs_on: Option<Prev>,
        tickle: &mut CpuSet,
    ) -> Ticks {
        let goes_on = runs_on.is_some_and(|prev| prev.unit == v);
        if goes_on {
            self.change_load(queue, slot, 0, now);
        } else {
            here.current.set(Some(v));
            here.since.set(now);
            slot.place.set(Place::Running);
            slot.tickled.set(None);
            if let Some(unit) = self.units.get(v) {
                unit.state.set_running(cpu);
            }
        }
        slot.start.set(now);
        let reset = self.reset_if_due(queue, slot, now, tickle);
        if reset {
            self.balance(queue, now, tickle);
        }
        if slot.lent_at.get() != queue.resets {
            self.repay(queue, slot);
        }
        if slot.cpu.get() != Some(cpu) {
            self.lend(queue, slot);
            slot.cpu.set(Some(cpu));
        }
        let inflight = runs_on
            .filter(|prev| prev.unit != v)
            .and_then(|prev| self.slots.get(prev.unit.index()));
        now + self.runtime(queue, here, slot, now, goes_on, inflight)
    }

    /// How long what was chosen runs before others may be due: until its credit is down to that of the next.
    fn runtime(
        &self,
        queue: &Queue,
        here: &Here,
        slot: &Slot,
        now: Ticks,
        goes_on: bool,
        inflight: Option<&Slot>,
    ) -> Ticks {
        let ran = if goes_on {
            now - here.since.get()
        } else {
            Ticks::ZERO
        };
        let least = self.rules.min_timer.max(self.rules.ratelimit - ran);
        let head = queue.waiting.first().and_then(|head| self.slots.get(head));
        let rivals = head.into_iter().chain(inflight);
        let rival = rivals.map(|rival| self.credit(queue, rival)).max();
        let credit = self.credit(queue, slot) - rival.unwrap_or(0).max(0);
        let slice = Self::time_for(queue, slot, credit);
        let slice = slice.clamp(least, self.rules.max_timer.max(least));
        if slot.capped.get() {
            let budget = Ticks::new(slot.budget.get().max(0).unsigned_abs());
            slice.min(budget.max(self.rules.cap_grain))
        } else {
            slice
        }
    }

    /// A CPU that has nothing takes what waits in another runqueue and may run here, most credit first; what prefers to
    /// run here before all others.
    ///
    /// Other locks are only tried: two CPUs that look at each other's runqueue do not wait for each other.
    fn pull(&self, queue: &mut Queue, cpu: CpuId, now: Ticks) -> Pulled {
        for _ in 0..MAX_ROUNDS {
            let mut missed = false;
            let busy = cyclic(self.queues.len(), queue.id.bit(), |index| {
                self.busy.word(index)
            });
            for rq in busy.filter_map(|id| self.queues.get(id.index())) {
                // Those of the own one may not run here, or another CPU comes for them.
                let Some(mut other) = rq.try_lock() else {
                    missed |= !rq.cpus.contains(cpu);
                    continue;
                };
                if let Some(v) = self.pull_from(&mut other, queue, cpu, now) {
                    return Pulled::Got(v);
                }
            }
            if !missed {
                return Pulled::Nothing;
            }
            crate::sync::spin_loop();
        }
        Pulled::Missed
    }

    fn pull_from(
        &self,
        other: &mut Queue,
        queue: &mut Queue,
        cpu: CpuId,
        now: Ticks,
    ) -> Option<VcpuId> {
        let may = |&index: &usize| {
            self.slots
                .get(index)
                .is_some_and(|slot| slot.hard.contains(cpu) && !self.is_nearly_there(slot, cpu))
        };
        let wants = |&index: &usize| {
            self.slots
                .get(index)
                .is_some_and(|slot| slot.prefers.get() && slot.soft.contains(cpu))
        };
        loop {
            let waiting = || other.waiting.iter(&self.links).filter(may);
            let index = waiting().find(wants).or_else(|| waiting().next())?;
            let (v, slot) = (VcpuId::new(index as u32), self.slots.get(index)?);
            if !self.has_budget(slot, now) {
                self.park_waiting(other, v, slot, cpu, now);
                continue;
            }
            self.dequeue(other, v);
            self.change_load(other, slot, -1, now);
            self.deassign(other, slot);
            self.assign(queue, v, slot, cpu);
            self.change_load(queue, slot, 1, now);
            return Some(v);
        }
    }

    /// A CPU was told to come for this unit, and took another: if a further one is idle, that comes.
    fn offer_again(&self, v: VcpuId, tickle: &mut CpuSet) {
        if let Some((slot, queue)) = self.lock_unit(v)
            && slot.place.get() == Place::Queued
            && !slot.tickled.get().is_some_and(|cpu| {
                self.here
                    .get(cpu.index())
                    .is_some_and(|here| here.tickled.get())
            })
        {
            self.claim_idle(&queue, v, slot, tickle);
        }
    }
}
