//! Taking a CPU into Lull's hands: GS base, descriptor tables, control registers.
#![expect(
    unsafe_code,
    reason = "GS base and control registers are set here, once a CPU"
)]

use spin::Once;

use super::features::Features;
use super::percpu::{PerCpu, Stacks, boot_area};
use super::{regs, tables};

static FEATURES: Once<Features> = Once::new();

/// The first thing that the boot CPU does in Rust: from here on [`super::this`] works and exceptions print.
pub fn init_boot_cpu() {
    tables::fill_idt(false);
    load(boot_area());
    boot_area().set_online();
    lull_core::sync::held::keep_at(|| Some(super::this().locks_held()));
    let features = FEATURES.call_once(Features::of_this_cpu);
    super::this().set_apic_id(u32::from(features.initial_apic_id));
}

/// The first thing that any other CPU does in Rust, on the area made for it.
///
/// # Panics
/// If the CPU lacks what the first one has: the tables and decisions of the first would not hold on it.
pub fn init_this_cpu(area: &'static PerCpu) {
    load(area);
    let lacks = Features::of_this_cpu().lacks(features());
    assert!(
        lacks.is_empty(),
        "{} lacks {lacks}, which the first CPU has",
        area.id()
    );
    protect();
}

/// The features that all CPUs have (those of the boot CPU).
///
/// # Panics
/// Before [`init_boot_cpu`].
#[must_use]
pub fn features() -> &'static Features {
    #[expect(
        clippy::expect_used,
        reason = "read by the first line of Rust on the boot CPU"
    )]
    FEATURES.get().expect("the boot CPU has read its features")
}

/// Gives the boot CPU its stacks for NMI, double fault and machine check.
pub fn use_stacks(stacks: Stacks) {
    super::this().give_stacks(stacks);
    tables::fill_idt(true);
}

/// Turns on what protects Lull from itself, as far as this CPU has it: write protection in ring 0, SMEP, SMAP,
/// machine checks; and what guests need (FXSAVE, XSAVE).
pub fn protect() {
    let f = features();
    let mut cr4 = regs::cr4() | regs::CR4_MCE | regs::CR4_OSFXSR | regs::CR4_OSXMMEXCPT;
    for (have, bit) in [
        (f.smep, regs::CR4_SMEP),
        (f.smap, regs::CR4_SMAP),
        (f.xsave.is_some(), regs::CR4_OSXSAVE),
    ] {
        if have {
            cr4 |= bit;
        }
    }
    let cr0 =
        (regs::cr0() | regs::CR0_WP | regs::CR0_NE | regs::CR0_MP) & !(regs::CR0_EM | regs::CR0_TS);
    // SAFETY: no page is a user page, so SMEP and SMAP forbid nothing that Lull does; all writes go to pages that
    // are writable.
    unsafe {
        regs::set_cr4(cr4);
        regs::set_cr0(cr0);
    }
}

fn load(area: &'static PerCpu) {
    area.tables.load();
    // SAFETY: this is the area of the CPU that runs this; loading the segment registers did not touch GS.
    unsafe { regs::set_gs_base(core::ptr::from_ref(area).addr() as u64) };
}
