//! The command line of a guest: `key=value` words, each asked for by name.
//!
//! A malformed value and a word that nobody asked for are named in a note and then ignored: a typing error must neither stop a
//! guest nor pass in silence.

use core::cell::Cell;
use core::fmt;
use core::ops::RangeInclusive;

/// The longest command line that is kept, in bytes.
pub const MAX_LEN: usize = 1024;

/// What was wrong with one word of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem<'a> {
    /// Nobody asked for this key.
    Unknown {
        /// The whole word.
        word: &'a str,
    },
    /// The value is not what the key takes.
    Value {
        /// The whole word.
        word: &'a str,
        /// What it takes.
        expected: Expected<'a>,
    },
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected<'a> {
    /// A number in this range.
    Number(u64, u64),
    /// One of these words.
    OneOf(&'a [&'a str]),
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { word } => write!(f, "option '{word}' is unknown here, ignored"),
            Self::Value {
                word,
                expected: Expected::Number(low, high),
            } => {
                write!(
                    f,
                    "option '{word}' ignored: expected a number from {low} to {high}"
                )
            }
            Self::Value {
                word,
                expected: Expected::OneOf(words),
            } => {
                write!(f, "option '{word}' ignored: expected one of")?;
                words.iter().try_for_each(|word| write!(f, " {word}"))
            }
        }
    }
}

/// A command line, and which of its words were asked for.
pub struct Options<'a> {
    line: &'a str,
    /// Bit `n`: word `n` was asked for.
    asked: Cell<u64>,
    report: fn(Problem<'_>),
}

impl<'a> Options<'a> {
    /// The words of `line`; problems go to `report`, once each.
    #[must_use]
    pub const fn new(line: &'a str, report: fn(Problem<'_>)) -> Self {
        Self {
            line,
            asked: Cell::new(0),
            report,
        }
    }

    /// The whole line.
    #[must_use]
    pub const fn line(&self) -> &'a str {
        self.line
    }

    fn words(&self) -> impl Iterator<Item = (u32, &'a str)> + use<'a> {
        (0..64).zip(self.line.split_ascii_whitespace())
    }

    /// The value of the last `key=value`, or `""` for a bare `key`.
    fn find(&self, key: &str) -> Option<(&'a str, &'a str)> {
        let mut found = None;
        for (at, word) in self.words() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            if name == key {
                self.asked.set(self.asked.get() | 1 << at);
                found = Some((word, value));
            }
        }
        found
    }

    /// The text of `key=`, if the key is there.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.find(key).map(|(_, value)| value)
    }

    /// The number of `key=`, if it is there, is a number, and is in `range`; decimal, or hexadecimal with `0x`.
    #[must_use]
    pub fn number_if_given(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let (word, value) = self.find(key)?;
        let number = number(value).filter(|number| range.contains(number));
        if number.is_none() {
            (self.report)(Problem::Value {
                word,
                expected: Expected::Number(*range.start(), *range.end()),
            });
        }
        number
    }

    /// The number of `key=`, or `default`.
    #[must_use]
    pub fn number(&self, key: &str, default: u64, range: RangeInclusive<u64>) -> u64 {
        self.number_if_given(key, range).unwrap_or(default)
    }

    /// Whether `key` or `key=1` is there (`key=0` turns it off).
    #[must_use]
    pub fn flag(&self, key: &str) -> bool {
        match self.find(key) {
            None | Some((_, "0")) => false,
            Some((_, "" | "1")) => true,
            Some((word, _)) => {
                (self.report)(Problem::Value {
                    word,
                    expected: Expected::Number(0, 1),
                });
                false
            }
        }
    }

    /// The index in `words` of the value of `key=`, or `default`.
    #[must_use]
    pub fn choice(&self, key: &str, words: &[&str], default: usize) -> usize {
        let Some((word, value)) = self.find(key) else {
            return default;
        };
        words
            .iter()
            .position(|known| *known == value)
            .unwrap_or_else(|| {
                (self.report)(Problem::Value {
                    word,
                    expected: Expected::OneOf(words),
                });
                default
            })
    }

    /// Reports each word that nobody asked for: to be called when all options were read.
    pub fn report_unknown(&self) {
        for (at, word) in self.words() {
            if self.asked.get() & 1 << at == 0 {
                (self.report)(Problem::Unknown { word });
            }
        }
    }
}

/// `text` as a number: decimal, or hexadecimal with `0x`.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        // `from_str_radix` would take a sign.
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(hex, 16).ok()
        }
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::string::{String, ToString};
    use std::vec::Vec;

    thread_local! {
        static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn options(line: &str) -> Options<'_> {
        SEEN.with_borrow_mut(Vec::clear);
        Options::new(line, |problem| {
            SEEN.with_borrow_mut(|seen| seen.push(problem.to_string()))
        })
    }

    fn problems() -> Vec<String> {
        SEEN.with_borrow(Clone::clone)
    }

    #[test]
    fn the_last_of_a_key_counts() {
        let options = options("  duty=10 quiet duty=0x1e\tapic=x");
        assert_eq!(options.number("duty", 5, 0..=100), 30);
        assert_eq!(options.number("absent", 5, 0..=100), 5);
        assert_eq!(options.text("apic"), Some("x"));
        assert!(options.flag("quiet"));
        assert!(!options.flag("loud"));
        options.report_unknown();
        assert_eq!(problems(), Vec::<String>::new());
    }

    #[test]
    fn bad_values_are_named_and_ignored() {
        let options = options("duty=101 rounds=-3 n=+4 h=0x+4 pause=yes end=never e=");
        assert_eq!(options.number("duty", 30, 0..=100), 30);
        assert_eq!(options.number_if_given("rounds", 1..=u64::MAX), None);
        assert_eq!(options.number("n", 1, 0..=9), 1);
        assert_eq!(options.number("h", 1, 0..=9), 1);
        assert_eq!(options.number("e", 7, 0..=9), 7);
        assert!(!options.flag("pause"));
        assert_eq!(options.choice("end", &["port", "triple"], 1), 1);
        let seen = problems();
        assert_eq!(seen.len(), 7);
        assert_eq!(
            seen.first().map(String::as_str),
            Some("option 'duty=101' ignored: expected a number from 0 to 100")
        );
        assert_eq!(
            seen.last().map(String::as_str),
            Some("option 'end=never' ignored: expected one of port triple")
        );
    }

    #[test]
    fn words_nobody_asked_for_are_named() {
        let options = options("rounds=5 ruonds=6 x");
        assert_eq!(options.number("rounds", 1, 1..=9), 5);
        options.report_unknown();
        assert_eq!(
            problems(),
            [
                "option 'ruonds=6' is unknown here, ignored",
                "option 'x' is unknown here, ignored"
            ]
        );
    }

    #[test]
    fn a_choice_gives_its_index() {
        assert_eq!(options("end=touch").choice("end", &["port", "touch"], 0), 1);
    }
}
