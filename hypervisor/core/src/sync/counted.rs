//! The atomics of the build that counts accesses: `core`'s, with a count of how often each kind is made.
//!
//! Only with the feature `count-accesses`: a simulated machine then tells how much its CPUs do to the memory that they share,
//! whatever the computer is that simulates it. The counts are of the whole process, which simulates with one thread.
//! Locks count nothing (the wake path takes none), nor does what only its own CPU looks at.

pub use core::sync::atomic::{Ordering, fence};

use core::ops::{AddAssign, Sub};
use core::sync::atomic::AtomicU64 as Plain;

static LOADS: Plain = Plain::new(0);
static STORES: Plain = Plain::new(0);
static UPDATES: Plain = Plain::new(0);

/// How often memory that CPUs share was accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Atomic read-modify-writes, those that changed nothing included.
    pub updates: u64,
}

impl Accesses {
    /// All so far.
    pub fn so_far() -> Self {
        Self {
            loads: LOADS.load(Ordering::Relaxed),
            stores: STORES.load(Ordering::Relaxed),
            updates: UPDATES.load(Ordering::Relaxed),
        }
    }

    /// Does it, and forgets its accesses: it stands for hardware.
    pub fn uncounted<T>(body: impl FnOnce() -> T) -> T {
        let before = Self::so_far();
        let result = body();
        LOADS.store(before.loads, Ordering::Relaxed);
        STORES.store(before.stores, Ordering::Relaxed);
        UPDATES.store(before.updates, Ordering::Relaxed);
        result
    }

    /// Of all kinds.
    pub const fn all(&self) -> u64 {
        self.loads + self.stores + self.updates
    }
}

impl Sub for Accesses {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            loads: self.loads.saturating_sub(earlier.loads),
            stores: self.stores.saturating_sub(earlier.stores),
            updates: self.updates.saturating_sub(earlier.updates),
        }
    }
}

impl AddAssign for Accesses {
    fn add_assign(&mut self, more: Self) {
        self.loads += more.loads;
        self.stores += more.stores;
        self.updates += more.updates;
    }
}

fn count(kind: &Plain) {
    kind.fetch_add(1, Ordering::Relaxed);
}

macro_rules! counted {
    ($name:ident, $value:ty) => {
        /// As `core`'s.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(core::sync::atomic::$name);

        #[expect(missing_docs, reason = "as core's")]
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(core::sync::atomic::$name::new(value))
            }
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }
            pub fn load(&self, order: Ordering) -> $value {
                count(&LOADS);
                self.0.load(order)
            }
            pub fn store(&self, value: $value, order: Ordering) {
                count(&STORES);
                self.0.store(value, order);
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                count(&UPDATES);
                self.0.swap(value, order)
            }
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                count(&UPDATES);
                self.0.compare_exchange(old, new, success, failure)
            }
            pub fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                count(&UPDATES);
                self.0.compare_exchange_weak(old, new, success, failure)
            }
            pub fn fetch_or(&self, with: $value, order: Ordering) -> $value {
                count(&UPDATES);
                self.0.fetch_or(with, order)
            }
            pub fn fetch_and(&self, with: $value, order: Ordering) -> $value {
                count(&UPDATES);
                self.0.fetch_and(with, order)
            }
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                count(&LOADS);
                count(&UPDATES);
                self.0.fetch_update(success, failure, change)
            }
        }
    };
}

macro_rules! counted_number {
    ($name:ident, $value:ty) => {
        counted!($name, $value);

        #[expect(missing_docs, reason = "as core's")]
        impl $name {
            pub fn fetch_add(&self, with: $value, order: Ordering) -> $value {
                count(&UPDATES);
                self.0.fetch_add(with, order)
            }
            pub fn fetch_sub(&self, with: $value, order: Ordering) -> $value {
                count(&UPDATES);
                self.0.fetch_sub(with, order)
            }
            pub fn fetch_max(&self, with: $value, order: Ordering) -> $value {
                count(&UPDATES);
                self.0.fetch_max(with, order)
            }
        }
    };
}

counted!(AtomicBool, bool);
counted_number!(AtomicU32, u32);
counted_number!(AtomicU64, u64);
counted_number!(AtomicUsize, usize);
