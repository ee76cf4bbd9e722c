//! JSON writer: one object a line, without allocation.
//!
//! Pure. Values go straight to a [`ByteSink`]; strings are escaped as RFC 8259 section 7 asks.
use alloc::vec::Vec;
use core::fmt::{self, Display, Write};

/// Where bytes go. It cannot fail: a port takes everything.
pub trait ByteSink {
    /// Takes all of `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

impl ByteSink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Writes one object followed by a line feed.
pub fn line<S: ByteSink>(sink: &mut S, fill: impl FnOnce(&mut Object<'_, S>)) {
    object(sink, fill);
    sink.put(b"\n");
}

fn object<S: ByteSink>(sink: &mut S, fill: impl FnOnce(&mut Object<'_, S>)) {
    sink.put(b"{");
    fill(&mut Object { sink, first: true });
    sink.put(b"}");
}

fn array<S: ByteSink>(sink: &mut S, fill: impl FnOnce(&mut Array<'_, S>)) {
    sink.put(b"[");
    fill(&mut Array { sink, first: true });
    sink.put(b"]");
}

fn number<S: ByteSink>(sink: &mut S, value: impl Display) {
    // The adaptor never fails, and integers format without errors.
    let _ = write!(Plain(sink), "{value}");
}

fn text<S: ByteSink>(sink: &mut S, value: impl Display) {
    sink.put(b"\"");
    // A `Display` that reports an error ends its string early; the line stays well-formed.
    let _ = write!(Escaped(sink), "{value}");
    sink.put(b"\"");
}

/// The members of an object being written.
pub struct Object<'a, S> {
    sink: &'a mut S,
    first: bool,
}

impl<S: ByteSink> Object<'_, S> {
    fn key(&mut self, key: &str) {
        if !self.first {
            self.sink.put(b",");
        }
        self.first = false;
        text(self.sink, key);
        self.sink.put(b":");
    }

    /// A string member; anything that can be displayed.
    pub fn str(&mut self, key: &str, value: impl Display) -> &mut Self {
        self.key(key);
        text(self.sink, value);
        self
    }

    /// A string member, or `null`.
    pub fn opt_str(&mut self, key: &str, value: Option<impl Display>) -> &mut Self {
        self.key(key);
        match value {
            Some(value) => text(self.sink, value),
            None => self.sink.put(b"null"),
        }
        self
    }

    /// An unsigned number.
    pub fn u64(&mut self, key: &str, value: u64) -> &mut Self {
        self.key(key);
        number(self.sink, value);
        self
    }

    /// A signed number.
    pub fn i64(&mut self, key: &str, value: i64) -> &mut Self {
        self.key(key);
        number(self.sink, value);
        self
    }

    /// `value` as a number if it is written as JSON writes one (RFC 8259 section 6), else as a string.
    pub fn number_or_str(&mut self, key: &str, value: &str) -> &mut Self {
        if is_number(value) {
            self.key(key);
            self.sink.put(value.as_bytes());
            return self;
        }
        self.str(key, value)
    }

    /// `true` or `false`.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.key(key);
        self.sink.put(if value { b"true" } else { b"false" });
        self
    }

    /// `true`, `false`, or `null`.
    pub fn opt_bool(&mut self, key: &str, value: Option<bool>) -> &mut Self {
        match value {
            Some(value) => self.bool(key, value),
            None => self.opt_str(key, None::<&str>),
        }
    }

    /// A nested object.
    pub fn object(&mut self, key: &str, fill: impl FnOnce(&mut Object<'_, S>)) -> &mut Self {
        self.key(key);
        object(self.sink, fill);
        self
    }

    /// A nested array.
    pub fn array(&mut self, key: &str, fill: impl FnOnce(&mut Array<'_, S>)) -> &mut Self {
        self.key(key);
        array(self.sink, fill);
        self
    }
}

/// The elements of an array being written.
pub struct Array<'a, S> {
    sink: &'a mut S,
    first: bool,
}

impl<S: ByteSink> Array<'_, S> {
    fn comma(&mut self) {
        if !self.first {
            self.sink.put(b",");
        }
        self.first = false;
    }

    /// An unsigned number.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.comma();
        number(self.sink, value);
        self
    }

    /// A string.
    pub fn str(&mut self, value: impl Display) -> &mut Self {
        self.comma();
        text(self.sink, value);
        self
    }

    /// An object.
    pub fn object(&mut self, fill: impl FnOnce(&mut Object<'_, S>)) -> &mut Self {
        self.comma();
        object(self.sink, fill);
        self
    }
}

/// Whether `text` is a JSON number without exponent.
fn is_number(text: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = match text.strip_prefix('-').unwrap_or(text).split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text.strip_prefix('-').unwrap_or(text), None),
    };
    digits(whole) && (whole == "0" || !whole.starts_with('0')) && fraction.is_none_or(digits)
}

struct Plain<'a, S>(&'a mut S);

impl<S: ByteSink> Write for Plain<'_, S> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.put(s.as_bytes());
        Ok(())
    }
}

struct Escaped<'a, S>(&'a mut S);

impl<S: ByteSink> Write for Escaped<'_, S> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        // Everything that needs an escape is ASCII, so bytes of longer characters pass through untouched.
        for &byte in s.as_bytes() {
            match byte {
                b'"' => self.0.put(b"\\\""),
                b'\\' => self.0.put(b"\\\\"),
                b'\n' => self.0.put(b"\\n"),
                b'\r' => self.0.put(b"\\r"),
                b'\t' => self.0.put(b"\\t"),
                0..0x20 | 0x7F => {
                    let high = HEX.get(usize::from(byte >> 4)).copied().unwrap_or(b'0');
                    let low = HEX.get(usize::from(byte & 0xF)).copied().unwrap_or(b'0');
                    self.0.put(&[b'\\', b'u', b'0', b'0', high, low]);
                }
                _ => self.0.put(&[byte]),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fill: impl FnOnce(&mut Object<'_, Vec<u8>>)) -> String {
        let mut out = Vec::new();
        line(&mut out, fill);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn empty_and_nested() {
        assert_eq!(written(|_| ()), "{}\n");
        let got = written(|o| {
            o.array("a", |a| {
                a.u64(1).u64(2).object(|o| {
                    o.bool("t", true).bool("f", false);
                });
            })
            .array("e", |_| ())
            .object("o", |o| {
                o.i64("n", -5);
            });
        });
        assert_eq!(
            got,
            "{\"a\":[1,2,{\"t\":true,\"f\":false}],\"e\":[],\"o\":{\"n\":-5}}\n"
        );
    }

    #[test]
    fn extremes_of_numbers() {
        let got = written(|o| {
            o.u64("u", u64::MAX).i64("i", i64::MIN);
        });
        assert_eq!(
            got,
            "{\"u\":18446744073709551615,\"i\":-9223372036854775808}\n"
        );
    }

    #[test]
    fn strings_are_escaped_and_stay_on_one_line() {
        let got = written(|o| {
            o.str("k\"ey", "a\"b\\c\nd\re\tf\u{1}\u{1b}\u{7f}é");
        });
        assert_eq!(
            got,
            "{\"k\\\"ey\":\"a\\\"b\\\\c\\nd\\re\\tf\\u0001\\u001b\\u007fé\"}\n"
        );
    }

    #[test]
    fn numbers_are_told_from_text() {
        for yes in ["0", "-1", "12", "0.5", "-10.25", "18446744073709551616"] {
            assert!(is_number(yes), "{yes}");
        }
        for no in [
            "", "-", "01", "1.", ".5", "+1", "1e5", "NaN", "1 ", "0x1", "--1", "1.2.3",
        ] {
            assert!(!is_number(no), "{no}");
        }
    }

    #[test]
    fn null_and_display() {
        let got = written(|o| {
            o.opt_str("none", None::<&str>)
                .opt_str("some", Some(7))
                .str("args", format_args!("{}-{}", 1, 2));
        });
        assert_eq!(got, "{\"none\":null,\"some\":\"7\",\"args\":\"1-2\"}\n");
    }
}
