//! Control registers, TSC and ports: the instructions themselves, with every bit kept.
//!
//! The `x86` crate drops bits of CR4 that it does not know, hence these.
#![expect(
    unsafe_code,
    reason = "these are instructions that only assembly can name"
)]

use core::arch::asm;

/// CR0: write protection holds in ring 0 too.
pub const CR0_WP: u64 = 1 << 16;
/// CR0: x87 errors raise #MF.
pub const CR0_NE: u64 = 1 << 5;
/// CR0: WAIT honours TS.
pub const CR0_MP: u64 = 1 << 1;
/// CR0: there is no x87.
pub const CR0_EM: u64 = 1 << 2;
/// CR0: the next use of x87 or SSE raises #NM.
pub const CR0_TS: u64 = 1 << 3;
/// CR4: FXSAVE and SSE exist for guests.
pub const CR4_OSFXSR: u64 = 1 << 9;
/// CR4: SSE errors raise #XM.
pub const CR4_OSXMMEXCPT: u64 = 1 << 10;
/// CR4: XSAVE and XCR0 exist.
pub const CR4_OSXSAVE: u64 = 1 << 18;
/// CR4: no instruction fetch from user pages in ring 0.
pub const CR4_SMEP: u64 = 1 << 20;
/// CR4: no data access to user pages in ring 0.
pub const CR4_SMAP: u64 = 1 << 21;
/// CR4: bits that a CPU sets itself once it runs Rust, not in the trampoline: VMX, SMX, PCID and PKE cannot be set
/// before paging or 64-bit mode are on.
pub const CR4_NOT_YET: u64 = 1 << 13 | 1 << 14 | 1 << 17 | 1 << 22;
/// CR4: machine checks are delivered, and do not shut the machine down.
pub const CR4_MCE: u64 = 1 << 6;

macro_rules! control_register {
    ($read:ident, $write:ident, $name:literal) => {
        #[doc = concat!("Reads ", $name, ".")]
        #[must_use]
        #[inline]
        pub fn $read() -> u64 {
            let value;
            // SAFETY: reading a control register in ring 0 changes nothing.
            unsafe { asm!(concat!("mov {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
            value
        }

        #[doc = concat!("Writes ", $name, ".")]
        ///
        /// # Safety
        /// The code that runs must still be mapped and legal with the new value.
        #[inline]
        pub unsafe fn $write(value: u64) {
            // SAFETY: the caller answers for it.
            unsafe { asm!(concat!("mov ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) };
        }
    };
}

control_register!(cr0, set_cr0, "cr0");
control_register!(cr2, set_cr2, "cr2");
control_register!(cr3, set_cr3, "cr3");
control_register!(cr4, set_cr4, "cr4");

/// The time stamp counter, in its order with the loads before it.
#[must_use]
#[inline]
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading the TSC changes nothing. LFENCE keeps it behind earlier loads.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}

/// The frame pointer of the caller's frame.
#[must_use]
#[inline(always)]
pub fn rbp() -> u64 {
    let value;
    // SAFETY: reading a register changes nothing.
    unsafe { asm!("mov {}, rbp", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Drops the translation of one page on this CPU.
#[inline]
pub fn invlpg(address: u64) {
    // SAFETY: dropping a cached translation is always allowed.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Sets the GS base, through which [`super::this`] finds the per-CPU area.
///
/// # Safety
/// `base` is the address of the area of the CPU that runs this.
pub unsafe fn set_gs_base(base: u64) {
    // SAFETY: the caller answers for the address.
    unsafe { x86::msr::wrmsr(x86::msr::IA32_GS_BASE, base) };
}
