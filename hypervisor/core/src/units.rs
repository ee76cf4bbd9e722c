//! Integers that carry a unit or an identity, each as its own type.
//!
//! No bare `u64` crosses a module border: a TSC span cannot be added to a nanosecond count, and a pCPU index cannot be
//! used where a vCPU index is meant.
//!
//! Arithmetic never wraps and never panics. `+` and `-` on times **saturate** (at zero and at [`Ticks::MAX`]); where the
//! difference between "zero" and "went negative" matters, use the `checked_` forms. A TSC at 5 GHz needs 117 years to
//! reach the upper bound, so saturation upwards only ever means "never".

use core::fmt;
use core::num::NonZeroU64;
use core::ops::{Add, AddAssign, Sub, SubAssign};

mod cpuset;

pub use cpuset::CpuSet;

/// The largest number of pCPUs that Lull boots on: xAPIC ids 0 to 254, rounded up to a whole number of words.
pub const IMAGE_CPUS: usize = 256;

/// The largest number of pCPUs that sets and schedulers hold.
///
/// In the image no more than it can boot on. The feature `many-cpus`, which the simulator asks for, makes it 4096; every
/// set of CPUs then takes half a kilobyte.
pub const MAX_CPUS: usize = if cfg!(feature = "many-cpus") {
    4096
} else {
    IMAGE_CPUS
};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($repr);

        impl $name {
            /// The identity with this number.
            pub const fn new(number: $repr) -> Self {
                Self(number)
            }

            /// The number, in the width it is stored in.
            pub const fn get(self) -> $repr {
                self.0
            }

            /// The number as an index of a table.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id! {
    /// A physical CPU: a dense index from 0 (the boot CPU), not an APIC id. Shown as `cpu3`.
    CpuId(u32), "cpu"
}
id! {
    /// A virtual CPU: a dense slot index, unique in the machine, not the index inside its domain. Shown as `v3`.
    VcpuId(u32), "v"
}
id! {
    /// A domain (one guest), from 1 in the order of the guest list. Shown as `d1`.
    DomId(u16), "d"
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $suffix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// No time at all.
            pub const ZERO: Self = Self(0);
            /// The largest value. As a deadline it means "never".
            pub const MAX: Self = Self(u64::MAX);

            /// This many units.
            pub const fn new(count: u64) -> Self {
                Self(count)
            }

            /// The number of units.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// `self + other`, or `None` beyond [`Self::MAX`].
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// `self - other`, or `None` if `other` is larger.
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(difference) => Some(Self(difference)),
                    None => None,
                }
            }

            /// `self + other`, at most [`Self::MAX`]. The same as `+`, for constants.
            pub const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }

            /// `self - other`, at least zero. The same as `-`, for constants.
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// The distance between the two, whichever is larger.
            pub const fn abs_diff(self, other: Self) -> Self {
                Self(self.0.abs_diff(other.0))
            }
        }

        /// Saturates at the largest value.
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                self.saturating_add(other)
            }
        }

        /// Saturates at the largest value.
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        /// Saturates at zero.
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                self.saturating_sub(other)
            }
        }

        /// Saturates at zero.
        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl core::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
                times.fold(Self::ZERO, Add::add)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}", $suffix), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

quantity! {
    /// Ticks of the time stamp counter: an instant (a TSC reading) or a span between two.
    Ticks, "t"
}
quantity! {
    /// Nanoseconds.
    Nanos, "ns"
}
quantity! {
    /// Microseconds: the unit of exit latencies and target residencies in every published C-state table.
    Micros, "us"
}

impl Micros {
    /// The same span in nanoseconds, saturating.
    pub const fn to_nanos(self) -> Nanos {
        Nanos(self.0.saturating_mul(1000))
    }
}

impl From<Micros> for Nanos {
    fn from(span: Micros) -> Self {
        span.to_nanos()
    }
}

/// How fast the TSC counts. Never zero.
///
/// Conversions are exact to the unit (128-bit products, no scaled multiplier that drifts) and saturate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickRate {
    hz: NonZeroU64,
}

impl TickRate {
    const NANOS_PER_SECOND: u128 = 1_000_000_000;

    /// A rate in ticks per second; `None` for zero, which no clock has.
    pub const fn from_hz(hz: u64) -> Option<Self> {
        match NonZeroU64::new(hz) {
            Some(hz) => Some(Self { hz }),
            None => None,
        }
    }

    /// Ticks per second.
    pub const fn hz(self) -> u64 {
        self.hz.get()
    }

    /// A span in nanoseconds, rounded down.
    #[inline]
    pub const fn to_nanos(self, span: Ticks) -> Nanos {
        // Mostly it is short, and then 64 bits do.
        if let Some(product) = span.0.checked_mul(Self::NANOS_PER_SECOND as u64) {
            return Nanos(product / self.hz.get());
        }
        let nanos = span.0 as u128 * Self::NANOS_PER_SECOND / self.hz.get() as u128;
        Nanos(saturate(nanos))
    }

    /// A span in microseconds, rounded down.
    pub const fn to_micros(self, span: Ticks) -> Micros {
        Micros(self.to_nanos(span).0 / 1000)
    }

    /// A span in ticks, rounded **up**, so that a deadline made from it never expires early.
    pub const fn ticks(self, span: Nanos) -> Ticks {
        let ticks = (span.0 as u128 * self.hz.get() as u128).div_ceil(Self::NANOS_PER_SECOND);
        Ticks(saturate(ticks))
    }
}

const fn saturate(value: u128) -> u64 {
    if value > u64::MAX as u128 {
        u64::MAX
    } else {
        value as u64
    }
}

impl fmt::Display for TickRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let khz = self.hz() / 1000;
        write!(f, "{}.{:03} MHz", khz / 1000, khz % 1000)
    }
}

#[cfg(test)]
mod tests;
