//! Numbers that only the holder of a lock changes.
//!
//! What a scheduler knows of a unit belongs to the runqueue that the unit is assigned to, and is guarded by that
//! runqueue's lock; but a unit changes its runqueue, and an array of units cannot lie inside of each. So the numbers are
//! atomics that are loaded and stored without ordering: plain moves on x86. The lock orders them.
//!
//! Whoever reads one without the lock gets a hint: a value that was true lately.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{CpuId, Ticks, VcpuId};
use core::fmt;
use core::marker::PhantomData;

/// What fits into 64 bits.
pub(super) trait Bits: Copy {
    fn to_bits(self) -> u64;
    fn from_bits(bits: u64) -> Self;
}

/// A number that is changed only by whoever holds the lock that guards it.
pub(super) struct Held<T> {
    bits: AtomicU64,
    of: PhantomData<fn() -> T>,
}

impl<T: Bits> Held<T> {
    pub fn new(value: T) -> Self {
        Self {
            bits: AtomicU64::new(value.to_bits()),
            of: PhantomData,
        }
    }

    pub fn get(&self) -> T {
        T::from_bits(self.bits.load(Ordering::Relaxed))
    }

    pub fn set(&self, value: T) {
        self.bits.store(value.to_bits(), Ordering::Relaxed);
    }

    /// The old value, for one that several set without a lock: each value is taken once.
    pub fn swap(&self, value: T) -> T {
        T::from_bits(self.bits.swap(value.to_bits(), Ordering::AcqRel))
    }
}

impl<T: Bits + fmt::Debug> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl Bits for u64 {
    fn to_bits(self) -> u64 {
        self
    }
    fn from_bits(bits: u64) -> Self {
        bits
    }
}

impl Bits for i64 {
    fn to_bits(self) -> u64 {
        self.cast_unsigned()
    }
    fn from_bits(bits: u64) -> Self {
        bits.cast_signed()
    }
}

impl Bits for u32 {
    fn to_bits(self) -> u64 {
        self.into()
    }
    fn from_bits(bits: u64) -> Self {
        bits as Self
    }
}

impl Bits for bool {
    fn to_bits(self) -> u64 {
        self.into()
    }
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
}

impl Bits for Ticks {
    fn to_bits(self) -> u64 {
        self.get()
    }
    fn from_bits(bits: u64) -> Self {
        Self::new(bits)
    }
}

macro_rules! optional_id {
    ($id:ty) => {
        impl Bits for Option<$id> {
            fn to_bits(self) -> u64 {
                self.map_or(u64::MAX, |id| id.get().into())
            }
            fn from_bits(bits: u64) -> Self {
                (bits != u64::MAX).then(|| <$id>::new(bits as u32))
            }
        }
    };
}

optional_id!(CpuId);
optional_id!(VcpuId);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_comes_back() {
        let cpu = Held::new(None::<CpuId>);
        assert_eq!(cpu.get(), None);
        cpu.set(Some(CpuId::new(7)));
        assert_eq!(cpu.swap(None), Some(CpuId::new(7)));
        let number = Held::new(i64::MIN);
        assert_eq!(number.get(), i64::MIN);
        number.set(-1);
        assert_eq!(number.get(), -1);
    }
}
