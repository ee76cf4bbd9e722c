//! Numbers as people write them: decimal, or hexadecimal after `0x`.

use alloc::format;
use alloc::string::{String, ToString};
use core::ops::RangeInclusive;

/// Reads a number and checks its range.
///
/// # Errors
/// One clause that says why it is none, or is out of range.
pub(crate) fn number(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if digits.is_empty() {
        return Err("no digits".to_string());
    }
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return Err("not a whole number".to_string());
    }
    // Only digits are left, so the one way to fail is to be too large.
    match u64::from_str_radix(digits, radix) {
        Ok(value) if value > *range.end() => Err(format!("{value} is too large")),
        Ok(value) if value < *range.start() => Err(format!("{value} is too small")),
        Ok(value) => Ok(value),
        Err(_) => Err("too large".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_unsigned_and_in_range() {
        assert_eq!(number("0xf4", 0..=65535), Ok(0xF4));
        assert_eq!(number("010", 0..=65535), Ok(10));
        for (text, why) in [
            ("", "no digits"),
            ("0x", "no digits"),
            ("-1", "not a whole number"),
            ("+1", "not a whole number"),
            ("1.5", "not a whole number"),
            ("f4", "not a whole number"),
            ("65536", "65536 is too large"),
            ("0", "0 is too small"),
            ("99999999999999999999", "too large"),
        ] {
            assert_eq!(number(text, 1..=65535), Err(why.to_string()), "{text}");
        }
    }
}
