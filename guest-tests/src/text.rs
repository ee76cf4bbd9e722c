//! A string of fixed capacity: lines are put together here, since a guest has no heap.

use core::fmt;

/// Up to `N` bytes of text; what does not fit is cut off, at the border of a character.
#[derive(Clone, Copy)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    used: usize,
}

impl<const N: usize> Text<N> {
    /// No text.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: [0; N],
            used: 0,
        }
    }

    /// The first `N` bytes of `from`, with bytes that are not printable ASCII replaced by `?`.
    #[must_use]
    pub fn from_ascii(from: &[u8]) -> Self {
        let mut text = Self::new();
        for (to, &byte) in text.bytes.iter_mut().zip(from) {
            *to = if byte.is_ascii_graphic() || byte == b' ' {
                byte
            } else {
                b'?'
            };
            text.used += 1;
        }
        text
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.bytes
            .get(..self.used)
            .and_then(|used| core::str::from_utf8(used).ok())
            .unwrap_or("")
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let mut take = s.len().min(N - self.used);
        while !s.is_char_boundary(take) {
            take -= 1;
        }
        if let (Some(to), Some(from)) = (
            self.bytes.get_mut(self.used..self.used + take),
            s.as_bytes().get(..take),
        ) {
            to.copy_from_slice(from);
            self.used += take;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;

    #[test]
    fn cuts_at_a_character() {
        let mut text = Text::<5>::new();
        write!(text, "ab{}", 7).expect("never fails");
        assert_eq!(text.as_str(), "ab7");
        write!(text, "\u{e9}\u{e9}").expect("never fails");
        assert_eq!(text.as_str(), "ab7\u{e9}");
    }

    #[test]
    fn foreign_bytes_are_made_printable() {
        assert_eq!(Text::<8>::from_ascii(b"a b\x01\xff").as_str(), "a b??");
        assert_eq!(Text::<2>::from_ascii(b"abc").as_str(), "ab");
    }
}
