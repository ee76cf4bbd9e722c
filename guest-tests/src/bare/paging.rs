//! One spare gigabyte of address space, to reach physical memory above 4 GiB.
#![expect(unsafe_code, reason = "writes a page directory")]

use core::arch::asm;

/// Maps the 2 MiB of physical memory at `physical` (rounded down), uncached, and gives the address of `physical` itself.
///
/// Each call replaces the mapping of the last one.
#[must_use]
pub fn map_spare(physical: u64) -> *mut u64 {
    unsafe extern "C" {
        static mut lull_guest_spare_directory: u64;
    }
    const AT: u64 = 4 << 30;
    const PRESENT_WRITABLE_UNCACHED_LARGE: u64 = 0b1001_1011;
    const ADDRESS: u64 = 0x000f_ffff_ffe0_0000;
    // SAFETY: the directory covers [4 GiB, 5 GiB), where nothing of the kernel lies; no reference into it exists.
    unsafe {
        (&raw mut lull_guest_spare_directory)
            .write_volatile(physical & ADDRESS | PRESENT_WRITABLE_UNCACHED_LARGE);
        asm!("invlpg [{}]", in(reg) AT, options(nostack, preserves_flags));
    }
    (AT + physical % (2 << 20)) as *mut u64
}
