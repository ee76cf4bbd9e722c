//! The two places where bare ranges of host memory become values: boot modules, and the memory of guests.
#![expect(unsafe_code, reason = "makes slices and guest memory from physical ranges")]

use alloc::string::{String, ToString};

use crate::boot::Module;
use crate::mm;
use crate::mm::frames::Range;
use crate::virt::GuestMemory;

/// The bytes of a boot module. They stay where the loader put them, read-only, for as long as the machine runs.
#[must_use]
pub fn module_bytes(module: &Module) -> &'static [u8] {
    if module.range.is_empty() {
        return &[];
    }
    let start = core::ptr::with_exposed_provenance(module.range.start as usize);
    // SAFETY:
    // 1. `mm::init` has kept every module out of the free frames and mapped it read-only (else boot has ended there);
    // 2. nothing unmaps or writes it after that.
    unsafe { core::slice::from_raw_parts(start, module.range.len() as usize) }
}

/// Memory for a guest, rounded up to whole large pages. Not cleared: whoever creates the guest clears it.
///
/// # Errors
/// There is no block of that size; says how much there is.
pub fn allocate(bytes: u64) -> Result<GuestMemory, String> {
    let size = bytes.next_multiple_of(GuestMemory::ALIGN);
    let block = mm::allocate_unzeroed(size, GuestMemory::ALIGN).map_err(|why| why.to_string())?;
    // SAFETY: the block is identity-mapped RAM, aligned as asked, and nobody else's until `release`.
    Ok(unsafe { GuestMemory::from_host_region(block.start, bytes) })
}

/// Gives the memory of a guest back.
pub fn release(memory: GuestMemory) {
    let size = memory.size().next_multiple_of(GuestMemory::ALIGN);
    let block = Range::new(memory.host_base(), size);
    drop(memory);
    if let Err(why) = mm::release(block) {
        log::error!("guest memory at {:#x} could not be given back: {why}", block.start);
    }
}
