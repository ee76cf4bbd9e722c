//! Atomics and the lock, named once, so that the very same code runs on bare metal and under the model checker.
//!
//! Everything in this crate that several CPUs touch takes its atomics from here. Normally they are `core`'s; with
//! the feature `count-accesses` they count, for a simulated machine; with `--cfg loom` they are loom's, which explores every interleaving and every value that the memory model allows.
//! loom models a `SeqCst` load or store as weaker than it is, and cannot mix sizes on one location: so the protocols of
//! this crate use read-modify-writes on one word, and never need to care.
//!
//! [`Lock`] is a spin lock without a queue, and does **not** touch the interrupt flag. It needs not: hypervisor code runs with
//! interrupts off, and interrupt handlers take no lock. NMI handlers may only [`try_lock`](Lock::try_lock).
//! A debug build counts how many a CPU [holds](held).

#[cfg(not(loom))]
mod imp {
    /// Atomic integers and fences.
    #[cfg(not(feature = "count-accesses"))]
    pub mod atomic {
        pub use core::sync::atomic::{
            AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
        };
    }
    /// Atomic integers and fences, counted.
    #[cfg(feature = "count-accesses")]
    pub use super::counted as atomic;
    pub use super::lock::{Lock, LockGuard};
    /// Tells the CPU that this is a spin loop.
    pub use core::hint::spin_loop;
}

#[cfg(loom)]
mod imp {
    /// Atomic integers and fences.
    pub use super::watched as atomic;
    /// Lets another thread of the model run.
    pub use loom::thread::yield_now as spin_loop;
    /// What [`Lock`] gives out.
    pub type LockGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

    /// The model's lock, with the shape of the spin lock.
    #[derive(Debug)]
    pub struct Lock<T>(loom::sync::Mutex<T>);

    impl<T> Lock<T> {
        /// A free lock around a value.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> LockGuard<'_, T> {
            match self.0.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            }
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

#[cfg(all(feature = "count-accesses", not(loom)))]
pub mod counted;
pub mod held;
#[cfg(not(loom))]
mod lock;
mod seqcount;
#[cfg(loom)]
pub mod watched;

pub use imp::{Lock, LockGuard, atomic, spin_loop};
pub use seqcount::SeqCount;
