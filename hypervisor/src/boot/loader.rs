//! What the two boot protocols have in common: reading with checks, and putting what was read into [`BootInfo`].
//!
//! Pure: physical memory is read through [`Physical`].

use core::str;

use arrayvec::ArrayVec;

use super::info::{
    BootError, BootInfo, BootProblem, MAX_CMDLINE, MAX_MEMORY, MAX_MODULES, MemoryKind, MemoryPart,
    Module,
};
use super::memory_map::normalise;
use crate::mm::Range;

/// Physical memory, as far as the boot CPU can read it.
pub trait Physical {
    /// `len` bytes at `address`, or `None` if not all of them can be read.
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]>;
}

/// The little-endian word at offset `at`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

/// The little-endian word at offset `at`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(at..at.checked_add(8)?)?.try_into().ok()?,
    ))
}

/// `len` bytes at `address`; `what` names them if they cannot be read.
pub(super) fn read<'a>(
    memory: &'a impl Physical,
    what: &'static str,
    address: u64,
    len: usize,
) -> Result<&'a [u8], BootError> {
    memory
        .bytes(address, len)
        .ok_or(BootError::Unreadable { what, address })
}

fn tell(boot: &mut BootInfo, problem: BootProblem) {
    // The first few are enough.
    let _ = boot.problems.try_push(problem);
}

/// Takes a memory map of `count` entries of `size` bytes, each beginning with base, length and E820 type. `entries`
/// may not be shorter than that.
pub(super) fn take_memory_map(
    entries: &[u8],
    size: usize,
    count: usize,
    boot: &mut BootInfo,
) -> Result<(), BootError> {
    if count > MAX_MEMORY {
        return Err(too_many("entries of the memory map", count, MAX_MEMORY));
    }
    let mut raw: ArrayVec<MemoryPart, MAX_MEMORY> = ArrayVec::new();
    for (index, entry) in (0..).zip(entries.chunks_exact(size.max(1)).take(count)) {
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
            tell(boot, BootProblem::MemoryPartBad { index });
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

/// The error for `found` of something of which only `limit` fit.
pub(super) fn too_many(what: &'static str, found: usize, limit: usize) -> BootError {
    BootError::TooMany {
        what,
        found: u32::try_from(found).unwrap_or(u32::MAX),
        limit,
    }
}

/// Takes one boot module, number `index`; `end` is `None` if it wraps around.
pub(super) fn take_module(
    index: u32,
    start: u64,
    end: Option<u64>,
    boot: &mut BootInfo,
) -> Result<(), BootError> {
    let range = end
        .filter(|end| *end > start && start != 0)
        .map(|end| Range { start, end })
        .ok_or(BootError::ModuleBad { index })?;
    if let Some(other) = boot.modules.iter().find(|m| m.range.overlaps(&range)) {
        return Err(BootError::ModulesOverlap(other.range, range));
    }
    boot.modules
        .try_push(Module { range })
        .map_err(|_| too_many("boot modules", index as usize + 1, MAX_MODULES))
}

/// Takes the command line: what comes before the first NUL. An error of the iterator is passed on.
pub(super) fn take_cmdline(
    bytes: impl Iterator<Item = Result<u8, BootError>>,
    boot: &mut BootInfo,
) -> Result<(), BootError> {
    let mut line: ArrayVec<u8, MAX_CMDLINE> = ArrayVec::new();
    for byte in bytes {
        match byte? {
            0 => break,
            byte if line.try_push(byte).is_ok() => {}
            _ => {
                tell(boot, BootProblem::CmdlineTooLong);
                break;
            }
        }
    }
    let text = match str::from_utf8(&line) {
        Ok(text) => text,
        Err(e) => {
            let at = e.valid_up_to();
            tell(boot, BootProblem::CmdlineNotText { at });
            str::from_utf8(line.get(..at).unwrap_or_default()).unwrap_or_default()
        }
    };
    boot.cmdline.clear();
    // It fits: both are MAX_CMDLINE long.
    let _ = boot.cmdline.try_push_str(text);
    Ok(())
}
