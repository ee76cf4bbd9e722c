//! One timer that stands in for those of many CPUs, which stop while the CPUs sleep.
//!
//! A CPU that is about to sleep in such a state hands its deadline over, and takes it back when it is awake. The machine has
//! one comparator that runs on, set to the earliest of them; when it interrupts, the CPU that takes the interrupt wakes
//! those whose deadlines have come. Nothing here is lost by a race: a CPU that is woken twice looks twice.
//!
//! Pure, and kept under one lock by its owner.

use crate::units::{CpuId, Ticks};
use alloc::boxed::Box;

/// The deadlines of CPUs that sleep in a state in which their own timers stop.
#[derive(Debug)]
pub struct Broadcast {
    /// By CPU; [`Ticks::MAX`] for none.
    deadlines: Box<[Ticks]>,
    /// What the comparator is set to.
    set_to: Ticks,
}

impl Broadcast {
    /// For CPUs 0 to `cpus - 1`.
    pub fn new(cpus: usize) -> Self {
        Self {
            deadlines: (0..cpus).map(|_| Ticks::MAX).collect(),
            set_to: Ticks::MAX,
        }
    }

    /// A CPU is about to sleep until `deadline`. Gives what the comparator must be set to, if that changes.
    #[must_use]
    pub fn hand_over(&mut self, cpu: CpuId, deadline: Ticks) -> Option<Ticks> {
        let slot = self.deadlines.get_mut(cpu.index())?;
        *slot = deadline;
        if deadline < self.set_to {
            self.set_to = deadline;
            return Some(deadline);
        }
        None
    }

    /// A CPU is awake. The comparator stays as it is: should it interrupt for nothing, nobody is woken.
    pub fn take_back(&mut self, cpu: CpuId) {
        if let Some(slot) = self.deadlines.get_mut(cpu.index()) {
            *slot = Ticks::MAX;
        }
    }

    /// The comparator has interrupted, perhaps early. Each CPU whose deadline has come is given to `wake`, once. Gives what the
    /// comparator must be set to next; `None`: nobody needs it.
    #[must_use]
    pub fn fired(&mut self, now: Ticks, mut wake: impl FnMut(CpuId)) -> Option<Ticks> {
        let mut next = Ticks::MAX;
        for (index, deadline) in self.deadlines.iter_mut().enumerate() {
            if *deadline <= now {
                *deadline = Ticks::MAX;
                wake(CpuId::new(index as u32));
            }
            next = next.min(*deadline);
        }
        self.set_to = next;
        (next != Ticks::MAX).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn cpu(index: u32) -> CpuId {
        CpuId::new(index)
    }

    fn t(ticks: u64) -> Ticks {
        Ticks::new(ticks)
    }

    #[test]
    fn the_earliest_deadline_sets_the_comparator() {
        let mut all = Broadcast::new(3);
        assert_eq!(all.hand_over(cpu(0), t(500)), Some(t(500)));
        assert_eq!(all.hand_over(cpu(1), t(900)), None);
        assert_eq!(all.hand_over(cpu(2), t(300)), Some(t(300)));
        let mut woken = Vec::new();
        assert_eq!(all.fired(t(299), |cpu| woken.push(cpu)), Some(t(300)));
        assert_eq!(woken, [], "early");
        assert_eq!(all.fired(t(600), |cpu| woken.push(cpu)), Some(t(900)));
        assert_eq!(woken, [cpu(0), cpu(2)]);
        all.take_back(cpu(1));
        assert_eq!(all.fired(t(900), |_| panic!("nobody sleeps")), None);
        // After that it is set again for whoever comes.
        assert_eq!(all.hand_over(cpu(1), t(2_000)), Some(t(2_000)));
    }

    #[test]
    fn cpus_that_there_are_not_are_ignored() {
        let mut all = Broadcast::new(1);
        assert_eq!(all.hand_over(cpu(9), t(1)), None);
        all.take_back(cpu(9));
        assert_eq!(all.fired(t(5), |_| panic!("nobody sleeps")), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        HandOver(u32, u64),
        TakeBack(u32),
    }

    proptest! {
        /// A machine that does what it is told wakes every sleeper at its deadline, whatever else happens meanwhile.
        #[test]
        fn no_deadline_is_lost(steps in proptest::collection::vec(
            (0..200_u64, prop_oneof![
                (0..5_u32, 1..400_u64).prop_map(|(cpu, span)| Step::HandOver(cpu, span)),
                (0..5_u32).prop_map(Step::TakeBack),
            ]), 1..80))
        {
            let mut all = Broadcast::new(5);
            let mut asleep = [None; 5];
            let mut comparator = None;
            let mut now = 0;
            for (span, step) in steps {
                // Time passes; the comparator interrupts in it, as often as it is set.
                let until = now + span;
                while let Some(at) = comparator.filter(|at: &Ticks| *at <= t(until)) {
                    comparator = all.fired(at, |cpu| {
                        assert_eq!(asleep[cpu.index()].take(), Some(at), "woken at its deadline");
                    });
                }
                now = until;
                for deadline in asleep.iter().flatten() {
                    prop_assert!(*deadline > t(now), "slept over its deadline");
                }
                match step {
                    Step::HandOver(index, span) => {
                        let deadline = t(now + span);
                        asleep[index as usize] = Some(deadline);
                        if let Some(earlier) = all.hand_over(cpu(index), deadline) {
                            comparator = Some(earlier);
                        }
                    }
                    Step::TakeBack(index) => {
                        asleep[index as usize] = None;
                        all.take_back(cpu(index));
                    }
                }
            }
        }
    }
}
