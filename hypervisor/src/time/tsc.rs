//! Reading the time stamp counter.
#![expect(unsafe_code, reason = "LFENCE and RDTSC are instructions")]
use core::arch::asm;

/// RDTSC that no earlier instruction is still running behind (Intel SDM vol. 3, 20.17.4; AMD APM vol. 3, LFENCE).
#[inline]
pub(super) fn read_ordered() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: every 64-bit CPU has both; neither touches memory. Not by the intrinsics: in a build without SSE they are calls.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}
