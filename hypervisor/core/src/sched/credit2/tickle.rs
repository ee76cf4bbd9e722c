//! Who is told that a unit waits.

use super::Credit2;
use super::queue::Queue;
use super::rules::Rules;
use super::slot::Slot;
use crate::sched::WakeBy;
use crate::sched::placement::{Candidate, expected_delay};
use crate::units::{CpuId, CpuSet, Ticks, VcpuId};

impl Credit2 {
    /// A unit was put among those that wait: an idle CPU is told, or a busy one that runs something of less credit.
    ///
    /// Call it after [`enqueue`](Self::enqueue): CPUs that become idle look at what waits after they say so.
    pub(super) fn offer(
        &self,
        queue: &Queue,
        v: VcpuId,
        slot: &Slot,
        now: Ticks,
        by: WakeBy,
        tickle: &mut CpuSet,
    ) {
        if !self.claim_idle(queue, v, slot, tickle) {
            self.preempt(queue, v, slot, now, by, tickle);
        }
    }

    /// Tells the idle CPU where the unit is expected to run soonest: of those that it prefers, else of the runqueue's,
    /// else of any other runqueue, from where it will be pulled. A CPU is told for one unit only.
    pub(super) fn claim_idle(
        &self,
        queue: &Queue,
        v: VcpuId,
        slot: &Slot,
        tickle: &mut CpuSet,
    ) -> bool {
        if self.idle.is_empty() {
            return false;
        }
        let hard = slot.hard.load();
        let own = hard.intersection(&queue.cpus);
        let elsewhere = hard.difference(&queue.cpus);
        let soft = slot.prefers.get().then(|| slot.soft.load());
        let preferred = soft.map(|soft| (own.intersection(&soft), elsewhere.intersection(&soft)));
        let steps = [
            preferred.map(|(own, _)| own),
            preferred.map(|(_, elsewhere)| elsewhere),
            Some(own),
            Some(elsewhere),
        ];
        for mask in steps.into_iter().flatten() {
            while let Some(cpu) = self.best_idle(&mask, slot) {
                if !self.idle.remove(cpu) {
                    continue; // Somebody else was faster.
                }
                if queue.cpus.contains(cpu) {
                    self.tell(cpu, Some(v), tickle);
                    slot.tickled.set(Some(cpu));
                } else if let Some(here) = self.here.get(cpu.index()) {
                    here.claimed_for.swap(Some(v));
                    tickle.insert(cpu);
                }
                return true;
            }
        }
        false
    }

    /// The idle CPU of `mask` with the least expected delay; among equals the unit's own, else the next behind it.
    fn best_idle(&self, mask: &CpuSet, slot: &Slot) -> Option<CpuId> {
        let last = slot.cpu.get();
        let from = last.map_or(0, CpuId::index);
        let limit = Rules::limit(slot.latency.get());
        let cpus = self.here.len();
        let ranked = self
            .idle
            .iter()
            .filter(|&cpu| mask.contains(cpu))
            .map(|cpu| {
                let candidate = Candidate {
                    doing: self.cpus.doing(cpu),
                    warm: last == Some(cpu),
                    sibling_busy: self.sibling_busy(cpu),
                    limit,
                };
                let behind = (cpu.index() + cpus - from) % cpus.max(1);
                (expected_delay(&candidate), behind, cpu)
            });
        ranked.min().map(|(_, _, cpu)| cpu)
    }

    /// Another thread of the core, in whichever runqueue, has something to do.
    fn sibling_busy(&self, cpu: CpuId) -> bool {
        self.here
            .get(cpu.index())
            .filter(|here| here.threaded)
            .is_some_and(|here| {
                here.siblings.iter().any(|other| {
                    other != cpu && self.online.contains(other) && !self.idle.contains(other)
                })
            })
    }

    /// The CPUs of a runqueue whose whole core is idle, as far as it belongs to the runqueue.
    pub(super) fn idle_cores(&self, queue: &Queue) -> CpuSet {
        let idle = self.idle.load().intersection(&queue.cpus);
        let whole = |cpu: &CpuId| {
            self.here
                .get(cpu.index())
                .is_some_and(|here| here.siblings.intersection(&queue.cpus).is_subset(&idle))
        };
        idle.iter().filter(whole).collect()
    }

    /// Tells the busy CPU whose runner is furthest behind the unit, if any is. One that is protected by the rate limit is
    /// told only to end its slice when the limit does.
    fn preempt(
        &self,
        queue: &Queue,
        v: VcpuId,
        slot: &Slot,
        now: Ticks,
        by: WakeBy,
        tickle: &mut CpuSet,
    ) {
        let mask = slot.hard.load().intersection(&queue.cpus);
        let own = slot.cpu.get().filter(|&cpu| mask.contains(cpu));
        let mut best: Option<(Score, CpuId)> = None;
        // The own one first: among equals it is kept.
        let others = mask.iter().filter(|&cpu| Some(cpu) != own);
        for cpu in own.into_iter().chain(others) {
            let at_home = best.is_some_and(|(score, cpu)| {
                !score.protected && own == Some(cpu) && slot.soft.contains(cpu)
            });
            if at_home {
                break;
            }
            if let Some(score) = self.score(queue, slot, cpu, now, by)
                && best.is_none_or(|(known, _)| score > known)
            {
                best = Some((score, cpu));
            }
        }
        let Some((score, cpu)) = best else { return };
        if score.protected {
            self.shorten(cpu, tickle);
            return;
        }
        self.tell(cpu, Some(v), tickle);
        slot.tickled.set(Some(cpu));
        if by == WakeBy::Runner(cpu)
            && let Some(here) = self.here.get(cpu.index())
        {
            here.urgent.set(true);
        }
    }

    /// Lets a protected runner's slice end with its protection, if it would last longer. That is one look, once.
    fn shorten(&self, cpu: CpuId, tickle: &mut CpuSet) {
        if let Some(here) = self.here.get(cpu.index()) {
            let protected_until = here.since.get() + self.rules.ratelimit.max(self.rules.min_timer);
            if here.until.get() > protected_until + self.rules.min_timer {
                self.tell(cpu, None, tickle);
            }
        }
    }

    /// By how much the unit should go before what runs on a CPU; `None` if it should not.
    fn score(
        &self,
        queue: &Queue,
        slot: &Slot,
        cpu: CpuId,
        now: Ticks,
        by: WakeBy,
    ) -> Option<Score> {
        let here = self.here.get(cpu.index())?;
        let running = self.current_of(cpu).filter(|_| !here.tickled.get())?;
        let woke_it = by == WakeBy::Runner(cpu);
        let fresh = now - here.since.get() + self.rules.tolerance < self.rules.ratelimit;
        self.burn(queue, running, now);
        let mut by = self.credit(queue, slot) - self.credit(queue, running);
        if woke_it {
            by += self.rules.grace;
        }
        if slot.cpu.get() != Some(cpu) {
            by -= self.rules.migrate_resist;
        }
        if by <= 0 {
            return None;
        }
        if slot.soft.contains(cpu) {
            by += self.rules.credit_init;
        }
        if !running.soft.contains(cpu) {
            by += self.rules.credit_init;
        }
        Some(Score {
            protected: fresh && !woke_it,
            by,
        })
    }
}

/// How much a preemption is worth. Any is better than one of a protected runner.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Score {
    protected: bool,
    by: i64,
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        let key = |score: &Self| (!score.protected, score.by);
        Some(key(self).cmp(&key(other)))
    }
}
