//! `cargo xtask bench wake`: what calls and wakes cost, with each idea on and off, in the same build.
//!
//! One file for each row: it boots what it needs, prints a table, and adds figures and bars to the report.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use bench::{Bench, VARIANT_NAMES};
use report::Report;

mod bench;
mod growth;
mod guest;
mod host;
mod latency;
mod mostly_idle;
mod report;
mod storms;

/// Options of `bench wake`.
#[derive(Args)]
pub struct WakeArgs {
    /// Only these rows
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = ROWS.map(|(name, _)| name))]
    rows: Vec<String>,
    /// Only in QEMU, only in Bochs, or only on simulated machines
    #[arg(long, value_name = "EMULATOR", value_parser = ["qemu", "bochs", "sim"])]
    only: Option<String>,
    /// Only these settings of the switches; bars that need others are left out
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = VARIANT_NAMES)]
    variants: Vec<String>,
    /// CPUs in QEMU
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    cpus: u32,
    /// CPUs in Bochs
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=15))]
    bochs_cpus: u32,
    /// Few rounds: shows that all of it works; what is counted is right, what is timed is not
    #[arg(long)]
    quick: bool,
    /// Boot this image, and build none
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Write all figures and bars to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Plot the curves of row `growth` to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What none of the rows can show.
const NOT_OBSERVABLE: &str = "\
Ticks are instructions in QEMU, and emulated clocks in Bochs. Not observable there, whatever the rows above say of it:
  storms       what a fence before an IPI costs (no store buffers), and a line that others hold or dirty (no caches)
  latency      what a state costs to leave: the deepest is left as fast as C1 (no exit latencies, no voltage, no PLLs)
  mostly-idle  states of cores and packages that share them, and power
  growth       misses, and how far apart CPUs are
The recipe for real hardware: docs/src/hardware.md, \"Wakes, measured\".";

/// Measures one row.
type Row = fn(&Bench, &mut Report) -> Result<()>;

/// All rows, by the name that `--rows` takes.
const ROWS: [(&str, Row); 6] = [
    ("storms", storms::run),
    ("latency", latency::run),
    ("mostly-idle", mostly_idle::run),
    ("growth", growth::run),
    ("guest", guest::run),
    ("host", host::run),
];

pub fn command(args: &WakeArgs) -> Result<()> {
    let mut bench = Bench::new(
        args.quick,
        args.cpus,
        args.bochs_cpus,
        args.only.clone(),
        args.variants.clone(),
    );
    bench.svg.clone_from(&args.svg);
    bench.image.clone_from(&args.image);
    let mut report = Report::default();
    let wanted = |name: &str| args.rows.is_empty() || args.rows.iter().any(|row| row == name);
    for (_, row) in ROWS.iter().filter(|(name, _)| wanted(name)) {
        row(&bench, &mut report)?;
        println!();
    }
    if let Some(path) = &args.json {
        report.write(path)?;
    }
    println!("{NOT_OBSERVABLE}");
    report.judge()
}
