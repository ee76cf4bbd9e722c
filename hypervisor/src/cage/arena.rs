//! The heap of the cage: what is allocated inside lives in here, and dies with it.
//!
//! The global allocator ([`crate::mm`]) sends every allocation of the CPU in the cage here. No lock: only that CPU, only
//! between opening and closing it, and no interrupt handler allocates.
#![expect(unsafe_code, reason = "an allocator hands out raw memory")]

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use talc::DefaultBinning;
use talc::base::Talc;
use talc::source::Manual;

use crate::mm::Range;

struct Arena(UnsafeCell<Talc<Manual, DefaultBinning>>);

// SAFETY: only the CPU in the cage touches it (see the module).
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new(Talc::new(Manual)));
static START: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
static USED_UP: AtomicBool = AtomicBool::new(false);

/// Makes `block` the arena.
///
/// # Safety
/// The block is mapped, writable, and nobody else's until after [`close`]; no arena is open; nobody is inside.
pub(super) unsafe fn open(block: Range) {
    // SAFETY: nobody is inside, so nobody else looks at it; the block is ours, says the caller.
    unsafe {
        let talc = &mut *ARENA.0.get();
        *talc = Talc::new(Manual);
        let start = core::ptr::with_exposed_provenance_mut(block.start as usize);
        // Too small a block leaves the arena empty: the first allocation fails, which is reported.
        let _end = talc.claim(start, block.len() as usize);
    }
    USED_UP.store(false, Ordering::Relaxed);
    START.store(block.start, Ordering::Relaxed);
    END.store(block.end, Ordering::Relaxed);
}

/// Forgets the arena and all that is in it.
pub(super) fn close() {
    START.store(0, Ordering::Relaxed);
    END.store(0, Ordering::Relaxed);
}

/// Has an allocation failed since [`open`]?
pub(super) fn used_up() -> bool {
    USED_UP.load(Ordering::Relaxed)
}

/// Is this in the arena?
pub fn holds(at: *const u8) -> bool {
    let at = at.addr() as u64;
    START.load(Ordering::Relaxed) <= at && at < END.load(Ordering::Relaxed)
}

/// Allocates in the arena. Null: it is used up.
///
/// # Safety
/// The CPU is in the cage; the size is not zero.
pub unsafe fn allocate(layout: Layout) -> *mut u8 {
    // SAFETY: this CPU is the one in the cage, and is not in this function already (handlers do not allocate).
    match unsafe { (*ARENA.0.get()).allocate(layout) } {
        Some(at) => at.as_ptr(),
        None => {
            USED_UP.store(true, Ordering::Relaxed);
            core::ptr::null_mut()
        }
    }
}

/// Gives an allocation back to the arena.
///
/// # Safety
/// As [`allocate`], and `at` came from there with this layout.
pub unsafe fn deallocate(at: *mut u8, layout: Layout) {
    // SAFETY: as in `allocate`; the rest says the caller.
    unsafe { (*ARENA.0.get()).deallocate(at, layout) };
}
