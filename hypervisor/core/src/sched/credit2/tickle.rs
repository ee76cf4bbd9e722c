//! Who is told that a unit waits.

use super::Credit2;
use super::idle::{MOST_CANDIDATES, cyclic};
use super::queue::Queue;
use super::slot::Slot;
use crate::sched::WakeBy;
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
        let own = slot
            .cpu
            .get()
            .filter(|&cpu| queue.cpus.contains(cpu) && slot.hard.contains(cpu));
        let from = own.unwrap_or(CpuId::new(0));
        let others = cyclic(self.here.len(), from, |word| {
            queue.cpus.word(word) & slot.hard.word(word)
        });
        let mut best: Option<(Score, CpuId)> = None;
        // The own one first: among equals it is kept.
        for cpu in others.take(MOST_CANDIDATES) {
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
