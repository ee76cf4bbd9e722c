//! Sets of pCPUs, as plain values.

use super::{CpuId, MAX_CPUS};
use core::fmt;

const WORDS: usize = MAX_CPUS / u64::BITS as usize;

/// A set of pCPUs: an affinity, a pool, the set of idle CPUs. A plain value, a bit for each of [`MAX_CPUS`].
///
/// CPUs at or above [`MAX_CPUS`] can never be members: inserting one is refused, asking for one is false.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CpuSet {
    words: [u64; WORDS],
}

impl CpuSet {
    /// No CPU.
    pub const EMPTY: Self = Self { words: [0; WORDS] };
    /// Every CPU that could exist.
    pub const ALL: Self = Self {
        words: [u64::MAX; WORDS],
    };

    /// The set with these bits, 64 CPUs a word.
    pub(crate) const fn from_words(words: [u64; WORDS]) -> Self {
        Self { words }
    }

    /// The bits, 64 CPUs a word.
    pub(crate) const fn words(&self) -> [u64; WORDS] {
        self.words
    }

    /// Just this CPU (nothing, if it is beyond [`MAX_CPUS`]).
    pub fn single(cpu: CpuId) -> Self {
        let mut set = Self::EMPTY;
        set.insert(cpu);
        set
    }

    /// CPUs 0 to `count - 1`, as a machine with `count` CPUs has.
    pub fn first(count: usize) -> Self {
        Self::inclusive(0, count.saturating_sub(1)).filter(count > 0)
    }

    /// CPUs `low` to `high`, both included; empty if `low` is above `high`. Cut off at [`MAX_CPUS`].
    pub fn inclusive(low: usize, high: usize) -> Self {
        (low..=high.min(MAX_CPUS - 1))
            .map(|cpu| CpuId::new(cpu as u32))
            .collect()
    }

    fn filter(self, keep: bool) -> Self {
        if keep { self } else { Self::EMPTY }
    }

    const fn place(cpu: CpuId) -> Option<(usize, u64)> {
        let index = cpu.index();
        if index < MAX_CPUS {
            Some((index / 64, 1 << (index % 64)))
        } else {
            None
        }
    }

    /// Adds a CPU. `false` if it was a member already or is beyond [`MAX_CPUS`].
    pub fn insert(&mut self, cpu: CpuId) -> bool {
        let Some((word, bit)) = Self::place(cpu) else {
            return false;
        };
        let added = self.words[word] & bit == 0;
        self.words[word] |= bit;
        added
    }

    /// Takes a CPU out. `false` if it was no member.
    pub fn remove(&mut self, cpu: CpuId) -> bool {
        let Some((word, bit)) = Self::place(cpu) else {
            return false;
        };
        let removed = self.words[word] & bit != 0;
        self.words[word] &= !bit;
        removed
    }

    /// Is the CPU a member?
    pub const fn contains(&self, cpu: CpuId) -> bool {
        match Self::place(cpu) {
            Some((word, bit)) => self.words[word] & bit != 0,
            None => false,
        }
    }

    /// The members from `64 * index` on, a bit each.
    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    /// The member that comes next after `cpu`, around the end; `cpu` itself only if there is no other.
    pub fn next_after(&self, cpu: CpuId) -> Option<CpuId> {
        let above = self.iter().find(|&member| member > cpu);
        above.or_else(|| self.lowest())
    }

    /// How many members.
    pub fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Has it no member?
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The member with the lowest number.
    pub fn lowest(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// The members of both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        Self {
            words: core::array::from_fn(|word| self.words[word] & other.words[word]),
        }
    }

    /// The members of either set.
    pub fn union(&self, other: &Self) -> Self {
        Self {
            words: core::array::from_fn(|word| self.words[word] | other.words[word]),
        }
    }

    /// The members of this set that are not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        Self {
            words: core::array::from_fn(|word| self.words[word] & !other.words[word]),
        }
    }

    /// Are all members of this set in the other?
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// The members, lowest number first. Costs one step per member, not per possible CPU.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + use<> {
        let words = self.words;
        (0..WORDS).flat_map(move |word| {
            let mut left = words[word];
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(CpuId::new(word as u32 * u64::BITS + bit))
            })
        })
    }
}

impl Default for CpuSet {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::EMPTY;
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

/// As people write it: `0-3,7`; `none` for the empty set; `all` for every CPU.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        if *self == Self::ALL {
            return f.write_str("all");
        }
        let mut members = self.iter().map(CpuId::get).peekable();
        let mut separator = "";
        while let Some(low) = members.next() {
            let mut high = low;
            while let Some(next) = members.next_if_eq(&(high + 1)) {
                high = next;
            }
            write!(f, "{separator}{low}")?;
            if high > low {
                write!(f, "-{high}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn cpu_set_refuses_what_cannot_exist() {
        let mut set = CpuSet::EMPTY;
        let beyond = CpuId::new(MAX_CPUS as u32);
        assert!(!set.insert(beyond));
        assert!(set.is_empty());
        assert!(!CpuSet::ALL.contains(beyond));
        assert_eq!(CpuSet::first(0), CpuSet::EMPTY);
        assert_eq!(CpuSet::first(MAX_CPUS + 44), CpuSet::ALL);
        assert_eq!(CpuSet::inclusive(5, 4), CpuSet::EMPTY);
    }

    #[test]
    fn cpu_set_reads_as_people_write_it() {
        let set: CpuSet = [0, 1, 2, 3, 7, 63, 64]
            .map(CpuId::new)
            .into_iter()
            .collect();
        assert_eq!(std::format!("{set}"), "0-3,7,63-64");
        assert_eq!(std::format!("{}", CpuSet::EMPTY), "none");
        assert_eq!(std::format!("{}", CpuSet::ALL), "all");
    }

    proptest! {
        #[test]
        fn cpu_set_is_a_set(a in prop::collection::btree_set(0..MAX_CPUS as u32, 0..40), b in prop::collection::btree_set(0..MAX_CPUS as u32, 0..40)) {
            let (sa, sb): (CpuSet, CpuSet) = (a.iter().copied().map(CpuId::new).collect(), b.iter().copied().map(CpuId::new).collect());
            let members = |set: CpuSet| set.iter().map(CpuId::get).collect::<BTreeSet<_>>();
            prop_assert_eq!(members(sa), a.clone());
            prop_assert_eq!(sa.len(), a.len());
            prop_assert_eq!(members(sa.intersection(&sb)), &a & &b);
            prop_assert_eq!(members(sa.union(&sb)), &a | &b);
            prop_assert_eq!(members(sa.difference(&sb)), &a - &b);
            prop_assert_eq!(sa.is_subset(&sb), a.is_subset(&b));
            prop_assert_eq!(sa.lowest().map(CpuId::get), a.first().copied());
        }
    }
}
