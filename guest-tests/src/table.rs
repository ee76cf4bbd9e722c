//! The table of tests in a guest image: what a test host can learn from the ELF file without running it.
//!
//! # Format
//! The ELF section `.lull_guest_test` holds one or more records of [`RECORD_SIZE`] = 256 bytes, little-endian:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `LULLTST1` (the digit is the version of this format) |
//! | 8 | 4 | vCPUs to give it by default |
//! | 12 | 4 | memory to give it by default, in MiB |
//! | 16 | 1 | how a good run ends: 0 by the exit port, 1 by a triple fault after its `PASS`, 2 never (after its `PASS`) |
//! | 17 | 15 | zero |
//! | 32 | 32 | name, padded with NUL |
//! | 64 | 64 | default command line, padded with NUL |
//! | 128 | 128 | what it does, in one line, padded with NUL |
//!
//! The verdict is the guest's own line `PASS` or `FAIL reason`; figures are lines `FIG name value unit`; remarks are `note: ...`.

/// Bytes of one record.
pub const RECORD_SIZE: usize = 256;
const MAGIC: [u8; 8] = *b"LULLTST1";

/// How a good run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By the exit port (on Xen: by SCHEDOP_shutdown).
    Port = 0,
    /// By a triple fault, after `PASS`.
    TripleFault = 1,
    /// Not at all: it prints `PASS` and goes on for ever.
    Never = 2,
}

/// A record as it lies in the image.
#[repr(C)]
pub struct Record {
    magic: [u8; 8],     // 0
    vcpus: u32,         // 8
    memory_mib: u32,    // 12
    end: u8,            // 16
    reserved: [u8; 15], // 17
    name: [u8; 32],     // 32
    cmdline: [u8; 64],  // 64
    summary: [u8; 128], // 128
}

const _: () = assert!(size_of::<Record>() == RECORD_SIZE);
const _: () = assert!(
    core::mem::offset_of!(Record, name) == 32 && core::mem::offset_of!(Record, summary) == 128
);

impl Record {
    /// A record; a text that does not fit is an error at compile time.
    #[must_use]
    pub const fn new(
        name: &str,
        summary: &str,
        cmdline: &str,
        vcpus: u32,
        memory_mib: u32,
        end: End,
    ) -> Self {
        Self {
            magic: MAGIC,
            vcpus: vcpus.to_le(),
            memory_mib: memory_mib.to_le(),
            end: end as u8,
            reserved: [0; 15],
            name: padded(name),
            cmdline: padded(cmdline),
            summary: padded(summary),
        }
    }
}

const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    assert!(bytes.len() < N, "text too long for its field");
    let mut field = [0; N];
    let mut at = 0;
    while at < bytes.len() {
        field[at] = bytes[at];
        at += 1;
    }
    field
}

/// A record as a host reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name of the test.
    pub name: &'a str,
    /// What it does, in one line.
    pub summary: &'a str,
    /// Default command line.
    pub cmdline: &'a str,
    /// Default number of vCPUs.
    pub vcpus: u32,
    /// Default memory in MiB.
    pub memory_mib: u32,
    /// How a good run ends.
    pub end: End,
}

/// Why a section is not a table of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// The size is not a multiple of [`RECORD_SIZE`].
    Size,
    /// A record of another kind or version.
    Magic,
    /// A field that is out of its range or not text.
    Field,
}

/// The entries of the bytes of the section; an error for each record that is none.
pub fn entries(
    section: &[u8],
) -> Result<impl Iterator<Item = Result<Entry<'_>, TableError>>, TableError> {
    let (records, rest) = section.as_chunks::<RECORD_SIZE>();
    if rest.is_empty() {
        Ok(records.iter().map(entry))
    } else {
        Err(TableError::Size)
    }
}

fn entry(record: &[u8; RECORD_SIZE]) -> Result<Entry<'_>, TableError> {
    if !record.starts_with(&MAGIC) {
        return Err(TableError::Magic);
    }
    let word = |at: usize| {
        record
            .get(at..)
            .and_then(<[u8]>::first_chunk)
            .map(|bytes| u32::from_le_bytes(*bytes))
            .ok_or(TableError::Field)
    };
    let text = |at: usize, size: usize| {
        let field = record.get(at..at + size).unwrap_or(&[]);
        let used = field
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(field.len());
        core::str::from_utf8(field.get(..used).unwrap_or(&[])).map_err(|_| TableError::Field)
    };
    let end = match record.get(16) {
        Some(0) => End::Port,
        Some(1) => End::TripleFault,
        Some(2) => End::Never,
        _ => return Err(TableError::Field),
    };
    Ok(Entry {
        name: text(32, 32)?,
        summary: text(128, 128)?,
        cmdline: text(64, 64)?,
        vcpus: word(8)?,
        memory_mib: word(12)?,
        end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn bytes(record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(record.magic);
        bytes.extend(record.vcpus.to_ne_bytes());
        bytes.extend(record.memory_mib.to_ne_bytes());
        bytes.push(record.end);
        bytes.extend(record.reserved);
        bytes.extend(record.name);
        bytes.extend(record.cmdline);
        bytes.extend(record.summary);
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let section = [
            bytes(&Record::new("a", "does a", "x=1", 2, 16, End::Never)),
            bytes(&Record::new("b", "does b", "", 1, 32, End::Port)),
        ]
        .concat();
        let read: Vec<_> = entries(&section).expect("sound").collect();
        assert_eq!(read.len(), 2);
        let first = Entry {
            name: "a",
            summary: "does a",
            cmdline: "x=1",
            vcpus: 2,
            memory_mib: 16,
            end: End::Never,
        };
        assert_eq!(read.first(), Some(&Ok(first)));
    }

    #[test]
    fn damage_is_named() {
        let good = bytes(&Record::new("a", "does a", "", 1, 16, End::Port));
        assert_eq!(
            entries(good.get(1..).expect("bytes")).err(),
            Some(TableError::Size)
        );
        let spoil = |at: usize, byte: u8| {
            let mut bad = good.clone();
            *bad.get_mut(at).expect("inside") = byte;
            entries(&bad).expect("size").next().expect("one").err()
        };
        assert_eq!(spoil(7, b'2'), Some(TableError::Magic));
        assert_eq!(spoil(16, 9), Some(TableError::Field));
        assert_eq!(spoil(32, 0xff), Some(TableError::Field));
    }
}
