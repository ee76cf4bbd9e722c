//! Nested page tables (AMD APM vol. 2, 15.25).
//!
//! The walk is one of a user access, so every level has the user bit. Accessed and dirty are set beforehand: the processor then
//! never writes to the tables.

use alloc::sync::Arc;

pub use crate::virt::stage2::MaxPage;
use crate::virt::stage2::{Format, Tables};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;

const FORMAT: Format = Format {
    table: PRESENT | WRITABLE | USER | ACCESSED,
    page: PRESENT | WRITABLE | USER | ACCESSED | DIRTY,
    large: LARGE,
    present: PRESENT,
};

/// Nested page tables of one domain.
#[derive(Clone)]
pub struct Npt(Arc<Tables>);

impl Npt {
    /// Maps guest-physical `0..len` to host-physical `host..`; both are multiples of 4 KiB (a broken last page stays unmapped).
    pub fn new(host: u64, len: u64, max: MaxPage) -> Self {
        Self(Arc::new(Tables::new(host, len, max, FORMAT)))
    }

    /// Physical address of the root, for the VMCB.
    pub fn root(&self) -> u64 {
        self.0.root()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_allows_user_and_write_and_guests_execute_from_everywhere() {
        for bits in [FORMAT.table, FORMAT.page] {
            assert_eq!(bits & 0b111, 0b111);
            assert_eq!(bits >> 63, 0);
        }
    }
}
