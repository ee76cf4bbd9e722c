//! Caps: what a domain may have in each period.
//!
//! A domain has a pool, filled once a period. Its units take quotas from it while they run, and give back what they do
//! not use. A unit that finds the pool empty is parked until the next filling. Overruns are paid back: the pool may be
//! negative.
//!
//! The pool is filled when somebody asks, for all periods that have passed. A timer is needed only while units are
//! parked: one CPU at a time keeps it for all domains, the one that made the next filling the earliest.
//!
//! Lock order: runqueue, then domain, then [`Refills`].

use super::Credit2;
use super::queue::Queue;
use super::rules::Rules;
use super::slot::{Place, Slot};
use crate::sched::held::Held;
use crate::sched::sorted::{Links, Sorted};
use crate::sched::{Cap, SchedError, WakeBy};
use crate::sync::Lock;
use crate::units::{CpuId, CpuSet, DomId, Ticks, VcpuId};

/// What a domain has.
#[derive(Debug, Default)]
pub(super) struct Budget {
    pub cap: Option<Cap>,
    pub units: u32,
    /// What it gets each period.
    total: i64,
    /// What is left of it that no unit has taken.
    pub pool: i64,
    /// The end of the period.
    next: Ticks,
    /// The first of those who wait.
    parked: Option<VcpuId>,
}

impl Budget {
    /// Fills the pool for all periods that have ended.
    fn catch_up(&mut self, now: Ticks, period: Ticks) {
        let late = now.checked_sub(self.next);
        let Some(late) = late.filter(|_| self.cap.is_some()) else {
            return;
        };
        let ended = late.get() / period.get().max(1) + 1;
        self.next += Ticks::new(ended.saturating_mul(period.get()));
        let filled = i64::try_from(ended)
            .unwrap_or(i64::MAX)
            .saturating_mul(self.total);
        self.pool = self.pool.saturating_add(filled).min(self.total);
    }

    fn quota(&self, rules: &Rules) -> i64 {
        (self.total / i64::from(self.units.max(1))).max(rules.min_quota)
    }
}

/// When which domain's pool is filled again, of those that have parked units.
#[derive(Debug)]
pub(super) struct Refills {
    links: Links,
    queue: Lock<Sorted>,
    /// The earliest; [`Ticks::MAX`] for none.
    next: Held<Ticks>,
    /// The CPU that keeps the timer.
    pub owner: Held<Option<CpuId>>,
}

impl Refills {
    pub fn new(domains: usize) -> Self {
        Self {
            links: Links::new(domains),
            queue: Lock::new(Sorted::new()),
            next: Held::new(Ticks::MAX),
            owner: Held::new(None),
        }
    }

    /// When this CPU must look, if it keeps the timer.
    pub fn due(&self, cpu: CpuId) -> Option<Ticks> {
        let next = self.next.get();
        (next != Ticks::MAX && self.owner.get() == Some(cpu)).then_some(next)
    }

    /// A unit of a domain waits until `at`. Called by `cpu`, which asks for its timer before it leaves the scheduler.
    fn add(&self, domain: usize, at: Ticks, cpu: CpuId) {
        let mut queue = self.queue.lock();
        queue.remove(&self.links, domain); // It may be there for an earlier list.
        let key = i64::try_from(at.get()).unwrap_or(i64::MAX);
        queue.insert(&self.links, domain, key);
        if queue.first() == Some(domain) {
            self.owner.set(Some(cpu));
        }
        let next = queue.first().map_or(Ticks::MAX, |domain| self.at(domain));
        self.next.set(next);
    }

    fn take_due(&self, now: Ticks) -> Option<usize> {
        let mut queue = self.queue.lock();
        let first = queue.first()?;
        if self.at(first) > now {
            return None;
        }
        queue.remove(&self.links, first);
        let next = queue.first().map_or(Ticks::MAX, |domain| self.at(domain));
        self.next.set(next);
        Some(first)
    }

    fn at(&self, domain: usize) -> Ticks {
        Ticks::new(u64::try_from(self.links.key(domain)).unwrap_or(0))
    }
}

impl Credit2 {
    /// The unit may run: it has no cap, or budget left, or gets a quota now.
    pub(super) fn has_budget(&self, slot: &Slot, now: Ticks) -> bool {
        if !slot.capped.get() || slot.budget.get() > 0 {
            return true;
        }
        let Some(domain) = self.domains.get(slot.domain.get() as usize) else {
            return true;
        };
        let mut budget = domain.lock();
        self.take_quota(&mut budget, slot, now)
    }

    fn take_quota(&self, budget: &mut Budget, slot: &Slot, now: Ticks) -> bool {
        budget.pool = budget.pool.saturating_add(slot.budget.get());
        slot.budget.set(0);
        budget.catch_up(now, self.rules.cap_period);
        if budget.pool <= 0 {
            return false;
        }
        let quota = budget.quota(&self.rules).min(budget.pool);
        budget.pool -= quota;
        slot.budget.set(quota);
        true
    }

    /// A unit that waits is parked instead.
    pub(super) fn park_waiting(
        &self,
        queue: &mut Queue,
        v: VcpuId,
        slot: &Slot,
        cpu: CpuId,
        now: Ticks,
    ) {
        self.dequeue(queue, v);
        self.change_load(queue, slot, -1, now);
        self.park(v, slot, cpu);
    }

    /// A unit of no place waits for its domain's budget. `cpu` is the caller's own.
    pub(super) fn park(&self, v: VcpuId, slot: &Slot, cpu: CpuId) {
        slot.place.set(Place::Parked);
        let number = slot.domain.get() as usize;
        let Some(domain) = self.domains.get(number) else {
            return;
        };
        let mut budget = domain.lock();
        if slot.listed.get() {
            return;
        }
        let first = budget.parked.is_none();
        slot.listed.set(true);
        slot.next_parked.set(budget.parked.replace(v));
        if first {
            self.refills.add(number, budget.next, cpu);
        }
    }

    /// A unit whose registers are saved gives back what it has. If it would run on, it needs a quota anew, or is parked.
    /// Others of its domain may run then: they are in the list that is returned.
    #[must_use = "they wait for nothing any more"]
    pub(super) fn give_back(&self, slot: &Slot, now: Ticks) -> Option<VcpuId> {
        if !slot.capped.get() {
            return None;
        }
        let mut budget = self.domains.get(slot.domain.get() as usize)?.lock();
        budget.pool = budget.pool.saturating_add(slot.budget.get());
        slot.budget.set(0);
        budget.catch_up(now, self.rules.cap_period);
        if budget.pool > 0 {
            self.take_parked(&mut budget)
        } else {
            None
        }
    }

    /// This CPU keeps the timer for a unit that will be parked.
    pub(super) fn await_refill(&self, slot: &Slot, cpu: CpuId) {
        let number = slot.domain.get() as usize;
        if let Some(domain) = self.domains.get(number) {
            let budget = domain.lock();
            if budget.parked.is_none() {
                self.refills.add(number, budget.next, cpu);
            }
        }
    }

    /// Those who are parked, as a list that belongs to the caller. The timer finds nobody any more.
    fn take_parked(&self, budget: &mut Budget) -> Option<VcpuId> {
        budget.parked.take()
    }

    /// Brings all units of such a list back into their runqueues.
    pub(super) fn unpark(&self, list: Option<VcpuId>, now: Ticks, tickle: &mut CpuSet) {
        let mut at = list;
        while let Some(v) = at {
            let Some(slot) = self.slots.get(v.index()) else {
                return;
            };
            at = slot.next_parked.get();
            slot.next_parked.set(None);
            slot.listed.set(false);
            let Some((slot, mut queue)) = self.lock_unit(v) else {
                continue; // It was removed meanwhile.
            };
            if slot.place.get() == Place::Parked {
                self.change_load(&mut queue, slot, 1, now);
                self.enqueue(&mut queue, v, slot);
                self.offer(&queue, v, slot, now, WakeBy::Event, tickle);
            }
        }
    }

    /// Fills the pools whose time has come, if this CPU keeps the timer.
    pub(super) fn refill_due(&self, cpu: CpuId, now: Ticks, tickle: &mut CpuSet) {
        if self.refills.due(cpu).is_none_or(|at| at > now) {
            return;
        }
        while let Some(number) = self.refills.take_due(now) {
            let Some(domain) = self.domains.get(number) else {
                continue;
            };
            let list = {
                let mut budget = domain.lock();
                budget.catch_up(now, self.rules.cap_period);
                if budget.pool > 0 {
                    self.take_parked(&mut budget)
                } else {
                    if budget.parked.is_some() {
                        self.refills.add(number, budget.next, cpu);
                    }
                    None
                }
            };
            self.unpark(list, now, tickle);
        }
    }

    /// A unit joins a domain, or leaves it. The answer is how many it has then.
    pub(super) fn count_unit(&self, domain: DomId, joins: bool) -> Result<u32, SchedError> {
        let none = SchedError::NoSuchDomain(domain);
        let mut budget = self.domains.get(domain.index()).ok_or(none)?.lock();
        budget.units = if joins {
            budget.units + 1
        } else {
            budget.units.saturating_sub(1)
        };
        Ok(budget.units)
    }

    pub(super) fn is_capped(&self, domain: DomId) -> bool {
        let budget = self.domains.get(domain.index());
        budget.is_some_and(|budget| budget.lock().cap.is_some())
    }

    /// The cap of a domain from now on: a new period begins.
    pub(super) fn change_cap(
        &self,
        domain: DomId,
        cap: Option<Cap>,
        now: Ticks,
    ) -> Result<CpuSet, SchedError> {
        let none = SchedError::NoSuchDomain(domain);
        let mut tickle = CpuSet::EMPTY;
        let list = {
            let mut budget = self.domains.get(domain.index()).ok_or(none)?.lock();
            if budget.cap == cap {
                return Ok(tickle);
            }
            let period = self.rules.cap_period;
            let percent = cap.map_or(0, Cap::percent);
            let total = u128::from(period.get()) * u128::from(percent) / 100;
            budget.cap = cap;
            budget.total = i64::try_from(total).unwrap_or(i64::MAX);
            budget.pool = budget.total;
            budget.next = now + period;
            self.take_parked(&mut budget)
        };
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.domain.get() != u32::from(domain.get()) || slot.place.get() == Place::Free {
                continue;
            }
            let Some((slot, queue)) = self.lock_unit(VcpuId::new(index as u32)) else {
                continue;
            };
            if slot.domain.get() != u32::from(domain.get()) {
                continue;
            }
            let runs = slot.place.get() == Place::Running;
            if runs {
                self.burn(&queue, slot, now);
            }
            slot.capped.set(cap.is_some());
            slot.budget.set(0);
            if runs && let Some(cpu) = slot.cpu.get() {
                self.tell(cpu, None, &mut tickle);
            }
        }
        self.unpark(list, now, &mut tickle);
        Ok(tickle)
    }
}
