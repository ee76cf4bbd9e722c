//! `cargo xtask bench exits`: what leaving a guest costs, in instructions, beside what it may cost.

use std::{fs, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::{
    build::{self, Bundle},
    deps,
    guest_arg::{self, GuestArg},
    qemu::{Accel, Console, Cpu, Machine},
    session::Session,
    workspace,
};

/// Options of `bench exits`.
#[derive(Args)]
pub struct ExitsArgs {
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How often each operation is done
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
}

/// What may not be exceeded, where there is a target; and for whom else the same was measured.
const TARGETS: [(&str, u64); 6] = [
    ("cpuid", 200),
    ("hypercall", 200),
    ("x2apic_tpr", 200),
    ("x2apic_eoi", 200),
    ("x2apic_read", 200),
    ("ipi_halted", 1000),
];

#[derive(Serialize)]
struct Row {
    name: String,
    ticks: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<u64>,
}

/// `cargo xtask bench exits`.
///
/// # Errors
/// If something is missing, or a run does not end well.
pub fn command(args: &ExitsArgs) -> Result<()> {
    deps::bare_metal_target()?;
    let version = deps::qemu()?;
    let built = build::build(true)?;
    let dir = workspace::output_dir("bench")?;
    let mut rows: Vec<Row> = Vec::new();
    for mode in ["x2", "x"] {
        let guest: GuestArg =
            format!("exits,cmdline=\"rounds={} apic={mode}\"", args.rounds).parse()?;
        let bundle = dir.join(format!("exits-{mode}.cpio"));
        Bundle::of_guests(&guest_arg::complete(&[guest], &built)?, &built)?.write(&bundle)?;
        let machine = Machine {
            version,
            accel: Accel::Icount,
            cpu: Cpu::Default,
            cpus: 2,
            disabled_cpus: 0,
            mem: "512M".to_owned(),
            kernel: built.image.clone(),
            bundle: Some(bundle),
            cmdline: "exit-port=0xf4".to_owned(),
            console: Console::File(dir.join(format!("exits-{mode}.txt"))),
            debugcon: dir.join(format!("exits-{mode}.jsonl")),
            acpi_tables: Vec::new(),
            gdb: false,
        };
        let session = Session::start(&machine, None, |command| {
            command.stdout(Stdio::null());
        })?;
        let ended = session.finish(Some(Duration::from_secs(300)))?;
        let passed = ended
            .channel
            .guests()
            .any(|guest| guest.event == "end" && guest.passed());
        ensure!(passed, "the guest did not pass ({})", ended.how());
        for figure in ended.channel.figures() {
            if rows.iter().all(|row| row.name != figure.name) {
                rows.push(Row {
                    name: figure.name.clone(),
                    ticks: figure.number().context("a figure that is no number")?,
                    target: TARGETS
                        .iter()
                        .find(|(name, _)| *name == figure.name)
                        .map(|(_, most)| *most),
                });
            }
        }
    }
    println!("{:24}{:>12}{:>10}", "exit", "instructions", "target");
    for row in &rows {
        let target = row.target.map(|most| most.to_string()).unwrap_or_default();
        println!("{:24}{:>12}{target:>10}", row.name, row.ticks);
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&rows)?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
