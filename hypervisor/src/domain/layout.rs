//! Where things lie in a guest's physical memory.
//!
//! Low memory looks like a PC's: ordinary memory below [`BOOT_AREA`], where a guest puts its real-mode
//! trampolines; the boot information; a hole where a PC has its video memory; the ACPI tables where a
//! guest that scans for them also finds them; and ordinary memory again from 1 MiB on.

use core::ops::Range;

/// Size of a small page, bytes.
pub const PAGE: u64 = 4096;

/// `hvm_start_info`, its memory map and the command line. Reserved in the memory map.
pub const BOOT_AREA: Range<u64> = 0x9_e000..0xa_0000;

/// `hvm_start_info` (page-aligned so that it cannot straddle anything).
pub const START_INFO: u64 = BOOT_AREA.start;

/// The memory map that `hvm_start_info` points to.
pub const MEMMAP: u64 = BOOT_AREA.start + 0x100;

/// The command line, NUL-terminated, at most [`CMDLINE_MAX`] bytes long.
pub const CMDLINE: u64 = BOOT_AREA.start + 0x1000;

/// Longest command line in bytes, without the NUL.
pub const CMDLINE_MAX: usize = 0xfff;

/// The ACPI tables, beginning with the RSDP (ACPI 6.5, 5.2.5.1: a PC's search range).
pub const ACPI_AREA: Range<u64> = 0xe_0000..0x10_0000;

/// Where ordinary memory continues.
pub const HIGH_MEMORY: u64 = 0x10_0000;

/// The local APIC's page after reset (SDM 3A, 11.4.1).
pub const LAPIC_PAGE: u64 = 0xfee0_0000;

/// Memory must end below this, so that it never covers the local APIC's page.
pub const MEMORY_LIMIT: u64 = 0xe000_0000;

/// Least memory of a guest: its low megabyte and one more for the kernel.
pub const MEMORY_LEAST: u64 = 0x20_0000;

/// Most vCPUs of one guest: APIC ids 0..=254 are an xAPIC's.
pub const VCPUS_MOST: u32 = 255;
