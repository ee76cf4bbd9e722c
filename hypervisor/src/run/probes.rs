//! Timers that a test sets on every CPU, to see that none is lost, whatever state the CPU sleeps in (`test.timers=`).
#![cfg(target_os = "none")]

use core::sync::atomic::{AtomicU64, Ordering};

use lull_core::units::{CpuId, MAX_CPUS, Ticks};

use super::Running;
use crate::console::machine_channel;
use crate::console::records::ProbeRow;
use crate::time;

#[repr(align(64))]
struct Counts {
    came: AtomicU64,
    /// Periods in which none came, since the one before was so late.
    skipped: AtomicU64,
    latest: AtomicU64,
}

static COUNTS: [Counts; MAX_CPUS] = [const {
    Counts {
        came: AtomicU64::new(0),
        skipped: AtomicU64::new(0),
        latest: AtomicU64::new(0),
    }
}; MAX_CPUS];

fn period(running: &Running) -> Option<Ticks> {
    let period = running.options.test_timers?;
    Some(time::rate().ticks(period.to_nanos()).max(Ticks::new(1)))
}

/// Sets the first timer of the CPU that runs this. Those of all CPUs are spread over the period: no CPU is woken by another's.
pub fn start(running: &Running, cpu: CpuId) {
    if let Some(period) = period(running) {
        let cpus = running.online.len().max(1) as u64;
        let place = period.get() / cpus * (cpu.index() as u64 % cpus);
        // All begin at about the same time.
        running
            .machine
            .set_probe_timer(time::now() + period + Ticks::new(place));
    }
}

/// One has come, on the CPU that runs this: sets the next.
pub fn came(running: &Running, cpu: CpuId, deadline: Ticks) {
    let (Some(period), Some(counts)) = (period(running), COUNTS.get(cpu.index())) else {
        return;
    };
    let late = time::now() - deadline;
    let skipped = late.get() / period.get();
    counts.came.fetch_add(1, Ordering::Relaxed);
    counts.skipped.fetch_add(skipped, Ordering::Relaxed);
    counts.latest.fetch_max(late.get(), Ordering::Relaxed);
    let next = deadline.get() + period.get().saturating_mul(skipped + 1);
    running.machine.set_probe_timer(Ticks::new(next));
}

/// Says what came, on the console and on the machine channel.
pub fn report(running: &Running) {
    let Some(period) = period(running) else {
        return;
    };
    let rows: alloc::vec::Vec<ProbeRow> = running
        .online
        .iter()
        .filter_map(|&cpu| {
            let counts = COUNTS.get(cpu.index())?;
            Some(ProbeRow {
                cpu,
                came: counts.came.load(Ordering::Relaxed),
                skipped: counts.skipped.load(Ordering::Relaxed),
                latest: Ticks::new(counts.latest.load(Ordering::Relaxed)),
            })
        })
        .collect();
    for row in &rows {
        log::info!(
            "{}: {} timers came, {} periods skipped, the latest {} us late",
            row.cpu,
            row.came,
            row.skipped,
            time::rate().to_micros(row.latest).get()
        );
    }
    machine_channel::probes(period, &rows);
}
