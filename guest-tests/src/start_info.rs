//! `hvm_start_info`, the structure that a PVH kernel finds at EBX (Xen, "x86/HVM direct boot ABI", public header
//! `arch-x86/hvm/start_info.h`).

use crate::memory::Memory;
use crate::options::MAX_LEN;
use crate::text::Text;

/// `XEN_HVM_START_MAGIC_VALUE`.
pub const MAGIC: u32 = 0x336e_c578;

/// What a guest needs of it, copied: the memory it lies in may be overwritten later.
pub struct StartInfo {
    /// The command line.
    pub command_line: Text<MAX_LEN>,
    /// Where the RSDP is; `None` if the loader gave no ACPI tables.
    pub rsdp: Option<u64>,
    /// The first address above all RAM below 4 GiB; `None` if there is no memory map.
    pub ram_end: Option<u64>,
}

/// Reads the start info at `at`; `None` if there is none.
pub fn read(memory: &impl Memory, at: u64) -> Option<StartInfo> {
    // Offsets: 0 magic, 4 version, 8 flags, 12 modules, 16 module list, 24 command line, 32 RSDP; since version 1: 40 memory map,
    // 48 its entries.
    if memory.u32(at)? != MAGIC {
        return None;
    }
    let version = memory.u32(at + 4)?;
    let rsdp = memory.u64(at + 32).filter(|&rsdp| rsdp != 0);
    let command_line = match memory.u64(at + 24)? {
        0 => Text::new(),
        line => read_line(memory, line),
    };
    let ram_end = if version >= 1 {
        ram_end(memory, memory.u64(at + 40)?, memory.u32(at + 48)?)
    } else {
        None
    };
    Some(StartInfo {
        command_line,
        rsdp,
        ram_end,
    })
}

fn read_line(memory: &impl Memory, at: u64) -> Text<MAX_LEN> {
    let mut bytes = [0; MAX_LEN];
    let mut used = 0;
    for (to, from) in bytes.iter_mut().zip(at..) {
        match memory.u8(from) {
            None | Some(0) => break,
            Some(byte) => *to = byte,
        }
        used += 1;
    }
    Text::from_ascii(bytes.get(..used).unwrap_or(&[]))
}

fn ram_end(memory: &impl Memory, table: u64, entries: u32) -> Option<u64> {
    const RAM: u32 = 1;
    let mut end = None;
    // A map of more entries than this is not a map.
    for index in 0..u64::from(entries.min(128)) {
        let entry = table.checked_add(index * 24)?;
        let (base, size, kind) = (
            memory.u64(entry)?,
            memory.u64(entry + 8)?,
            memory.u32(entry + 16)?,
        );
        let top = base.saturating_add(size);
        if kind == RAM && top <= 1 << 32 {
            end = end.max(Some(top));
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::fake::Pieces;
    use std::vec::Vec;

    fn info(version: u32, line: u64, rsdp: u64, map: u64, entries: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(version.to_le_bytes());
        bytes.extend([0; 16]);
        for word in [line, rsdp, map] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(entries.to_le_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    fn entry(base: u64, size: u64, kind: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(base.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(u64::from(kind).to_le_bytes());
        bytes
    }

    #[test]
    fn reads_all_parts() {
        let map = [
            entry(0, 0x9_fc00, 1),
            entry(0x10_0000, 0x70_0000, 1),
            entry(0x80_0000, 0x1000, 2),
            entry(1 << 32, 1 << 30, 1),
        ];
        let memory = Pieces(std::vec![
            (0x500, info(1, 0x600, 0xe_0000, 0x700, 4)),
            (0x600, b"duty=30 x\0junk".to_vec()),
            (0x700, map.concat()),
        ]);
        let start = read(&memory, 0x500).expect("valid");
        assert_eq!(start.command_line.as_str(), "duty=30 x");
        assert_eq!(start.rsdp, Some(0xe_0000));
        assert_eq!(
            start.ram_end,
            Some(0x80_0000),
            "neither reserved nor high memory counts"
        );
    }

    #[test]
    fn absent_parts_are_absent() {
        let memory = Pieces(std::vec![(0x500, info(0, 0, 0, 0xdead, 9))]);
        let start = read(&memory, 0x500).expect("valid");
        assert_eq!(
            (start.command_line.as_str(), start.rsdp, start.ram_end),
            ("", None, None)
        );
    }

    #[test]
    fn a_wrong_magic_or_unreadable_memory_is_no_start_info() {
        assert!(read(&Pieces(std::vec![(0x500, std::vec![0; 64])]), 0x500).is_none());
        assert!(read(&Pieces::default(), 0x500).is_none());
    }

    #[test]
    fn an_endless_command_line_is_cut() {
        let memory = Pieces(std::vec![
            (0x500, info(0, 0x1000, 0, 0, 0)),
            (0x1000, std::vec![b'a'; 5000])
        ]);
        let start = read(&memory, 0x500).expect("valid");
        assert_eq!(start.command_line.as_str().len(), MAX_LEN);
    }
}
