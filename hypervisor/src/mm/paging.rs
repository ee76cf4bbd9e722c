//! Four-level page tables for an identity map.
//!
//! Pure: tables are reached through [`Tables`], so that the same code builds them on the machine and in tests.
//! One operation does everything: [`set`] gives a range of addresses an access right, with the largest pages that
//! fit, splitting larger ones where it must.

use bitflags::bitflags;

use super::frames::{FRAME, FrameError, Range};

/// Entries in a table.
pub const ENTRIES: usize = 512;
/// Number of levels.
pub const LEVELS: u32 = 4;
/// First address that four levels cannot name (in the lower half).
pub const END: u64 = 1 << 47;

bitflags! {
    /// Bits of a table entry. Intel SDM vol. 3, tables 5-15 to 5-20.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Entry: u64 {
        /// The entry means something.
        const PRESENT = 1 << 0;
        /// Writes are allowed.
        const WRITABLE = 1 << 1;
        /// Memory type bit 0 (with the reset value of IA32_PAT, PWT and PCD together are "uncacheable").
        const WRITE_THROUGH = 1 << 3;
        /// Memory type bit 1.
        const CACHE_DISABLE = 1 << 4;
        /// Set by the CPU when it used the entry.
        const ACCESSED = 1 << 5;
        /// Set by the CPU when it wrote through the entry.
        const DIRTY = 1 << 6;
        /// In levels 2 and 3: the entry maps a page and does not point at a table.
        const LARGE = 1 << 7;
        /// No instruction is fetched from here.
        const NO_EXECUTE = 1 << 63;
        /// The physical address.
        const ADDRESS = 0x000F_FFFF_FFFF_F000;
    }
}

/// What may be done with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and execute.
    Code,
    /// Read.
    ReadOnly,
    /// Read and write.
    Data,
    /// Read and write, uncached: device registers.
    Device,
}

impl Access {
    const fn bits(self) -> Entry {
        let nx = Entry::NO_EXECUTE;
        let p = Entry::PRESENT;
        match self {
            Self::Code => p,
            Self::ReadOnly => p.union(nx),
            Self::Data => p.union(nx).union(Entry::WRITABLE),
            Self::Device => p
                .union(nx)
                .union(Entry::WRITABLE)
                .union(Entry::CACHE_DISABLE)
                .union(Entry::WRITE_THROUGH),
        }
    }

    const fn of(entry: Entry) -> Self {
        match (
            entry.contains(Entry::NO_EXECUTE),
            entry.contains(Entry::WRITABLE),
            entry.contains(Entry::CACHE_DISABLE),
        ) {
            (false, ..) => Self::Code,
            (true, false, _) => Self::ReadOnly,
            (true, true, false) => Self::Data,
            (true, true, true) => Self::Device,
        }
    }
}

/// The tables in memory.
pub trait Tables {
    /// Entry `index` of the table at `table`.
    fn read(&self, table: u64, index: usize) -> u64;
    /// Writes entry `index` of the table at `table`.
    fn write(&mut self, table: u64, index: usize, entry: u64);
    /// A new table, all entries 0.
    ///
    /// # Errors
    /// No memory is left.
    fn allocate(&mut self) -> Result<u64, FrameError>;
    /// The largest level whose entries may map a page: 2 or 3.
    fn largest_page_level(&self) -> u32;
}

/// Bytes that an entry of `level` (1 = the last) covers.
#[must_use]
pub const fn span(level: u32) -> u64 {
    FRAME << (9 * (level - 1))
}

fn index(address: u64, level: u32) -> usize {
    (address / span(level)) as usize % ENTRIES
}

/// Gives the frames of `range` this access, or unmaps them.
///
/// The caller drops what translations the CPUs have cached.
///
/// # Errors
/// No memory for a table; what was done until then stays.
pub fn set<T: Tables>(
    tables: &mut T,
    root: u64,
    range: Range,
    access: Option<Access>,
) -> Result<(), FrameError> {
    let range = range.frames_around();
    let range = Range {
        start: range.start,
        end: range.end.min(END),
    };
    if range.is_empty() {
        return Ok(());
    }
    set_in(tables, root, LEVELS, range, access)
}

fn set_in<T: Tables>(
    t: &mut T,
    table: u64,
    level: u32,
    range: Range,
    access: Option<Access>,
) -> Result<(), FrameError> {
    let mut at = range.start;
    while at < range.end {
        let base = at / span(level) * span(level);
        let next = (base + span(level)).min(range.end);
        let whole = at == base && next == base + span(level);
        let i = index(at, level);
        let old = Entry::from_bits_retain(t.read(table, i));
        let is_table = level > 1 && old.contains(Entry::PRESENT) && !old.contains(Entry::LARGE);
        if whole && (level == 1 || (level <= t.largest_page_level() && !is_table)) {
            t.write(table, i, leaf(base, level, access));
        } else if access.is_none() && !old.contains(Entry::PRESENT) {
            // Nothing there to unmap.
        } else {
            let below = if is_table {
                (old & Entry::ADDRESS).bits()
            } else {
                split(t, table, i, level, old)?
            };
            set_in(
                t,
                below,
                level - 1,
                Range {
                    start: at,
                    end: next,
                },
                access,
            )?;
        }
        at = next;
    }
    Ok(())
}

fn leaf(base: u64, level: u32, access: Option<Access>) -> u64 {
    let Some(access) = access else { return 0 };
    let large = if level > 1 { Entry::LARGE.bits() } else { 0 };
    base | access.bits().bits() | large
}

/// Puts a table in the place of entry `i`: empty, or with the page that was there in smaller pages.
fn split<T: Tables>(
    t: &mut T,
    table: u64,
    i: usize,
    level: u32,
    old: Entry,
) -> Result<u64, FrameError> {
    let new = t.allocate()?;
    if old.contains(Entry::PRESENT) {
        let base = (old & Entry::ADDRESS).bits() / span(level) * span(level);
        let access = Some(Access::of(old));
        for k in 0..ENTRIES {
            let page = base + span(level - 1) * k as u64;
            t.write(new, k, leaf(page, level - 1, access));
        }
    }
    // The leaves alone restrict: the tables above allow everything.
    t.write(table, i, new | (Entry::PRESENT | Entry::WRITABLE).bits());
    Ok(new)
}

/// One mapped page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Virtual address.
    pub address: u64,
    /// Physical address.
    pub physical: u64,
    /// Size in bytes.
    pub size: u64,
    /// The rights of the entry itself and of all above it.
    pub writable: bool,
    /// As `writable`.
    pub executable: bool,
    /// Uncached.
    pub device: bool,
}

/// Calls `each` for every mapped page, from the bottom.
pub fn walk<T: Tables>(tables: &T, root: u64, each: &mut impl FnMut(Page)) {
    walk_in(tables, root, LEVELS, 0, (true, true), each);
}

fn walk_in<T: Tables>(
    t: &T,
    table: u64,
    level: u32,
    base: u64,
    rights: (bool, bool),
    each: &mut impl FnMut(Page),
) {
    for i in 0..ENTRIES {
        let entry = Entry::from_bits_retain(t.read(table, i));
        if !entry.contains(Entry::PRESENT) {
            continue;
        }
        let address = base + span(level) * i as u64;
        let writable = rights.0 && entry.contains(Entry::WRITABLE);
        let executable = rights.1 && !entry.contains(Entry::NO_EXECUTE);
        let target = (entry & Entry::ADDRESS).bits();
        if level == 1 || entry.contains(Entry::LARGE) {
            let physical = target / span(level) * span(level);
            let device = entry.contains(Entry::CACHE_DISABLE);
            each(Page {
                address,
                physical,
                size: span(level),
                writable,
                executable,
                device,
            });
        } else {
            walk_in(t, target, level - 1, address, (writable, executable), each);
        }
    }
}

/// The page that holds `address`, if one is mapped there.
#[must_use]
pub fn find<T: Tables>(tables: &T, root: u64, address: u64) -> Option<Page> {
    let (mut table, mut rights) = (root, (true, true));
    for level in (1..=LEVELS).rev() {
        let entry = Entry::from_bits_retain(tables.read(table, index(address, level)));
        if !entry.contains(Entry::PRESENT) {
            return None;
        }
        rights = (
            rights.0 && entry.contains(Entry::WRITABLE),
            rights.1 && !entry.contains(Entry::NO_EXECUTE),
        );
        let target = (entry & Entry::ADDRESS).bits();
        if level == 1 || entry.contains(Entry::LARGE) {
            return Some(Page {
                address: address / span(level) * span(level),
                physical: target / span(level) * span(level),
                size: span(level),
                writable: rights.0,
                executable: rights.1,
                device: entry.contains(Entry::CACHE_DISABLE),
            });
        }
        table = target;
    }
    None
}

#[cfg(test)]
#[path = "paging_tests.rs"]
mod tests;
