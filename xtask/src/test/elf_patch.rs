//! Damages a guest kernel's ELF on purpose, one field at a time.

use anyhow::{Context, Result, ensure};

/// `e_phoff`, `e_phentsize`, `e_phnum` of an ELF64 header.
const PHOFF: usize = 0x20;
const PHENTSIZE: usize = 0x36;
const PHNUM: usize = 0x38;
/// Fields of a program header.
const P_TYPE: usize = 0x00;
const P_OFFSET: usize = 0x08;
const P_VADDR: usize = 0x10;
const P_PADDR: usize = 0x18;
const P_FILESZ: usize = 0x20;
const P_MEMSZ: usize = 0x28;

const PT_LOAD: u64 = 1;
const PT_NOTE: u64 = 4;
/// `XEN_ELFNOTE_PHYS32_ENTRY`.
const PHYS32_ENTRY: u64 = 18;

/// An ELF64 file to be damaged.
pub struct Elf(pub Vec<u8>);

impl Elf {
    /// Its PVH note is another's.
    pub fn not_pvh(mut self) -> Result<Vec<u8>> {
        let note = self.note()?;
        // The owner "Xen" begins behind three words.
        self.put(note + 12, 1, u64::from(b'Y'))?;
        Ok(self.0)
    }

    /// Its entry is in no segment.
    pub fn entry_outside(mut self) -> Result<Vec<u8>> {
        let note = self.note()?;
        let size = usize::try_from(self.get(note + 4, 4)?)?;
        self.put(note + 16, size, 0x1000)?;
        Ok(self.0)
    }

    /// Two of its segments want the same memory.
    pub fn overlapping(mut self) -> Result<Vec<u8>> {
        let loads = self.headers(PT_LOAD)?;
        let (first, second) = (
            loads.first().context("no segment")?,
            loads.get(1).context("only one segment")?,
        );
        for field in [P_VADDR, P_PADDR] {
            let address = self.get(first + field, 8)?;
            self.put(second + field, 8, address)?;
        }
        Ok(self.0)
    }

    /// Its last segment ends behind `bytes` of memory.
    pub fn larger_than(mut self, bytes: u64) -> Result<Vec<u8>> {
        let last = *self.headers(PT_LOAD)?.last().context("no segment")?;
        self.put(last + P_MEMSZ, 8, bytes)?;
        Ok(self.0)
    }

    /// The file ends in the middle of its last segment's content.
    pub fn truncated(mut self) -> Result<Vec<u8>> {
        let mut last = (0, 0);
        for load in self.headers(PT_LOAD)? {
            let (at, size) = (self.get(load + P_OFFSET, 8)?, self.get(load + P_FILESZ, 8)?);
            if size > 0 {
                last = last.max((at, size));
            }
        }
        self.0.truncate(usize::try_from(last.0 + last.1 / 2)?);
        Ok(self.0)
    }

    fn headers(&self, kind: u64) -> Result<Vec<usize>> {
        let (at, size, count) = (
            self.get(PHOFF, 8)?,
            self.get(PHENTSIZE, 2)?,
            self.get(PHNUM, 2)?,
        );
        let mut found = Vec::new();
        for index in 0..count {
            let header = usize::try_from(at + index * size)?;
            if self.get(header + P_TYPE, 4)? == kind {
                found.push(header);
            }
        }
        Ok(found)
    }

    /// Where the PVH note is in the file.
    fn note(&self) -> Result<usize> {
        for header in self.headers(PT_NOTE)? {
            let (mut at, size) = (
                self.get(header + P_OFFSET, 8)?,
                self.get(header + P_FILESZ, 8)?,
            );
            let end = at + size;
            while at + 12 <= end {
                let here = usize::try_from(at)?;
                let (owner, content) = (self.get(here, 4)?, self.get(here + 4, 4)?);
                if self.get(here + 8, 4)? == PHYS32_ENTRY {
                    return Ok(here);
                }
                at += 12 + owner.next_multiple_of(4) + content.next_multiple_of(4);
            }
        }
        anyhow::bail!("the kernel has no PVH note")
    }

    fn get(&self, at: usize, size: usize) -> Result<u64> {
        let bytes = self
            .0
            .get(at..at + size)
            .context("a field behind the end of the file")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn put(&mut self, at: usize, size: usize, value: u64) -> Result<()> {
        ensure!(size <= 8, "a field of {size} bytes");
        let field = self
            .0
            .get_mut(at..at + size)
            .context("a field behind the end of the file")?;
        field.copy_from_slice(&value.to_le_bytes()[..size]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header, two segments to load and a note.
    fn elf() -> Elf {
        let mut elf = Elf(vec![0; 0x200]);
        for (at, size, value) in [(PHOFF, 8, 0x40), (PHENTSIZE, 2, 56), (PHNUM, 2, 3)] {
            elf.put(at, size, value).unwrap();
        }
        let headers = [
            (0x40, PT_LOAD, 0x10_0000, 0),
            (0x78, PT_LOAD, 0x20_0000, 0),
            (0xb0, PT_NOTE, 0, 0x180),
        ];
        for (at, kind, address, offset) in headers {
            elf.put(at + P_TYPE, 4, kind).unwrap();
            elf.put(at + P_PADDR, 8, address).unwrap();
            elf.put(at + P_OFFSET, 8, offset).unwrap();
            elf.put(at + P_FILESZ, 8, 20).unwrap();
        }
        for (at, size, value) in [
            (0x180, 4, 4),
            (0x184, 4, 4),
            (0x188, 4, PHYS32_ENTRY),
            (0x18c, 4, 0x6e_6558),
            (0x190, 4, 0x10_0000),
        ] {
            elf.put(at, size, value).unwrap();
        }
        elf
    }

    #[test]
    fn each_damage_is_where_it_should_be() {
        let original = elf().0;
        let changed = |damaged: Vec<u8>| -> Vec<usize> {
            (0..original.len())
                .filter(|at| original[*at] != damaged[*at])
                .collect()
        };
        assert_eq!(changed(elf().not_pvh().unwrap()), [0x18c]);
        assert_eq!(changed(elf().entry_outside().unwrap()), [0x191, 0x192]);
        assert_eq!(changed(elf().overlapping().unwrap()), [0x78 + P_PADDR + 2]);
        assert_eq!(
            changed(elf().larger_than(1 << 30).unwrap()),
            [0x78 + P_MEMSZ + 3]
        );
    }
}
