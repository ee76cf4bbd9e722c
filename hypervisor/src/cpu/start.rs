//! Taking a CPU into Lull's hands: GS base, descriptor tables, control registers.
#![expect(unsafe_code, reason = "GS base and control registers are set here, once a CPU")]

use super::percpu::{PerCpu, Stacks, boot_area};
use super::{regs, tables};

/// The first thing that the boot CPU does in Rust: from here on [`super::this`] works and exceptions print.
pub fn init_boot_cpu() {
    tables::fill_idt(false);
    load(boot_area());
}

/// The first thing that any other CPU does in Rust, on the area made for it.
pub fn init_this_cpu(area: &'static PerCpu) {
    load(area);
}

/// Gives the boot CPU its stacks for NMI, double fault and machine check.
pub fn use_stacks(stacks: Stacks) {
    let area = super::this();
    area.tables.set_stacks(&stacks);
    area.set_stacks(stacks);
    tables::fill_idt(true);
}

fn load(area: &'static PerCpu) {
    area.tables.load();
    // SAFETY: this is the area of the CPU that runs this; loading segment registers above did not touch GS.
    unsafe { regs::set_gs_base(core::ptr::from_ref(area).addr() as u64) };
    area.set_online();
}
