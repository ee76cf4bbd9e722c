//! What a guest says of itself in its output: figures and a verdict.

use alloc::string::{String, ToString};

/// What a line means besides being shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report<'a> {
    /// `FIG name value unit`.
    Figure {
        /// What was measured.
        name: &'a str,
        /// A number.
        value: &'a str,
        /// Its unit.
        unit: &'a str,
    },
    /// `PASS`.
    Pass,
    /// `FAIL reason`.
    Fail(&'a str),
}

/// Reads a line; `None` for ordinary output. A figure whose value is no number is ordinary output.
pub fn parse(line: &str) -> Option<Report<'_>> {
    let line = line.trim_end();
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "PASS" => Some(Report::Pass),
        "FAIL" => Some(Report::Fail(rest.trim())),
        "FIG" => {
            let mut words = rest.split_whitespace();
            let figure = (words.next()?, words.next()?, words.next()?);
            let (name, value, unit) = figure;
            let number = value.parse::<f64>().is_ok_and(f64::is_finite);
            (number && words.next().is_none()).then_some(Report::Figure { name, value, unit })
        }
        _ => None,
    }
}

/// What a guest has said of its success. One failure outweighs all else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    #[default]
    None,
    /// `PASS`.
    Pass,
    /// `FAIL`, with the first reason.
    Fail(String),
}

impl Verdict {
    /// Takes a report into account.
    pub fn note(&mut self, report: Report<'_>) {
        match (report, &*self) {
            (Report::Pass, Self::None) => *self = Self::Pass,
            (Report::Fail(reason), Self::None | Self::Pass) => {
                *self = Self::Fail(reason.to_string())
            }
            _ => {}
        }
    }

    /// Word of the machine channel.
    pub fn word(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pass => "pass",
            Self::Fail(_) => "fail",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_at_the_start_of_a_line() {
        assert_eq!(parse("PASS"), Some(Report::Pass));
        assert_eq!(parse("PASS all fine "), Some(Report::Pass));
        assert_eq!(
            parse("FAIL  vector lost"),
            Some(Report::Fail("vector lost"))
        );
        assert_eq!(parse("FAIL"), Some(Report::Fail("")));
        let figure = Report::Figure {
            name: "wakes",
            value: "-1.5e3",
            unit: "1/s",
        };
        assert_eq!(parse("FIG wakes -1.5e3 1/s"), Some(figure));
        let ordinary = [
            "",
            "PASSED",
            " PASS",
            "FIG",
            "FIG a 1",
            "FIG a b c",
            "FIG a 1 s x",
            "FIG a inf s",
            "FIG a NaN s",
        ];
        for line in ordinary {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_failure_stays_a_failure() {
        let mut verdict = Verdict::default();
        verdict.note(Report::Figure {
            name: "a",
            value: "1",
            unit: "s",
        });
        assert_eq!(verdict.word(), "none");
        verdict.note(Report::Pass);
        assert_eq!(verdict.word(), "pass");
        verdict.note(Report::Fail("first"));
        verdict.note(Report::Fail("second"));
        verdict.note(Report::Pass);
        assert_eq!(verdict, Verdict::Fail("first".to_string()));
    }
}
