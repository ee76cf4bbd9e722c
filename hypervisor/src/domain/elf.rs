//! Validation of a guest kernel: a PVH ELF64 image, checked whole before one byte is copied.
//!
//! What is accepted is what can be run: segments inside the guest's memory, apart from each other and
//! from the areas that the loader fills, and an entry point inside one of them. The ELF structures are
//! read by the `object` crate; nothing here trusts a number of the file.
//!
//! Called by the loader, once a guest.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use object::LittleEndian;
use object::elf::{ELFCLASS64, ELFDATA2LSB, EM_X86_64, ET_DYN, ET_EXEC, PT_LOAD, PT_NOTE};
use object::elf::{ELFMAG, FileHeader64, ProgramHeader64};
use object::pod;
use object::read::elf::{FileHeader as _, NoteIterator, ProgramHeader as _};
use zerocopy::IntoBytes;

use super::layout::{ACPI_AREA, BOOT_AREA};

/// Note of type `XEN_ELFNOTE_PHYS32_ENTRY`: the 32-bit entry point of a PVH kernel (Xen, `elfnote.h`).
const PHYS32_ENTRY: u32 = 18;

/// More program headers than any kernel has.
const HEADERS_MOST: usize = 64;

/// A note segment larger than this is not looked into.
const NOTES_MOST: usize = 64 * 1024;

const HEADER_SIZE: usize = size_of::<FileHeader64<LittleEndian>>();
const PHDR_SIZE: usize = size_of::<ProgramHeader64<LittleEndian>>();
const _: () = assert!(HEADER_SIZE == 64 && PHDR_SIZE == 56);

/// A loadable part of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Guest-physical address.
    pub paddr: u64,
    /// The bytes from the file.
    pub data: &'a [u8],
    /// Size in memory, bytes; what `data` does not fill is zero.
    pub memsz: u64,
}

impl Segment<'_> {
    /// Guest-physical range. Does not wrap: checked by [`PvhImage::parse`].
    pub fn range(&self) -> Range<u64> {
        self.paddr..self.paddr + self.memsz
    }
}

/// A kernel that has passed every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PvhImage<'a> {
    /// In file order; none is empty.
    pub segments: Vec<Segment<'a>>,
    /// 32-bit physical entry point, inside a segment.
    pub entry: u32,
}

/// Why a file is not a kernel that this guest can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElfProblem {
    /// Does not begin with the ELF magic.
    NotElf,
    /// Another ELF class.
    Not64Bit {
        /// `e_ident[EI_CLASS]`.
        class: u8,
    },
    /// Big-endian, or nonsense.
    NotLittleEndian,
    /// For another machine.
    NotX86 {
        /// `e_machine`.
        machine: u16,
    },
    /// An object file, a core dump, ...
    NotExecutable {
        /// `e_type`.
        kind: u16,
    },
    /// A part of the file is beyond its end.
    Truncated {
        /// Which part.
        what: &'static str,
        /// Bytes that the file would have to have.
        need: u64,
        /// Bytes that it has.
        have: u64,
    },
    /// Program headers of an unknown size.
    HeaderSize {
        /// `e_phentsize`.
        size: u16,
    },
    /// More program headers than any kernel has.
    TooManyHeaders {
        /// `e_phnum`.
        count: u16,
    },
    /// Nothing to load.
    NoSegments,
    /// No note of type 18 by "Xen".
    NoPvhNote,
    /// The PVH note does not hold an address.
    BadPvhNote {
        /// Length of its contents, bytes.
        len: usize,
    },
    /// More bytes in the file than in memory.
    FileLargerThanMemory {
        /// Physical address of the segment.
        paddr: u64,
        /// `p_filesz`.
        filesz: u64,
        /// `p_memsz`.
        memsz: u64,
    },
    /// Reaches beyond the guest's memory.
    OutsideMemory {
        /// Physical address of the segment.
        paddr: u64,
        /// `p_memsz`.
        memsz: u64,
        /// The guest's memory, bytes.
        memory: u64,
    },
    /// Lies over something that the loader fills.
    OverReserved {
        /// The segment.
        segment: Range<u64>,
        /// The area.
        area: Range<u64>,
        /// What is there.
        name: &'static str,
    },
    /// Two segments share bytes.
    Overlap {
        /// The one that begins first.
        first: Range<u64>,
        /// The other.
        second: Range<u64>,
    },
    /// The entry point does not fit 32 bits, in which a PVH kernel starts.
    EntryTooHigh {
        /// The address in the note.
        entry: u64,
    },
    /// The entry point is in no segment.
    EntryOutside {
        /// The address in the note.
        entry: u32,
    },
}

impl ElfProblem {
    /// What would have been right, in a few words (for the machine channel).
    pub fn expected(&self) -> &'static str {
        match self {
            Self::NotElf | Self::Not64Bit { .. } | Self::NotLittleEndian => {
                "a little-endian ELF64 file"
            }
            Self::NotX86 { .. } => "an ELF64 file for x86-64 (machine 62)",
            Self::NotExecutable { .. } => "an executable (type 2 or 3)",
            Self::Truncated { .. } => "a complete file",
            Self::HeaderSize { .. } => "program headers of 56 bytes",
            Self::TooManyHeaders { .. } => "at most 64 program headers",
            Self::NoSegments => "at least one PT_LOAD segment that is not empty",
            Self::NoPvhNote => "a note of type 18 by \"Xen\" (XEN_ELFNOTE_PHYS32_ENTRY)",
            Self::BadPvhNote { .. } => "a PVH note with an address of 4 or 8 bytes",
            Self::FileLargerThanMemory { .. } => "p_filesz <= p_memsz",
            Self::OutsideMemory { .. } => "segments within the guest's memory",
            Self::OverReserved { .. } => "segments outside 0x9e000..0xa0000 and 0xe0000..0x100000",
            Self::Overlap { .. } => "segments that share no byte",
            Self::EntryTooHigh { .. } => "an entry point below 4 GiB",
            Self::EntryOutside { .. } => "an entry point inside a loaded segment",
        }
    }
}

impl fmt::Display for ElfProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotElf => write!(f, "not an ELF file")?,
            Self::Not64Bit { class } => write!(f, "ELF class {class}")?,
            Self::NotLittleEndian => write!(f, "not little-endian")?,
            Self::NotX86 { machine } => write!(f, "made for machine {machine}")?,
            Self::NotExecutable { kind } => write!(f, "ELF type {kind}")?,
            Self::Truncated { what, need, have } => {
                write!(
                    f,
                    "truncated: the {what} would end at byte {need} of a file of {have}"
                )?;
            }
            Self::HeaderSize { size } => write!(f, "program headers of {size} bytes")?,
            Self::TooManyHeaders { count } => write!(f, "{count} program headers")?,
            Self::NoSegments => write!(f, "nothing to load")?,
            Self::NoPvhNote => write!(f, "not a PVH kernel")?,
            Self::BadPvhNote { len } => write!(f, "PVH note of {len} bytes")?,
            Self::FileLargerThanMemory {
                paddr,
                filesz,
                memsz,
            } => write!(
                f,
                "segment at {paddr:#x} has {filesz:#x} bytes in the file and {memsz:#x} in memory"
            )?,
            Self::OutsideMemory {
                paddr,
                memsz,
                memory,
            } => write!(
                f,
                "segment at {paddr:#x} of {memsz:#x} bytes does not fit the guest's memory of {} KiB",
                memory / 1024
            )?,
            Self::OverReserved {
                segment,
                area,
                name,
            } => {
                write!(
                    f,
                    "segment {segment:#x?} lies over the {name} at {area:#x?}"
                )?;
            }
            Self::Overlap { first, second } => {
                write!(f, "segments {first:#x?} and {second:#x?} overlap")?
            }
            Self::EntryTooHigh { entry } => write!(f, "entry point {entry:#x}")?,
            Self::EntryOutside { entry } => write!(f, "entry point {entry:#x} is in no segment")?,
        }
        Ok(())
    }
}

impl<'a> PvhImage<'a> {
    /// Checks `file` against a guest of `memory` bytes.
    ///
    /// # Errors
    /// The first [`ElfProblem`] found, in the order in which a reader of the file would meet them.
    pub fn parse(file: &'a [u8], memory: u64) -> Result<Self, ElfProblem> {
        let headers = program_headers(file)?;
        let mut segments: Vec<Segment<'a>> = Vec::new();
        for header in headers.iter().filter(|h| h.p_type(LittleEndian) == PT_LOAD) {
            if header.p_memsz(LittleEndian) == 0 && header.p_filesz(LittleEndian) == 0 {
                continue;
            }
            let segment = segment(file, header, memory)?;
            if let Some(other) = segments
                .iter()
                .find(|o| intersects(&o.range(), &segment.range()))
            {
                let (mut first, mut second) = (other.range(), segment.range());
                if second.start < first.start {
                    core::mem::swap(&mut first, &mut second);
                }
                return Err(ElfProblem::Overlap { first, second });
            }
            segments.push(segment);
        }
        if segments.is_empty() {
            return Err(ElfProblem::NoSegments);
        }
        let entry = entry_note(file, &headers)?;
        let entry = u32::try_from(entry).map_err(|_| ElfProblem::EntryTooHigh { entry })?;
        if !segments
            .iter()
            .any(|s| s.range().contains(&u64::from(entry)))
        {
            return Err(ElfProblem::EntryOutside { entry });
        }
        Ok(Self { segments, entry })
    }
}

fn intersects(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// `len` bytes of the file from `offset` on.
fn part<'a>(
    file: &'a [u8],
    what: &'static str,
    offset: u64,
    len: u64,
) -> Result<&'a [u8], ElfProblem> {
    let need = offset.saturating_add(len);
    let bytes = usize::try_from(offset)
        .ok()
        .zip(usize::try_from(need).ok())
        .and_then(|(start, end)| file.get(start..end));
    bytes.ok_or(ElfProblem::Truncated {
        what,
        need,
        have: file.len() as u64,
    })
}

/// A copy that begins at a multiple of 8: an archive aligns its files to 4, ELF structures need 8.
fn aligned(bytes: &[u8]) -> Vec<u64> {
    let mut words = alloc::vec![0u64; bytes.len().div_ceil(8)];
    if let Some(target) = words.as_mut_bytes().get_mut(..bytes.len()) {
        target.copy_from_slice(bytes);
    }
    words
}

fn program_headers(file: &[u8]) -> Result<Vec<ProgramHeader64<LittleEndian>>, ElfProblem> {
    if !file.starts_with(&ELFMAG) {
        return Err(ElfProblem::NotElf);
    }
    let bytes = aligned(part(file, "ELF header", 0, HEADER_SIZE as u64)?);
    let (header, _) = pod::from_bytes::<FileHeader64<LittleEndian>>(bytes.as_bytes())
        .map_err(|()| ElfProblem::NotElf)?;
    let ident = header.e_ident();
    if ident.class != ELFCLASS64 {
        return Err(ElfProblem::Not64Bit {
            class: ident.class.0,
        });
    }
    if ident.data != ELFDATA2LSB {
        return Err(ElfProblem::NotLittleEndian);
    }
    let machine = header.e_machine(LittleEndian);
    if machine != EM_X86_64 {
        return Err(ElfProblem::NotX86 { machine: machine.0 });
    }
    let kind = header.e_type(LittleEndian);
    if kind != ET_EXEC && kind != ET_DYN {
        return Err(ElfProblem::NotExecutable { kind: kind.0 });
    }
    let count = header.e_phnum(LittleEndian);
    if count == 0 {
        return Err(ElfProblem::NoSegments);
    }
    if usize::from(count) > HEADERS_MOST {
        return Err(ElfProblem::TooManyHeaders { count });
    }
    let size = header.e_phentsize(LittleEndian);
    if usize::from(size) != PHDR_SIZE {
        return Err(ElfProblem::HeaderSize { size });
    }
    let len = usize::from(count) * PHDR_SIZE;
    let bytes = aligned(part(
        file,
        "program headers",
        header.e_phoff(LittleEndian),
        len as u64,
    )?);
    let (headers, _) = pod::slice_from_bytes(bytes.as_bytes(), usize::from(count))
        .map_err(|()| ElfProblem::HeaderSize { size })?;
    Ok(headers.to_vec())
}

fn segment<'a>(
    file: &'a [u8],
    header: &ProgramHeader64<LittleEndian>,
    memory: u64,
) -> Result<Segment<'a>, ElfProblem> {
    let paddr = header.p_paddr(LittleEndian);
    let memsz = header.p_memsz(LittleEndian);
    let (offset, filesz) = header.file_range(LittleEndian);
    if filesz > memsz {
        return Err(ElfProblem::FileLargerThanMemory {
            paddr,
            filesz,
            memsz,
        });
    }
    match paddr.checked_add(memsz) {
        Some(end) if end <= memory => {}
        _ => {
            return Err(ElfProblem::OutsideMemory {
                paddr,
                memsz,
                memory,
            });
        }
    }
    let segment = Segment {
        paddr,
        data: part(file, "segment", offset, filesz)?,
        memsz,
    };
    for (area, name) in [(BOOT_AREA, "boot information"), (ACPI_AREA, "ACPI tables")] {
        if intersects(&area, &segment.range()) {
            return Err(ElfProblem::OverReserved {
                segment: segment.range(),
                area,
                name,
            });
        }
    }
    Ok(segment)
}

fn entry_note(file: &[u8], headers: &[ProgramHeader64<LittleEndian>]) -> Result<u64, ElfProblem> {
    for header in headers.iter().filter(|h| h.p_type(LittleEndian) == PT_NOTE) {
        let (offset, len) = header.file_range(LittleEndian);
        let bytes = part(file, "note segment", offset, len)?;
        if bytes.len() > NOTES_MOST {
            continue;
        }
        let bytes = aligned(bytes);
        let align = header.p_align(LittleEndian);
        let Ok(notes) =
            NoteIterator::<FileHeader64<LittleEndian>>::new(LittleEndian, align, bytes.as_bytes())
        else {
            continue;
        };
        // An error ends the segment: what follows a damaged note cannot be found.
        for note in notes.map_while(Result::ok) {
            if note.name() == b"Xen" && note.n_type(LittleEndian).0 == PHYS32_ENTRY {
                return address(note.desc());
            }
        }
    }
    Err(ElfProblem::NoPvhNote)
}

fn address(desc: &[u8]) -> Result<u64, ElfProblem> {
    if let Ok(bytes) = <[u8; 4]>::try_from(desc) {
        return Ok(u32::from_le_bytes(bytes).into());
    }
    <[u8; 8]>::try_from(desc)
        .map(u64::from_le_bytes)
        .map_err(|_| ElfProblem::BadPvhNote { len: desc.len() })
}

#[cfg(test)]
#[path = "elf_tests.rs"]
mod tests;
