//! The heap: talc over frames, growing when it runs out.
//!
//! Lock order: heap, then frames. The frame allocator never allocates from the heap.
#![cfg(target_os = "none")]
#![expect(unsafe_code, reason = "a global allocator hands out raw memory")]

use core::alloc::Layout;

use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::Binning;
use talc::source::Source;

use super::frames::LARGE;

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

#[global_allocator]
static HEAP: TalcLock<spin::Mutex<()>, FrameSource> = TalcLock::new(FrameSource);
