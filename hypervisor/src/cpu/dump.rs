//! Registers of all CPUs, on request (debug key `d`).
//!
//! Each other CPU is asked by NMI and answers from its handler, wherever it is; what it was doing goes on. One asker at
//! a time: the caller holds whatever makes debug keys come one after the other.

use lull_core::units::{CpuId, Ticks};

use super::percpu::PerCpu;
use super::regs;
use super::trap::TrapFrame;
use crate::{console, panic};

/// Prints registers and backtrace of every online CPU. `send_nmi` sends one; a CPU that has not answered after
/// `patience` is named.
pub fn all_cpus(send_nmi: impl Fn(CpuId), patience: Ticks) {
    let me = super::this();
    for cpu in super::all().filter(|c| c.is_online()) {
        if cpu.id() == me.id() {
            console::dump_line(format_args!("{} (this one):", cpu.id()));
            panic::dump_backtrace(None, regs::rbp());
        } else if let Some(frame) = ask(cpu, &send_nmi, patience) {
            console::dump_line(format_args!("{}:", cpu.id()));
            panic::dump_frame(&frame);
            panic::dump_backtrace(Some(frame.rip), frame.rbp);
        } else {
            console::dump_line(format_args!("{}: no answer to an NMI", cpu.id()));
        }
    }
}

fn ask(cpu: &PerCpu, send_nmi: &impl Fn(CpuId), patience: Ticks) -> Option<TrapFrame> {
    let ticket = cpu.nmi.ask();
    let start = regs::rdtsc();
    send_nmi(cpu.id());
    while regs::rdtsc().wrapping_sub(start) < patience.get() {
        if let Some(frame) = cpu.nmi.answer(ticket) {
            return Some(frame);
        }
        core::hint::spin_loop();
    }
    None
}
