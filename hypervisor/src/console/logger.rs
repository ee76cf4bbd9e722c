//! Log lines for people: `(LULL) [    0.123456] message`.
//!
//! A line is formatted straight into the UART under its lock. The lock is a leaf, so a `Display` that is
//! logged must not log. Never called by the idle path, by VM exits, or by interrupt handlers.
use super::text;
use core::fmt::{self, Write};
use log::{Level, LevelFilter, Log, Metadata, Record};
use lull_core::units::{DomId, Nanos};

struct ConsoleLog;

static LOGGER: ConsoleLog = ConsoleLog;

impl Log for ConsoleLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let head = LogHead {
                uptime: crate::time::uptime(),
                level: record.level(),
            };
            super::write_line(format_args!("{head}"), *record.args());
        }
    }

    fn flush(&self) {}
}

/// Makes the console the backend of the `log` crate. A second call changes nothing.
pub(super) fn install() {
    if log::set_logger(&LOGGER).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// What stands before a log message. Info, the usual level, has no mark.
pub(super) struct LogHead {
    pub(super) uptime: Nanos,
    pub(super) level: Level,
}

impl fmt::Display for LogHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.uptime.get() / 1000;
        write!(
            f,
            "(LULL) [{:>5}.{:06}] ",
            micros / 1_000_000,
            micros % 1_000_000
        )?;
        f.write_str(match self.level {
            Level::Error => "ERROR: ",
            Level::Warn => "WARNING: ",
            Level::Info => "",
            Level::Debug => "debug: ",
            Level::Trace => "trace: ",
        })
    }
}

/// What stands before a line that a guest printed.
pub(super) struct GuestHead(pub(super) DomId);

impl fmt::Display for GuestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}) ", self.0)
    }
}

/// Writes one line to `out`: `head`, then `body`, with every further line of `body` behind its own head.
pub(super) fn format_line(
    out: &mut dyn Write,
    head: fmt::Arguments<'_>,
    body: fmt::Arguments<'_>,
) -> fmt::Result {
    out.write_fmt(head)?;
    text::Visible { out, head }.write_fmt(body)?;
    out.write_str("\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(head: fmt::Arguments<'_>, body: fmt::Arguments<'_>) -> String {
        let mut out = String::new();
        format_line(&mut out, head, body).unwrap();
        out
    }

    #[test]
    fn head_is_like_xens_and_marks_what_is_not_usual() {
        let head = |nanos, level| {
            LogHead {
                uptime: Nanos::new(nanos),
                level,
            }
            .to_string()
        };
        assert_eq!(head(123_456_789, Level::Info), "(LULL) [    0.123456] ");
        assert_eq!(
            head(98_765_000_001_999, Level::Warn),
            "(LULL) [98765.000001] WARNING: "
        );
        assert_eq!(head(0, Level::Error), "(LULL) [    0.000000] ERROR: ");
    }

    #[test]
    fn every_line_of_a_message_has_its_head() {
        assert_eq!(
            line(format_args!("H "), format_args!("a\nb{}", 1)),
            "H a\r\nH b1\r\n"
        );
    }

    #[test]
    fn a_guest_cannot_steer_the_terminal() {
        let head = GuestHead(DomId::new(1));
        assert_eq!(
            line(
                format_args!("{head}"),
                format_args!("{}", "a\u{1b}[2Jb\r\u{7}ü\u{9b}31m\tx")
            ),
            "(d1) a\\x1b[2Jb\\x0d\\x07ü\\x9b31m\tx\r\n"
        );
    }
}
