//! The boot bundle: a `newc` cpio archive with `guests.txt` and one ELF file a kernel.
//!
//! The archive is read by `cpio_reader`, which is bounds-checked but ends silently at the first header it does not
//! understand, and also takes three other formats. So the pieces it gives are checked against the archive: each
//! file must begin with the magic of `newc` where the one before it ended, and after the last one there must be the
//! trailer. A damaged archive is named as such and nothing of it is used.
//!
//! Called once at boot.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Name of the guest list.
pub const GUEST_LIST: &str = "guests.txt";

const MAGIC: &[u8] = b"070701";
const TRAILER: &[u8] = b"TRAILER!!!\0";

/// Bytes of a `newc` header.
const HEADER: usize = 110;

/// What is wrong with a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleProblem {
    /// No bytes at all: no `-initrd`, or an empty one.
    Empty,
    /// Not an archive, or damaged or cut off from here on.
    Damaged {
        /// Offset of the bytes that are no valid entry.
        at: usize,
        /// The last file that was still good.
        after: Option<String>,
    },
    /// An archive without a file.
    NoFiles,
    /// The same name twice.
    Duplicate {
        /// The name.
        name: String,
    },
    /// No `guests.txt`.
    NoGuestList,
    /// `guests.txt` is not text.
    GuestListNotText {
        /// Offset of the first byte that is not UTF-8.
        at: usize,
    },
    /// A guest's kernel is not in the archive.
    NoKernel {
        /// Name of the file.
        name: String,
        /// The files that are there.
        present: Vec<String>,
    },
}

impl BundleProblem {
    /// What would have been right, in a few words.
    pub fn expected(&self) -> &'static str {
        match self {
            Self::Empty => "a newc cpio archive as initrd (first multiboot module)",
            Self::Damaged { .. } => "a complete newc cpio archive",
            Self::NoFiles | Self::NoGuestList => "a file named guests.txt",
            Self::Duplicate { .. } => "each name once",
            Self::GuestListNotText { .. } => "UTF-8 text",
            Self::NoKernel { .. } => "a kernel file of that name in the bundle",
        }
    }
}

impl fmt::Display for BundleProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "no boot bundle")?,
            Self::Damaged { at, after: None } => write!(f, "not a newc archive (at byte {at})")?,
            Self::Damaged {
                at,
                after: Some(name),
            } => {
                write!(f, "damaged at byte {at}, after \"{}\"", name.escape_debug())?;
            }
            Self::NoFiles => write!(f, "archive without a file")?,
            Self::Duplicate { name } => write!(f, "\"{}\" is there twice", name.escape_debug())?,
            Self::NoGuestList => write!(f, "no guests.txt")?,
            Self::GuestListNotText { at } => write!(f, "guests.txt is not text at byte {at}")?,
            Self::NoKernel { name, present } => {
                write!(f, "no kernel \"{}\" (there are:", name.escape_debug())?;
                for name in present {
                    write!(f, " {}", name.escape_debug())?;
                }
                write!(f, ")")?;
            }
        }
        Ok(())
    }
}

/// The files of a bundle that has been checked whole.
#[derive(Debug)]
pub struct Bundle<'a> {
    files: Vec<(&'a str, &'a [u8])>,
}

impl<'a> Bundle<'a> {
    /// Reads an archive.
    ///
    /// # Errors
    /// [`BundleProblem::Empty`], `Damaged`, `NoFiles`, `Duplicate`.
    pub fn parse(archive: &'a [u8]) -> Result<Self, BundleProblem> {
        if archive.is_empty() {
            return Err(BundleProblem::Empty);
        }
        let mut files: Vec<(&'a str, &'a [u8])> = Vec::new();
        let mut at = 0;
        let damaged = |at, files: &Vec<(&str, &[u8])>| BundleProblem::Damaged {
            at,
            after: files.last().map(|(name, _)| (*name).to_string()),
        };
        for entry in cpio_reader::iter_files(archive) {
            if !starts_with(archive, at, MAGIC) {
                return Err(damaged(at, &files));
            }
            at = end_of(archive, entry.file()).ok_or_else(|| damaged(at, &files))?;
            let name = entry
                .name()
                .trim_start_matches("./")
                .trim_start_matches('/');
            if !entry.mode().contains(cpio_reader::Mode::REGULAR_FILE) {
                continue;
            }
            if files.iter().any(|(other, _)| *other == name) {
                return Err(BundleProblem::Duplicate {
                    name: name.to_string(),
                });
            }
            files.push((name, entry.file()));
        }
        if !starts_with(archive, at, MAGIC) || !starts_with(archive, at + HEADER, TRAILER) {
            return Err(damaged(at, &files));
        }
        if files.is_empty() {
            return Err(BundleProblem::NoFiles);
        }
        Ok(Self { files })
    }

    /// Names and contents.
    pub fn files(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.files.iter().copied()
    }

    /// A file.
    pub fn file(&self, name: &str) -> Option<&'a [u8]> {
        self.files()
            .find(|(n, _)| *n == name)
            .map(|(_, bytes)| bytes)
    }

    /// The guest list.
    ///
    /// # Errors
    /// [`BundleProblem::NoGuestList`], `GuestListNotText`.
    pub fn guest_list(&self) -> Result<&'a str, BundleProblem> {
        let bytes = self.file(GUEST_LIST).ok_or(BundleProblem::NoGuestList)?;
        core::str::from_utf8(bytes).map_err(|e| BundleProblem::GuestListNotText {
            at: e.valid_up_to(),
        })
    }

    /// A kernel.
    ///
    /// # Errors
    /// [`BundleProblem::NoKernel`], with the names of the files that are there.
    pub fn kernel(&self, name: &str) -> Result<&'a [u8], BundleProblem> {
        self.file(name)
            .filter(|_| name != GUEST_LIST)
            .ok_or_else(|| BundleProblem::NoKernel {
                name: name.to_string(),
                present: self
                    .files()
                    .map(|(n, _)| n)
                    .filter(|n| *n != GUEST_LIST)
                    .map(String::from)
                    .collect(),
            })
    }
}

fn starts_with(archive: &[u8], at: usize, bytes: &[u8]) -> bool {
    archive
        .get(at..)
        .is_some_and(|rest| rest.starts_with(bytes))
}

/// Offset behind a part of the archive, padded to 4. An empty part may be any empty slice: then the end is found
/// from its address only if it lies inside.
fn end_of(archive: &[u8], part: &[u8]) -> Option<usize> {
    let start = part.as_ptr().addr().checked_sub(archive.as_ptr().addr())?;
    let end = start.checked_add(part.len())?.checked_next_multiple_of(4)?;
    (end <= archive.len().next_multiple_of(4)).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn entry(name: &str, mode: u32, data: &[u8]) -> Vec<u8> {
        let mut out = std::format!(
            "070701{:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
            1, 0, 0, 1, 0, data.len(), 0, 0, 0, 0, name.len() + 1, 0
        )
        .into_bytes();
        assert_eq!(out.len(), HEADER);
        out.extend(name.as_bytes());
        out.push(0);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(data);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out: Vec<u8> = files
            .iter()
            .flat_map(|(n, d)| entry(n, 0o100_644, d))
            .collect();
        out.extend(entry("TRAILER!!!", 0, b""));
        out
    }

    #[test]
    fn a_good_bundle_is_read_with_any_padding_behind_it() {
        let mut bytes = archive(&[
            ("guests.txt", b"idle\n"),
            ("idle", b"\x7fELF."),
            ("empty", b""),
        ]);
        for _ in 0..2 {
            let bundle = Bundle::parse(&bytes).expect("good");
            assert_eq!(bundle.guest_list(), Ok("idle\n"));
            assert_eq!(bundle.kernel("idle"), Ok(&b"\x7fELF."[..]));
            assert_eq!(bundle.kernel("empty"), Ok(&b""[..]));
            bytes.resize(bytes.len() + 512, 0);
        }
    }

    #[test]
    fn leading_dots_and_directories_do_not_matter() {
        let mut bytes = entry(".", 0o040_755, b"");
        bytes.extend(archive(&[("./guests.txt", b"x")]));
        assert_eq!(Bundle::parse(&bytes).expect("good").guest_list(), Ok("x"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let bad = |bytes: &[u8]| Bundle::parse(bytes).expect_err("must be refused");
        assert_eq!(bad(b""), BundleProblem::Empty);
        assert_eq!(
            bad(b"\x1f\x8b gzip"),
            BundleProblem::Damaged { at: 0, after: None }
        );
        assert_eq!(bad(&archive(&[])), BundleProblem::NoFiles);
        let twice = archive(&[("a", b"1"), ("a", b"2")]);
        assert_eq!(
            bad(&twice),
            BundleProblem::Duplicate {
                name: "a".to_string()
            }
        );

        let good = archive(&[("guests.txt", b"idle\n"), ("idle", b"12345678")]);
        let second = good.windows(6).rposition(|w| w == MAGIC).expect("trailer");
        let mut torn = good.clone();
        torn[second] = b'x';
        assert_eq!(
            bad(&torn),
            BundleProblem::Damaged {
                at: second,
                after: Some("idle".to_string())
            }
        );
        for len in 1..good.len() - 3 {
            assert!(
                matches!(bad(&good[..len]), BundleProblem::Damaged { .. }),
                "cut at {len}"
            );
        }

        let bundle = archive(&[("idle", b"x"), ("busy", b"y")]);
        let bundle = Bundle::parse(&bundle).expect("an archive");
        assert_eq!(bundle.guest_list(), Err(BundleProblem::NoGuestList));
        assert_eq!(
            bundle.kernel("smp").expect_err("absent").to_string(),
            "no kernel \"smp\" (there are: idle busy)"
        );
        let bundle = archive(&[("guests.txt", b"ab\xff")]);
        let bundle = Bundle::parse(&bundle).expect("an archive");
        assert_eq!(
            bundle.guest_list(),
            Err(BundleProblem::GuestListNotText { at: 2 })
        );
        assert!(
            bundle.kernel("guests.txt").is_err(),
            "the list is no kernel"
        );
    }

    #[test]
    fn other_cpio_formats_are_refused_even_after_a_good_file() {
        let mut bytes = entry("guests.txt", 0o100_644, b"x");
        let at = bytes.len();
        let mut old = vec![0xc7, 0x71];
        old.extend([0u8; 18]);
        old.extend([2, 0, 0, 0, 0, 0, b'a', 0]);
        bytes.extend(&old);
        bytes.extend(entry("TRAILER!!!", 0, b""));
        let problem = Bundle::parse(&bytes).expect_err("must be refused");
        assert_eq!(
            problem,
            BundleProblem::Damaged {
                at,
                after: Some("guests.txt".to_string())
            }
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Bundle::parse(&bytes);
        }

        #[test]
        fn mutated_archives_never_panic(
            changes in proptest::collection::vec((0usize..500, any::<u8>()), 1..8),
            cut in 0usize..40,
        ) {
            let mut bytes = archive(&[("guests.txt", b"idle\n"), ("idle", b"12345678"), ("z", b"")]);
            let len = bytes.len();
            for (at, value) in changes {
                bytes[at % len] = value;
            }
            bytes.truncate(len - cut);
            if let Ok(bundle) = Bundle::parse(&bytes) {
                for (name, data) in bundle.files() {
                    prop_assert!(data.len() <= len && name.len() <= len);
                }
            }
        }
    }
}
