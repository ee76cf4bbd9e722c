//! Guest memory: one contiguous host region, guest-physical 0 upwards.
//!
//! The guest writes to this memory while the hypervisor reads it. So no reference into it is ever formed: bytes are copied in and
//! out through raw pointers, every copy is bounds-checked, and what was copied out once is not read again. A value that the guest
//! changes meanwhile is torn at worst, and checked after the copy.
#![expect(
    unsafe_code,
    reason = "copies bytes between guest memory and the hypervisor"
)]

use alloc::vec::Vec;
use core::fmt;

/// The range does not lie in the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// Guest-physical address.
    pub gpa: u64,
    /// Bytes asked for.
    pub len: u64,
    /// Size of the memory.
    pub size: u64,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "guest memory ends at {:#x}: no {} bytes at {:#x}",
            self.size, self.len, self.gpa
        )
    }
}

/// Memory of one domain.
#[derive(Debug)]
pub struct GuestMemory {
    base: *mut u8,
    size: u64,
    /// The whole words end here.
    words_end: u64,
    /// The whole pages end here.
    pages_end: u64,
}

// SAFETY: the region is owned by this value for its whole life (contract of `from_host_region`), and all accesses are copies of
// bytes that make no assumption about what is there.
unsafe impl Send for GuestMemory {}
// SAFETY: as above; concurrent copies see torn values at worst, which callers have to expect of guest memory anyway.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Alignment of the host region: that of a large page.
    pub const ALIGN: u64 = 2 << 20;

    /// Takes a host region as guest memory. The contents are left as they are: the caller clears them.
    ///
    /// # Safety
    /// `base..base+size` (bytes) is identity-mapped RAM that nothing else uses for the life of this value, and `base` is aligned
    /// to [`ALIGN`](Self::ALIGN).
    pub unsafe fn from_host_region(base: u64, size: u64) -> Self {
        debug_assert!(base.is_multiple_of(Self::ALIGN));
        Self::new(core::ptr::with_exposed_provenance_mut(base as usize), size)
    }

    /// Zeroed memory from the frame allocator, `size` bytes rounded up to pages.
    ///
    /// It is not given back when this value is dropped: tables of a running guest may still lead to it. See
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// No contiguous block of that size is free.
    #[cfg(target_os = "none")]
    pub fn allocate(size: u64) -> Result<Self, crate::mm::FrameError> {
        let block = crate::mm::allocate(size, Self::ALIGN)?;
        // SAFETY: the block is zeroed RAM, identity-mapped and aligned, and from here on only this value's.
        Ok(unsafe { Self::from_host_region(block.start, block.end - block.start) })
    }

    /// Gives back memory from [`allocate`](Self::allocate).
    ///
    /// # Safety
    /// No vCPU that can reach it will run again, and the memory came from `allocate`.
    ///
    /// # Errors
    /// The frame allocator cannot take it: it is lost.
    #[cfg(target_os = "none")]
    pub unsafe fn release(self) -> Result<(), crate::mm::FrameError> {
        crate::mm::release(crate::mm::Range::new(self.host_base(), self.size))
    }

    /// Zeroed memory of its own, never freed: for host tests.
    #[cfg(any(test, not(target_os = "none")))]
    #[expect(clippy::expect_used, reason = "host tests only")]
    pub fn leaked(size: u64) -> Self {
        let layout =
            core::alloc::Layout::from_size_align(size.max(1) as usize, Self::ALIGN as usize)
                .expect("small size");
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc::alloc::alloc_zeroed(layout) };
        assert!(!base.is_null(), "out of memory");
        let _ = base.expose_provenance();
        Self::new(base, size)
    }

    fn new(base: *mut u8, size: u64) -> Self {
        Self {
            base,
            size,
            words_end: size & !7,
            pages_end: size & !0xfff,
        }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Host-physical (and virtual) address of guest-physical 0.
    pub fn host_base(&self) -> u64 {
        self.base.addr() as u64
    }

    /// Whether `len` bytes at `gpa` lie inside.
    pub fn contains(&self, gpa: u64, len: u64) -> bool {
        gpa.checked_add(len).is_some_and(|end| end <= self.size)
    }

    fn pointer(&self, gpa: u64, len: usize) -> Result<*mut u8, OutOfRange> {
        if self.contains(gpa, len as u64) {
            Ok(self.base.wrapping_add(gpa as usize))
        } else {
            Err(OutOfRange {
                gpa,
                len: len as u64,
                size: self.size,
            })
        }
    }

    /// Copies out of the guest.
    pub fn read(&self, gpa: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.pointer(gpa, to.len())?;
        // SAFETY: `pointer` checked the whole range; `to` is the hypervisor's own and cannot overlap memory that only this value
        // hands out.
        unsafe { core::ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies into the guest.
    pub fn write(&self, gpa: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let to = self.pointer(gpa, from.len())?;
        // SAFETY: as in `read`.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Sets `len` bytes to `byte`.
    pub fn fill(&self, gpa: u64, len: u64, byte: u8) -> Result<(), OutOfRange> {
        let out = OutOfRange {
            gpa,
            len,
            size: self.size,
        };
        let len = usize::try_from(len).map_err(|_| out)?;
        let to = self.pointer(gpa, len)?;
        // SAFETY: `pointer` checked the whole range.
        unsafe { core::ptr::write_bytes(to, byte, len) };
        Ok(())
    }

    /// A copy of `len` bytes. Check `len` against what makes sense before: it is allocated.
    pub fn read_vec(&self, gpa: u64, len: usize) -> Result<Vec<u8>, OutOfRange> {
        self.pointer(gpa, len)?;
        let mut bytes = alloc::vec![0; len];
        self.read(gpa, &mut bytes)?;
        Ok(bytes)
    }

    /// A little-endian 16-bit value. Needs no alignment.
    pub fn read_u16(&self, gpa: u64) -> Result<u16, OutOfRange> {
        let mut bytes = [0; 2];
        self.read(gpa, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// A little-endian 32-bit value. Needs no alignment.
    pub fn read_u32(&self, gpa: u64) -> Result<u32, OutOfRange> {
        let mut bytes = [0; 4];
        self.read(gpa, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// A little-endian 64-bit value. An aligned one (a page table entry) is read in one access.
    pub fn read_u64(&self, gpa: u64) -> Result<u64, OutOfRange> {
        let from = self.pointer(gpa, 8)?;
        if gpa.is_multiple_of(8) {
            // SAFETY: in range by `pointer`; aligned, since the base is; volatile, since the guest may be writing it.
            return Ok(unsafe { core::ptr::read_volatile(from.cast::<u64>()) });
        }
        let mut bytes = [0; 8];
        self.read(gpa, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The 8 bytes at `gpa & !7`, read in one access; `None` beyond the memory. For page walks that have no time.
    #[inline(always)]
    pub fn word(&self, gpa: u64) -> Option<u64> {
        let gpa = gpa & !7;
        if gpa >= self.words_end {
            return None;
        }
        let from = self.base.wrapping_add(gpa as usize).cast::<u64>();
        // SAFETY: `words_end` is a multiple of 8 within the memory, so all 8 bytes are; aligned, since the base is; volatile, since
        // the guest may be writing it.
        Some(unsafe { core::ptr::read_volatile(from) })
    }

    /// The 16 bytes at `gpa`; `None` if they go beyond its page or the memory.
    #[inline(always)]
    pub fn code(&self, gpa: u64) -> Option<u128> {
        if gpa & 0xfff > 0x1000 - 16 || gpa >= self.pages_end {
            return None;
        }
        let from = self.base.wrapping_add(gpa as usize).cast::<u128>();
        // SAFETY: `pages_end` is a multiple of the page size within the memory, and the 16 bytes lie in one page.
        Some(unsafe { core::ptr::read_unaligned(from.cast_const()) })
    }

    /// Stores a little-endian 32-bit value.
    pub fn write_u32(&self, gpa: u64, value: u32) -> Result<(), OutOfRange> {
        self.write(gpa, &value.to_le_bytes())
    }

    /// Stores a little-endian 64-bit value.
    pub fn write_u64(&self, gpa: u64, value: u64) -> Result<(), OutOfRange> {
        self.write(gpa, &value.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_round_trip_up_to_the_last_byte() {
        let memory = GuestMemory::leaked(0x3000);
        memory.write(0x2ffc, &[1, 2, 3, 4]).unwrap();
        assert_eq!(memory.read_u32(0x2ffc), Ok(0x0403_0201));
        assert_eq!(memory.read_u16(0x2ffd), Ok(0x0302));
        memory.write_u64(0x11, 0x1122_3344_5566_7788).unwrap();
        assert_eq!(memory.read_u64(0x11), Ok(0x1122_3344_5566_7788));
        memory.fill(0x10, 4, 0xaa).unwrap();
        assert_eq!(memory.read_u64(0x10), Ok(0x2233_4455_aaaa_aaaa));
    }

    #[test]
    fn words_and_code_end_with_the_memory() {
        let memory = GuestMemory::leaked(0x1ffc);
        memory.write_u64(0x1ff0, 0x1122_3344_5566_7788).unwrap();
        assert_eq!(memory.word(0x1ff5), Some(0x1122_3344_5566_7788));
        assert_eq!(memory.word(0x1ff8), None);
        assert_eq!(memory.word(u64::MAX), None);
        memory.write_u64(0xff0, 5).unwrap();
        memory.write_u64(0xff8, 6).unwrap();
        assert_eq!(memory.code(0xff0), Some(6 << 64 | 5));
        assert_eq!(memory.code(0xff1), None, "into the next page");
        assert_eq!(memory.code(0x1000), None, "not a whole page");
        assert_eq!(memory.code(!0xfff), None);
    }

    #[test]
    fn ranges_that_leave_the_memory_are_refused() {
        let memory = GuestMemory::leaked(0x1000);
        let mut two = [0; 2];
        assert_eq!(
            memory.read(0xfff, &mut two),
            Err(OutOfRange {
                gpa: 0xfff,
                len: 2,
                size: 0x1000
            })
        );
        assert!(memory.read(u64::MAX, &mut two).is_err());
        assert!(memory.write(u64::MAX - 1, &[0; 4]).is_err());
        assert!(memory.fill(0, 0x1001, 0).is_err());
        assert!(memory.fill(1, u64::MAX, 0).is_err());
        assert!(memory.read(0x1000, &mut []).is_ok());
        assert!(memory.read_u64(0xff9).is_err());
        assert!(memory.read_vec(0, usize::MAX).is_err());
    }
}
