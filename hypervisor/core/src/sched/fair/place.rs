//! Where a unit that becomes runnable goes, and who is told.

use super::entry::Entry;
use super::{Fair, SchedError};
use crate::sync::atomic::Ordering;
use crate::units::{CpuId, CpuSet, Ticks};

/// Where a unit goes.
struct Target {
    cpu: CpuId,
    /// The CPU was idle, and is now promised to this unit: it must be tickled.
    claimed: bool,
}

impl Fair {
    pub(super) fn check_affinity(&self, affinity: CpuSet) -> Result<(), SchedError> {
        if self.online.iter().any(|cpu| affinity.contains(cpu)) {
            Ok(())
        } else {
            Err(SchedError::NoOnlineCpu(affinity))
        }
    }

    /// Puts a unit, `Queued` and in the hands of the caller, into a runqueue. It is owed at most `credit` of running.
    /// The answer is the CPU that must be tickled.
    pub(super) fn place(
        &self,
        mut entry: Entry,
        last: CpuId,
        now: Ticks,
        credit: Ticks,
    ) -> Option<CpuId> {
        let affinity = entry.affinity;
        loop {
            let Target { cpu, claimed } = self.target(&mut entry, last)?;
            let rq = self.queue(cpu).ok()?;
            let mut queue = rq.lock();
            if !queue.online {
                continue; // It went offline since it was chosen.
            }
            queue.charge(now);
            // With nobody there to be fair to: others may come.
            let clock = queue.clock().unwrap_or(self.clock.now());
            entry.admit(clock, credit, self.memory());
            let preempts = queue
                .current
                .as_ref()
                .is_some_and(|current| entry.is_owed(current.vruntime, self.patience()));
            if let Ok(slot) = self.slot(entry.unit) {
                slot.home.store(cpu.get(), Ordering::Relaxed);
            }
            queue.insert(entry);
            queue.cut_short |= preempts;
            self.publish(cpu, rq, &queue);
            drop(queue);
            return if claimed || preempts {
                Some(cpu)
            } else {
                self.claim_idle(&affinity, cpu)
            };
        }
    }

    /// Puts a unit that made room into the queue of `cpu`, where it runs next if it is the first.
    pub(super) fn step(&self, mut entry: Entry, cpu: CpuId, now: Ticks) -> Option<CpuId> {
        let affinity = entry.affinity;
        let rq = self.queue(cpu).ok()?;
        let mut queue = rq.lock();
        if !queue.online {
            drop(queue);
            return self.place(entry, cpu, now, self.memory());
        }
        queue.charge(now);
        queue.welcome(&mut entry);
        let preempts = queue
            .current
            .as_ref()
            .is_some_and(|current| entry.vruntime.is_before(current.vruntime));
        if let Ok(slot) = self.slot(entry.unit) {
            slot.home.store(cpu.get(), Ordering::Relaxed);
        }
        queue.insert(entry);
        queue.cut_short |= preempts;
        self.publish(cpu, rq, &queue);
        drop(queue);
        self.claim_idle(&affinity, cpu)
            .or_else(|| preempts.then_some(cpu))
    }

    /// Claims an idle CPU for a unit that waits: call it once it is in a queue. Nobody else gets the same CPU.
    pub(super) fn claim_idle(&self, affinity: &CpuSet, near: CpuId) -> Option<CpuId> {
        let claim = |cpu: &CpuId| affinity.contains(*cpu) && self.idle.remove(*cpu);
        Some(near)
            .filter(claim)
            .or_else(|| self.idle.iter().find(claim))
    }

    /// A CPU has taken work. If more waits anywhere that an idle CPU could take, that one is claimed: so a claim that was
    /// used for other work than it was made for is not lost.
    pub(super) fn pass_claim_on(&self, cpu: CpuId) -> Option<CpuId> {
        if self.idle.is_empty() {
            return None;
        }
        self.loaded.iter().find_map(|loaded| {
            let queue = self.queue(loaded).ok()?.lock();
            queue
                .waiting
                .iter()
                .find_map(|entry| self.claim_idle(&entry.affinity, cpu))
        })
    }

    /// The last CPU if it is idle, else an idle one, else the last CPU or another where nobody waits, else the last CPU.
    fn target(&self, entry: &mut Entry, last: CpuId) -> Option<Target> {
        if self.check_affinity(entry.affinity).is_err() {
            entry.affinity = CpuSet::ALL;
        }
        if let Some(cpu) = self.claim_idle(&entry.affinity, last) {
            return Some(Target { cpu, claimed: true });
        }
        let allowed = |cpu: &CpuId| entry.affinity.contains(*cpu) && self.online.contains(*cpu);
        let is_free = |cpu: &CpuId| allowed(cpu) && !self.loaded.contains(*cpu);
        let cpu = Some(last)
            .filter(is_free)
            .or_else(|| self.online.iter().find(is_free))
            .or_else(|| Some(last).filter(allowed))
            .or_else(|| self.online.iter().find(allowed))?;
        Some(Target {
            cpu,
            claimed: false,
        })
    }
}
