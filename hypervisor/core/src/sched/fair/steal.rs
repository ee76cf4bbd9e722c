//! Taking work that waits on other CPUs.

use super::Fair;
use super::MAX_ROUNDS;
use super::entry::Entry;
use super::queue::Wanted;
use super::vtime::VTime;
use crate::sync::atomic::Ordering;
use crate::units::CpuId;

/// What came of it.
pub(super) enum Steal {
    /// This one, now in the hands of the caller.
    Got(Entry),
    /// Nothing that the CPU should take.
    Nothing,
    /// There was something each time, and each time somebody else was faster.
    Outrun,
}

impl Fair {
    /// Takes the unit with the least virtual run time that waits on another CPU and is wanted.
    pub(super) fn steal(&self, wanted: &Wanted) -> Steal {
        for _ in 0..MAX_ROUNDS {
            let Some(victim) = self.best_victim(wanted) else {
                return Steal::Nothing;
            };
            if let Some(entry) = self.take_from(victim, wanted) {
                return Steal::Got(entry);
            }
        }
        Steal::Outrun
    }

    fn best_victim(&self, wanted: &Wanted) -> Option<CpuId> {
        let mut best: Option<(CpuId, VTime)> = None;
        for victim in self.loaded.iter().filter(|&victim| victim != wanted.by) {
            let Ok(rq) = self.queue(victim) else { continue };
            // The first that waits there is no better than what is known: neither are the others.
            let known = best.map(|(_, vruntime)| vruntime).or(wanted.bar);
            if known.is_some_and(|known| !rq.head_hint().is_before(known)) {
                continue;
            }
            let queue = rq.lock();
            let found = queue
                .stealable(wanted)
                .and_then(|at| queue.waiting.get(at))
                .map(|entry| entry.vruntime);
            if let Some(vruntime) = found
                && best.is_none_or(|(_, least)| vruntime.is_before(least))
            {
                best = Some((victim, vruntime));
            }
        }
        best.map(|(victim, _)| victim)
    }

    fn take_from(&self, victim: CpuId, wanted: &Wanted) -> Option<Entry> {
        let rq = self.queue(victim).ok()?;
        let mut queue = rq.lock();
        let at = queue.stealable(wanted)?;
        let entry = queue.waiting.remove(at)?;
        self.publish(victim, rq, &queue);
        drop(queue);
        if let Ok(slot) = self.slot(entry.unit) {
            slot.home.store(wanted.by.get(), Ordering::Relaxed);
        }
        Some(entry)
    }
}
