//! Extended page tables (SDM vol. 3, 31.3.2).
//!
//! All memory is write-back; the guest's PAT may make it weaker, as without virtualization.
//! Accessed and dirty are set beforehand: the processor then never writes to the tables, whether it keeps the bits or not.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::virt::stage2::{Format, MaxPage, Tables};

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const WRITE_BACK: u64 = 6 << 3;
const LARGE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;

const FORMAT: Format = Format {
    table: READ | WRITE | EXECUTE | ACCESSED,
    page: READ | WRITE | EXECUTE | WRITE_BACK | ACCESSED | DIRTY,
    large: LARGE,
    present: READ | WRITE | EXECUTE,
};

/// The tables themselves are write-back memory, four levels.
const EPTP_WRITE_BACK: u64 = 6;
const EPTP_FOUR_LEVELS: u64 = 3 << 3;
const EPTP_ACCESSED_DIRTY: u64 = 1 << 6;

/// Raised by every new set of tables: what a CPU has cached of an older set at the same address must go.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Extended page tables of one domain.
#[derive(Clone)]
pub struct Ept {
    tables: Arc<Tables>,
    pointer: u64,
}

impl Ept {
    /// Maps guest-physical `0..len` to host-physical `host..`; both are multiples of 4 KiB (a broken last page stays unmapped).
    pub fn new(host: u64, len: u64, max: MaxPage, accessed_dirty: bool) -> Self {
        let tables = Arc::new(Tables::new(host, len, max, FORMAT));
        let flag = if accessed_dirty {
            EPTP_ACCESSED_DIRTY
        } else {
            0
        };
        let pointer = tables.root() | EPTP_WRITE_BACK | EPTP_FOUR_LEVELS | flag;
        GENERATION.fetch_add(1, Ordering::AcqRel);
        Self { tables, pointer }
    }

    /// For the VMCS.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Where a guest-physical address leads, and the size of the page it lies in.
    pub fn walk(&self, gpa: u64) -> Option<(u64, u64)> {
        self.tables.walk(gpa)
    }
}

/// What a CPU must have flushed since, before it uses any tables.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_the_manual_says() {
        assert_eq!(FORMAT.table, 0x107);
        assert_eq!(FORMAT.page | FORMAT.large, 0x3b7);
    }

    #[test]
    fn the_pointer_tells_type_levels_and_flags() {
        let before = generation();
        let ept = Ept::new(0x20_0000, 0x20_0000, MaxPage::Size2M, true);
        assert_eq!(ept.pointer() & 0xfff, 0x5e);
        assert_eq!(ept.pointer() & !0xfff, ept.tables.root());
        assert!(generation() > before);
        let ept = Ept::new(0x20_0000, 0x20_0000, MaxPage::Size2M, false);
        assert_eq!(ept.pointer() & 0xfff, 0x1e);
        assert_eq!(ept.walk(0x1234), Some((0x20_1234, 0x20_0000)));
    }
}
