//! The boot bundle: a `newc` cpio of the guest list and the guests' kernels.

use std::{fmt::Write as _, fs, io::Cursor, path::Path};

use anyhow::{Context, Result};
use cpio::{NewcBuilder, write_cpio};

use super::Built;
use crate::guest_arg::GuestArg;

/// The name of the guest list in the bundle.
const LIST: &str = "guests.txt";

/// Files to be put into a bundle.
#[derive(Debug, Default)]
pub struct Bundle {
    files: Vec<(String, Vec<u8>)>,
}

impl Bundle {
    /// A bundle with these guests and their kernels.
    ///
    /// # Errors
    /// If a kernel is not there.
    pub fn of_guests(guests: &[GuestArg], built: &Built) -> Result<Self> {
        let mut bundle = Self::default();
        let mut list = String::from("# Written by cargo xtask: one guest a line.\n");
        for guest in guests {
            let _never_fails = writeln!(list, "{guest}");
        }
        bundle.add(LIST, list.into_bytes());
        for guest in guests {
            let name = guest.kernel();
            if !bundle.has(name) {
                let path = &built.guest(name)?.path;
                let elf =
                    fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
                bundle.add(name, elf);
            }
        }
        Ok(bundle)
    }

    /// A bundle with this guest list, word for word, and no kernel yet.
    pub fn of_list(list: &str) -> Self {
        let mut bundle = Self::default();
        bundle.add(LIST, list.as_bytes().to_vec());
        bundle
    }

    /// Adds a file.
    pub fn add(&mut self, name: &str, content: Vec<u8>) {
        self.files.push((name.to_owned(), content));
    }

    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|(other, _)| other == name)
    }

    /// The archive. Equal files give an equal archive: no dates, no owners.
    ///
    /// # Errors
    /// If a file is too large for the format.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let entries = self.files.iter().zip(1..).map(|((name, content), ino)| {
            (
                NewcBuilder::new(name).ino(ino).mode(0o100_444).nlink(1),
                Cursor::new(content),
            )
        });
        write_cpio(entries, Vec::new()).context("cannot make the boot bundle")
    }

    /// Writes the archive to `path`.
    ///
    /// # Errors
    /// As [`Self::to_bytes`], or if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, self.to_bytes()?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_holds_the_files_in_order() {
        let mut bundle = Bundle::of_list("busy\n");
        bundle.add("busy", vec![1, 2, 3]);
        let bytes = bundle.to_bytes().unwrap();
        assert_eq!(
            bytes,
            bundle.to_bytes().unwrap(),
            "equal files, equal archive"
        );
        let mut reader = cpio::NewcReader::new(&bytes[..]).unwrap();
        assert_eq!(
            (reader.entry().name(), reader.entry().file_size()),
            ("guests.txt", 5)
        );
        reader = cpio::NewcReader::new(reader.finish().unwrap()).unwrap();
        assert_eq!(
            (reader.entry().name(), reader.entry().file_size()),
            ("busy", 3)
        );
        reader = cpio::NewcReader::new(reader.finish().unwrap()).unwrap();
        assert!(reader.entry().is_trailer());
    }
}
