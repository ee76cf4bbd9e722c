//! Fills a guest's memory: kernel, boot information, ACPI tables.
//!
//! The memory is zero when the loader gets it, so a segment's tail (bss) is there already; it is zeroed all the
//! same, for a loader that depends on what others did is one bug away from a leak.
//!
//! Boot information: Xen's PVH boot protocol, `hvm_start_info` version 1.

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes};

use super::acpi_tables;
use super::elf::{ElfProblem, PvhImage};
use super::layout::{
    ACPI_AREA, BOOT_AREA, CMDLINE, CMDLINE_MAX, HIGH_MEMORY, MEMMAP, MEMORY_LEAST, MEMORY_LIMIT,
    START_INFO, VCPUS_MOST,
};
use crate::virt::{GuestMemory, OutOfRange, StartState};

const MAGIC: u32 = 0x336e_c578;

/// `struct hvm_start_info` (Xen, `arch-x86/hvm/start_info.h`).
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct StartInfo {
    magic: U32,          // 0
    version: U32,        // 4
    flags: U32,          // 8
    modules: U32,        // 12
    modlist: U64,        // 16
    cmdline: U64,        // 24
    rsdp: U64,           // 32
    memmap: U64,         // 40
    memmap_entries: U32, // 48
    reserved: U32,       // 52
}
const _: () = assert!(size_of::<StartInfo>() == 56);

/// `struct hvm_memmap_table_entry`; types as in E820.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct MapEntry {
    start: U64,    // 0
    size: U64,     // 8
    kind: U32,     // 16
    reserved: U32, // 20
}
const _: () = assert!(size_of::<MapEntry>() == 24);

const RAM: u32 = 1;
const RESERVED: u32 = 2;
const ACPI: u32 = 3;

// The start-of-day structures do not touch each other, nor the end of their area.
const _: () = assert!(START_INFO + 56 <= MEMMAP && MEMMAP + 4 * 24 <= CMDLINE);
const _: () = assert!(CMDLINE + (CMDLINE_MAX as u64) < BOOT_AREA.end);

/// Why a guest could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadProblem {
    /// The kernel.
    Kernel(ElfProblem),
    /// Longer than the area for it.
    CmdlineTooLong {
        /// Bytes.
        len: usize,
    },
    /// None, or more than there are APIC ids.
    VcpuCount {
        /// How many were asked for.
        vcpus: u32,
    },
    /// Too little, too much, or not a whole number of pages.
    MemorySize {
        /// Bytes.
        memory: u64,
    },
    /// Our own mistake: a checked range was not in memory.
    Memory(OutOfRange),
}

impl LoadProblem {
    /// What would have been right, in a few words.
    pub fn expected(&self) -> &'static str {
        match self {
            Self::Kernel(problem) => problem.expected(),
            Self::CmdlineTooLong { .. } => "a command line of at most 4095 bytes",
            Self::VcpuCount { .. } => "1 to 255 vCPUs",
            Self::MemorySize { .. } => "2 MiB to 3584 MiB of memory, a multiple of 4 KiB",
            Self::Memory(_) => "ranges inside guest memory",
        }
    }
}

impl fmt::Display for LoadProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(problem) => return problem.fmt(f),
            Self::CmdlineTooLong { len } => write!(f, "command line of {len} bytes")?,
            Self::VcpuCount { vcpus } => write!(f, "{vcpus} vCPUs")?,
            Self::MemorySize { memory } => write!(f, "{memory:#x} bytes of memory")?,
            Self::Memory(problem) => return problem.fmt(f),
        }
        write!(f, "; expected {}", self.expected())
    }
}

impl From<ElfProblem> for LoadProblem {
    fn from(problem: ElfProblem) -> Self {
        Self::Kernel(problem)
    }
}

impl From<OutOfRange> for LoadProblem {
    fn from(problem: OutOfRange) -> Self {
        Self::Memory(problem)
    }
}

/// Everything about a guest that can be refused before memory is allocated.
#[derive(Debug)]
pub struct Plan<'a> {
    image: PvhImage<'a>,
    cmdline: &'a str,
    vcpus: u8,
    memory: u64,
}

impl<'a> Plan<'a> {
    /// Checks a guest.
    ///
    /// # Errors
    /// The first [`LoadProblem`].
    pub fn check(
        kernel: &'a [u8],
        cmdline: &'a str,
        vcpus: u32,
        memory: u64,
    ) -> Result<Self, LoadProblem> {
        let count = u8::try_from(vcpus)
            .ok()
            .filter(|n| *n > 0 && vcpus <= VCPUS_MOST);
        let vcpus = count.ok_or(LoadProblem::VcpuCount { vcpus })?;
        if !(MEMORY_LEAST..=MEMORY_LIMIT).contains(&memory)
            || !memory.is_multiple_of(super::layout::PAGE)
        {
            return Err(LoadProblem::MemorySize { memory });
        }
        if cmdline.len() > CMDLINE_MAX {
            return Err(LoadProblem::CmdlineTooLong { len: cmdline.len() });
        }
        Ok(Self {
            image: PvhImage::parse(kernel, memory)?,
            cmdline,
            vcpus,
            memory,
        })
    }

    /// Bytes of memory that the guest gets.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Number of vCPUs.
    pub fn vcpus(&self) -> u8 {
        self.vcpus
    }

    /// Fills the memory, and says where the first vCPU begins.
    ///
    /// # Errors
    /// [`LoadProblem::Memory`] if `memory` is smaller than planned.
    pub fn load(&self, memory: &GuestMemory) -> Result<StartState, LoadProblem> {
        for segment in &self.image.segments {
            memory.write(segment.paddr, segment.data)?;
            let filled = segment.data.len() as u64;
            memory.fill(segment.paddr + filled, segment.memsz - filled, 0)?;
        }
        for table in acpi_tables::tables(self.vcpus) {
            memory.write(table.at, &table.bytes)?;
        }
        let map = self.memory_map();
        memory.write(MEMMAP, map.as_bytes())?;
        memory.write(CMDLINE, self.cmdline.as_bytes())?;
        memory.write(CMDLINE + self.cmdline.len() as u64, &[0])?;
        let info = StartInfo {
            magic: U32::new(MAGIC),
            version: U32::new(1),
            flags: U32::new(0),
            modules: U32::new(0),
            modlist: U64::new(0),
            cmdline: U64::new(CMDLINE),
            rsdp: U64::new(acpi_tables::RSDP),
            memmap: U64::new(MEMMAP),
            memmap_entries: U32::new(u32::try_from(map.len()).unwrap_or(0)),
            reserved: U32::new(0),
        };
        memory.write(START_INFO, info.as_bytes())?;
        // Below 1 MiB, so the conversion cannot fail.
        let start_info = u32::try_from(START_INFO).unwrap_or(0);
        Ok(StartState::Pvh {
            entry: self.image.entry,
            start_info,
        })
    }

    fn memory_map(&self) -> [MapEntry; 4] {
        let entry = |start: u64, end: u64, kind| MapEntry {
            start: U64::new(start),
            size: U64::new(end.saturating_sub(start)),
            kind: U32::new(kind),
            reserved: U32::new(0),
        };
        [
            entry(0, BOOT_AREA.start, RAM),
            entry(BOOT_AREA.start, BOOT_AREA.end, RESERVED),
            entry(ACPI_AREA.start, ACPI_AREA.end, ACPI),
            entry(HIGH_MEMORY, self.memory, RAM),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{ElfBuilder, Load};
    use super::*;
    use std::string::ToString;

    const MEMORY: u64 = 4 << 20;

    fn kernel() -> std::vec::Vec<u8> {
        ElfBuilder::new()
            .load(Load::new(0x10_0000, b"code".to_vec(), 0x2000))
            .entry(0x10_0001)
            .build()
    }

    #[test]
    fn the_guest_finds_its_boot_information() {
        let kernel = kernel();
        let plan = Plan::check(&kernel, "duty=30 x", 3, MEMORY).expect("good");
        let memory = GuestMemory::leaked(MEMORY);
        memory.fill(0, MEMORY, 0xcc).expect("in range");
        let start = plan.load(&memory).expect("fits");
        let StartState::Pvh { entry, start_info } = start else {
            panic!("{start:?}")
        };
        assert_eq!(entry, 0x10_0001);
        let info = u64::from(start_info);
        let word = |at: u64| memory.read_u32(at).expect("in range");
        let long = |at: u64| memory.read_u64(at).expect("in range");
        assert_eq!(
            (word(info), word(info + 4), word(info + 12)),
            (0x336e_c578, 1, 0)
        );
        let cmdline = memory.read_vec(long(info + 24), 10).expect("in range");
        assert_eq!(cmdline, b"duty=30 x\0");
        assert_eq!(
            memory.read_vec(long(info + 32), 8).expect("in range"),
            b"RSD PTR "
        );
        let map = long(info + 40);
        let entries: std::vec::Vec<(u64, u64, u32)> = (0..word(info + 48).into())
            .map(|i| map + 24 * i)
            .map(|at| (long(at), long(at + 8), word(at + 16)))
            .collect();
        assert_eq!(
            entries,
            [
                (0, 0x9_e000, 1),
                (0x9_e000, 0x2000, 2),
                (0xe_0000, 0x2_0000, 3),
                (0x10_0000, 0x30_0000, 1)
            ]
        );
        assert_eq!(memory.read_vec(0x10_0000, 5).expect("in range"), b"code\0");
        assert_eq!(
            memory.read_vec(0x10_1ffe, 3).expect("in range"),
            [0, 0, 0xcc],
            "bss is cleared, no more"
        );
    }

    #[test]
    fn what_cannot_be_is_refused_before_memory_is_taken() {
        let kernel = kernel();
        let refused = |cmdline: &str, vcpus, memory| {
            Plan::check(&kernel, cmdline, vcpus, memory)
                .expect_err("must be refused")
                .to_string()
        };
        assert_eq!(refused("", 0, MEMORY), "0 vCPUs; expected 1 to 255 vCPUs");
        assert_eq!(
            refused("", 256, MEMORY),
            "256 vCPUs; expected 1 to 255 vCPUs"
        );
        assert!(refused("", 1, 0x10_0000).contains("expected 2 MiB to 3584 MiB"));
        assert!(refused("", 1, MEMORY + 1).contains("multiple of 4 KiB"));
        assert!(refused("", 1, MEMORY_LIMIT + 4096).contains("3584"));
        assert!(refused(&"x".repeat(4096), 1, MEMORY).contains("at most 4095"));
        assert!(Plan::check(&kernel, &"x".repeat(4095), 255, MEMORY).is_ok());
    }
}
