//! The lock of every build but the model checker's.

use super::held;
use core::fmt;
use core::ops::{Deref, DerefMut};
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// A spin lock that whoever comes first takes.
///
/// Not a queue: where the CPUs themselves are scheduled by an outer hypervisor, the next in a queue may be a CPU that
/// does not run, and all behind it would wait for that one.
#[derive(Debug, Default)]
pub struct Lock<T>(SpinMutex<T>);

/// What [`Lock`] gives out: the value, until it is dropped.
pub struct LockGuard<'a, T>(SpinMutexGuard<'a, T>);

impl<T> Lock<T> {
    /// A free lock around a value.
    pub const fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        let guard = self.0.lock();
        held::taken();
        LockGuard(guard)
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        let guard = self.0.try_lock()?;
        held::taken();
        Some(LockGuard(guard))
    }

    /// The value, which nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        held::given_back();
    }
}

impl<T: fmt::Debug> fmt::Debug for LockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
