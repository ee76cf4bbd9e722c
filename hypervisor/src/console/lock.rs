//! The lock around an output, with a way past it for a dying machine.
use core::sync::atomic::{AtomicBool, Ordering};
use spin::mutex::SpinMutex;

/// Set by the CPU that panics: from then on nobody waits for an output.
static FORCED: AtomicBool = AtomicBool::new(false);

/// From now on no output waits for its lock: the holder may be stopped, or may be the caller itself.
/// There is no way back. Called by the panic path before its first line.
pub fn force() {
    FORCED.store(true, Ordering::SeqCst);
}

/// Lock of one output. Always a leaf, never taken by an interrupt handler.
#[derive(Debug)]
pub struct OutputLock(SpinMutex<()>);

impl OutputLock {
    /// An open lock.
    pub const fn new() -> Self {
        Self(SpinMutex::new(()))
    }

    /// Runs `f` under the lock. After [`force`] it runs without it if the lock is not free at once, and is told
    /// `true` then: what another CPU was writing may be torn.
    pub fn with<R>(&self, f: impl FnOnce(bool) -> R) -> R {
        let guard = if FORCED.load(Ordering::SeqCst) {
            self.0.try_lock()
        } else {
            Some(self.0.lock())
        };
        f(guard.is_none())
    }

    /// Runs `f` if the lock is free now: for NMI handlers, which may have interrupted the holder.
    pub fn try_with<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let guard = self.0.try_lock()?;
        let result = f();
        drop(guard);
        Some(result)
    }
}

impl Default for OutputLock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, since `force` has no way back.
    #[test]
    fn holder_keeps_others_out_until_forced() {
        let lock = OutputLock::new();
        lock.with(|torn| {
            assert!(!torn);
            assert_eq!(lock.try_with(|| ()), None);
            force();
            assert!(
                lock.with(|torn| torn),
                "forced output goes past a held lock and knows it"
            );
        });
        assert!(
            !lock.with(|torn| torn),
            "a free lock is taken properly even when forced"
        );
    }
}
