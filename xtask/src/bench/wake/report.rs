//! What the rows of `bench wake` have measured: figures for a file, and bars that hold or do not.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use serde::Serialize;

/// A drawn bar: full where the value is the most, or more.
pub fn drawn(value: u64, most: u64) -> String {
    const FULL: u64 = 30;
    let length = (u128::from(value) * u128::from(FULL)).div_ceil(u128::from(most.max(1)));
    "#".repeat(length.min(u128::from(FULL)) as usize)
}

/// One number of one row.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// The row's name, as in `--rows`.
    row: &'static str,
    /// The emulator, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    emulator: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<u32>,
    /// What is compared within the row: the setting of the switches, the way of waking.
    variant: String,
    name: String,
    value: f64,
}

impl Figure {
    pub fn new(
        row: &'static str,
        variant: impl Into<String>,
        name: impl Into<String>,
        value: f64,
    ) -> Self {
        Self {
            row,
            emulator: None,
            cpus: None,
            variant: variant.into(),
            name: name.into(),
            value,
        }
    }

    /// The same, measured on such a machine.
    pub fn on(mut self, emulator: &'static str, cpus: u32) -> Self {
        (self.emulator, self.cpus) = (Some(emulator), Some(cpus));
        self
    }
}

/// A bar, and whether it holds.
#[derive(Debug, Serialize)]
struct Bar {
    row: &'static str,
    what: String,
    value: f64,
    at_most: f64,
    holds: bool,
}

/// All that was measured.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    figures: Vec<Figure>,
    bars: Vec<Bar>,
}

impl Report {
    pub fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    pub fn bar(&mut self, row: &'static str, what: impl Into<String>, value: f64, at_most: f64) {
        self.bars.push(Bar {
            row,
            what: what.into(),
            value,
            at_most,
            // A NaN holds nothing.
            holds: value <= at_most,
        });
    }

    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Prints the bars.
    ///
    /// # Errors
    /// One is missed.
    pub fn judge(&self) -> Result<()> {
        for bar in &self.bars {
            println!(
                "{} {:<72} {:>10.3}  (at most {})",
                if bar.holds { "ok  " } else { "MISS" },
                bar.what,
                bar.value,
                bar.at_most
            );
        }
        match self.bars.iter().filter(|bar| !bar.holds).count() {
            0 => Ok(()),
            missed => bail!("{missed} bars are missed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_drawn_in_proportion_and_never_too_long() {
        assert_eq!(drawn(0, 0), "");
        assert_eq!(drawn(1, 1000), "#");
        assert_eq!(drawn(50, 100).len(), 15);
        assert_eq!(drawn(u64::MAX, u64::MAX).len(), 30);
        assert_eq!(drawn(7, 3).len(), 30);
    }

    #[test]
    fn a_bar_holds_up_to_its_limit_and_the_file_says_so() {
        let mut report = Report::default();
        report.add(Figure::new("storms", "all on", "x.ipis", 3.0).on("qemu", 2));
        report.bar("storms", "a", 0.4, 0.4);
        assert!(report.judge().is_ok());
        report.bar("storms", "b", 0.41, 0.4);
        report.bar("storms", "c", f64::NAN, 0.4);
        let missed = report.judge().map_err(|why| why.to_string());
        assert_eq!(missed, Err("2 bars are missed".to_owned()));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["figures"][0]["emulator"], "qemu");
        assert_eq!(json["figures"][0]["value"], 3.0);
        assert_eq!(json["bars"][0]["holds"], true);
        assert_eq!(json["bars"][1]["holds"], false);
    }
}
