//! What the loader told, copied out of its hands and checked.

use core::fmt;

use arrayvec::{ArrayString, ArrayVec};

use crate::mm::Range;

/// Longest command line in bytes.
pub const MAX_CMDLINE: usize = 2048;
/// Most entries of a memory map.
pub const MAX_MEMORY: usize = 256;
/// Most boot modules.
pub const MAX_MODULES: usize = 8;

/// What a part of the address space is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// RAM that nobody uses.
    Usable,
    /// Firmware tables (ACPI reclaimable or NVS): read, never written.
    Acpi,
    /// Everything else.
    Reserved,
}

/// One part of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// Where.
    pub range: Range,
    /// For what.
    pub kind: MemoryKind,
}

/// A file that the loader put into memory beside the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// Where.
    pub range: Range,
}

/// What the loader told.
#[derive(Clone, Debug, Default)]
pub struct BootInfo {
    /// The command line, without its name of the image.
    pub cmdline: ArrayString<MAX_CMDLINE>,
    /// Sorted, no two overlap.
    pub memory: ArrayVec<MemoryPart, MAX_MEMORY>,
    /// Physical address of the ACPI root pointer, if the loader gave one.
    pub rsdp: Option<u64>,
    /// Sorted by address, no two overlap.
    pub modules: ArrayVec<Module, MAX_MODULES>,
    /// What was wrong, but could be mended.
    pub problems: ArrayVec<BootProblem, 8>,
}

/// Something wrong that boot can live with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootProblem {
    /// The command line is longer than [`MAX_CMDLINE`]: the rest is ignored.
    CmdlineTooLong,
    /// The command line is not UTF-8: it is ignored from there on.
    CmdlineNotText {
        /// Offset of the first bad byte.
        at: usize,
    },
    /// Two parts of the memory map overlap: the stricter use holds.
    MemoryOverlaps(Range),
    /// A part of the memory map wraps around: it is ignored.
    MemoryPartBad {
        /// Its number, from 0.
        index: u32,
    },
}

impl fmt::Display for BootProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CmdlineTooLong => write!(
                f,
                "the command line is longer than {MAX_CMDLINE} bytes: the rest is ignored"
            ),
            Self::CmdlineNotText { at } => {
                write!(
                    f,
                    "the command line is not UTF-8 at byte {at}: it is ignored from there on"
                )
            }
            Self::MemoryOverlaps(r) => write!(
                f,
                "the memory map says two things about {r}: the stricter one holds"
            ),
            Self::MemoryPartBad { index } => {
                write!(f, "entry {index} of the memory map wraps around: ignored")
            }
        }
    }
}

/// Something wrong that boot cannot live with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootError {
    /// A structure lies where nothing can be read.
    Unreadable {
        /// Which one.
        what: &'static str,
        /// Where.
        address: u64,
    },
    /// The structure at the given address is not a start info.
    BadMagic(u32),
    /// The loader that took the Multiboot2 entry is not a Multiboot2 loader: it left this in EAX.
    NotMultiboot2(u32),
    /// The Multiboot2 boot information has a size that cannot be.
    BadSize(u32),
    /// A tag of the Multiboot2 boot information is shorter than its head, or reaches beyond the end.
    BadTag {
        /// Its type.
        kind: u32,
        /// Its offset in the boot information, in bytes.
        at: usize,
    },
    /// A version without a memory map.
    BadVersion(u32),
    /// No memory map.
    NoMemoryMap,
    /// More entries than fit.
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: u32,
        /// How many fit.
        limit: usize,
    },
    /// A module is empty or wraps around.
    ModuleBad {
        /// Its number, from 0.
        index: u32,
    },
    /// Two modules overlap.
    ModulesOverlap(Range, Range),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { what, address } => {
                write!(f, "the {what} at {address:#x} cannot be read")
            }
            Self::BadMagic(found) => {
                write!(
                    f,
                    "no start info: magic {found:#x}, expected {:#x} (PVH boot)",
                    super::pvh::MAGIC
                )
            }
            Self::NotMultiboot2(found) => {
                write!(
                    f,
                    "no Multiboot2 loader: EAX was {found:#x}, expected {:#x}",
                    super::multiboot2::MAGIC
                )
            }
            Self::BadSize(found) => write!(
                f,
                "Multiboot2 boot information of {found} bytes: expected 8 to {}",
                super::multiboot2::MAX_SIZE
            ),
            Self::BadTag { kind, at } => write!(
                f,
                "tag {kind} at byte {at} of the Multiboot2 boot information has an impossible size"
            ),
            Self::BadVersion(found) => {
                write!(
                    f,
                    "start info of version {found}: at least version 1, with a memory map, is needed"
                )
            }
            Self::NoMemoryMap => f.write_str("the loader gave no memory map"),
            Self::TooMany { what, found, limit } => {
                write!(f, "{found} {what}: at most {limit} are possible")
            }
            Self::ModuleBad { index } => write!(f, "boot module {index} is empty or wraps around"),
            Self::ModulesOverlap(a, b) => write!(f, "the boot modules at {a} and {b} overlap"),
        }
    }
}

impl core::error::Error for BootError {}
