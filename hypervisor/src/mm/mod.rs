//! Memory: page frames, heap, page tables.
//!
//! Physical = virtual. [`init`] maps all free memory and the image, each part with exactly its rights: nothing is
//! both writable and executable, page 0 is never mapped, and below every stack lies a page that is not mapped
//! either. Device registers and firmware tables are mapped when asked for ([`map_device`], [`map_firmware`]).
//!
//! Lock order: heap, then frames; page tables, then frames. All are spin locks, taken with interrupts off, never
//! from an interrupt or NMI handler.

#[cfg(target_os = "none")]
mod error;
pub mod frames;
#[cfg(target_os = "none")]
mod heap;
#[cfg(target_os = "none")]
mod identity;
pub mod paging;
#[cfg(target_os = "none")]
mod report;
pub mod stack;

pub use frames::{FrameError, Range};

#[cfg(target_os = "none")]
pub use self::identity::{
    allocate, allocate_below, allocate_unzeroed, boot_stack, free_bytes, image, init, is_code,
    is_mapped, largest_free, map_device, map_firmware, new_stack, release, root, set_access,
    total_bytes,
};
#[cfg(target_os = "none")]
pub use self::{
    error::MmError,
    report::{Report, check_wx},
};
