//! Idle traces: one row an idle period.

use std::fmt;
use std::path::Path;

/// What ended an idle period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The CPU's own timer.
    Timer,
    /// Another CPU: on Lull a store to the watched word, where the state can watch.
    Remote,
    /// A device's interrupt.
    Device,
}

/// One idle period. Times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// From the entry to what ended it.
    pub length: u64,
    /// From the entry to the next timer; `None` if there was none.
    pub timer: Option<u64>,
    /// What ended it.
    pub cause: Cause,
    /// From there to the next entry.
    pub busy: u64,
}

/// A named sequence of idle periods of one CPU.
#[derive(Clone, Debug)]
pub struct Trace {
    /// As the table shows it.
    pub name: String,
    /// In order.
    pub rows: Vec<Idle>,
}

/// Why a file is no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line, from 1.
    pub line: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}", self.line, self.expected)
    }
}

impl std::error::Error for TraceError {}

impl Trace {
    /// Reads tab-separated rows of `idle_ns timer_ns cause busy_ns`, after a line of titles.
    ///
    /// `timer_ns` is -1 where there is no timer; causes are T (timer), R and C (another CPU), I (device), N (unseen).
    /// Recordings from a virtual machine see their timers late: a row that the timer ended, or that lasts past it, ends
    /// at the timer here. Rows whose timer was due at entry are left out, since such a CPU does not go idle.
    ///
    /// # Errors
    /// The first line that is none.
    pub fn parse(name: &str, text: &str) -> Result<Self, TraceError> {
        let mut rows = Vec::new();
        for (index, line) in text.lines().enumerate().skip(1) {
            let bad = |expected| TraceError {
                line: index + 1,
                expected,
            };
            let mut fields = line.split('\t');
            let mut field = |expected| fields.next().ok_or_else(|| bad(expected));
            let number = |text: &str, expected| text.parse::<i64>().map_err(|_| bad(expected));
            let length = number(field("idle_ns")?, "idle_ns, a number")?;
            let timer = number(field("timer_ns")?, "timer_ns, a number")?;
            let cause = field("a cause")?;
            let busy = number(field("busy_ns")?, "busy_ns, a number")?;

            let timer = u64::try_from(timer).ok();
            let length =
                u64::try_from(length).map_err(|_| bad("an idle_ns that is not negative"))?;
            let busy = u64::try_from(busy).map_err(|_| bad("a busy_ns that is not negative"))?;
            if timer == Some(0) || length == 0 {
                continue;
            }
            let cause = match cause {
                "T" => Cause::Timer,
                "R" | "C" | "N" => Cause::Remote,
                "I" => Cause::Device,
                _ => return Err(bad("a cause of T, R, C, I, N")),
            };
            let (length, cause) = match timer {
                Some(timer) if cause == Cause::Timer || timer <= length => (timer, Cause::Timer),
                _ => (length, cause),
            };
            rows.push(Idle {
                length,
                timer,
                cause,
                busy,
            });
        }
        Ok(Self {
            name: name.to_owned(),
            rows,
        })
    }

    /// Reads a file; its name up to the first dot names the trace.
    ///
    /// # Errors
    /// The file cannot be read, or is no trace.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let name = path.file_name().map(|name| name.to_string_lossy());
        let name = name.unwrap_or_default();
        let name = name.split('.').next().unwrap_or_default();
        Self::parse(name, &text).map_err(|why| {
            std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                format!("{}: {why}", path.display()),
            )
        })
    }

    /// The rows from `start` on, `count` at most, under the same name.
    pub fn part(&self, start: usize, count: usize) -> Self {
        Self {
            name: self.name.clone(),
            rows: self.rows.iter().skip(start).take(count).copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_timers_are_on_time_and_due_ones_left_out() {
        let text = "idle_ns\ttimer_ns\tcause\tbusy_ns\n1050\t1000\tT\t5\n10\t0\tT\t5\n70\t-1\tC\t6\n90\t80\tI\t1\n";
        let trace = Trace::parse("x", text).unwrap();
        let expected = [
            (1000, Some(1000), Cause::Timer, 5),
            (70, None, Cause::Remote, 6),
            (80, Some(80), Cause::Timer, 1),
        ];
        let rows: Vec<_> = trace
            .rows
            .iter()
            .map(|row| (row.length, row.timer, row.cause, row.busy))
            .collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = Trace::parse("x", "titles\n1\t2\tT\t3\n1\t2\tQ\t3\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 3: expected a cause of T, R, C, I, N"
        );
    }
}
