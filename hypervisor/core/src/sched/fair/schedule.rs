//! The choice: what a CPU runs next.

use super::queue::{Queue, RunQueue, Wanted};
use super::steal::Steal;
use super::vtime::VTime;
use super::{Decision, Entry, Fair, Leave, MAX_ROUNDS, Prev, told};
use crate::sync::atomic::Ordering;
use crate::units::{CpuId, CpuSet, Ticks};

/// How many that wait are looked at for one that is worth yielding to.
const YIELD_TRIES: usize = 16;

impl Fair {
    /// One pass on the CPU's own behalf.
    ///
    /// Its queue is not locked while it looks at others. Meanwhile what runs cannot be taken from it, and what waits
    /// can: then the choice is made anew.
    pub(super) fn choose(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision {
        let Ok(rq) = self.queue(cpu) else {
            return Decision::IDLE;
        };
        let yields = prev.is_some_and(|prev| prev.leave == Leave::Yields);
        {
            let mut queue = rq.lock();
            queue.charge(now);
            queue.fade(now, self.clock.now());
            dismiss(&mut queue, cpu, prev);
            if !queue.online {
                return Decision::IDLE;
            }
            if !yields && queue.goes_on(now) {
                let decision = decided(&queue);
                drop(queue);
                return self.with_claim(decision, cpu);
            }
        }
        for _ in 0..MAX_ROUNDS {
            if let Some(decision) = self.round(cpu, rq, now, yields) {
                return decision;
            }
        }
        // Others took whatever was found, again and again. Rather than to trust that nothing is left, ask again.
        Decision {
            tickle: CpuSet::single(cpu),
            ..Decision::IDLE
        }
    }

    /// One attempt at a choice. `None` if what it was based on has changed.
    fn round(&self, cpu: CpuId, rq: &RunQueue, now: Ticks, yields: bool) -> Option<Decision> {
        let bar = best_local(&rq.lock(), yields);
        if bar.is_none() {
            // Before looking at others: whoever makes a unit wait from now on sees that this CPU is idle.
            self.idle.insert(cpu);
        }
        if yields && let Some(decision) = self.yield_to(cpu, rq, now) {
            return Some(decision);
        }
        let stolen = self.steal(&Wanted {
            by: cpu,
            bar,
            not_by: None,
        });
        let (stolen, steps_to) = match stolen {
            Steal::Nothing if !yields => self.make_room(cpu, rq),
            stolen => (stolen, None),
        };
        let outrun = matches!(stolen, Steal::Outrun);

        let mut queue = rq.lock();
        let next = match stolen {
            Steal::Got(mut entry) => {
                // It may come from a queue that was far behind, where nobody could take it until now.
                queue.welcome(&mut entry);
                Some(entry)
            }
            Steal::Nothing | Steal::Outrun => take_better(&mut queue, yields),
        };
        if let Some(entry) = next {
            if let Some(state) = self.state(entry.unit) {
                state.set_running(cpu);
            }
            queue.start(entry, now);
            if let (Some(to), Some(leaving)) = (steps_to, &mut queue.leaving) {
                leaving.steps_to = Some(to);
            }
            self.publish(cpu, rq, &queue);
        } else if queue.current.is_some() {
            queue.begin_slice(now);
        } else {
            return (bar.is_none() && !outrun).then_some(Decision::IDLE);
        }
        self.idle.remove(cpu);
        queue.relent();
        if let Some(current) = &queue.current {
            rq.publish_running(current.vruntime);
        }
        if let Some(clock) = queue.clock() {
            self.clock.advance(clock);
        }
        let decision = decided(&queue);
        drop(queue);
        Some(self.with_claim(decision, cpu))
    }

    /// What yields gives its time to one of its domain that waits here, and is not more than a slice behind the first: to one
    /// that was kicked and has not looked since, else to one that did not yield itself, else to any.
    fn yield_to(&self, cpu: CpuId, rq: &RunQueue, now: Ticks) -> Option<Decision> {
        let mut queue = rq.lock();
        let (unit, domain) = queue
            .current
            .as_ref()
            .map(|entry| (entry.unit, entry.domain))?;
        let siblings = || {
            let waiting = queue.waiting.iter().take(YIELD_TRIES).enumerate();
            waiting.filter(|(_, entry)| {
                let head = queue.head();
                let too_far = head.is_some_and(|head| head.is_owed(entry.vruntime, queue.slice));
                entry.domain == domain && entry.affinity.contains(cpu) && !too_far
            })
        };
        let kicked = |entry: &Entry| {
            self.state(entry.unit)
                .is_some_and(|state| state.is_kicked())
        };
        let (at, _) = siblings()
            .find(|(_, entry)| kicked(entry))
            .or_else(|| siblings().find(|(_, entry)| !entry.yielded))
            .or_else(|| siblings().next())?;
        let entry = queue.waiting.remove(at)?;
        if let Some(state) = self.state(entry.unit) {
            state.set_running(cpu);
        }
        if let Some(unit) = self.units.get(unit) {
            unit.count_directed_yield();
        }
        queue.start(entry, now);
        self.publish(cpu, rq, &queue);
        self.idle.remove(cpu);
        if let Some(current) = &queue.current {
            rq.publish_running(current.vruntime);
        }
        let decision = decided(&queue);
        drop(queue);
        Some(self.with_claim(decision, cpu))
    }

    /// What runs here may be the reason that a unit waits which may run here, and not where that could go: then it goes
    /// there, if that unit is owed more than a slice compared with what runs there, and the unit is taken.
    ///
    /// Otherwise a unit that is behind all others, since it cannot use more than one CPU, would stay where it is.
    fn make_room(&self, cpu: CpuId, rq: &RunQueue) -> (Steal, Option<CpuId>) {
        let none = (Steal::Nothing, None);
        if !self.pinned.load(Ordering::Relaxed) {
            return none;
        }
        let (affinity, vruntime) = {
            let queue = rq.lock();
            match (&queue.current, queue.head()) {
                (Some(current), None) => (current.affinity, current.vruntime),
                (Some(current), Some(head)) if current.vruntime.is_before(head.vruntime) => {
                    (current.affinity, current.vruntime)
                }
                _ => return none,
            }
        };
        let mut furthest: Option<(CpuId, VTime)> = None;
        for other in self.online.iter().filter(|&other| other != cpu) {
            let Ok(running) = self.queue(other).map(RunQueue::running_hint) else {
                continue;
            };
            let known = furthest.map_or(vruntime, |(_, known)| known);
            if known.is_before(running) && affinity.contains(other) && !self.idle.contains(other) {
                furthest = Some((other, running));
            }
        }
        let Some((to, bar)) = furthest else {
            return none;
        };
        let wanted = Wanted {
            by: cpu,
            bar: Some(bar),
            not_by: Some(to),
        };
        let here = {
            let mut queue = rq.lock();
            let at = queue.stealable(&wanted);
            at.and_then(|at| queue.waiting.remove(at))
        };
        match here.map_or_else(|| self.steal(&wanted), Steal::Got) {
            Steal::Got(entry) => (Steal::Got(entry), Some(to)),
            Steal::Nothing | Steal::Outrun => none,
        }
    }

    fn with_claim(&self, decision: Decision, cpu: CpuId) -> Decision {
        Decision {
            tickle: told(self.pass_claim_on(cpu)),
            ..decision
        }
    }
}

/// Takes the unit that ran until now off, unless it may go on.
fn dismiss(queue: &mut Queue, cpu: CpuId, prev: Option<Prev>) {
    debug_assert!(
        queue.current.as_ref().map(|entry| entry.unit) == prev.map(|prev| prev.unit),
        "{cpu} ran something else"
    );
    let would = prev.is_some_and(|prev| matches!(prev.leave, Leave::Runnable | Leave::Yields));
    let may = queue
        .current
        .as_ref()
        .is_some_and(|entry| entry.affinity.contains(cpu) && !entry.dying);
    if !(would && may && queue.online) {
        queue.leaving = queue.current.take();
    }
}

/// The least virtual run time here; without that of what runs, if it yields and another waits.
fn best_local(queue: &Queue, yields: bool) -> Option<VTime> {
    match queue.head() {
        Some(head) if yields => Some(head.vruntime),
        _ => queue.clock(),
    }
}

/// Takes the first that waits, if it goes before what runs. Between equals, the one that waits.
fn take_better(queue: &mut Queue, yields: bool) -> Option<super::Entry> {
    let head = queue.head()?;
    let runs_on = queue
        .current
        .as_ref()
        .is_some_and(|current| !yields && current.vruntime.is_before(head.vruntime));
    if runs_on {
        return None;
    }
    queue.waiting.pop_front()
}

fn decided(queue: &Queue) -> Decision {
    let run = queue.current.as_ref().map(|entry| entry.unit);
    Decision {
        run,
        until: run.map(|_| queue.slice_end),
        tickle: CpuSet::EMPTY,
    }
}
