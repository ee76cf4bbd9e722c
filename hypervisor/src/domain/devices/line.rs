//! Makes lines of a guest's bytes: split at newlines and at a limit, with nothing unprintable left in them.

use alloc::string::String;
use core::fmt::Write;

/// Longest line, in bytes of the guest.
const LONGEST: usize = 256;

/// Collects bytes until a line is complete.
#[derive(Debug, Default)]
pub struct LineAssembler {
    text: String,
    taken: usize,
}

impl LineAssembler {
    /// Adds a byte; returns the line that it completes. Carriage returns are dropped.
    pub fn push(&mut self, byte: u8) -> Option<String> {
        match byte {
            b'\n' => return Some(self.end()),
            b'\r' => {}
            b'\t' | b' '..=b'~' => self.text.push(byte.into()),
            // Writing to a string cannot fail.
            _ => write!(self.text, "\\x{byte:02x}").unwrap_or(()),
        }
        self.taken += usize::from(byte != b'\r');
        (self.taken >= LONGEST).then(|| self.end())
    }

    /// What has no newline yet.
    pub fn take(&mut self) -> Option<String> {
        (self.taken > 0).then(|| self.end())
    }

    fn end(&mut self) -> String {
        self.taken = 0;
        core::mem::take(&mut self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn lines(bytes: &[u8]) -> (Vec<String>, Option<String>) {
        let mut assembler = LineAssembler::default();
        let lines = bytes.iter().filter_map(|b| assembler.push(*b)).collect();
        (lines, assembler.take())
    }

    #[test]
    fn lines_end_at_newlines() {
        assert_eq!(lines(b"a b\r\n\nc").0, ["a b", ""]);
        assert_eq!(lines(b"a b\r\n\nc").1.as_deref(), Some("c"));
        assert_eq!(lines(b"a\n").1, None);
    }

    #[test]
    fn what_is_not_printable_is_escaped() {
        assert_eq!(
            lines(b"\x1b[31m\x00\xff\tz\n").0,
            ["\\x1b[31m\\x00\\xff\tz"]
        );
    }

    #[test]
    fn a_line_without_end_is_split() {
        let (lines, rest) = lines(&[b'y'; 600]);
        assert_eq!(
            lines.iter().map(String::len).collect::<Vec<_>>(),
            [256, 256]
        );
        assert_eq!(rest.map(|r| r.len()), Some(88));
        let (lines, _) = self::lines(&[0u8; 256]);
        assert_eq!(
            lines[0].len(),
            4 * 256,
            "the limit is on what the guest sent"
        );
    }
}
