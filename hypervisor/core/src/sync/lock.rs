//! The locks of every build but the model checker's.

use super::held;
use core::fmt;
use core::ops::{Deref, DerefMut};
use spin::mutex::{SpinMutex, SpinMutexGuard, TicketMutex, TicketMutexGuard};

macro_rules! lock {
    ($(#[$what:meta])* $lock:ident($inner:ident), $(#[$given:meta])* $guard:ident($inner_guard:ident)) => {
        $(#[$what])*
        #[derive(Debug, Default)]
        pub struct $lock<T>($inner<T>);

        $(#[$given])*
        pub struct $guard<'a, T>($inner_guard<'a, T>);

        impl<T> $lock<T> {
            /// A free lock around a value.
            pub const fn new(value: T) -> Self {
                Self($inner::new(value))
            }

            /// Waits for the lock.
            #[inline]
            pub fn lock(&self) -> $guard<'_, T> {
                let guard = self.0.lock();
                held::taken();
                $guard(guard)
            }

            /// Takes the lock if it is free.
            #[inline]
            pub fn try_lock(&self) -> Option<$guard<'_, T>> {
                let guard = self.0.try_lock()?;
                held::taken();
                Some($guard(guard))
            }

            /// The value, which nobody else can reach.
            pub fn get_mut(&mut self) -> &mut T {
                self.0.get_mut()
            }
        }

        impl<T> Deref for $guard<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                &self.0
            }
        }

        impl<T> DerefMut for $guard<'_, T> {
            fn deref_mut(&mut self) -> &mut T {
                &mut self.0
            }
        }

        impl<T> Drop for $guard<'_, T> {
            #[inline]
            fn drop(&mut self) {
                held::given_back();
            }
        }

        impl<T: fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

lock!(
    /// A fair spin lock.
    Lock(TicketMutex),
    /// What [`Lock`] gives out: the value, until it is dropped.
    LockGuard(TicketMutexGuard)
);

lock!(
    /// A spin lock for what many CPUs want often: whoever finds it free has it.
    ///
    /// In a fair one it is fixed who comes next. If a machine below this one has taken that CPU away, all the others stand still.
    RushLock(SpinMutex),
    /// What [`RushLock`] gives out: the value, until it is dropped.
    RushLockGuard(SpinMutexGuard)
);
