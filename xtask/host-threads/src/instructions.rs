//! The instructions that no safe function offers: the time-stamp counter in order, and the fence before a weak ICR write.
#![expect(unsafe_code, reason = "three instructions")]

use std::arch::asm;

/// Is the time-stamp counter the same on all cores, and does it run at one rate in all states?
///
/// AMD64 Architecture Programmer's Manual, volume 3, CPUID Fn8000_0007_EDX bit 8 (TscInvariant).
pub fn has_invariant_tsc() -> bool {
    let leaf = |number| std::arch::x86_64::__cpuid(number);
    leaf(0x8000_0000).eax >= 0x8000_0007 && leaf(0x8000_0007).edx & 1 << 8 != 0
}

/// The time-stamp counter, read after all that comes before it, and before all that comes after it.
#[inline]
pub fn ticks() -> u64 {
    let (low, high): (u64, u64);
    // SAFETY: reads a counter, and touches no memory; a system that forbids RDTSC in user mode offers no time-stamp counter as
    // its clock either, and ends us with a signal.
    unsafe {
        asm!(
            "lfence", "rdtsc", "lfence",
            out("rax") low, out("rdx") high,
            options(nostack, preserves_flags)
        );
    }
    high << 32 | low
}

/// What must stand between a store and an x2APIC ICR write on Intel-like CPUs.
///
/// Intel SDM, volume 3, section "x2APIC Register Access": WRMSR to the ICR is not serialising.
#[inline(always)]
pub fn mfence_lfence() {
    // SAFETY: fences change nothing but the order of accesses.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
}

/// The first half of it.
#[inline(always)]
pub fn mfence() {
    // SAFETY: as in `mfence_lfence`.
    unsafe { asm!("mfence", options(nostack, preserves_flags)) };
}

/// The second half of it.
#[inline(always)]
pub fn lfence() {
    // SAFETY: as in `mfence_lfence`.
    unsafe { asm!("lfence", options(nostack, preserves_flags)) };
}
