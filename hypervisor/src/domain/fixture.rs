//! What the tests of this floor share: kernels made to order, and a scripted vCPU.
pub use super::fixture_cpu::{MockCpu, MockState};
use std::vec::Vec;

/// A PT_LOAD to be put into a file.
#[derive(Clone)]
pub struct Load {
    paddr: u64,
    data: Vec<u8>,
    memsz: u64,
}

impl Load {
    /// A segment.
    pub fn new(paddr: u64, data: Vec<u8>, memsz: u64) -> Self {
        Self { paddr, data, memsz }
    }
}

/// Writes ELF64 files, good ones and damaged ones.
#[derive(Clone, Default)]
pub struct ElfBuilder {
    loads: Vec<Load>,
    desc: Option<Vec<u8>>,
    patches: Vec<(usize, Vec<u8>)>,
}

impl ElfBuilder {
    /// No segment, no note.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a segment.
    pub fn load(mut self, load: Load) -> Self {
        self.loads.push(load);
        self
    }

    /// Adds the PVH note with an 8-byte address.
    pub fn entry(self, entry: u64) -> Self {
        self.note_desc(entry.to_le_bytes().to_vec())
    }

    /// Adds the PVH note with these contents.
    pub fn note_desc(mut self, desc: Vec<u8>) -> Self {
        self.desc = Some(desc);
        self
    }

    /// Takes the note away.
    pub fn without_note(mut self) -> Self {
        self.desc = None;
        self
    }

    /// Overwrites bytes of the finished file.
    pub fn patch(mut self, at: usize, bytes: &[u8]) -> Self {
        self.patches.push((at, bytes.to_vec()));
        self
    }

    /// The file.
    pub fn build(&self) -> Vec<u8> {
        let count = self.loads.len() + usize::from(self.desc.is_some());
        let mut body: Vec<u8> = Vec::new();
        let mut headers: Vec<u8> = Vec::new();
        let base = 64 + 56 * count;
        let mut header =
            |kind: u32, offset: usize, paddr: u64, filesz: u64, memsz: u64, align: u64| {
                headers.extend(kind.to_le_bytes());
                headers.extend(7u32.to_le_bytes());
                for word in [offset as u64, paddr, paddr, filesz, memsz, align] {
                    headers.extend(word.to_le_bytes());
                }
            };
        if let Some(desc) = &self.desc {
            header(4, base, 0, (16 + desc.len()) as u64, 0, 4);
            for word in [4u32, desc.len() as u32, 18] {
                body.extend(word.to_le_bytes());
            }
            body.extend(b"Xen\0");
            body.extend(desc);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        for load in &self.loads {
            header(
                1,
                base + body.len(),
                load.paddr,
                load.data.len() as u64,
                load.memsz,
                0x1000,
            );
            body.extend(&load.data);
        }
        let mut file: Vec<u8> = Vec::new();
        file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        for half in [2u16, 62] {
            file.extend(half.to_le_bytes());
        }
        file.extend(1u32.to_le_bytes());
        for word in [0u64, 64, 0] {
            file.extend(word.to_le_bytes());
        }
        file.extend(0u32.to_le_bytes());
        for half in [64u16, 56, count as u16, 0, 0, 0] {
            file.extend(half.to_le_bytes());
        }
        file.extend(headers);
        file.extend(body);
        for (at, bytes) in &self.patches {
            file[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        file
    }
}
