//! Machine channel: JSON lines for tools, on port 0xE9.
//!
//! A line is written under one lock, so lines of several CPUs never mix. The lock is a leaf: the closure that
//! fills a record must not log and must not emit another record. Off if the command line says so or if
//! nothing listens: QEMU's and Bochs' port reads back its own number.
use super::json::ByteSink;
use super::lock::OutputLock;
use super::port::{MachinePorts, Ports};
use super::records::{
    self, AcpiCst, Boot, ClockRow, CommandAnswer, CpuRows, End, Figure, Guest, IdleTrace, ProbeRow,
    Problem, cstates, timers,
};
use core::fmt::Display;
use core::sync::atomic::{AtomicBool, Ordering};
use lull_core::units::Ticks;

const PORT: u16 = 0xE9;

static ON: AtomicBool = AtomicBool::new(false);
static LOCK: OutputLock = OutputLock::new();

/// The port as a sink.
#[derive(Debug)]
pub struct PortSink(());

impl ByteSink for PortSink {
    fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            MachinePorts.write8(PORT, byte);
        }
    }
}

/// Turns the channel on if `wanted` (option `machine-channel`) and if something listens.
/// Returns whether it is on.
pub fn init(wanted: bool) -> bool {
    let on = wanted && MachinePorts.read8(PORT) == PORT as u8;
    ON.store(on, Ordering::Relaxed);
    on
}

/// Writes what `fill` writes as one undivided piece. Nothing happens while the channel is off.
pub fn emit(fill: impl FnOnce(&mut PortSink)) {
    if ON.load(Ordering::Relaxed) {
        LOCK.with(|torn| {
            let mut sink = PortSink(());
            if torn {
                // Another CPU was stopped inside its line: end that line, so that ours can be read.
                sink.put(b"\n");
            }
            fill(&mut sink);
        });
    }
}

/// Emits the `boot` record.
pub fn boot(record: &Boot<'_>) {
    emit(|sink| record.write(sink));
}

/// Emits a `problem` record.
pub fn problem<N: Display, W: Display, E: Display>(record: &Problem<N, W, E>) {
    emit(|sink| record.write(sink));
}

/// Emits the `acpi_cst` record.
pub fn acpi_cst(record: &AcpiCst<'_>) {
    emit(|sink| record.write(sink));
}

/// Emits a `guest` record.
pub fn guest(record: &Guest<'_>) {
    emit(|sink| record.write(sink));
}

/// Emits a `figure` record.
pub fn figure(record: &Figure<'_>) {
    emit(|sink| record.write(sink));
}

/// Emits a `timers` record.
pub fn probes(period: Ticks, rows: &[ProbeRow]) {
    emit(|sink| timers(sink, period, rows));
}

/// Emits a `clocks` record.
pub fn clocks(source: &str, rows: &[ClockRow]) {
    emit(|sink| records::clocks(sink, source, rows));
}

/// Emits a `command` record.
pub fn command(record: &CommandAnswer<'_>) {
    emit(|sink| record.write(sink));
}

/// Emits a `cstates` record; see [`cstates`].
pub fn cstates_rows(
    seq: u64,
    reason: &str,
    now: Ticks,
    rows: impl FnOnce(&mut CpuRows<'_, '_, PortSink>),
) {
    emit(|sink| cstates(sink, seq, reason, now, rows));
}

/// Emits an `idle_trace` record.
pub fn idle_trace(record: &IdleTrace<'_>) {
    emit(|sink| record.write(sink));
}

/// Emits the `end` record.
pub fn end(record: &End<'_>) {
    emit(|sink| record.write(sink));
}
