//! Samples the CPU's own residency counters, with faults caught.

use lull_core::residency::registers;
use lull_core::units::{CpuId, Nanos, Ticks};

use super::Running;
use crate::{cpu, time};

/// A CPU that wakes often samples no more often than this: a dozen MSRs take about a microsecond.
const AGE: Nanos = Nanos::new(10_000_000);

/// Takes a sample of the CPU that runs this.
pub fn sample(running: &Running, cpu: CpuId, now: Ticks) {
    let (Some(pcpu), Some(choice)) = (running.machine.pcpu(cpu), running.choice(cpu)) else {
        return;
    };
    let registers = registers(&choice.identity);
    if !registers.is_empty() {
        let read = |msr| cpu::safe::rdmsr(msr).ok();
        pcpu.hardware.sample(now, registers, read);
    }
}

/// The same, if the last sample has become old.
pub fn sample_if_old(running: &Running, cpu: CpuId, now: Ticks) {
    let age = time::rate().ticks(AGE);
    if running
        .machine
        .pcpu(cpu)
        .is_some_and(|pcpu| pcpu.hardware.is_due(now, age))
    {
        sample(running, cpu, now);
    }
}
