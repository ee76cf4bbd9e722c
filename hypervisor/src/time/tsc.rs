//! Reading the time stamp counter.
#![expect(unsafe_code, reason = "LFENCE and RDTSC are intrinsics")]
use core::arch::x86_64::{_mm_lfence, _rdtsc};

/// RDTSC that no earlier instruction is still running behind (Intel SDM vol. 3, 20.17.4; AMD APM vol. 3, LFENCE).
#[inline]
pub(super) fn read_ordered() -> u64 {
    // SAFETY: every 64-bit CPU has both; neither touches memory.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}
