//! 256-bit vector sets: one that only its owner touches, one that anyone may set bits in.
//!
//! The atomic set orders memory: what a sender wrote before it set a bit is seen by whoever takes the bit
//! or reads it as set.

use core::sync::atomic::{AtomicU64, Ordering};

fn place(vector: u8) -> (usize, u64) {
    (usize::from(vector >> 6), 1 << (vector & 63))
}

fn highest(words: impl DoubleEndedIterator<Item = u64>) -> Option<u8> {
    let mut vector = 255u8;
    for word in words.rev() {
        if word != 0 {
            // At most 63, so this stays within the word's 64 vectors.
            return Some(vector - u8::try_from(word.leading_zeros()).unwrap_or(63));
        }
        vector = vector.wrapping_sub(64);
    }
    None
}

/// A set of vectors of one owner (ISR).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorSet([u64; 4]);

impl VectorSet {
    /// Adds a vector.
    pub fn insert(&mut self, vector: u8) {
        let (word, bit) = place(vector);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    /// Takes a vector out.
    pub fn remove(&mut self, vector: u8) {
        let (word, bit) = place(vector);
        if let Some(word) = self.0.get_mut(word) {
            *word &= !bit;
        }
    }

    /// The highest vector, which has the highest priority.
    pub fn highest(&self) -> Option<u8> {
        highest(self.0.iter().copied())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// From words of 32 vectors each, as the APIC's registers show them.
    pub fn from_words(words: [u32; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = words.map(u64::from);
        Self([a | b << 32, c | d << 32, e | f << 32, g | h << 32])
    }

    /// Vectors `32 * index ..= 32 * index + 31`, as the APIC's registers show them.
    pub fn word(&self, index: usize) -> u32 {
        half(self.0.get(index / 2).copied().unwrap_or(0), index)
    }
}

/// A set of vectors that anyone may add to (IRR). Laid out as a processor reads it: vector `n` is bit `n` of 256.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct AtomicVectorSet([AtomicU64; 4]);

impl AtomicVectorSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 4])
    }

    /// Adds a vector; says whether it was absent.
    pub fn insert(&self, vector: u8) -> bool {
        let (word, bit) = place(vector);
        self.0
            .get(word)
            .is_some_and(|w| w.fetch_or(bit, Ordering::SeqCst) & bit == 0)
    }

    /// Takes a vector out; says whether it was there.
    pub fn take(&self, vector: u8) -> bool {
        let (word, bit) = place(vector);
        self.0
            .get(word)
            .is_some_and(|w| w.fetch_and(!bit, Ordering::SeqCst) & bit != 0)
    }

    /// Takes all out. Plain looks only if it is empty.
    pub fn take_all(&self) -> VectorSet {
        VectorSet(self.0.each_ref().map(|word| {
            if word.load(Ordering::SeqCst) == 0 {
                0
            } else {
                word.swap(0, Ordering::SeqCst)
            }
        }))
    }

    /// Adds all of a set.
    pub fn insert_all(&self, set: &VectorSet) {
        for (word, bits) in self.0.iter().zip(set.0) {
            if bits != 0 {
                word.fetch_or(bits, Ordering::SeqCst);
            }
        }
    }

    /// The highest vector.
    pub fn highest(&self) -> Option<u8> {
        highest(self.0.iter().map(|w| w.load(Ordering::SeqCst)))
    }

    /// Empties the set.
    pub fn clear(&self) {
        for word in &self.0 {
            word.store(0, Ordering::SeqCst);
        }
    }

    /// Vectors `32 * index ..= 32 * index + 31`.
    pub fn word(&self, index: usize) -> u32 {
        half(
            self.0
                .get(index / 2)
                .map_or(0, |w| w.load(Ordering::SeqCst)),
            index,
        )
    }
}

/// The low half of a word for even indices, the high one for odd ones.
fn half(word: u64, index: usize) -> u32 {
    let bytes = (word >> (32 * (index % 2))).to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_vector_is_found_in_every_word() {
        let mut set = VectorSet::default();
        let atomic = AtomicVectorSet::new();
        assert_eq!((set.highest(), atomic.highest()), (None, None));
        for vector in 0..=255u8 {
            set.insert(vector);
            assert!(atomic.insert(vector));
            assert!(!atomic.insert(vector));
            assert_eq!(
                (set.highest(), atomic.highest()),
                (Some(vector), Some(vector))
            );
        }
        for vector in (1..=255u8).rev() {
            set.remove(vector);
            assert!(atomic.take(vector));
            assert!(!atomic.take(vector));
            assert_eq!(
                (set.highest(), atomic.highest()),
                (Some(vector - 1), Some(vector - 1))
            );
        }
    }

    #[test]
    fn a_set_moves_as_a_whole_and_back() {
        let atomic = AtomicVectorSet::new();
        assert!(atomic.take_all().is_empty());
        for vector in [0x20, 0x3f, 0x41, 0xff] {
            atomic.insert(vector);
        }
        let taken = atomic.take_all();
        assert_eq!((atomic.highest(), taken.highest()), (None, Some(0xff)));
        assert_eq!(
            VectorSet::from_words(core::array::from_fn(|row| taken.word(row))),
            taken
        );
        atomic.insert(0x42);
        atomic.insert_all(&taken);
        assert_eq!(atomic.word(2), 0b110);
        assert_eq!(atomic.highest(), Some(0xff));
    }

    #[test]
    fn words_show_32_vectors_each() {
        let mut set = VectorSet::default();
        let atomic = AtomicVectorSet::new();
        for vector in [0x20, 0x3f, 0x41, 0xff] {
            set.insert(vector);
            atomic.insert(vector);
        }
        let expected = [0, 0x8000_0001, 2, 0, 0, 0, 0, 0x8000_0000];
        for (index, word) in expected.into_iter().enumerate() {
            assert_eq!(
                (set.word(index), atomic.word(index)),
                (word, word),
                "word {index}"
            );
        }
    }
}
