//! One thing that is wrong with text that a person wrote.

use alloc::string::{String, ToString};
use core::fmt;

/// How much of a bad word is repeated. A word can be a megabyte of garbage.
const SHOWN_CHARS: usize = 60;

/// A word that could not be used, why, and what would have been right. One line when displayed, whatever the word held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The word, cut to a sane length, with control characters escaped.
    pub word: String,
    /// What is wrong with it.
    pub why: String,
    /// What is expected in its place.
    pub expected: String,
}

impl Problem {
    /// A problem with `word`.
    pub fn new(word: &str, why: impl ToString, expected: impl ToString) -> Self {
        let mut shown: String = word
            .chars()
            .take(SHOWN_CHARS)
            .flat_map(char::escape_debug)
            .collect();
        if word.chars().nth(SHOWN_CHARS).is_some() {
            shown.push_str("...");
        }
        Self {
            word: shown,
            why: why.to_string(),
            expected: expected.to_string(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}`: {} (expected {})",
            self.word, self.why, self.expected
        )
    }
}

impl core::error::Error for Problem {}
