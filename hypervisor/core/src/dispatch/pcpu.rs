//! One pCPU, as all pCPUs see it.

use super::stats::DispatchStats;
use crate::idle::IdleControl;
use crate::residency::{CpuAccount, HwAccount};
use crate::sync::Lock;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::timer::{DeadlineQueue, TimerKey, UnknownVcpu};
use crate::units::{Ticks, VcpuId};
use crate::wake::{Origin, WakeStats, WakeWord};
use alloc::sync::Arc;
use alloc::vec::Vec;

const NO_VCPU: u32 = u32::MAX;

/// What belongs to one pCPU. Readable from all of them without waking it.
#[derive(Debug)]
#[repr(align(128))]
pub struct Pcpu {
    /// What is asked of it.
    pub word: WakeWord,
    /// Where its time went.
    pub account: Arc<CpuAccount>,
    /// What its own hardware says of that.
    pub hardware: HwAccount,
    /// The posts that it made to others.
    pub wakes: WakeStats,
    /// What its dispatch loop has done.
    pub stats: DispatchStats,
    /// What was asked of its sleeps. Whoever changes it posts CALL.
    pub idle: IdleControl,
    timers: Lock<DeadlineQueue>,
    /// The earliest deadline, [`Ticks::MAX`] for none. Changed under the lock, read without.
    next_deadline: AtomicU64,
    /// The vCPU that it runs, for dumps.
    current: AtomicU32,
    /// On whose behalf it acts now.
    origin: AtomicU64,
    /// It is in [`Runner::enter`](super::Runner::enter): what it does, its vCPU caused. Read by the own CPU only.
    serves_exit: AtomicBool,
}

impl Pcpu {
    pub(super) fn new(vcpus: usize, account: Arc<CpuAccount>) -> Self {
        Self {
            word: WakeWord::new(),
            hardware: HwAccount::new(),
            account,
            wakes: WakeStats::default(),
            stats: DispatchStats::default(),
            idle: IdleControl::new(vcpus),
            timers: Lock::new(DeadlineQueue::new(vcpus)),
            next_deadline: AtomicU64::new(Ticks::MAX.get()),
            current: AtomicU32::new(NO_VCPU),
            origin: AtomicU64::new(Origin::NOBODY.to_raw()),
            serves_exit: AtomicBool::new(false),
        }
    }

    /// The vCPU that it runs. It may be another by now.
    pub fn current(&self) -> Option<VcpuId> {
        let current = self.current.load(Ordering::Relaxed);
        (current != NO_VCPU).then(|| VcpuId::new(current))
    }

    pub(super) fn set_current(&self, current: Option<VcpuId>) {
        self.current
            .store(current.map_or(NO_VCPU, VcpuId::get), Ordering::Relaxed);
    }

    /// On whose behalf it acts now: what its posts carry. Its own.
    #[inline]
    pub(super) fn origin(&self) -> Origin {
        Origin::from_raw(self.origin.load(Ordering::Relaxed))
    }

    pub(super) fn set_origin(&self, origin: Origin) {
        self.origin.store(origin.to_raw(), Ordering::Relaxed);
    }

    pub(super) fn set_serves_exit(&self, serves: bool) {
        self.serves_exit.store(serves, Ordering::Relaxed);
    }

    pub(super) fn serves_exit(&self) -> bool {
        self.serves_exit.load(Ordering::Relaxed)
    }

    /// When it must look at its deadlines again.
    pub fn next_deadline(&self) -> Option<Ticks> {
        let next = Ticks::new(self.next_deadline.load(Ordering::Acquire));
        (next != Ticks::MAX).then_some(next)
    }

    /// A copy of its deadlines, earliest first, for the debug key `a`.
    pub fn deadlines(&self) -> Vec<(TimerKey, Ticks)> {
        let mut copy = Vec::new();
        loop {
            let wanted = {
                let timers = self.timers.lock();
                if timers.len() <= copy.capacity() {
                    copy.extend(timers.iter());
                    break;
                }
                timers.len()
            };
            // Outside of the lock.
            copy.reserve(wanted);
        }
        copy.sort_unstable_by_key(|&(key, deadline)| (deadline, key));
        copy
    }

    /// Sets, changes or (by `None`) removes a deadline.
    pub(super) fn set_deadline(
        &self,
        key: TimerKey,
        deadline: Option<Ticks>,
    ) -> Result<(), UnknownVcpu> {
        self.with_timers(|timers| match deadline {
            Some(deadline) => timers.set(key, deadline),
            None => {
                timers.remove(key);
                Ok(())
            }
        })
    }

    /// Takes a deadline out.
    pub(super) fn take_deadline(&self, key: TimerKey) -> Option<Ticks> {
        self.with_timers(|timers| timers.remove(key))
    }

    /// Takes the earliest deadline out, if it was reached.
    pub(super) fn pop_expired(&self, now: Ticks) -> Option<TimerKey> {
        // Without the lock, in the common case that nothing is due.
        self.next_deadline().filter(|&next| next <= now)?;
        self.with_timers(|timers| timers.pop_expired(now))
            .map(|(key, _)| key)
    }

    fn with_timers<T>(&self, change: impl FnOnce(&mut DeadlineQueue) -> T) -> T {
        let mut timers = self.timers.lock();
        let result = change(&mut timers);
        let next = timers.next_deadline().unwrap_or(Ticks::MAX);
        self.next_deadline.store(next.get(), Ordering::Release);
        result
    }
}
