//! Faults put into the account on purpose, to show that its check is worth something.

use crate::options::AccountFault;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Ticks;

/// What to do to one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Do not count it.
    Drop,
    /// Count it twice.
    Double,
}

impl From<AccountFault> for Fault {
    fn from(option: AccountFault) -> Self {
        match option {
            AccountFault::Drop => Fault::Drop,
            AccountFault::Double => Fault::Double,
        }
    }
}

/// A kind of interval, as the account sums them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interval {
    /// From a sleep's exit stamp to the next one's entry stamp.
    C0,
    /// From a VM entry to the exit.
    Guest,
    /// Hypervisor code, from the last change of activity to the next.
    Hypervisor,
    /// In a C-state, up to the first handler.
    Residency,
    /// Handlers inside a C-state.
    Irq,
}

/// The fault that waits for its interval. Only the account's own CPU applies it.
#[derive(Debug, Default)]
pub(super) struct FaultCell {
    /// 0: none. Otherwise 1 + 2 x interval + fault.
    plan: AtomicU64,
    at_least: AtomicU64,
}

impl FaultCell {
    pub(super) fn arm(&self, fault: Fault, interval: Interval, at_least: Ticks) {
        self.at_least.store(at_least.get(), Ordering::Relaxed);
        self.plan
            .store(Self::encode(fault, interval), Ordering::Release);
    }

    /// The span to count for this interval: the true one, unless a fault waits for it.
    pub(super) fn apply(&self, interval: Interval, span: Ticks) -> Ticks {
        let plan = self.plan.load(Ordering::Acquire);
        if plan == 0 || span.get() < self.at_least.load(Ordering::Relaxed) {
            return span;
        }
        let faulty = if plan == Self::encode(Fault::Drop, interval) {
            Ticks::ZERO
        } else if plan == Self::encode(Fault::Double, interval) {
            span + span
        } else {
            return span;
        };
        self.plan.store(0, Ordering::Relaxed);
        faulty
    }

    const fn encode(fault: Fault, interval: Interval) -> u64 {
        1 + 2 * interval as u64 + fault as u64
    }
}
