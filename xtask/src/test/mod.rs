//! `cargo xtask test`: every test there is, in one list, with one verdict.
//!
//! Host cases run one after the other (cargo holds a lock), machine cases that count instructions, and those in
//! Bochs, run beside each other (they are deterministic), and those in real time run alone. What cannot be tried here
//! is skipped by name. A case leaves its logs in a folder of its own.

mod bochs_rig;
mod case;
mod cases;
mod check;
mod elf_patch;
mod rig;
mod sleep_pairs;

use std::{
    collections::VecDeque,
    fs,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;

use self::case::{Case, Context, Kind, Skipped};
use crate::{build, deps, workspace};

/// Options of `test`.
#[derive(Args)]
pub struct TestArgs {
    /// Only cases whose name holds this text, for example `guest/` or `bad/`; may be repeated
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// Only print the names of the cases
    #[arg(long)]
    list: bool,
    /// How many deterministic machine cases run beside each other
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
}

/// `cargo xtask test`.
///
/// # Errors
/// If a case fails, or nothing can be tested.
pub fn command(args: &TestArgs) -> Result<()> {
    let wanted = |case: &Case| {
        args.filter.is_empty() || args.filter.iter().any(|text| case.name.contains(text))
    };
    let selected: Vec<Case> = cases::all().into_iter().filter(wanted).collect();
    if args.list {
        selected.iter().for_each(|case| println!("{}", case.name));
        return Ok(());
    }
    if selected.is_empty() {
        bail!(
            "no case has {:?} in its name: `cargo xtask test --list` lists them",
            args.filter
        );
    }
    let mut tally = Tally::default();
    deps::bare_metal_target()?;
    if selected.iter().any(|case| case.name.starts_with("lint/")) {
        deps::lint_tools()?;
    }
    let (host, machine): (Vec<Case>, Vec<Case>) = selected
        .into_iter()
        .partition(|case| case.kind == Kind::Host);
    if !machine.is_empty() {
        let version = deps::qemu()?;
        let built = build::build(true)?;
        let context = Context::new(version, built);
        let (real_time, deterministic): (Vec<Case>, Vec<Case>) = machine
            .into_iter()
            .partition(|case| case.kind == Kind::RealTime);
        tally.run(real_time, &context, 1);
        tally.run(deterministic, &context, args.jobs);
    }
    for case in host {
        let started = Instant::now();
        let result = case.prepare().and_then(|dir| case.run_on_host(&dir));
        tally.add(&case, started.elapsed(), result);
    }
    tally.print();
    if tally.failed.is_empty() {
        Ok(())
    } else {
        std::process::exit(1)
    }
}

/// Who passed.
#[derive(Default)]
struct Tally {
    passed: usize,
    skipped: usize,
    failed: Vec<String>,
}

impl Tally {
    /// Runs machine cases, `jobs` at a time.
    fn run(&mut self, cases: Vec<Case>, context: &Context, jobs: u32) {
        let queue = Mutex::new(VecDeque::from(cases));
        let (report, reports) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..jobs {
                let (queue, report) = (&queue, report.clone());
                scope.spawn(move || {
                    loop {
                        let next = queue
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .pop_front();
                        let Some(case) = next else { break };
                        let started = Instant::now();
                        let result = case
                            .prepare()
                            .and_then(|dir| case.run_on_machine(context, &dir));
                        // The receiver lives as long as this scope.
                        let _received = report.send((case, started.elapsed(), result));
                    }
                });
            }
            drop(report);
            for (case, time, result) in reports {
                self.add(&case, time, result);
            }
        });
    }

    fn add(&mut self, case: &Case, time: Duration, result: Result<()>) {
        let seconds = time.as_secs_f64();
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("ok    {:<44} {seconds:>7.1} s", case.name);
            }
            Err(why) if why.is::<Skipped>() => {
                self.skipped += 1;
                println!("skip  {:<44} {why:#}", case.name);
            }
            Err(why) => {
                println!("FAIL  {:<44} {seconds:>7.1} s", case.name);
                for line in format!("{why:#}").lines() {
                    println!("      {line}");
                }
                println!("      logs: {}", workspace::shown(&case.dir()));
                self.failed.push(case.name.clone());
            }
        }
    }

    fn print(&self) {
        if !self.failed.is_empty() {
            println!("\nfailed:");
            self.failed.iter().for_each(|name| println!("  {name}"));
        }
        let skipped = match self.skipped {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        println!(
            "\n{} passed, {} failed{skipped}",
            self.passed,
            self.failed.len()
        );
    }
}

impl Case {
    /// Makes the folder of its logs, empty.
    fn prepare(&self) -> Result<std::path::PathBuf> {
        let dir = self.dir();
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }
}
