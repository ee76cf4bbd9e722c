//! Page frames: which physical memory is free.
//!
//! Pure: a sorted list of free ranges that never touch each other. Single frames are taken from the top and
//! large blocks from the bottom, so that the long-lived small ones do not cut up the space for guests.

use arrayvec::ArrayVec;
use core::fmt;

/// Size of a page frame in bytes.
pub const FRAME: u64 = 4096;
/// Size of a large page in bytes.
pub const LARGE: u64 = 2 << 20;
/// Most free ranges that are remembered.
pub const MAX_RANGES: usize = 1024;

/// A range of physical addresses, `start` included, `end` not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// First address behind.
    pub end: u64,
}

impl Range {
    /// The range of `len` bytes from `start`; clipped at the end of the address space.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Self {
        Self {
            start,
            end: start.saturating_add(len),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Is there nothing in it?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// Do the two share an address?
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Does it hold all of `other`?
    #[must_use]
    pub const fn holds(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The whole frames inside: the start rounded up, the end rounded down.
    #[must_use]
    pub const fn frames_inside(&self) -> Self {
        let start = match self.start.checked_next_multiple_of(FRAME) {
            Some(start) => start,
            None => self.end,
        };
        Self {
            start,
            end: self.end / FRAME * FRAME,
        }
    }

    /// The whole frames that touch it: the start rounded down, the end rounded up.
    #[must_use]
    pub const fn frames_around(&self) -> Self {
        let end = match self.end.checked_next_multiple_of(FRAME) {
            Some(end) => end,
            None => u64::MAX / FRAME * FRAME,
        };
        Self {
            start: self.start / FRAME * FRAME,
            end,
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// Why frames could not be had or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// No free block of this size and alignment.
    OutOfMemory {
        /// Bytes asked for.
        size: u64,
        /// Alignment asked for.
        align: u64,
    },
    /// Size 0, or an alignment that is no power of two.
    BadRequest,
    /// The block, or part of it, is free already, or is not whole frames.
    NotAllocated(Range),
    /// More free ranges than can be remembered: the block is lost.
    TooFragmented(Range),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { size, align } => {
                write!(
                    f,
                    "no free block of {} KiB (aligned to {} KiB)",
                    size / 1024,
                    align / 1024
                )
            }
            Self::BadRequest => {
                f.write_str("a block needs a size, and an alignment that is a power of two")
            }
            Self::NotAllocated(r) => write!(f, "{r} was not allocated"),
            Self::TooFragmented(r) => write!(f, "{r} is lost: more than {MAX_RANGES} free ranges"),
        }
    }
}

impl core::error::Error for FrameError {}

/// The free frames.
pub struct Frames {
    /// Sorted, disjoint, not adjacent, each whole frames and not empty.
    free: ArrayVec<Range, MAX_RANGES>,
}

impl Frames {
    /// Nothing is free.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            free: ArrayVec::new_const(),
        }
    }

    /// Bytes that are free.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.iter().map(Range::len).sum()
    }

    /// The largest free block in bytes.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.free.iter().map(Range::len).max().unwrap_or(0)
    }

    /// The free ranges, from the bottom.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.free
    }

    /// Makes the whole frames of `range` free. Used at boot and to give blocks back.
    ///
    /// # Errors
    /// Part of it is free already, it is not whole frames, or there is no room to remember it.
    pub fn release(&mut self, range: Range) -> Result<(), FrameError> {
        if range.is_empty()
            || !range.start.is_multiple_of(FRAME)
            || !range.end.is_multiple_of(FRAME)
        {
            return Err(FrameError::NotAllocated(range));
        }
        let at = self.free.partition_point(|r| r.end <= range.start);
        if self.free.get(at).is_some_and(|next| next.overlaps(&range)) {
            return Err(FrameError::NotAllocated(range));
        }
        let joins_before = at > 0 && self.free[at - 1].end == range.start;
        let joins_after = self
            .free
            .get(at)
            .is_some_and(|next| next.start == range.end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.free[at - 1].end = self.free[at].end;
                self.free.remove(at);
            }
            (true, false) => self.free[at - 1].end = range.end,
            (false, true) => self.free[at].start = range.start,
            (false, false) => {
                self.free
                    .try_insert(at, range)
                    .map_err(|_| FrameError::TooFragmented(range))?;
            }
        }
        Ok(())
    }

    /// Takes everything in `range` that is free, whoever asked for it: at boot, for what the firmware and the loader
    /// still use.
    ///
    /// # Errors
    /// There is no room to remember the two rests.
    pub fn reserve(&mut self, range: Range) -> Result<(), FrameError> {
        let range = range.frames_around();
        while let Some(at) = self.free.iter().position(|r| r.overlaps(&range)) {
            self.cut(at, range)?;
        }
        Ok(())
    }

    /// Takes a block of `size` bytes (rounded up to frames), aligned to `align`.
    ///
    /// # Errors
    /// There is no such block.
    pub fn allocate(&mut self, size: u64, align: u64) -> Result<Range, FrameError> {
        self.allocate_below(size, align, u64::MAX)
    }

    /// [`Self::allocate`], with the whole block below `limit`.
    ///
    /// # Errors
    /// There is no such block.
    pub fn allocate_below(
        &mut self,
        size: u64,
        align: u64,
        limit: u64,
    ) -> Result<Range, FrameError> {
        let size = size
            .checked_next_multiple_of(FRAME)
            .filter(|s| *s != 0)
            .ok_or(FrameError::BadRequest)?;
        if !align.is_power_of_two() {
            return Err(FrameError::BadRequest);
        }
        let align = align.max(FRAME);
        let fit_low = |r: &Range| {
            let start = r.start.checked_next_multiple_of(align)?;
            let end = start.checked_add(size)?;
            (end <= r.end.min(limit)).then_some(Range { start, end })
        };
        let fit_high = |r: &Range| {
            let start = r.end.min(limit).checked_sub(size)? / align * align;
            (start >= r.start).then_some(Range {
                start,
                end: start + size,
            })
        };
        let found = if size >= LARGE {
            self.free
                .iter()
                .enumerate()
                .find_map(|(i, r)| Some((i, fit_low(r)?)))
        } else {
            self.free
                .iter()
                .enumerate()
                .rev()
                .find_map(|(i, r)| Some((i, fit_high(r)?)))
        };
        let (at, block) = found.ok_or(FrameError::OutOfMemory { size, align })?;
        self.cut(at, block)?;
        Ok(block)
    }

    /// Removes `range` from the free range `at`, which it overlaps.
    fn cut(&mut self, at: usize, range: Range) -> Result<(), FrameError> {
        let whole = self.free[at];
        let before = Range {
            start: whole.start,
            end: range.start.max(whole.start),
        };
        let after = Range {
            start: range.end.min(whole.end),
            end: whole.end,
        };
        match (before.is_empty(), after.is_empty()) {
            (true, true) => {
                self.free.remove(at);
            }
            (false, true) => self.free[at] = before,
            (true, false) => self.free[at] = after,
            (false, false) => {
                self.free
                    .try_insert(at + 1, after)
                    .map_err(|_| FrameError::TooFragmented(after))?;
                self.free[at] = before;
            }
        }
        Ok(())
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(ranges: &[(u64, u64)]) -> Frames {
        let mut frames = Frames::new();
        for &(start, end) in ranges {
            frames.release(Range { start, end }).unwrap();
        }
        frames
    }

    #[test]
    fn neighbours_become_one() {
        let frames = with(&[(0x1000, 0x2000), (0x3000, 0x4000), (0x2000, 0x3000)]);
        assert_eq!(
            frames.ranges(),
            [Range {
                start: 0x1000,
                end: 0x4000
            }]
        );
    }

    #[test]
    fn a_block_is_not_freed_twice() {
        let mut frames = with(&[(0x1000, 0x4000)]);
        let twice = Range {
            start: 0x3000,
            end: 0x5000,
        };
        assert_eq!(frames.release(twice), Err(FrameError::NotAllocated(twice)));
        let odd = Range {
            start: 0x8001,
            end: 0x9000,
        };
        assert_eq!(frames.release(odd), Err(FrameError::NotAllocated(odd)));
        assert_eq!(frames.free_bytes(), 0x3000);
    }

    #[test]
    fn small_blocks_come_from_the_top_and_large_ones_from_the_bottom() {
        let mut frames = with(&[(0x10_0000, 0x100_0000)]);
        assert_eq!(
            frames.allocate(1, 1).unwrap(),
            Range {
                start: 0xff_f000,
                end: 0x100_0000
            }
        );
        assert_eq!(
            frames.allocate(LARGE, LARGE).unwrap(),
            Range {
                start: 0x20_0000,
                end: 0x40_0000
            }
        );
        assert_eq!(
            frames.allocate_below(0x1000, 1, 0x20_0000).unwrap(),
            Range {
                start: 0x1f_f000,
                end: 0x20_0000
            }
        );
    }

    #[test]
    fn what_does_not_fit_is_an_error_and_takes_nothing() {
        let mut frames = with(&[(0x10_0000, 0x30_0000)]);
        assert_eq!(
            frames.allocate(4 << 20, 1),
            Err(FrameError::OutOfMemory {
                size: 4 << 20,
                align: FRAME
            })
        );
        assert_eq!(
            frames.allocate(LARGE, 1 << 30),
            Err(FrameError::OutOfMemory {
                size: LARGE,
                align: 1 << 30
            })
        );
        assert_eq!(frames.allocate(0, 1), Err(FrameError::BadRequest));
        assert_eq!(frames.allocate(u64::MAX, 1), Err(FrameError::BadRequest));
        assert_eq!(frames.allocate(1, 3), Err(FrameError::BadRequest));
        assert_eq!(frames.free_bytes(), 0x20_0000);
    }

    #[test]
    fn reserving_rounds_outwards_and_spans_ranges() {
        let mut frames = with(&[(0x1000, 0x4000), (0x6000, 0x9000)]);
        frames
            .reserve(Range {
                start: 0x2fff,
                end: 0x6001,
            })
            .unwrap();
        assert_eq!(
            frames.ranges(),
            [
                Range {
                    start: 0x1000,
                    end: 0x2000
                },
                Range {
                    start: 0x7000,
                    end: 0x9000
                }
            ]
        );
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_come_back(
            requests in proptest::collection::vec((1u64..0x50_0000, 0u32..3, any::<bool>()), 1..60)
        ) {
            let mut frames = with(&[(0x1000, 0x9_f000), (0x10_0000, 0x1000_0000)]);
            let all = frames.free_bytes();
            let mut held: alloc::vec::Vec<Range> = alloc::vec::Vec::new();
            for (size, align, give_back) in requests {
                let align = [1, FRAME, LARGE][align as usize];
                if let Ok(block) = frames.allocate(size, align) {
                    prop_assert!(block.len() >= size && block.start % align == 0);
                    prop_assert!(held.iter().all(|h| !h.overlaps(&block)));
                    held.push(block);
                }
                if give_back && !held.is_empty() {
                    frames.release(held.swap_remove(0)).unwrap();
                }
                prop_assert!(frames.ranges().windows(2).all(|w| w[0].end < w[1].start));
                prop_assert_eq!(all, frames.free_bytes() + held.iter().map(Range::len).sum::<u64>());
            }
        }
    }
}
