//! Splitting a line into words, with quotes.

use crate::options::Problem;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

/// What stands between two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Separator {
    /// Any number of blanks; `#` at the start of a word begins a comment.
    Blanks,
    /// One comma each. Blanks belong to the words, since a shell has taken the quotes away.
    Commas,
}

/// One word. Quotes and escapes are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    /// As it was written.
    pub raw: &'a str,
    /// What it means.
    pub text: String,
}

/// Does a line of a list hold nothing but blanks and a comment?
pub(super) fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// Splits a line. Inside double quotes, separators are text, and a backslash takes the next character as it is.
pub(super) fn split(line: &str, separator: Separator) -> Result<Vec<Word<'_>>, Problem> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        if separator == Separator::Blanks {
            rest = rest.trim_start();
            if is_blank(rest) {
                return Ok(words);
            }
        }
        let (word, after) = take(rest, separator)?;
        words.push(word);
        match after {
            Some(after) => rest = after,
            None => return Ok(words),
        }
    }
}

/// The first word, and what is behind its separator, if there is one.
fn take(rest: &str, separator: Separator) -> Result<(Word<'_>, Option<&str>), Problem> {
    let mut text = String::new();
    let mut quoted = false;
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        let ends = match separator {
            Separator::Blanks => c.is_whitespace(),
            Separator::Commas => c == ',',
        };
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => match chars.next() {
                Some((_, escaped)) => text.push(escaped),
                None => break,
            },
            _ if ends && !quoted => {
                let raw = &rest[..at];
                return Ok((Word { raw, text }, Some(&rest[at + c.len_utf8()..])));
            }
            _ => text.push(c),
        }
    }
    if quoted {
        return Err(Problem::new(rest, "the quote does not end", "a closing \""));
    }
    Ok((Word { raw: rest, text }, None))
}

/// Text in quotes, so that [`split`] gives it back.
pub(super) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            if matches!(c, '"' | '\\') {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        f.write_char('"')
    }
}
