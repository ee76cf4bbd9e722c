//! The symbol table inside the image: names for addresses, without any help from outside.
//!
//! # Format of the section `.lull_symbols`
//!
//! The linker reserves [`RESERVED`] bytes for it (read-only). After linking, `cargo xtask build` overwrites the
//! section in the ELF file, without changing its size. All numbers are little-endian:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | magic `LULLSYM1` |
//! | 8 | 4 | `count`: number of entries; 0 as linked (no symbols yet) |
//! | 12 | 8 × `count` | entries, sorted by `addr` ascending, no two with the same `addr`: `addr: u32` (address of the first byte of a function), `name: u32` (offset of its name from the start of the section) |
//! | behind | | names: UTF-8, demangled, each ended by a NUL; names may be shared |
//!
//! An address belongs to the last entry at or below it; the writer adds an entry with an empty name at the end of
//! the text section, so that nothing above it gets a name. Entries or names that do not fit are left out by the
//! writer (which says so). The reader trusts nothing: a damaged table gives no names, never a fault.

/// The magic at the start of the section.
pub const MAGIC: [u8; 8] = *b"LULLSYM1";

/// Bytes that the linker reserves.
pub const RESERVED: usize = 384 * 1024;

/// Bytes before the first entry.
pub const HEADER: usize = 12;

/// Bytes of an entry.
pub const ENTRY: usize = 8;

/// A table that was checked as far as its header goes.
#[derive(Clone, Copy, Debug)]
pub struct Symbols<'a> {
    bytes: &'a [u8],
    count: usize,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(raw.try_into().ok()?))
}

impl<'a> Symbols<'a> {
    /// The table in `bytes`, or `None` if it is empty, or no table.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.get(..MAGIC.len())? != MAGIC {
            return None;
        }
        let count = usize::try_from(u32_at(bytes, MAGIC.len())?).ok()?;
        let end = count.checked_mul(ENTRY)?.checked_add(HEADER)?;
        (count != 0 && end <= bytes.len()).then_some(Self { bytes, count })
    }

    fn entry(&self, index: usize) -> Option<(u32, u32)> {
        let at = HEADER + index * ENTRY;
        Some((u32_at(self.bytes, at)?, u32_at(self.bytes, at + 4)?))
    }

    /// The function that holds `address`, and how far into it the address is.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<(&'a str, u32)> {
        let address = u32::try_from(address).ok()?;
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(middle)?.0 <= address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let (start, name) = self.entry(low.checked_sub(1)?)?;
        let name = self.bytes.get(usize::try_from(name).ok()?..)?;
        let end = name.iter().position(|&b| b == 0)?;
        let name = core::str::from_utf8(&name[..end]).ok()?;
        (!name.is_empty()).then_some((name, address - start))
    }
}

/// The table of this image.
#[cfg(target_os = "none")]
#[must_use]
pub fn of_image() -> Option<Symbols<'static>> {
    #![expect(
        unsafe_code,
        reason = "the section is patched after compiling: its content must be read as unknown bytes"
    )]

    const fn empty() -> [u8; RESERVED] {
        let mut bytes = [0; RESERVED];
        let mut i = 0;
        while i < MAGIC.len() {
            bytes[i] = MAGIC[i];
            i += 1;
        }
        bytes
    }

    // SAFETY: a section of our own, that link.ld keeps.
    #[unsafe(link_section = ".lull_symbols")]
    #[used]
    static RESERVATION: [u8; RESERVED] = empty();

    // SAFETY: symbols that link.ld defines; only their addresses are used.
    unsafe extern "C" {
        static __symbols_start: u8;
        static __symbols_end: u8;
    }
    let start = &raw const __symbols_start;
    let len = (&raw const __symbols_end).addr() - start.addr();
    // SAFETY: link.ld puts both symbols around one read-only section.
    Symbols::parse(unsafe { core::slice::from_raw_parts(start, len) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn table(entries: &[(u32, &str)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((entries.len() as u32).to_le_bytes());
        let mut names = Vec::new();
        for (address, name) in entries {
            let at = HEADER + entries.len() * ENTRY + names.len();
            bytes.extend(address.to_le_bytes());
            bytes.extend((at as u32).to_le_bytes());
            names.extend(name.as_bytes());
            names.push(0);
        }
        bytes.extend(names);
        bytes.resize(bytes.len() + 100, 0);
        bytes
    }

    #[test]
    fn an_address_belongs_to_the_last_function_at_or_below_it() {
        let bytes = table(&[(0x100, "first"), (0x200, "lull::second"), (0x300, "")]);
        let symbols = Symbols::parse(&bytes).unwrap();
        assert_eq!(symbols.lookup(0xff), None);
        assert_eq!(symbols.lookup(0x100), Some(("first", 0)));
        assert_eq!(symbols.lookup(0x1ff), Some(("first", 0xff)));
        assert_eq!(symbols.lookup(0x2a0), Some(("lull::second", 0xa0)));
        assert_eq!(symbols.lookup(0x300), None, "the empty name ends the text");
        assert_eq!(symbols.lookup(u64::MAX), None);
    }

    #[test]
    fn an_empty_or_damaged_table_gives_no_names() {
        assert!(Symbols::parse(&table(&[])).is_none());
        assert!(Symbols::parse(b"LULLSYM2\x01\0\0\0aaaabbbb").is_none());
        assert!(Symbols::parse(b"LULLSYM1\xff\xff\xff\xff").is_none());
        assert!(Symbols::parse(&[]).is_none());
        let mut bytes = table(&[(0x100, "first")]);
        bytes[HEADER + 4..HEADER + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Symbols::parse(&bytes).unwrap().lookup(0x100), None);
        let mut bytes = table(&[(0x100, "first")]);
        bytes.truncate(HEADER + ENTRY + 3);
        assert_eq!(
            Symbols::parse(&bytes).unwrap().lookup(0x100),
            None,
            "a name that never ends"
        );
    }
}
