//! Sorted queues of numbered things, in which everything costs O(log n) and nothing is allocated.
//!
//! A skip list. The links of all things lie in one array ([`Links`]), made once and shared by all queues over the same
//! things: a thing is in at most one queue, and its links belong to that queue's lock. A thing's number of levels follows
//! from its number, so the shape of a queue is the same in every run.
//!
//! Order: least key first; among equals, first come first.

use super::held::Held;
use alloc::boxed::Box;

/// One in four things of a level is in the next: enough for 65 000 things in a queue.
const LEVELS: usize = 8;
const NONE: u32 = u32::MAX;

/// The links of all things that may be queued.
#[derive(Debug)]
pub(super) struct Links {
    nodes: Box<[Node]>,
}

#[derive(Debug)]
struct Node {
    key: Held<i64>,
    /// The order of arrival.
    turn: Held<u64>,
    next: [Held<u32>; LEVELS],
}

/// One queue.
#[derive(Clone, Debug)]
pub(super) struct Sorted {
    first: [u32; LEVELS],
    /// On no level from this one on has there been anything since it was empty.
    height: usize,
    len: usize,
    turns: u64,
}

impl Links {
    /// For things 0 to `count - 1`.
    pub fn new(count: usize) -> Self {
        let node = |_| Node {
            key: Held::new(0),
            turn: Held::new(0),
            next: core::array::from_fn(|_| Held::new(NONE)),
        };
        Self {
            nodes: (0..count).map(node).collect(),
        }
    }

    /// The key under which a thing was queued last.
    pub fn key(&self, thing: usize) -> i64 {
        self.nodes.get(thing).map_or(0, |node| node.key.get())
    }

    /// The one behind `thing` in its queue.
    pub fn after(&self, thing: usize) -> Option<usize> {
        let next = self.nodes.get(thing)?.next[0].get();
        (next != NONE).then_some(next as usize)
    }

    fn place(&self, thing: u32) -> (i64, u64) {
        self.nodes
            .get(thing as usize)
            .map_or((i64::MAX, u64::MAX), |node| {
                (node.key.get(), node.turn.get())
            })
    }

    fn next(&self, thing: u32, level: usize) -> u32 {
        self.nodes
            .get(thing as usize)
            .map_or(NONE, |node| node.next[level].get())
    }
}

/// How many levels a thing is in, from 1.
const fn height(thing: usize) -> usize {
    let mixed = (thing as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let level = mixed.trailing_zeros() as usize / 2 + 1;
    if level < LEVELS { level } else { LEVELS }
}

impl Sorted {
    pub const fn new() -> Self {
        Self {
            first: [NONE; LEVELS],
            height: 0,
            len: 0,
            turns: 0,
        }
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The one with the least key.
    pub const fn first(&self) -> Option<usize> {
        if self.first[0] == NONE {
            None
        } else {
            Some(self.first[0] as usize)
        }
    }

    /// All of them, in order.
    pub fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = usize> + use<'a> {
        core::iter::successors(self.first(), move |&thing| links.after(thing))
    }

    /// On each level, the last thing that comes before `place` (`NONE`: the beginning).
    fn before(&self, links: &Links, place: (i64, u64)) -> [u32; LEVELS] {
        let mut before = [NONE; LEVELS];
        let mut at = NONE;
        for level in (0..self.height).rev() {
            loop {
                let next = self.link(links, at, level);
                if next == NONE || links.place(next) >= place {
                    break;
                }
                at = next;
            }
            before[level] = at;
        }
        before
    }

    fn link(&self, links: &Links, at: u32, level: usize) -> u32 {
        if at == NONE {
            self.first[level]
        } else {
            links.next(at, level)
        }
    }

    fn set_link(&mut self, links: &Links, at: u32, level: usize, to: u32) {
        if at == NONE {
            self.first[level] = to;
        } else if let Some(node) = links.nodes.get(at as usize) {
            node.next[level].set(to);
        }
    }

    /// Adds a thing that is in no queue.
    pub fn insert(&mut self, links: &Links, thing: usize, key: i64) {
        let Some(node) = links.nodes.get(thing) else {
            return;
        };
        self.turns += 1;
        let place = (key, self.turns);
        node.key.set(place.0);
        node.turn.set(place.1);
        let before = self.before(links, place);
        for (level, &at) in before.iter().enumerate().take(height(thing)) {
            node.next[level].set(self.link(links, at, level));
            self.set_link(links, at, level, thing as u32);
        }
        self.height = self.height.max(height(thing));
        self.len += 1;
    }

    /// Takes a thing out that is in this queue. `false` if it is not.
    pub fn remove(&mut self, links: &Links, thing: usize) -> bool {
        let Some(node) = links.nodes.get(thing) else {
            return false;
        };
        let before = self.before(links, (node.key.get(), node.turn.get()));
        if self.link(links, before[0], 0) != thing as u32 {
            return false;
        }
        for (level, &at) in before.iter().enumerate().take(height(thing)) {
            if self.link(links, at, level) == thing as u32 {
                self.set_link(links, at, level, node.next[level].get());
            }
        }
        for next in &node.next {
            next.set(NONE);
        }
        self.len -= 1;
        if self.len == 0 {
            self.height = 0;
        }
        true
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        /// Against a vector that is sorted stably.
        #[test]
        fn a_sorted_queue_is_sorted(acts in prop::collection::vec((0_usize..40, -5_i64..5, any::<bool>()), 0..200)) {
            let links = Links::new(40);
            let mut queue = Sorted::new();
            let mut model: Vec<(i64, usize)> = Vec::new();
            for (thing, key, insert) in acts {
                let at = model.iter().position(|&(_, other)| other == thing);
                match (at, insert) {
                    (None, true) => {
                        queue.insert(&links, thing, key);
                        let at = model.partition_point(|&(other, _)| other <= key);
                        model.insert(at, (key, thing));
                    }
                    (Some(at), false) => {
                        prop_assert!(queue.remove(&links, thing));
                        model.remove(at);
                    }
                    (None, false) => prop_assert!(!queue.remove(&links, thing)),
                    (Some(_), true) => {}
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.first(), model.first().map(|&(_, thing)| thing));
                prop_assert!(queue.iter(&links).eq(model.iter().map(|&(_, thing)| thing)));
            }
        }
    }

    #[test]
    fn heights_fall_off_by_four() {
        let count = |level| (0..65_536).filter(|&thing| height(thing) >= level).count();
        assert_eq!(count(1), 65_536);
        assert!((14_000..19_000).contains(&count(2)), "{}", count(2));
        assert!((3_000..5_500).contains(&count(3)), "{}", count(3));
    }

    #[test]
    fn what_cannot_exist_is_left_alone() {
        let links = Links::new(1);
        let mut queue = Sorted::new();
        queue.insert(&links, 5, 0);
        assert!(queue.is_empty() && !queue.remove(&links, 5) && !queue.remove(&links, 0));
    }
}
