//! What a guest kernel says about itself in its ELF, so that no list of guests has to be kept here.
//!
//! The format of the section is defined where it is written: the module `table` of the guests' runtime.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use object::{Object, ObjectSection};

use crate::guest_arg::GuestArg;

const SECTION: &str = ".lull_guest_test";
const RECORD_SIZE: usize = 256;
const MAGIC: &[u8] = b"LULLTST1";

/// A guest kernel that has been built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestKernel {
    /// Where its ELF is.
    pub path: PathBuf,
    /// What it does, in one line.
    pub about: String,
    /// How many vCPUs it wants.
    pub vcpus: u32,
    /// How much memory it wants.
    pub mem_mib: u32,
    /// Its default command line.
    pub cmdline: String,
    /// How a good run of it ends.
    pub end: GoodEnd,
}

/// How a good run of a guest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoodEnd {
    /// By the exit port.
    Port,
    /// By a triple fault, after its `PASS`.
    TripleFault,
    /// Not at all: it says `PASS` and goes on for ever.
    Never,
}

impl GuestKernel {
    /// Reads what `elf`, stored at `path`, says about itself.
    ///
    /// # Errors
    /// If it is not an ELF, or its table is not one.
    pub fn of_elf(path: PathBuf, elf: &[u8]) -> Result<Self> {
        let file = object::File::parse(elf).context("not an ELF file")?;
        let table = file
            .section_by_name(SECTION)
            .with_context(|| format!("it has no section {SECTION}"))?;
        Self::of_record(
            path,
            table
                .data()
                .with_context(|| format!("its section {SECTION} cannot be read"))?,
        )
    }

    /// From the first record of the table.
    fn of_record(path: PathBuf, table: &[u8]) -> Result<Self> {
        let record: &[u8; RECORD_SIZE] = table
            .first_chunk()
            .with_context(|| format!("{SECTION} is shorter than a record"))?;
        ensure!(
            record.starts_with(MAGIC),
            "{SECTION} does not start with its magic"
        );
        let word = |at: usize| {
            u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
        };
        let text = |at: usize, size: usize| {
            let field = record[at..at + size]
                .split(|byte| *byte == 0)
                .next()
                .unwrap_or_default();
            String::from_utf8_lossy(field).into_owned()
        };
        let end = match record[16] {
            0 => GoodEnd::Port,
            1 => GoodEnd::TripleFault,
            2 => GoodEnd::Never,
            other => bail!("{SECTION} has an unknown way to end: {other}"),
        };
        Ok(Self {
            path,
            about: text(128, 128),
            vcpus: word(8),
            mem_mib: word(12),
            cmdline: text(64, 64),
            end,
        })
    }

    /// Adds to `guest` what this kernel wants and the user has not said.
    pub fn complete(&self, guest: &mut GuestArg) {
        if self.vcpus > 0 {
            guest.or_default("vcpus", &self.vcpus.to_string());
        }
        if self.mem_mib > 0 {
            guest.or_default("mem", &format!("{}M", self.mem_mib));
        }
        if !self.cmdline.is_empty() {
            guest.or_default("cmdline", &format!("\"{}\"", self.cmdline));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Vec<u8> {
        let mut record = vec![0; RECORD_SIZE];
        record[..8].copy_from_slice(MAGIC);
        record[8] = 2;
        record[12] = 32;
        record[16] = 2;
        record[32..36].copy_from_slice(b"name");
        record[64..71].copy_from_slice(b"duty=30");
        record[128..132].copy_from_slice(b"does");
        record
    }

    #[test]
    fn what_a_kernel_wants_completes_what_the_user_says() {
        let kernel = GuestKernel::of_record(PathBuf::new(), &record()).unwrap();
        assert_eq!(
            (kernel.about.as_str(), kernel.end),
            ("does", GoodEnd::Never)
        );
        let mut guest: GuestArg = "name,mem=64M".parse().unwrap();
        kernel.complete(&mut guest);
        assert_eq!(
            guest.to_string(),
            "name vcpus=2 mem=64M cmdline=\"duty=30\""
        );
    }

    #[test]
    fn a_damaged_table_is_an_error() {
        let error = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = record();
            change(&mut bytes);
            GuestKernel::of_record(PathBuf::new(), &bytes)
                .unwrap_err()
                .to_string()
        };
        assert!(error(&|bytes| bytes.truncate(255)).contains("shorter than a record"));
        assert!(error(&|bytes| bytes[7] = b'2').contains("magic"));
        assert!(error(&|bytes| bytes[16] = 7).contains("unknown way to end: 7"));
    }
}
