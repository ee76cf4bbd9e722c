//! Which idle CPU is told that a unit waits.
//!
//! CPUs are looked at in the order of their numbers from the unit's last one on, around the end; no more than
//! [`MOST_CANDIDATES`] of them, so that a wake costs no more on a large machine: the default runqueue has no more CPUs than that.
//! What is idle, of which runqueue, and what the unit may use are bits, 64 CPUs a word: all that cannot be chosen costs nothing.

use super::Credit2;
use super::load::PRECISION;
use super::queue::Queue;
use super::rules::Rules;
use super::slot::Slot;
use crate::sched::placement::{Candidate, Doing, Placement, STORE, expected_delay};
use crate::units::{CpuId, CpuSet, Nanos, VcpuId};

/// So many CPUs are compared at most, in one step of a choice.
pub(super) const MOST_CANDIDATES: usize = 16;

/// A unit that ran for more of the last second will run for long: two fifths. A new one is taken for half.
const LASTING: i64 = (1 << PRECISION) * 2 / 5;

/// The CPUs whose bits are set, from `from` on, around the end. `word` gives the bits of 64 CPUs, and is asked once for each.
pub(super) fn cyclic(
    cpus: usize,
    from: CpuId,
    word: impl Fn(usize) -> u64,
) -> impl Iterator<Item = CpuId> {
    let words = cpus.div_ceil(64).max(1);
    let first = (from.index() / 64) % words;
    let above = u64::MAX << (from.index() % 64);
    let mut behind = 0;
    let mut at = first;
    let begun = word(first);
    let mut left = begun & above;
    core::iter::from_fn(move || {
        while left == 0 {
            behind += 1;
            if behind > words {
                return None;
            }
            at = if at + 1 < words { at + 1 } else { 0 };
            left = if behind == words {
                begun & !above
            } else {
                word(at)
            };
        }
        let bit = left.trailing_zeros();
        left &= left - 1;
        Some(CpuId::new(at as u32 * u64::BITS + bit))
    })
}

/// Among which CPUs.
#[derive(Clone, Copy)]
struct Step {
    /// Of other runqueues than the unit's.
    elsewhere: bool,
    /// Only of those that it prefers.
    preferred: bool,
}

impl Credit2 {
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
        let step = |elsewhere, preferred| Step {
            elsewhere,
            preferred,
        };
        let (of_preferred, of_all) = (
            [step(false, true), step(true, true)],
            [step(false, false), step(true, false)],
        );
        let prefers = slot.prefers.get().then_some(of_preferred);
        for step in prefers.into_iter().flatten().chain(of_all) {
            while let Some(cpu) = self.best_idle(queue, slot, step) {
                if !self.idle.remove(cpu) {
                    continue; // Somebody else was faster.
                }
                if step.elsewhere {
                    if let Some(here) = self.here.get(cpu.index()) {
                        here.claimed_for.swap(Some(v));
                    }
                    tickle.insert(cpu);
                } else {
                    self.tell(cpu, Some(v), tickle);
                    slot.tickled.set(Some(cpu));
                }
                return true;
            }
        }
        false
    }

    /// The idle CPU with the least expected delay; among equals the unit's own, else the next behind it.
    fn best_idle(&self, queue: &Queue, slot: &Slot, step: Step) -> Option<CpuId> {
        let last = slot.cpu.get();
        let limit = Rules::limit(slot.latency.get());
        let lasting = slot.load().average > LASTING;
        let word = |index| {
            let own = queue.cpus.word(index);
            let side = if step.elsewhere { !own } else { own };
            let mut free = self.idle.word(index) & side;
            if free != 0 {
                free &= slot.hard.word(index);
            }
            if step.preferred && free != 0 {
                free &= slot.soft.word(index);
            }
            free
        };
        let mut best: Option<(Nanos, CpuId)> = None;
        let from = last.unwrap_or(CpuId::new(0));
        for cpu in cyclic(self.here.len(), from, word).take(MOST_CANDIDATES) {
            let delay = expected_delay(&Candidate {
                doing: match self.rules.placement {
                    Placement::SleepDepth => self.cpus.doing(cpu),
                    Placement::FirstIdle | Placement::Previous => Doing::Awake,
                },
                warm: last == Some(cpu),
                sibling_busy: self.rules.placement != Placement::Previous && self.sibling_busy(cpu),
                lasting,
                limit,
            });
            if best.is_none_or(|(least, _)| delay < least) {
                best = Some((delay, cpu));
            }
            if delay <= STORE {
                break; // None is better.
            }
        }
        best.map(|(_, cpu)| cpu)
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
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn cpus_come_from_the_given_one_around_the_end() {
        let set: CpuSet = [0, 5, 63, 64, 130].map(CpuId::new).into_iter().collect();
        let order = |cpus, from| {
            let found = cyclic(cpus, CpuId::new(from), |index| set.word(index));
            found.map(CpuId::get).collect::<Vec<_>>()
        };
        assert_eq!(order(192, 0), [0, 5, 63, 64, 130]);
        assert_eq!(order(192, 5), [5, 63, 64, 130, 0]);
        assert_eq!(order(192, 65), [130, 0, 5, 63, 64]);
        assert_eq!(order(64, 6), [63, 0, 5]);
        assert_eq!(order(0, 6), [63, 0, 5]);
        assert_eq!(cyclic(192, CpuId::new(70), |_| 0).next(), None);
    }
}
