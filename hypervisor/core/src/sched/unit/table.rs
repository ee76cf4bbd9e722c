//! The table of all vCPUs, as schedulers and dispatch loops share it.

use super::RunState;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{CpuId, Ticks, VcpuId};
use alloc::boxed::Box;

const NO_CPU: u32 = u32::MAX;

/// What is known of one vCPU without a lock. Scheduling parameters are the scheduler's own.
#[derive(Debug)]
pub struct Unit {
    /// Where it is, and whether it was kicked.
    pub state: RunState,
    /// Time inside the guest, summed by the pCPU it ran on. One writer at a time: whoever runs it.
    run_ticks: AtomicU64,
    /// When it was last entered; 0 while it is outside. Same writer.
    entered: AtomicU64,
    /// Even: `run_ticks` and `entered` agree. Odd: they are being changed.
    sequence: AtomicU32,
    /// The pCPU whose deadline queue holds its timer; [`NO_CPU`] if none is armed.
    timer_cpu: AtomicU32,
}

impl Unit {
    fn new() -> Self {
        Self {
            state: RunState::new(),
            run_ticks: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            sequence: AtomicU32::new(0),
            timer_cpu: AtomicU32::new(NO_CPU),
        }
    }

    /// The VM entry is next: time in the guest begins. Only on the pCPU that runs it.
    pub fn guest_entering(&self, now: Ticks) {
        self.change(|unit| unit.entered.store(now.get(), Ordering::Release));
    }

    /// The guest was left: the time since [`guest_entering`](Self::guest_entering) is charged to it, and returned.
    pub fn guest_left(&self, now: Ticks) -> Ticks {
        let entered = Ticks::new(self.entered.load(Ordering::Relaxed));
        let span = if entered == Ticks::ZERO {
            Ticks::ZERO
        } else {
            now - entered
        };
        self.change(|unit| {
            let total = Ticks::new(unit.run_ticks.load(Ordering::Relaxed)) + span;
            unit.run_ticks.store(total.get(), Ordering::Release);
            unit.entered.store(0, Ordering::Release);
        });
        span
    }

    /// Its time inside the guest up to `now`, a stay that has not ended included. From any pCPU; wakes nobody.
    pub fn run_time(&self, now: Ticks) -> Ticks {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let closed = Ticks::new(self.run_ticks.load(Ordering::Acquire));
            let entered = Ticks::new(self.entered.load(Ordering::Acquire));
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Acquire) == before {
                let open = if entered == Ticks::ZERO {
                    Ticks::ZERO
                } else {
                    now - entered
                };
                return closed + open;
            }
            crate::sync::spin_loop();
        }
    }

    /// The pCPU whose deadline queue holds its timer.
    pub fn timer_cpu(&self) -> Option<CpuId> {
        let cpu = self.timer_cpu.load(Ordering::Acquire);
        (cpu != NO_CPU).then(|| CpuId::new(cpu))
    }

    /// Notes where its timer is queued.
    pub(crate) fn set_timer_cpu(&self, cpu: Option<CpuId>) {
        self.timer_cpu
            .store(cpu.map_or(NO_CPU, CpuId::get), Ordering::Release);
    }

    /// A new vCPU takes over the slot: no run time yet.
    pub(crate) fn reset(&self) {
        self.state.offline();
        self.change(|unit| {
            unit.run_ticks.store(0, Ordering::Release);
            unit.entered.store(0, Ordering::Release);
        });
    }

    /// One change of the time fields. The stores inside are `Release` so that none is seen before the odd sequence
    /// number, and the loads of the reader `Acquire` so that none is made after the check of it.
    fn change(&self, store: impl FnOnce(&Self)) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence
            .store(sequence.wrapping_add(1), Ordering::Release);
        store(self);
        self.sequence
            .store(sequence.wrapping_add(2), Ordering::Release);
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
