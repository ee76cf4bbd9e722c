//! Multiboot2 boot: the boot information read with checks.
//!
//! Pure: physical memory is read through [`Physical`]. Layout: Multiboot2 specification 2.0, 3.4 and 3.6. Tags that
//! Lull has no use for are skipped; of tags that should be there once, the first counts.

use arrayvec::ArrayVec;

use super::info::{BootError, BootInfo};
use super::loader::{Physical, read, take_cmdline, take_memory_map, take_module, u32_at};

/// What a Multiboot2 loader leaves in EAX.
pub const MAGIC: u32 = 0x36d7_6289;
/// More boot information than this no loader has a reason for, in bytes.
pub const MAX_SIZE: usize = 4 << 20;

/// Total size and a reserved word, in bytes.
const HEAD: usize = 8;
/// Type and size, in bytes.
const TAG_HEAD: usize = 8;
/// Tags begin at multiples of this.
const ALIGN: usize = 8;

// Types of tags.
const END: u32 = 0;
const COMMAND_LINE: u32 = 1;
const MODULE: u32 = 3;
const MEMORY_MAP: u32 = 6;
const ACPI_OLD: u32 = 14;
const ACPI_NEW: u32 = 15;

/// The smallest entry of a memory map that holds base, length and type, in bytes.
const MEMORY_ENTRY: usize = 20;
/// The RSDP of ACPI 1.0, in bytes.
const RSDP_V1: usize = 20;
/// The RSDP of ACPI 2.0, in bytes.
const RSDP_V2: usize = 36;

/// A copy of the ACPI root pointer: the loader's own copy may be overwritten.
pub type Rsdp = ArrayVec<u8, RSDP_V2>;

/// Reads the boot information at `address`, to which a loader has come that left `magic` in EAX.
///
/// # Errors
/// It is no boot information, has no memory map, or does not fit together.
pub fn parse(
    memory: &impl Physical,
    magic: u32,
    address: u64,
) -> Result<(BootInfo, Option<Rsdp>), BootError> {
    const WHAT: &str = "Multiboot2 boot information";
    if magic != MAGIC {
        return Err(BootError::NotMultiboot2(magic));
    }
    let head = read(memory, WHAT, address, HEAD)?;
    let size = u32_at(head, 0).unwrap_or(0);
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    if !(HEAD..=MAX_SIZE).contains(&len) {
        return Err(BootError::BadSize(size));
    }
    let info = read(memory, WHAT, address, len)?;

    let mut found = Found::default();
    let mut at = HEAD;
    while let (Some(kind), Some(tag_len)) = (u32_at(info, at), u32_at(info, at + 4)) {
        if kind == END {
            break;
        }
        let end = at.saturating_add(usize::try_from(tag_len).unwrap_or(usize::MAX));
        let payload = info
            .get(at + TAG_HEAD..end)
            .ok_or(BootError::BadTag { kind, at })?;
        found.take(kind, payload).map_err(|why| match why {
            TagError::Size => BootError::BadTag { kind, at },
            TagError::Content(why) => why,
        })?;
        at = end.next_multiple_of(ALIGN);
    }
    if !found.memory_map {
        return Err(BootError::NoMemoryMap);
    }
    found.boot.modules.sort_unstable_by_key(|m| m.range);
    Ok((found.boot, found.rsdp))
}

enum TagError {
    Size,
    Content(BootError),
}

impl From<BootError> for TagError {
    fn from(why: BootError) -> Self {
        Self::Content(why)
    }
}

/// What has been read so far.
#[derive(Default)]
struct Found {
    boot: BootInfo,
    rsdp: Option<Rsdp>,
    memory_map: bool,
    cmdline: bool,
    modules: u32,
}

impl Found {
    fn take(&mut self, kind: u32, payload: &[u8]) -> Result<(), TagError> {
        let word = |at| u32_at(payload, at).ok_or(TagError::Size);
        match kind {
            COMMAND_LINE if !self.cmdline => {
                self.cmdline = true;
                take_cmdline(payload.iter().map(|byte| Ok(*byte)), &mut self.boot)?;
            }
            MODULE => {
                let (start, end) = (word(0)?, word(4)?);
                let index = self.modules;
                self.modules += 1;
                take_module(index, start.into(), Some(end.into()), &mut self.boot)?;
            }
            MEMORY_MAP if !self.memory_map => {
                self.memory_map = true;
                let size = usize::try_from(word(0)?).unwrap_or(usize::MAX);
                let entries = payload.get(8..).ok_or(TagError::Size)?;
                if size < MEMORY_ENTRY || !entries.len().is_multiple_of(size) {
                    return Err(TagError::Size);
                }
                take_memory_map(entries, size, entries.len() / size, &mut self.boot)?;
            }
            // The newer one wins, in whichever order they come.
            ACPI_OLD if self.rsdp.is_none() => self.rsdp = copy(payload, RSDP_V1),
            ACPI_NEW => self.rsdp = copy(payload, RSDP_V2).or_else(|| self.rsdp.take()),
            _ => {}
        }
        Ok(())
    }
}

/// The first `len` bytes, if there are so many: what else is wrong with an RSDP is found where all are checked.
fn copy(payload: &[u8], len: usize) -> Option<Rsdp> {
    Rsdp::try_from(payload.get(..len)?).ok()
}

#[cfg(test)]
#[path = "multiboot2_tests.rs"]
mod tests;
