//! The heap: talc over frames, growing when it runs out.
//!
//! What a CPU in the cage allocates goes to the cage's arena instead (see [`crate::cage`]): an allocation of the heap is
//! neither changed nor freed from inside, and one of the arena not from outside.
//!
//! Lock order: heap, then frames. The frame allocator never allocates from the heap.
#![cfg(target_os = "none")]
#![expect(unsafe_code, reason = "a global allocator hands out raw memory")]

use core::alloc::{GlobalAlloc, Layout};

use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::Binning;
use talc::source::Source;

use super::frames::LARGE;
use crate::cage::{self, arena};

/// Bytes that the heap takes from the frame allocator at a time, at least.
const STEP: u64 = 2 * LARGE;

/// Gets more heap from the frame allocator.
#[derive(Debug)]
struct FrameSource;

// SAFETY: uses the `Talc` it is given and the frame allocator, never the heap.
unsafe impl Source for FrameSource {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        // Talc's own tables and headers need some of it.
        let size = (layout.size() as u64)
            .checked_add(layout.align() as u64 + 64 * 1024)
            .ok_or(())?
            .max(STEP);
        let block = super::allocate_unzeroed(size, LARGE).map_err(|_| ())?;
        let len = usize::try_from(block.len()).map_err(|_| ())?;
        // SAFETY: the block is ours alone from now on, mapped and writable (all free RAM is).
        unsafe {
            talc.claim(
                core::ptr::with_exposed_provenance_mut(block.start as usize),
                len,
            )
        }
        .map(|_| ())
        .ok_or(())
    }
}

struct Heap(TalcLock<spin::Mutex<()>, FrameSource>);

#[global_allocator]
static HEAP: Heap = Heap(TalcLock::new(FrameSource));

// SAFETY: both halves are allocators, and an address tells which one it is of. Where the wrong side frees, the memory is
// kept: the arena is given back as a whole, and what the cage would free of the heap is leaked.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if cage::is_inside() {
            // SAFETY: this CPU is in the cage; the caller answers for the layout.
            unsafe { arena::allocate(layout) }
        } else {
            // SAFETY: the caller answers for the layout.
            unsafe { self.0.alloc(layout) }
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match (arena::holds(at), cage::is_inside()) {
            // SAFETY: this CPU is in the cage, and the address is of the arena.
            (true, true) => unsafe { arena::deallocate(at, layout) },
            // SAFETY: the address is of the heap; the caller answers for the layout.
            (false, false) => unsafe { self.0.dealloc(at, layout) },
            (true, false) | (false, true) => {}
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !cage::is_inside() && !arena::holds(at) {
            // SAFETY: the address is of the heap; the caller answers for the rest.
            return unsafe { self.0.realloc(at, layout, new_size) };
        }
        // SAFETY: the caller promises that the new size, rounded up, does not overflow; the old block is readable and the
        // new one writable for the smaller of the two sizes, and they are apart.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(at, layout.size().min(new_size));
                self.dealloc(at, layout);
            }
            new
        }
    }
}
