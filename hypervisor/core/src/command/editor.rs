//! A line that is being typed: what each byte does to it, and what the terminal is to be told.
//!
//! Pure: bytes in, bytes out. Anything may be typed: what is no printable ASCII and no editing key is ignored.

use alloc::string::String;

/// The longest line. More is not taken, and the bell says so.
pub const MAX_LINE: usize = 200;

const BACKSPACE: u8 = 0x08;
const DELETE: u8 = 0x7F;
const CTRL_C: u8 = 0x03;
const CTRL_U: u8 = 0x15;
const ESCAPE: u8 = 0x1B;

/// What came of a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The line goes on; these bytes go to the terminal.
    Echo(String),
    /// Enter: this is the line.
    Done(String),
    /// The user has given up.
    Abandoned,
}

/// The line so far.
#[derive(Debug, Default)]
pub struct LineEditor {
    line: String,
}

impl LineEditor {
    /// An empty line.
    pub const fn new() -> Self {
        Self {
            line: String::new(),
        }
    }

    /// What has been typed.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Takes one byte. After [`Edit::Done`] and [`Edit::Abandoned`] the line is empty again.
    pub fn take(&mut self, byte: u8) -> Edit {
        match byte {
            b'\r' | b'\n' => Edit::Done(core::mem::take(&mut self.line)),
            CTRL_C | ESCAPE => {
                self.line.clear();
                Edit::Abandoned
            }
            BACKSPACE | DELETE => Edit::Echo(match self.line.pop() {
                Some(_) => String::from("\x08 \x08"),
                None => String::new(),
            }),
            CTRL_U => {
                let wipe = "\x08 \x08".repeat(self.line.len());
                self.line.clear();
                Edit::Echo(wipe)
            }
            b' '..=b'~' if self.line.len() < MAX_LINE => {
                self.line.push(char::from(byte));
                Edit::Echo(String::from(char::from(byte)))
            }
            b' '..=b'~' => Edit::Echo(String::from("\x07")),
            _ => Edit::Echo(String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn typed(bytes: &[u8]) -> Edit {
        let mut editor = LineEditor::new();
        let mut last = Edit::Abandoned;
        for &byte in bytes {
            last = editor.take(byte);
        }
        last
    }

    #[test]
    fn a_line_ends_with_enter_of_either_kind() {
        assert_eq!(typed(b"help\r"), Edit::Done("help".into()));
        assert_eq!(typed(b"help\n"), Edit::Done("help".into()));
        assert_eq!(typed(b"hep\x7flp\r"), Edit::Done("help".into()));
        assert_eq!(typed(b"nonsense\x15help\r"), Edit::Done("help".into()));
        assert_eq!(typed(b"help\x1b"), Edit::Abandoned);
        assert_eq!(typed(b"\r"), Edit::Done(String::new()));
    }

    #[test]
    fn what_is_echoed_wipes_as_much_as_was_written() {
        assert_eq!(typed(b"ab\x08"), Edit::Echo("\x08 \x08".into()));
        assert_eq!(typed(b"\x08"), Edit::Echo(String::new()));
        assert_eq!(typed(b"ab\x15"), Edit::Echo("\x08 \x08\x08 \x08".into()));
        assert_eq!(typed(&[0xFF]), Edit::Echo(String::new()));
    }

    #[test]
    fn a_line_has_an_end() {
        let mut editor = LineEditor::new();
        for _ in 0..MAX_LINE {
            assert_eq!(editor.take(b'x'), Edit::Echo("x".into()));
        }
        assert_eq!(editor.take(b'x'), Edit::Echo("\x07".into()));
        assert_eq!(editor.line().len(), MAX_LINE);
    }

    proptest! {
        #[test]
        fn whatever_is_typed_the_line_is_short_and_printable(bytes: Vec<u8>) {
            let mut editor = LineEditor::new();
            for byte in bytes {
                let edit = editor.take(byte);
                prop_assert!(editor.line().len() <= MAX_LINE);
                prop_assert!(editor.line().bytes().all(|b| (b' '..=b'~').contains(&b)));
                if let Edit::Done(line) = edit {
                    prop_assert!(line.bytes().all(|b| (b' '..=b'~').contains(&b)));
                    prop_assert_eq!(editor.line(), "");
                }
            }
        }
    }
}
