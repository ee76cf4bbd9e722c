//! Sets of CPUs that change under many hands.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::units::{CpuId, CpuSet, MAX_CPUS};

/// A set of CPUs, one atomic bit each. There is no consistent view of all: iteration reads word by word.
#[derive(Debug)]
pub(crate) struct AtomicCpuSet {
    words: [AtomicU64; MAX_CPUS / 64],
}

impl AtomicCpuSet {
    pub fn new() -> Self {
        Self {
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// All members, word by word.
    pub fn load(&self) -> CpuSet {
        CpuSet::from_words(core::array::from_fn(|word| {
            self.words[word].load(Ordering::SeqCst)
        }))
    }

    /// Exactly these members from now on. Not ordered: whoever changes the set as a whole does so under a lock.
    pub fn store(&self, set: &CpuSet) {
        for (word, bits) in self.words.iter().zip(set.words()) {
            word.store(bits, Ordering::Relaxed);
        }
    }

    /// The members from `64 * index` on, a bit each.
    pub fn word(&self, index: usize) -> u64 {
        self.words
            .get(index)
            .map_or(0, |word| word.load(Ordering::SeqCst))
    }

    fn place(&self, cpu: CpuId) -> Option<(&AtomicU64, u64)> {
        Some((self.words.get(cpu.index() / 64)?, 1 << (cpu.index() % 64)))
    }

    /// Adds a CPU. What the caller reads next, from any set, is read after that.
    pub fn insert(&self, cpu: CpuId) {
        if let Some((word, bit)) = self.place(cpu) {
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::SeqCst);
            }
            fence(Ordering::SeqCst);
        }
    }

    /// Takes a CPU out. `true` for exactly one of those who try.
    pub fn remove(&self, cpu: CpuId) -> bool {
        self.place(cpu).is_some_and(|(word, bit)| {
            word.load(Ordering::Relaxed) & bit != 0
                && word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
        })
    }

    pub fn contains(&self, cpu: CpuId) -> bool {
        self.place(cpu)
            .is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.words
            .iter()
            .all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// The members, lowest number first; each word is read when the iteration comes to it.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut left = word.load(Ordering::SeqCst);
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(CpuId::new(index as u32 * u64::BITS + bit))
            })
        })
    }
}
