//! The one address space: an identity map of the memory of this machine.
#![expect(unsafe_code, reason = "page tables and fresh frames are raw memory")]

use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

use super::error::{LEAST_MEMORY, MmError};
use super::frames::{FRAME, FrameError, Frames, Range};
use super::paging::{self, Access, ENTRIES, Tables};
use super::stack::{GUARD, Stack};
use crate::boot::{BootInfo, MemoryKind};
use crate::cpu::regs;

static FRAMES: Mutex<Frames> = Mutex::new(Frames::new());
pub(super) static TABLES: Mutex<Memory> = Mutex::new(Memory { largest: 2 });
/// Physical address of the top table; 0 = the boot tables are still in use.
static ROOT: AtomicU64 = AtomicU64::new(0);
static TOTAL: AtomicU64 = AtomicU64::new(0);

// SAFETY: symbols that link.ld and the entry code define; only their addresses are used.
unsafe extern "C" {
    static __image_start: u8;
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_start: u8;
    static __rodata_end: u8;
    static __data_start: u8;
    static __data_end: u8;
    static __image_end: u8;
    static lull_boot_stack_guard: u8;
    static lull_boot_stack_top: u8;
}

macro_rules! between {
    ($start:ident, $end:ident) => {
        Range {
            start: (&raw const $start).addr() as u64,
            end: (&raw const $end).addr() as u64,
        }
    };
}

/// Where the image lies.
#[must_use]
pub fn image() -> Range {
    between!(__image_start, __image_end).frames_around()
}

/// Is this an address of the image's code?
#[must_use]
pub fn is_code(address: u64) -> bool {
    let text = between!(__text_start, __text_end);
    text.start <= address && address < text.end
}

/// The stack that the boot CPU runs on.
#[must_use]
pub fn boot_stack() -> Stack {
    let whole = between!(lull_boot_stack_guard, lull_boot_stack_top);
    Stack::new(whole.start + GUARD, whole.len() - GUARD)
}

/// Page tables in identity-mapped memory.
pub(super) struct Memory {
    largest: u32,
}

impl Memory {
    fn entry(table: u64, index: usize) -> *mut u64 {
        debug_assert!(index < ENTRIES && table.is_multiple_of(FRAME));
        core::ptr::with_exposed_provenance_mut::<u64>(table as usize).wrapping_add(index)
    }
}

impl Tables for Memory {
    fn read(&self, table: u64, index: usize) -> u64 {
        // SAFETY: `table` came from `allocate` below or is the root: a mapped frame of this address space, only
        // touched under the lock around `Memory` (and by the CPU's page walker, hence volatile).
        unsafe { Self::entry(table, index).read_volatile() }
    }

    fn write(&mut self, table: u64, index: usize, entry: u64) {
        // SAFETY: as in `read`.
        unsafe { Self::entry(table, index).write_volatile(entry) };
    }

    fn allocate(&mut self) -> Result<u64, FrameError> {
        Ok(super::allocate(FRAME, FRAME)?.start)
    }

    fn largest_page_level(&self) -> u32 {
        self.largest
    }
}

/// Takes over the memory: frames from the memory map, then page tables with exact rights, then switches to them.
///
/// `giant_pages`: the CPU has 1 GiB pages. `smep`, `smap` are turned on by [`crate::cpu`], not here.
///
/// # Errors
/// The memory map, the image and the modules do not fit together, or there is too little memory.
pub fn init(boot: &BootInfo, giant_pages: bool) -> Result<(), MmError> {
    let image = image();
    let usable = || {
        boot.memory
            .iter()
            .filter(|m| m.kind == MemoryKind::Usable)
            .map(|m| m.range)
    };
    let total: u64 = usable().map(|r| r.frames_inside().len()).sum();
    TOTAL.store(total, Ordering::Relaxed);
    if total < LEAST_MEMORY {
        return Err(MmError::TooLittle { found: total });
    }
    if !usable().any(|r| r.holds(&image)) {
        return Err(MmError::ImageNotInMemory(image));
    }
    for module in &boot.modules {
        if !usable().any(|r| r.holds(&module.range)) {
            return Err(MmError::ModuleNotInMemory(module.range));
        }
        if module.range.overlaps(&image) {
            return Err(MmError::ModuleOverImage(module.range));
        }
    }
    {
        let mut frames = FRAMES.lock();
        // What the boot tables do not map comes after the switch.
        for range in usable() {
            let inside = Range {
                start: range.start,
                end: range.end.min(BOOT_MAPPED),
            }
            .frames_inside();
            if !inside.is_empty() {
                frames.release(inside)?;
            }
        }
        // Page 0 stays unmapped, so that null pointers fault.
        frames.reserve(Range {
            start: 0,
            end: FRAME,
        })?;
        frames.reserve(image)?;
        for module in &boot.modules {
            frames.reserve(module.range)?;
        }
    }
    build(boot, giant_pages)?;
    let mut frames = FRAMES.lock();
    for range in usable() {
        let above = Range {
            start: range.start.max(BOOT_MAPPED),
            end: range.end.min(paging::END),
        }
        .frames_inside();
        if !above.is_empty() {
            frames.release(above)?;
        }
    }
    Ok(())
}

/// The boot tables map this much.
const BOOT_MAPPED: u64 = 4 << 30;

fn build(boot: &BootInfo, giant_pages: bool) -> Result<(), MmError> {
    let mut tables = TABLES.lock();
    tables.largest = if giant_pages { 3 } else { 2 };
    // CPUs start in 32-bit mode: they need the root below 4 GiB.
    let root = super::allocate_below(FRAME, FRAME, BOOT_MAPPED)?.start;
    let mut map = |range: Range, access| paging::set(&mut *tables, root, range, access);
    for part in &boot.memory {
        match part.kind {
            MemoryKind::Usable => map(part.range, Some(Access::Data))?,
            MemoryKind::Acpi => map(part.range, Some(Access::ReadOnly))?,
            MemoryKind::Reserved if near_memory(boot, part.range) => {
                map(part.range, Some(Access::ReadOnly))?
            }
            MemoryKind::Reserved => {}
        }
    }
    // The BIOS area, where the firmware's root pointer is searched.
    map(
        Range {
            start: 0xE_0000,
            end: 0x10_0000,
        },
        Some(Access::ReadOnly),
    )?;
    map(
        Range {
            start: 0,
            end: FRAME,
        },
        None,
    )?;
    for module in &boot.modules {
        map(module.range, Some(Access::ReadOnly))?;
    }
    map(image(), Some(Access::ReadOnly))?;
    map(between!(__text_start, __text_end), Some(Access::Code))?;
    map(
        between!(__rodata_start, __rodata_end),
        Some(Access::ReadOnly),
    )?;
    map(between!(__data_start, __data_end), Some(Access::Data))?;
    let guard = boot_stack().guard();
    map(Range::new(guard, GUARD), None)?;
    ROOT.store(root, Ordering::Release);
    // SAFETY: the new tables map the running code, its data and its stack where the old ones did.
    unsafe { regs::set_cr3(root) };
    Ok(())
}

/// Some firmware keeps its tables in what it calls reserved, right behind the memory: small, and touching memory.
/// Device registers are neither.
fn near_memory(boot: &BootInfo, range: Range) -> bool {
    range.len() <= FIRMWARE_MAX
        && boot.memory.iter().any(|m| {
            m.kind != MemoryKind::Reserved
                && (m.range.end == range.start || m.range.start == range.end)
        })
}

/// Largest reserved range that is taken for firmware tables.
const FIRMWARE_MAX: u64 = 16 << 20;

/// Physical address of the top page table, for the CPUs that start later. Below 4 GiB.
#[must_use]
pub fn root() -> u64 {
    ROOT.load(Ordering::Acquire)
}

/// Bytes of usable memory in the machine.
#[must_use]
pub fn total_bytes() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

/// Bytes that are free now.
#[must_use]
pub fn free_bytes() -> u64 {
    FRAMES.lock().free_bytes()
}

/// Bytes in the largest free block.
#[must_use]
pub fn largest_free() -> u64 {
    FRAMES.lock().largest()
}

/// A block of zeroed frames: `size` bytes rounded up to 4 KiB, aligned to `align` (a power of two), contiguous.
///
/// It is identity-mapped, readable and writable, and the caller's alone until [`release`].
///
/// # Errors
/// There is no such block.
pub fn allocate(size: u64, align: u64) -> Result<Range, FrameError> {
    allocate_below(size, align, u64::MAX)
}

/// [`allocate`], with the whole block below `limit`.
///
/// # Errors
/// There is no such block.
pub fn allocate_below(size: u64, align: u64, limit: u64) -> Result<Range, FrameError> {
    let block = FRAMES.lock().allocate_below(size, align, limit)?;
    // SAFETY: the block is free memory of our own, mapped writable.
    unsafe {
        core::ptr::with_exposed_provenance_mut::<u8>(block.start as usize)
            .write_bytes(0, block.len() as usize);
    }
    Ok(block)
}

/// [`allocate`] without the zeroing: the content is whatever was there.
///
/// # Errors
/// There is no such block.
pub fn allocate_unzeroed(size: u64, align: u64) -> Result<Range, FrameError> {
    FRAMES.lock().allocate(size, align)
}

/// Gives a block back. Nobody may use it any more.
///
/// # Errors
/// It was not allocated, or so many holes exist that it cannot be remembered (it is lost then).
pub fn release(block: Range) -> Result<(), FrameError> {
    FRAMES.lock().release(block)
}

/// Changes the access to memory that is mapped already, on this CPU; other CPUs may still use the old right until
/// they reload. For memory that only this CPU has used.
///
/// # Errors
/// No frame for a table, or the range would leave the rules (see [`MmError::BadRange`]).
pub fn set_access(range: Range, access: Option<Access>) -> Result<(), MmError> {
    let range = range.frames_around();
    if range.is_empty()
        || range.end > paging::END
        || range.start < FRAME
        || range.overlaps(&image())
    {
        return Err(MmError::BadRange(range));
    }
    let mut tables = TABLES.lock();
    paging::set(&mut *tables, root(), range, access)?;
    if range.len() > 64 * FRAME {
        // SAFETY: reloading the same tables only drops cached translations.
        unsafe { regs::set_cr3(root()) };
    } else {
        let mut at = range.start;
        while at < range.end {
            regs::invlpg(at);
            at += FRAME;
        }
    }
    Ok(())
}

/// Maps `len` bytes of device registers at `address`: uncached, readable and writable, never executable. Gives the
/// address to use, which is the same one. Asking again is harmless.
///
/// # Errors
/// The range is empty, too high, or overlaps ordinary memory.
pub fn map_device(address: u64, len: u64) -> Result<u64, MmError> {
    map_other(address, len, Access::Device)
}

/// Maps a firmware table that lies outside usable memory: read-only, cached. What is mapped already stays as it is.
///
/// # Errors
/// The range is empty or too high.
pub fn map_firmware(address: u64, len: u64) -> Result<u64, MmError> {
    map_other(address, len, Access::ReadOnly)
}

fn map_other(address: u64, len: u64, access: Access) -> Result<u64, MmError> {
    let range = Range::new(address, len);
    let frames = range.frames_around();
    if range.is_empty() || frames.end > paging::END || frames.start < FRAME {
        return Err(MmError::BadRange(range));
    }
    let mut tables = TABLES.lock();
    let mut at = frames.start;
    while at < frames.end {
        match paging::find(&*tables, root(), at) {
            // New: nothing to drop, a CPU caches no translation that does not exist.
            None => paging::set(&mut *tables, root(), Range::new(at, FRAME), Some(access))?,
            Some(page) if access == Access::Device && !page.device => {
                return Err(MmError::BadRange(range));
            }
            Some(_) => {}
        }
        at += FRAME;
    }
    Ok(address)
}

/// Is all of `range` mapped?
#[must_use]
pub fn is_mapped(range: Range) -> bool {
    let tables = TABLES.lock();
    let mut at = range.start;
    while at < range.end {
        match paging::find(&*tables, root(), at) {
            None => return false,
            Some(page) => at = page.address + page.size,
        }
    }
    !range.is_empty()
}

/// A new stack of `size` bytes (rounded up to frames) above an unmapped page.
///
/// # Errors
/// No frames.
pub fn new_stack(size: u64) -> Result<Stack, MmError> {
    let block = allocate(size.saturating_add(GUARD), FRAME)?;
    set_access(Range::new(block.start, GUARD), None)?;
    Ok(Stack::new(block.start + GUARD, block.len() - GUARD))
}
