//! PVH boot: `hvm_start_info` read with checks.
//!
//! Pure: physical memory is read through [`Physical`]. Layout: Xen public headers, `arch-x86/hvm/start_info.h`
//! (x86/HVM direct boot ABI).

use super::info::{BootError, BootInfo, MAX_MEMORY, MAX_MODULES};
use super::loader::{
    Physical, read, take_cmdline, take_memory_map, take_module, too_many, u32_at, u64_at,
};

/// `hvm_start_info.magic`: "xEn3" with the high bit of the E set.
pub const MAGIC: u32 = 0x336e_c578;

/// `hvm_start_info` of version 1, in bytes.
const START_INFO: usize = 56;
/// `hvm_modlist_entry`, in bytes.
const MODULE: usize = 32;
/// `hvm_memmap_table_entry`, in bytes.
const MEMORY: usize = 24;

/// Reads the start info at `address` and everything that it points at.
///
/// # Errors
/// It is not a start info, has no memory map, or points at what cannot be read or does not fit together.
pub fn parse(memory: &impl Physical, address: u64) -> Result<BootInfo, BootError> {
    let unreadable = BootError::Unreadable {
        what: "start info",
        address,
    };
    let head = memory.bytes(address, 8).ok_or(unreadable)?;
    let magic = u32_at(head, 0).ok_or(unreadable)?;
    if magic != MAGIC {
        return Err(BootError::BadMagic(magic));
    }
    let version = u32_at(head, 4).ok_or(unreadable)?;
    if version < 1 {
        return Err(BootError::BadVersion(version));
    }
    let info = memory.bytes(address, START_INFO).ok_or(unreadable)?;
    let field = |at| u64_at(info, at).ok_or(unreadable);
    let count = |at| u32_at(info, at).ok_or(unreadable);

    let mut boot = BootInfo::default();
    read_memory_map(memory, field(40)?, count(48)?, &mut boot)?;
    read_modules(memory, field(16)?, count(12)?, &mut boot)?;
    read_cmdline(memory, field(24)?, &mut boot)?;
    boot.rsdp = Some(field(32)?).filter(|a| *a != 0);
    Ok(boot)
}

fn read_memory_map(
    memory: &impl Physical,
    at: u64,
    entries: u32,
    boot: &mut BootInfo,
) -> Result<(), BootError> {
    if at == 0 || entries == 0 {
        return Err(BootError::NoMemoryMap);
    }
    let count = entries as usize;
    if count > MAX_MEMORY {
        return Err(too_many("entries of the memory map", count, MAX_MEMORY));
    }
    let table = read(memory, "memory map", at, count * MEMORY)?;
    take_memory_map(table, MEMORY, count, boot)
}

fn read_modules(
    memory: &impl Physical,
    at: u64,
    modules: u32,
    boot: &mut BootInfo,
) -> Result<(), BootError> {
    let count = modules as usize;
    if count > MAX_MODULES {
        return Err(too_many("boot modules", count, MAX_MODULES));
    }
    if count == 0 {
        return Ok(());
    }
    let table = read(memory, "list of boot modules", at, count * MODULE)?;
    for (index, entry) in (0..).zip(table.chunks_exact(MODULE)) {
        let (Some(start), Some(len)) = (u64_at(entry, 0), u64_at(entry, 8)) else {
            continue;
        };
        take_module(index, start, start.checked_add(len), boot)?;
    }
    boot.modules.sort_unstable_by_key(|m| m.range);
    Ok(())
}

/// Reads up to the NUL, byte by byte, since the memory behind it may not be readable.
fn read_cmdline(memory: &impl Physical, at: u64, boot: &mut BootInfo) -> Result<(), BootError> {
    if at == 0 {
        return Ok(());
    }
    let byte = |offset| {
        let address = at.saturating_add(offset);
        read(memory, "command line", address, 1).map(|bytes| bytes.first().copied().unwrap_or(0))
    };
    take_cmdline((0..).map(byte), boot)
}

#[cfg(test)]
#[path = "pvh_tests.rs"]
mod tests;
