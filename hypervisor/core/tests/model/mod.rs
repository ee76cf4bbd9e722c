//! The runner: all scenarios, or all mutants, with a line for each.

#![expect(clippy::unwrap_used, reason = "a test")]

mod check;
mod machine;
mod scenarios;
mod wrong;

use check::{Bound, Check};
use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;
use wrong::Wrong;

/// What is asked for.
struct Asked {
    bound: Bound,
    mutants: bool,
    scenarios: bool,
    only: Option<String>,
    jobs: usize,
}

impl Asked {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut asked = Self {
            bound: Bound::Preemptions(2),
            mutants: false,
            scenarios: true,
            only: None,
            jobs: 2,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--full" => asked.bound = Bound::None,
                "--bound" => {
                    let bound = value()?.parse();
                    asked.bound =
                        Bound::Preemptions(bound.map_err(|why| format!("--bound: {why}"))?);
                }
                "--mutants" => (asked.mutants, asked.scenarios) = (true, false),
                "--all" => (asked.mutants, asked.scenarios) = (true, true),
                "--only" => asked.only = Some(value()?),
                "--jobs" => {
                    asked.jobs = value()?.parse().map_err(|why| format!("--jobs: {why}"))?;
                }
                // What cargo hands to every test.
                "--quiet" | "-q" | "--test-threads=1" => {}
                other => return Err(format!("no such option: {other}")),
            }
        }
        Ok(asked)
    }
}

pub fn main() -> ExitCode {
    let asked = match Asked::parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(why) => {
            eprintln!("loom_model: {why}");
            return ExitCode::FAILURE;
        }
    };
    check::keep_panics_quiet();
    let started = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    if asked.scenarios {
        let (good, bad) = scenarios_hold(&asked);
        passed += good;
        failed += bad;
    }
    if asked.mutants {
        let (good, bad) = mutants_are_caught(&asked);
        passed += good;
        failed += bad;
    }
    println!("took {:.1} s", started.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn scenarios_hold(asked: &Asked) -> (usize, usize) {
    println!("{:<36} {:>12} {:>9}", "scenario", "executions", "seconds");
    let wanted = |check: &Check| {
        asked
            .only
            .as_ref()
            .is_none_or(|only| check.name.contains(only))
    };
    let checks: VecDeque<Check> = scenarios::all().into_iter().filter(wanted).collect();
    let total = Mutex::new(0);
    let results = in_parallel(asked.jobs, checks, |check| {
        let started = Instant::now();
        let result = check.run(asked.bound);
        let seconds = started.elapsed().as_secs_f64();
        match &result {
            Ok(executions) => {
                *total.lock().unwrap() += executions;
                println!("{:<36} {executions:>12} {seconds:>9.1}", check.name);
            }
            Err(why) => println!("{:<36} FAILED: {why}", check.name),
        }
        result.is_ok()
    });
    println!("{:<36} {:>12}", "all", total.into_inner().unwrap());
    results
}

fn mutants_are_caught(asked: &Asked) -> (usize, usize) {
    println!(
        "{:<30} {:<34} {:>10}  property",
        "mutant", "caught in", "executions"
    );
    let wanted = |wrong: &Wrong| asked.only.as_ref().is_none_or(|only| wrong.name() == *only);
    let all: VecDeque<Wrong> = Wrong::all().into_iter().filter(wanted).collect();
    in_parallel(asked.jobs, all, |wrong| match wrong.catch() {
        Ok(caught) => {
            println!(
                "{:<30} {:<34} {:>10}  {}: {}",
                wrong.name(),
                caught.check,
                caught.executions,
                caught.property,
                wrong.mistake()
            );
            true
        }
        Err(why) => {
            println!("{:<30} SURVIVED: {}: {why}", wrong.name(), wrong.mistake());
            false
        }
    })
}

/// How many of these were good, and how many were not.
fn in_parallel<T: Send>(
    jobs: usize,
    work: VecDeque<T>,
    is_good: impl Fn(&T) -> bool + Sync,
) -> (usize, usize) {
    let work = Mutex::new(work);
    let one = || {
        let (mut good, mut bad) = (0, 0);
        loop {
            let next = work.lock().unwrap().pop_front();
            match next {
                None => return (good, bad),
                Some(item) if is_good(&item) => good += 1,
                Some(_) => bad += 1,
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(one)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .fold((0, 0), |(good, bad), (g, b)| (good + g, bad + b))
    })
}
