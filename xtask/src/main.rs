//! `cargo xtask`: one command line to build, run, test and measure Lull.
//!
//! One module a command. Nothing here starts a shell: programs are run by [`process`], which ends what it
//! started, also when xtask itself is interrupted. What a run found out is read from the machine channel
//! ([`channel`]) and from nowhere else.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod bochs;
mod build;
mod channel;
mod cstates;
mod deps;
mod emulated;
mod guest_arg;
mod iso;
mod lint;
mod model;
mod process;
mod qemu;
mod report;
mod run;
mod session;
mod sim;
mod soak;
mod test;
mod trace;
mod workspace;

/// Build, run, test and measure Lull.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check what a build and a run need, and install what is missing
    #[command(visible_alias = "deps")]
    Doctor,
    /// Build the image, the guest kernels and the boot bundle
    Build(build::BuildArgs),
    /// Write a bootable image for real machines and other virtual ones
    Iso(iso::IsoArgs),
    /// Boot Lull in QEMU or Bochs with guests, show its console, then who passed and where the time went
    Run(run::RunArgs),
    /// Run every test: host unit tests, model checks, lints, and the real image with real guests in QEMU, and in Bochs
    Test(test::TestArgs),
    /// Check formatting, clippy (host and bare metal) and rustdoc
    Lint,
    /// Model-check the wake protocol, the cross-CPU calls and the vCPUs' kicks
    Model(model::ModelArgs),
    /// Exercise calls and wakes at random on the real image, under a watchdog
    Soak(soak::SoakArgs),
    /// Measure, and print figures
    Bench(bench::BenchArgs),
    /// Record what guests make the CPUs do, for replay
    Trace(trace::TraceArgs),
    /// Ask which C-states Lull would use on a CPU, and why
    #[command(name = "cstates")]
    CStates(cstates::CStatesArgs),
    /// Run the firmware's code of a task on the standard input, in limits; for `cstates --acpi`
    #[command(name = cstates::firmware::cage::COMMAND, hide = true)]
    EvaluateAml,
    /// Run the core on simulated machines of 1 to 4096 CPUs, and watch that it keeps its promises
    Sim(sim::SimArgs),
}

fn main() -> ExitCode {
    process::end_quietly_when_nobody_reads();
    if let Err(why) = process::end_children_on_signals() {
        eprintln!("xtask: {why:#}");
        return ExitCode::FAILURE;
    }
    let done = match Cli::parse().command {
        Command::Doctor => deps::doctor(),
        Command::Build(args) => build::command(&args),
        Command::Iso(args) => iso::command(&args),
        Command::Run(args) => run::command(&args),
        Command::Test(args) => test::command(&args),
        Command::Lint => lint::command(),
        Command::Model(args) => model::command(&args),
        Command::Soak(args) => soak::command(&args),
        Command::Bench(args) => bench::command(&args),
        Command::Trace(args) => trace::command(&args),
        Command::CStates(args) => cstates::command(&args),
        Command::EvaluateAml => cstates::firmware::cage::command(),
        Command::Sim(args) => sim::command(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why:#}");
            ExitCode::FAILURE
        }
    }
}
