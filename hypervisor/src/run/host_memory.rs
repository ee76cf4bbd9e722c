//! Where bare ranges of host memory become values, and back: boot modules, and the memory of guests.
#![expect(
    unsafe_code,
    reason = "makes slices from physical ranges, and gives guest memory back"
)]

use crate::boot::Module;
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

/// Gives the memory of a guest back, whose vCPUs have all left.
pub fn release(memory: GuestMemory) {
    let at = memory.host_base();
    // SAFETY:
    // 1. it came from `GuestMemory::allocate`, as all guest memory of the image does;
    // 2. whoever calls this got it from `Domain::reap`, after the last vCPU had left, or from a domain that was never made.
    if let Err(why) = unsafe { memory.release() } {
        log::error!("guest memory at {at:#x} could not be given back: {why}");
    }
}
