//! PVH boot: `hvm_start_info` read with checks.
//!
//! Pure: physical memory is read through [`Physical`]. Layout: Xen public headers, `arch-x86/hvm/start_info.h`
//! (x86/HVM direct boot ABI).

use core::str;

use super::info::{
    BootError, BootInfo, BootProblem, MAX_CMDLINE, MAX_MEMORY, MAX_MODULES, MemoryKind, MemoryPart,
    Module,
};
use super::memory_map::normalise;
use crate::mm::Range;
use arrayvec::ArrayVec;

/// `hvm_start_info.magic`: "xEn3" with the high bit of the E set.
pub const MAGIC: u32 = 0x336e_c578;

/// `hvm_start_info` of version 1, in bytes.
const START_INFO: usize = 56;
/// `hvm_modlist_entry`, in bytes.
const MODULE: usize = 32;
/// `hvm_memmap_table_entry`, in bytes.
const MEMORY: usize = 24;

/// Physical memory, as far as the boot CPU can read it.
pub trait Physical {
    /// `len` bytes at `address`, or `None` if not all of them can be read.
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]>;
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn read<'a>(
    memory: &'a impl Physical,
    what: &'static str,
    address: u64,
    len: usize,
) -> Result<&'a [u8], BootError> {
    memory
        .bytes(address, len)
        .ok_or(BootError::Unreadable { what, address })
}

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

fn tell(boot: &mut BootInfo, problem: BootProblem) {
    // The first few are enough.
    let _ = boot.problems.try_push(problem);
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
    if entries as usize > MAX_MEMORY {
        return Err(BootError::TooMany {
            what: "entries of the memory map",
            found: entries,
            limit: MAX_MEMORY,
        });
    }
    let table = read(memory, "memory map", at, entries as usize * MEMORY)?;
    let mut raw: ArrayVec<MemoryPart, MAX_MEMORY> = ArrayVec::new();
    for (index, entry) in table.chunks_exact(MEMORY).enumerate() {
        let (Some(start), Some(len), Some(kind)) =
            (u64_at(entry, 0), u64_at(entry, 8), u32_at(entry, 16))
        else {
            continue;
        };
        if len == 0 {
            // Firmware leaves such entries behind; they say nothing.
            continue;
        }
        let Some(end) = start.checked_add(len) else {
            tell(
                boot,
                BootProblem::MemoryPartBad {
                    index: index as u32,
                },
            );
            continue;
        };
        // E820 types: 1 usable, 3 ACPI reclaimable, 4 ACPI NVS.
        let kind = match kind {
            1 => MemoryKind::Usable,
            3 | 4 => MemoryKind::Acpi,
            _ => MemoryKind::Reserved,
        };
        raw.push(MemoryPart {
            range: Range { start, end },
            kind,
        });
    }
    let normalised = normalise(&raw)?;
    if let Some(problem) = normalised.overlap {
        tell(boot, problem);
    }
    boot.memory = normalised.parts;
    Ok(())
}

fn read_modules(
    memory: &impl Physical,
    at: u64,
    modules: u32,
    boot: &mut BootInfo,
) -> Result<(), BootError> {
    if modules as usize > MAX_MODULES {
        return Err(BootError::TooMany {
            what: "boot modules",
            found: modules,
            limit: MAX_MODULES,
        });
    }
    if modules == 0 {
        return Ok(());
    }
    let table = read(
        memory,
        "list of boot modules",
        at,
        modules as usize * MODULE,
    )?;
    for (index, entry) in (0..).zip(table.chunks_exact(MODULE)) {
        let (Some(start), Some(len)) = (u64_at(entry, 0), u64_at(entry, 8)) else {
            continue;
        };
        let range = start
            .checked_add(len)
            .filter(|end| *end > start && start != 0)
            .map(|end| Range { start, end })
            .ok_or(BootError::ModuleBad { index })?;
        if let Some(other) = boot.modules.iter().find(|m| m.range.overlaps(&range)) {
            return Err(BootError::ModulesOverlap(other.range, range));
        }
        boot.modules.push(Module { range });
    }
    boot.modules.sort_unstable_by_key(|m| m.range);
    Ok(())
}

/// Reads up to the NUL, in pieces, since the memory behind it may not be readable.
fn read_cmdline(memory: &impl Physical, at: u64, boot: &mut BootInfo) -> Result<(), BootError> {
    if at == 0 {
        return Ok(());
    }
    let mut bytes: ArrayVec<u8, MAX_CMDLINE> = ArrayVec::new();
    loop {
        let address = at.saturating_add(bytes.len() as u64);
        match read(memory, "command line", address, 1)? {
            [0] => break,
            [byte] if bytes.try_push(*byte).is_ok() => {}
            _ => {
                tell(boot, BootProblem::CmdlineTooLong);
                break;
            }
        }
    }
    let text = match str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(e) => {
            tell(
                boot,
                BootProblem::CmdlineNotText {
                    at: e.valid_up_to(),
                },
            );
            str::from_utf8(bytes.get(..e.valid_up_to()).unwrap_or_default()).unwrap_or_default()
        }
    };
    boot.cmdline.push_str(text);
    Ok(())
}

#[cfg(test)]
#[path = "pvh_tests.rs"]
mod tests;
