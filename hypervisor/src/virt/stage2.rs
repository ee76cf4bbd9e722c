//! Tables from guest-physical to host-physical: four levels, in whichever vendor's format of entries.
//!
//! Built once per domain, before its first vCPU runs, with the largest pages that alignment allows; what is not mapped faults.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use zerocopy::FromZeros;

use super::page::{physical, zeroed};

/// The bits of an entry besides its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Of an entry that leads to the next table.
    pub table: u64,
    /// Of an entry that maps a page.
    pub page: u64,
    /// More of an entry that maps a page and is not on the last level.
    pub large: u64,
    /// An entry without any of these maps nothing.
    pub present: u64,
}

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const PAGE: u64 = 4096;
const ENTRIES: usize = 512;

#[derive(FromZeros)]
#[repr(C, align(4096))]
struct Table([u64; ENTRIES]);

/// Largest page that the processor maps: bytes by level, 1 GiB, 2 MiB and 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxPage {
    /// 1 GiB.
    Size1G,
    /// 2 MiB.
    Size2M,
}

/// The tables of one domain.
pub struct Tables {
    format: Format,
    /// The root is the first.
    tables: Vec<Box<Table>>,
    by_address: BTreeMap<u64, usize>,
}

/// Bytes that one entry of a level spans; the root is level 3.
const fn span(level: u32) -> u64 {
    PAGE << (9 * level)
}

const fn index(gpa: u64, level: u32) -> usize {
    (gpa >> (12 + 9 * level)) as usize % ENTRIES
}

impl Tables {
    /// Maps guest-physical `0..len` to host-physical `host..`; both are multiples of 4 KiB (a broken last page stays unmapped).
    pub fn new(host: u64, len: u64, max: MaxPage, format: Format) -> Self {
        let mut tables = Self {
            format,
            tables: Vec::new(),
            by_address: BTreeMap::new(),
        };
        tables.add();
        tables.map(0, host, len & !(PAGE - 1), max);
        tables
    }

    fn add(&mut self) -> usize {
        let table = zeroed::<Table>();
        let place = self.tables.len();
        self.by_address.insert(physical(&*table), place);
        self.tables.push(table);
        place
    }

    /// Physical address of the root.
    pub fn root(&self) -> u64 {
        self.tables.first().map_or(0, |table| physical(&**table))
    }

    fn entry(&self, table: usize, gpa: u64, level: u32) -> u64 {
        self.tables
            .get(table)
            .and_then(|table| table.0.get(index(gpa, level)))
            .copied()
            .unwrap_or(0)
    }

    fn set(&mut self, table: usize, gpa: u64, level: u32, value: u64) {
        if let Some(entry) = self
            .tables
            .get_mut(table)
            .and_then(|table| table.0.get_mut(index(gpa, level)))
        {
            *entry = value;
        }
    }

    fn map(&mut self, mut gpa: u64, mut host: u64, mut len: u64, max: MaxPage) {
        let largest = match max {
            MaxPage::Size1G => 2,
            MaxPage::Size2M => 1,
        };
        while len >= PAGE {
            let fits = |level: u32| (gpa | host).is_multiple_of(span(level)) && len >= span(level);
            let level = (1..=largest).rev().find(|&level| fits(level)).unwrap_or(0);
            self.map_one(gpa, host, level);
            gpa += span(level);
            host += span(level);
            len -= span(level);
        }
    }

    fn map_one(&mut self, gpa: u64, host: u64, leaf: u32) {
        let mut table = 0;
        for level in (leaf + 1..=3).rev() {
            let entry = self.entry(table, gpa, level);
            table = match self.by_address.get(&(entry & ADDRESS)) {
                Some(&next) if entry & self.format.present != 0 => next,
                _ => {
                    let next = self.add();
                    let address = self.tables.get(next).map_or(0, |table| physical(&**table));
                    self.set(table, gpa, level, address | self.format.table);
                    next
                }
            };
        }
        let large = if leaf > 0 { self.format.large } else { 0 };
        self.set(table, gpa, leaf, host | self.format.page | large);
    }

    /// Where a guest-physical address leads, and the size of the page it lies in.
    pub fn walk(&self, gpa: u64) -> Option<(u64, u64)> {
        if gpa >= span(4) {
            return None;
        }
        let mut table = 0;
        for level in (0..=3).rev() {
            let entry = self.entry(table, gpa, level);
            if entry & self.format.present == 0 {
                return None;
            }
            if level == 0 || entry & self.format.large != 0 {
                let base = entry & ADDRESS & !(span(level) - 1);
                return Some((base + gpa % span(level), span(level)));
            }
            table = *self.by_address.get(&(entry & ADDRESS))?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format {
        table: 0b11,
        page: 0b101,
        large: 1 << 7,
        present: 1,
    };

    const M2: u64 = 2 << 20;
    const G1: u64 = 1 << 30;

    fn page_at(npt: &Tables, gpa: u64, host: u64, size: u64) {
        assert_eq!(npt.walk(gpa), Some((host, size)), "gpa {gpa:#x}");
    }

    #[test]
    fn uses_large_pages_where_both_sides_are_aligned() {
        let npt = Tables::new(3 * M2, 2 * M2 + 2 * PAGE, MaxPage::Size1G, FORMAT);
        page_at(&npt, 0, 3 * M2, M2);
        page_at(&npt, 2 * M2 - 1, 5 * M2 - 1, M2);
        page_at(&npt, 2 * M2, 5 * M2, PAGE);
        page_at(&npt, 2 * M2 + PAGE + 5, 5 * M2 + PAGE + 5, PAGE);
        assert_eq!(npt.walk(2 * M2 + 2 * PAGE), None);
        assert_eq!(
            npt.tables.len(),
            4,
            "root, pointer table, directory, one page table"
        );
    }

    #[test]
    fn uses_1g_pages_only_if_offered() {
        let npt = Tables::new(4 * G1, 2 * G1 + M2, MaxPage::Size1G, FORMAT);
        page_at(&npt, G1 + 17, 5 * G1 + 17, G1);
        page_at(&npt, 2 * G1, 6 * G1, M2);
        let npt = Tables::new(4 * G1, 2 * G1, MaxPage::Size2M, FORMAT);
        page_at(&npt, G1 + 17, 5 * G1 + 17, M2);
        assert_eq!(npt.walk(2 * G1), None);
    }

    #[test]
    fn agrees_with_plain_addition_whatever_the_alignment() {
        for (host, len) in [
            (PAGE, 3 * M2),
            (7 * M2 + PAGE, M2 - PAGE),
            (M2, PAGE),
            (5 * M2, 600 * M2 + 17),
            (0x8000_0000, 0),
        ] {
            let npt = Tables::new(host, len, MaxPage::Size1G, FORMAT);
            let mapped = len & !(PAGE - 1);
            for gpa in (0..mapped + 3 * PAGE).step_by(0x3000 - 8) {
                let expected = (gpa < mapped).then_some(host + gpa);
                assert_eq!(
                    npt.walk(gpa).map(|(host, _)| host),
                    expected,
                    "host {host:#x} len {len:#x} gpa {gpa:#x}"
                );
            }
            assert_eq!(npt.walk(u64::MAX), None);
            assert_eq!(npt.walk(1 << 47), None);
        }
    }

    #[test]
    fn entries_have_the_bits_of_their_format() {
        let tables = Tables::new(M2, M2 + PAGE, MaxPage::Size1G, FORMAT);
        let entries = |table: usize| {
            let entries = tables.tables[table].0.iter();
            entries
                .filter(|&&entry| entry != 0)
                .map(|entry| entry & !ADDRESS)
                .collect::<Vec<_>>()
        };
        assert_eq!(entries(0), [0b11]);
        assert_eq!(entries(2), [0b101 | 1 << 7, 0b11], "a large page, a table");
        assert_eq!(entries(3), [0b101]);
    }
}
