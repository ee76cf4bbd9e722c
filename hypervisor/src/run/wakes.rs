//! Who woke whom: readings for the keys `i` and `w`, the machine channel, and the check at the end.
//!
//! Locks: `BASE` and `MATRIX_BASE` are leaves, held only while a reading is copied.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use lull_core::units::{Nanos, Ticks};

use spin::mutex::SpinMutex;

use super::Running;
use crate::console::machine_channel;
use crate::console::wake_records::{self, WakeRow};
use crate::smp::calls;
use crate::time;

/// The counters when they were last reset.
static BASE: SpinMutex<Vec<WakeRow>> = SpinMutex::new(Vec::new());
/// [`matrix`] then. Never held together with `BASE`.
static MATRIX_BASE: SpinMutex<Vec<Vec<u64>>> = SpinMutex::new(Vec::new());
/// When that was; 0 for the start of the machine.
static RESET_AT: AtomicU64 = AtomicU64::new(0);

/// One row for each CPU that is online, from the start of the machine. Wakes none of them.
pub fn rows(running: &Running) -> Vec<WakeRow> {
    running
        .online
        .iter()
        .filter_map(|&cpu| {
            let pcpu = running.machine.pcpu(cpu)?;
            Some(WakeRow {
                cpu: cpu.get(),
                posts: pcpu.wakes.counts(),
                wakers: pcpu.wakers.counts(),
                woken_by_all: running.machine.woke(cpu),
                served: calls::served(cpu),
            })
        })
        .collect()
}

/// The same, since the last [`reset`].
pub fn rows_since_reset(running: &Running) -> Vec<WakeRow> {
    let now = rows(running);
    let base = BASE.lock();
    now.iter()
        .map(|row| {
            base.iter()
                .find(|old| old.cpu == row.cpu)
                .map_or(*row, |old| row.since(old))
        })
        .collect()
}

/// How often each CPU was woken by each, itself included: a row for each CPU that is online, from the start of the machine.
fn matrix(running: &Running) -> Vec<Vec<u64>> {
    let by = |whom| {
        let wakers = running.online.iter();
        wakers
            .map(|&by| running.machine.pcpu(by).map_or(0, |by| by.woke(whom)))
            .collect()
    };
    running.online.iter().map(|&whom| by(whom)).collect()
}

/// The same, since the last [`reset`].
pub fn matrix_since_reset(running: &Running) -> Vec<Vec<u64>> {
    let mut now = matrix(running);
    let base = MATRIX_BASE.lock();
    let cells = now.iter_mut().flatten();
    for (cell, old) in cells.zip(base.iter().flatten()) {
        *cell = cell.saturating_sub(*old);
    }
    now
}

/// Counts anew from here on.
pub fn reset(running: &Running) {
    let matrix = matrix(running);
    *MATRIX_BASE.lock() = matrix;
    let now = rows(running);
    *BASE.lock() = now;
    RESET_AT.store(time::now().get(), Ordering::Relaxed);
}

/// How long ago the last [`reset`] was, or the start of the machine.
pub fn window() -> Nanos {
    let since = time::now() - Ticks::new(RESET_AT.load(Ordering::Relaxed));
    time::rate().to_nanos(since)
}

/// Writes the `wakes` record.
pub fn emit(running: &Running) {
    let (rows, since) = (rows(running), rows_since_reset(running));
    let window = window();
    machine_channel::emit(|sink| wake_records::wakes(sink, rows.iter(), &since, window));
}

/// The first CPU whose sleeps do not add up to what all others say that they have ended, and both sums. Once all are parked.
pub fn imbalance(running: &Running) -> Option<(WakeRow, u64, u64)> {
    rows(running)
        .into_iter()
        .find_map(|row| row.check().err().map(|(own, all)| (row, own, all)))
}
