//! What is to happen, earliest first.

use crate::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A CPU goes on with what it does, if it still waits for just that: the number must be the CPU's own of now.
    Resume {
        /// Which wait.
        turn: u32,
    },
    /// The one-shot of a CPU may be due.
    OneShot,
    /// The event-check interrupt reaches a CPU.
    Ipi,
    /// A CPU wakes for no reason, if it sleeps.
    Spurious,
    /// An NMI reaches a CPU.
    Nmi,
    /// A vCPU starts.
    Start,
    /// A device has something for a vCPU.
    Arrival,
    /// All CPUs and vCPUs are looked at.
    Sweep,
    /// Shares are judged.
    Window,
    /// Somebody at the console changes something.
    Change,
    /// The run is over.
    End,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// When, in ns.
    pub at: u64,
    /// Which of those at the same time comes first.
    tie: u64,
    /// The CPU, or the vCPU.
    pub who: u32,
    /// What happens.
    pub what: What,
}

/// The queue. Of events at one time, the first to be pushed comes first; or, if times are explored, any.
pub struct Events {
    heap: BinaryHeap<Reverse<Event>>,
    pushed: u64,
    shuffle: Option<Rng>,
}

impl Events {
    /// An empty queue. With a seed, events at one time come in random order.
    pub fn new(shuffle: Option<u64>) -> Self {
        Self {
            heap: BinaryHeap::new(),
            pushed: 0,
            shuffle: shuffle.map(Rng::new),
        }
    }

    /// Something is to happen.
    pub fn push(&mut self, at: u64, what: What, who: u32) {
        self.pushed += 1;
        let order = self.shuffle.as_mut().map_or(0, |rng| rng.bits() << 40);
        let tie = order | self.pushed;
        self.heap.push(Reverse(Event { at, tie, who, what }));
    }

    /// The next event.
    pub fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse(event)| event)
    }

    /// Does nothing happen up to this time?
    pub fn is_quiet_until(&self, at: u64) -> bool {
        self.heap.peek().is_none_or(|Reverse(event)| event.at > at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_equals_in_their_order() {
        let mut events = Events::new(None);
        for (at, who) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            events.push(at, What::Ipi, who);
        }
        assert!(events.is_quiet_until(2) && !events.is_quiet_until(3));
        let order: Vec<u32> = std::iter::from_fn(|| events.pop())
            .map(|event| event.who)
            .collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn equals_are_shuffled_by_the_seed_and_only_equals() {
        let order = |seed| {
            let mut events = Events::new(Some(seed));
            (0..20).for_each(|who| events.push(7, What::Ipi, who));
            events.push(6, What::Ipi, 99);
            std::iter::from_fn(move || events.pop())
                .map(|event| event.who)
                .collect::<Vec<_>>()
        };
        assert_eq!(order(1)[0], 99);
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
