//! One pCPU, as all pCPUs see it.

use super::stats::DispatchStats;
use crate::idle::IdleControl;
use crate::residency::{CpuAccount, HwAccount};
use crate::sync::Lock;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::timer::{DeadlineQueue, TimerKey, UnknownVcpu};
use crate::units::{CpuId, MAX_CPUS, Ticks, VcpuId};
use crate::wake::{Cause, Origin, WakeStats, WakeWord, WakerLog};
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
    /// Who ended its sleeps.
    pub wakers: WakerLog,
    /// How many sleeps of each CPU it has ended, its own included: what the [`wakers`](Self::wakers) of that CPU must add up to.
    woke: [AtomicU64; MAX_CPUS],
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
    /// What it was asked to become, [`CpuChange`] as a number; 0: nothing.
    asked: AtomicU32,
    /// It is offline: it belongs to no scheduler, and sleeps.
    parked: AtomicBool,
}

/// What a pCPU can be asked to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuChange {
    /// It leaves its scheduler, and sleeps as deep as it can.
    Offline,
    /// It comes back.
    Online,
}

impl CpuChange {
    const fn to_raw(self) -> u32 {
        match self {
            Self::Offline => 1,
            Self::Online => 2,
        }
    }

    const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            1 => Some(Self::Offline),
            2 => Some(Self::Online),
            _ => None,
        }
    }
}

impl Pcpu {
    pub(super) fn new(vcpus: usize, account: Arc<CpuAccount>) -> Self {
        Self {
            word: WakeWord::new(),
            hardware: HwAccount::new(),
            account,
            wakes: WakeStats::default(),
            wakers: WakerLog::default(),
            woke: core::array::from_fn(|_| AtomicU64::new(0)),
            stats: DispatchStats::default(),
            idle: IdleControl::new(vcpus),
            timers: Lock::new(DeadlineQueue::new(vcpus)),
            next_deadline: AtomicU64::new(Ticks::MAX.get()),
            current: AtomicU32::new(NO_VCPU),
            origin: AtomicU64::new(Origin::NOBODY.to_raw()),
            asked: AtomicU32::new(0),
            parked: AtomicBool::new(false),
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

    /// Is it offline? It may have come back by now.
    pub fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire)
    }

    pub(super) fn set_parked(&self, parked: bool) {
        self.parked.store(parked, Ordering::Release);
    }

    /// What it was asked to become and has not. The last one counts.
    #[inline]
    pub fn asked(&self) -> Option<CpuChange> {
        CpuChange::from_raw(self.asked.load(Ordering::Relaxed))
    }

    pub(super) fn ask(&self, change: CpuChange) {
        self.asked.store(change.to_raw(), Ordering::Release);
    }

    /// Takes what it was asked to become. Its own.
    pub(super) fn take_asked(&self) -> Option<CpuChange> {
        CpuChange::from_raw(self.asked.swap(0, Ordering::AcqRel))
    }

    /// On whose behalf it acts now: what its posts carry. Its own.
    #[inline]
    pub(super) fn origin(&self) -> Origin {
        Origin::from_own_raw(self.origin.load(Ordering::Relaxed))
    }

    pub(super) fn set_origin(&self, origin: Origin) {
        self.origin.store(origin.to_raw(), Ordering::Relaxed);
    }

    /// How many sleeps of that CPU this one has ended.
    pub fn woke(&self, target: CpuId) -> u64 {
        self.woke[target.index() & (MAX_CPUS - 1)].load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn count_woke(&self, target: CpuId) {
        let count = &self.woke[target.index() & (MAX_CPUS - 1)];
        // One writer.
        let woke = count.load(Ordering::Relaxed);
        count.store(woke.wrapping_add(1), Ordering::Relaxed);
    }

    /// Whose the earliest deadline is.
    pub(super) fn next_timer(&self) -> Option<TimerKey> {
        let timers = self.timers.lock();
        let next = timers.next_deadline()?;
        timers
            .iter()
            .find(|&(_, deadline)| deadline == next)
            .map(|(key, _)| key)
    }

    /// It handles a vCPU's exit: what it does, its vCPU caused. Its own.
    pub(super) fn serves_exit(&self) -> bool {
        matches!(self.origin().cause(), Cause::Vcpu(_))
    }

    /// When it must look at its deadlines again.
    #[inline]
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
    #[inline]
    pub(super) fn pop_expired(&self, now: impl FnOnce() -> Ticks) -> Option<(TimerKey, Ticks)> {
        // Without the lock, in the common case that nothing is due, and without the time, if nothing is set.
        let next = self.next_deadline()?;
        let now = now();
        if next > now {
            return None;
        }
        self.with_timers(|timers| timers.pop_expired(now))
    }

    fn with_timers<T>(&self, change: impl FnOnce(&mut DeadlineQueue) -> T) -> T {
        let mut timers = self.timers.lock();
        let result = change(&mut timers);
        let next = timers.next_deadline().unwrap_or(Ticks::MAX);
        self.next_deadline.store(next.get(), Ordering::Release);
        result
    }
}
