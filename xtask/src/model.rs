//! `cargo xtask model`: the model checker over the protocols of `lull-core`.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{process, workspace};

/// Options of `model`.
#[derive(Args)]
#[command(after_help = "\
Each line is a model: how many executions were explored, and how long that took. A broken property is named.
Two checkers look at each: an explorer of all states, in which every order of the accesses comes, and loom, which adds what the
memory model allows beyond that, up to a number of preemptions. With --mutants each known mistake must be caught by the property that
it breaks; one that survives fails the run.")]
pub struct ModelArgs {
    /// loom: only executions with at most this many preemptions
    #[arg(long, value_name = "N", default_value_t = 3)]
    bound: u32,
    /// Switch on one mistake after the other, and see whether it is caught
    #[arg(long)]
    mutants: bool,
    /// Only models whose name contains this; with --mutants, only the mutant of this name
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// How many to run side by side
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
}

/// `cargo xtask model`.
///
/// # Errors
/// If a property does not hold, or a mistake is not caught.
pub fn command(args: &ModelArgs) -> Result<()> {
    let mut cargo = cargo("loom_model");
    cargo.arg("--");
    cargo.args(["--states", "--bound", &args.bound.to_string()]);
    if args.mutants {
        cargo.arg("--mutants");
    }
    if let Some(only) = &args.only {
        cargo.args(["--only", only]);
    }
    cargo.args(["--jobs", &args.jobs.to_string()]);
    process::run(&mut cargo)
}

/// `cargo test` of these tests, compiled for the model checker: in a folder of its own, so that the rest need not be compiled
/// again.
pub fn cargo(tests: &str) -> Command {
    let mut cargo = workspace::cargo();
    cargo
        .args([
            "test",
            "--release",
            "--package",
            "lull-core",
            "--test",
            tests,
        ])
        .env("RUSTFLAGS", "--cfg loom")
        .env(
            "CARGO_TARGET_DIR",
            workspace::target_dir().join("lull/loom"),
        );
    cargo
}
