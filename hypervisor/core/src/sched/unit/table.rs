//! The table of all vCPUs, as schedulers and dispatch loops share it.

use super::{HaltPoll, RunState};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Lock, LockGuard, SeqCount};
use crate::units::{CpuId, Nanos, Ticks, VcpuId};
use alloc::boxed::Box;

/// What is known of one vCPU on all pCPUs. Scheduling parameters are the scheduler's own.
#[derive(Debug)]
pub struct Unit {
    /// Where it is, and whether it was kicked.
    pub state: RunState,
    /// How long its pCPU looks for a kick before it blocks.
    pub halt_poll: HaltPoll,
    /// How often it gave its time to another of its guest while it spun. One writer: the pCPU that runs it.
    directed_yields: AtomicU64,
    /// Guards `run_ticks` and `entered`. One writer at a time: the pCPU that runs it.
    times: SeqCount,
    /// Time inside the guest, of all stays that have ended.
    run_ticks: AtomicU64,
    /// When it was last entered; 0 while it is outside.
    entered: AtomicU64,
    /// The pCPU whose deadline queue holds its timer. A leaf but for the lock of that queue.
    timer: Lock<Option<CpuId>>,
    /// The longest exit latency that it accepts of the pCPU that it last ran on, in ns; [`u64::MAX`] for any.
    latency: AtomicU64,
    /// The pCPU that it last ran on, which knows of that limit. Guards both. A leaf but for the lock of that pCPU's list.
    latency_at: Lock<Option<CpuId>>,
}

impl Unit {
    fn new() -> Self {
        Self {
            state: RunState::new(),
            halt_poll: HaltPoll::new(),
            directed_yields: AtomicU64::new(0),
            times: SeqCount::new(),
            run_ticks: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            timer: Lock::new(None),
            latency: AtomicU64::new(u64::MAX),
            latency_at: Lock::new(None),
        }
    }

    /// How often it gave its time to another vCPU of its guest while it spun.
    pub fn directed_yields(&self) -> u64 {
        self.directed_yields.load(Ordering::Relaxed)
    }

    pub(crate) fn count_directed_yield(&self) {
        let count = self.directed_yields() + 1;
        self.directed_yields.store(count, Ordering::Relaxed);
    }

    /// The VM entry is next: time in the guest begins. Only on the pCPU that runs it.
    pub fn guest_entering(&self, now: Ticks) {
        self.times
            .write(|| self.entered.store(now.get(), Ordering::Relaxed));
    }

    /// The guest was left: the time since [`guest_entering`](Self::guest_entering) is charged to it, and returned.
    pub fn guest_left(&self, now: Ticks) -> Ticks {
        self.times.write(|| {
            let stay = now - self.entered_at().unwrap_or(now);
            let total = Ticks::new(self.run_ticks.load(Ordering::Relaxed)) + stay;
            self.run_ticks.store(total.get(), Ordering::Relaxed);
            self.entered.store(0, Ordering::Relaxed);
            stay
        })
    }

    /// Its time inside the guest up to `now`, a stay that has not ended included. From any pCPU; wakes nobody.
    pub fn run_time(&self, now: Ticks) -> Ticks {
        self.times.read(|| {
            let closed = Ticks::new(self.run_ticks.load(Ordering::Relaxed));
            closed + (now - self.entered_at().unwrap_or(now))
        })
    }

    fn entered_at(&self) -> Option<Ticks> {
        let entered = self.entered.load(Ordering::Relaxed);
        (entered != 0).then(|| Ticks::new(entered))
    }

    /// Where its timer is queued, to be changed together with the queue.
    pub(crate) fn timer(&self) -> LockGuard<'_, Option<CpuId>> {
        self.timer.lock()
    }

    /// The longest exit latency that it accepts of the pCPU that it last ran on; `None` for any.
    pub fn latency_limit(&self) -> Option<Nanos> {
        let limit = self.latency.load(Ordering::Relaxed);
        (limit != u64::MAX).then(|| Nanos::new(limit))
    }

    pub(crate) fn set_latency_limit(&self, limit: Option<Nanos>) {
        let raw = limit.map_or(u64::MAX, |limit| limit.get().min(u64::MAX - 1));
        self.latency.store(raw, Ordering::Relaxed);
    }

    /// Which pCPU it last ran on: the limit is changed, and that pCPU told of it, under this lock.
    pub(crate) fn latency_at(&self) -> LockGuard<'_, Option<CpuId>> {
        self.latency_at.lock()
    }

    /// A new vCPU takes over the slot: no run time yet.
    pub(crate) fn reset(&self) {
        self.state.offline();
        self.set_latency_limit(None);
        self.halt_poll.reset();
        self.directed_yields.store(0, Ordering::Relaxed);
        self.times.write(|| {
            self.run_ticks.store(0, Ordering::Relaxed);
            self.entered.store(0, Ordering::Relaxed);
        });
    }
}

/// All vCPUs that the machine can have: one slot each, fixed at creation.
#[derive(Debug)]
pub struct UnitTable {
    slots: Box<[Unit]>,
}

impl UnitTable {
    /// A table for vCPUs 0 to `capacity - 1`, all offline.
    pub fn new(capacity: usize) -> Self {
        Self {
            slots: (0..capacity).map(|_| Unit::new()).collect(),
        }
    }

    /// The slot of a vCPU; `None` beyond the capacity.
    pub fn get(&self, v: VcpuId) -> Option<&Unit> {
        self.slots.get(v.index())
    }

    /// How many vCPUs the table can hold.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// All slots.
    pub fn iter(&self) -> impl Iterator<Item = (VcpuId, &Unit)> {
        self.slots
            .iter()
            .enumerate()
            .map(|(index, unit)| (VcpuId::new(index as u32), unit))
    }
}
