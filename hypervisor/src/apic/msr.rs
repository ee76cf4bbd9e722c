//! The MSRs of the local APIC (Intel SDM vol. 3, table 13-6; AMD APM vol. 2, 16.11).
#![expect(unsafe_code, reason = "RDMSR and WRMSR")]
use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(target_os = "none")]
use lull_core::options::IpiFence;

/// Base address, x2APIC enable, global enable.
#[cfg(target_os = "none")]
pub(super) const APIC_BASE: u32 = x86::msr::IA32_APIC_BASE;
/// Deadline of the timer in TSC-deadline mode.
pub(super) const TSC_DEADLINE: u32 = x86::msr::IA32_TSC_DEADLINE;
/// Register at xAPIC offset `n` is MSR `X2APIC + n / 16`.
pub(super) const X2APIC: u32 = 0x800;

/// Whether a WRMSR to the x2APIC range or to TSC_DEADLINE may overtake earlier stores. True until known better.
static FENCE_NEEDED: AtomicBool = AtomicBool::new(true);
/// Whether there is a fence even where the register is uncached memory, which needs none.
static FENCE_ALWAYS: AtomicBool = AtomicBool::new(false);

/// These WRMSRs are not serialising (Intel SDM vol. 3, 10.12.3): an earlier store may become visible after the IPI.
/// AMD and Hygon order them in hardware. MFENCE alone is not enough, for WRMSR is no memory access: LFENCE holds it
/// back until the MFENCE has completed.
#[cfg(any(target_os = "none", test))]
fn fence_needed(vendor: &str) -> bool {
    !matches!(vendor, "AuthenticAMD" | "HygonGenuine")
}

/// Decides once, on the boot CPU.
#[cfg(target_os = "none")]
pub(super) fn choose_fence(vendor: &str, asked: IpiFence) {
    let needed = match asked {
        IpiFence::Auto => fence_needed(vendor),
        IpiFence::None => false,
        IpiFence::Full => true,
    };
    FENCE_NEEDED.store(needed, Ordering::Relaxed);
    FENCE_ALWAYS.store(asked == IpiFence::Full, Ordering::Relaxed);
}

/// As [`order_stores`], before a write to a register in uncached memory: that stays behind all earlier stores by itself.
#[inline]
pub(super) fn order_stores_before_mmio() {
    if FENCE_ALWAYS.load(Ordering::Relaxed) {
        order_stores();
    } else {
        // Volatile stores do not hold back ordinary ones in the compiler.
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// Makes every earlier store visible before a following WRMSR to the x2APIC range or TSC_DEADLINE.
#[inline]
pub(super) fn order_stores() {
    if FENCE_NEEDED.load(Ordering::Relaxed) {
        // SAFETY: fences only order; without `nomem` the compiler keeps stores before them, too.
        unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) }
    } else {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// Reads one of the MSRs above.
#[inline]
pub(super) fn read(msr: u32) -> u64 {
    // SAFETY: called for MSRs that exist: APIC_BASE always, the others after CPUID offered them. Reads change nothing.
    unsafe { x86::msr::rdmsr(msr) }
}

/// Writes one of the MSRs above.
#[inline]
pub(super) fn write(msr: u32, value: u64) {
    // SAFETY: only the local APIC's own MSRs are written, which change interrupt delivery and no memory; callers are
    // the drivers of this directory.
    unsafe { x86::msr::wrmsr(msr, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_amd_and_hygon_go_without_fence() {
        for (vendor, fence) in [
            ("GenuineIntel", true),
            ("CentaurHauls", true),
            ("AuthenticAMD", false),
            ("HygonGenuine", false),
            ("", true),
        ] {
            assert_eq!(fence_needed(vendor), fence, "{vendor}");
        }
    }
}
