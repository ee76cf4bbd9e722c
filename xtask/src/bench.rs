//! `cargo xtask bench`: figures, printed and not judged.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use crate::{
    build::{self, Bundle},
    deps,
    qemu::{Accel, Console, Cpu, Machine},
    session::Session,
    workspace,
};

mod exits;
mod governors;
mod sched;
mod wake;

/// Options of `bench`.
#[derive(Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Wall time from the start of QEMU to the first guest's start: 4 CPUs, TCG
    Boot {
        /// How often
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
    },
    /// Calls and wakes, with each idea on and off: QEMU counts instructions, and in Bochs MWAIT really sleeps
    Wake(wake::WakeArgs),
    /// What each way out of a guest costs: instructions on QEMU's SVM, ticks on Bochs' VMX
    Exits {
        /// How often each is done
        #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        count: u32,
    },
    /// What choosing costs, how fair it is, how soon what wakes runs and where: in QEMU and on simulated machines
    Sched(sched::SchedArgs),
    /// Energy and wake latency of the governors on recorded and synthetic idle traces, against an oracle
    Governors(governors::GovernorsArgs),
}

/// `cargo xtask bench`.
///
/// # Errors
/// If something is missing, or a run does not end well.
pub fn command(args: &BenchArgs) -> Result<()> {
    match &args.bench {
        Bench::Boot { runs } => boot(*runs),
        Bench::Wake(args) => wake::command(args),
        Bench::Exits { count } => exits::command(*count),
        Bench::Sched(args) => sched::command(args),
        Bench::Governors(args) => governors::command(args),
    }
}

fn boot(runs: u32) -> Result<()> {
    deps::bare_metal_target()?;
    let version = deps::qemu()?;
    let built = build::build(true)?;
    let dir = workspace::output_dir("bench")?;
    let bundle = dir.join("bundle.cpio");
    Bundle::of_guests(&["quiet".parse()?], &built)?.write(&bundle)?;
    let machine = Machine {
        version,
        accel: Accel::Tcg,
        cpu: Cpu::Default,
        cpus: 4,
        disabled_cpus: 0,
        mem: "512M".to_owned(),
        kernel: built.image,
        bundle: Some(bundle),
        cmdline: "exit-port=0xf4 for=1".to_owned(),
        console: Console::File(dir.join("console.txt")),
        debugcon: dir.join("channel.jsonl"),
        acpi_tables: Vec::new(),
        globals: Vec::new(),
        board: crate::qemu::BOARD,
        gdb: false,
    };
    let mut times = Vec::new();
    for run in 1..=runs {
        let session = Session::start(&machine, None, |command| {
            command.stdout(Stdio::null());
        })?;
        let ended = session.finish(Some(Duration::from_secs(60)))?;
        let Some(first) = ended.first_guest else {
            bail!("no guest started ({})", ended.how())
        };
        println!("run {run}: first guest after {:.3} s", first.as_secs_f64());
        times.push(first);
    }
    times.sort();
    let median = times.get(times.len() / 2).context("no run")?;
    println!(
        "boot_to_first_guest {:.3} s (median of {runs}; 4 CPUs, TCG)",
        median.as_secs_f64()
    );
    Ok(())
}
