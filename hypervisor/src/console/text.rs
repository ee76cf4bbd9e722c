//! Text that is safe to show: control characters become visible.
use core::fmt::{self, Write};

/// Passes text on, with `\xNN` in the place of control characters (guests must not steer the terminal) and with
/// `head` before each line after the first.
pub(super) struct Visible<'a> {
    pub(super) out: &'a mut dyn Write,
    pub(super) head: fmt::Arguments<'a>,
}

impl Write for Visible<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let mut rest = s;
        while let Some((at, control)) = rest
            .char_indices()
            .find(|(_, c)| c.is_control() && *c != '\t')
        {
            let (clean, after) = rest.split_at(at);
            self.out.write_str(clean)?;
            match control {
                '\n' => {
                    self.out.write_str("\r\n")?;
                    self.out.write_fmt(self.head)?;
                }
                other => write!(self.out, "\\x{:02x}", u32::from(other))?,
            }
            rest = after.get(control.len_utf8()..).unwrap_or("");
        }
        self.out.write_str(rest)
    }
}
