//! The runner: all scenarios, or all mutants, with a line for each.

#![expect(clippy::unwrap_used, reason = "a test")]

mod check;
mod explore;
mod machine;
mod rt;
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
    bounds: Vec<Bound>,
    mutants: bool,
    scenarios: bool,
    only: Option<String>,
    jobs: usize,
}

impl Asked {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut asked = Self {
            bounds: Vec::new(),
            mutants: false,
            scenarios: true,
            only: None,
            jobs: 2,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--states" => asked.bounds.push(Bound::States),
                "--bound" => {
                    let bound = value()?.parse().map_err(|why| format!("--bound: {why}"))?;
                    asked.bounds.push(Bound::Preemptions(bound));
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
        if asked.bounds.is_empty() {
            asked.bounds.push(Bound::Preemptions(2));
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
    for &bound in asked.bounds.iter().filter(|_| asked.scenarios) {
        let (good, bad) = scenarios_hold(&asked, bound);
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

fn scenarios_hold(asked: &Asked, bound: Bound) -> (usize, usize) {
    match bound {
        Bound::Preemptions(bound) => {
            println!("by loom, up to {bound} preemptions, every value that the memory model allows")
        }
        Bound::States => println!("by states, every order of the accesses"),
    }
    println!(
        "{:<32} {:>11} {:>11} {:>9}",
        "model", "executions", "states", "seconds"
    );
    let wanted = |check: &Check| {
        asked
            .only
            .as_ref()
            .is_none_or(|only| check.name.contains(only))
    };
    let checks: VecDeque<Check> = scenarios::all().into_iter().filter(wanted).collect();
    let total = Mutex::new(check::Explored::default());
    let results = in_parallel(asked.jobs, checks, |check| {
        let started = Instant::now();
        let result = check.run(bound);
        let seconds = started.elapsed().as_secs_f64();
        match &result {
            Ok(check::Explored { executions, states }) => {
                let mut total = total.lock().unwrap();
                total.executions += executions;
                total.states += states;
                println!(
                    "{:<32} {executions:>11} {states:>11} {seconds:>9.1}",
                    check.name
                );
            }
            Err(why) => println!("{:<32} FAILED: {why}", check.name),
        }
        result.is_ok()
    });
    let total = total.into_inner().unwrap();
    println!(
        "{:<32} {:>11} {:>11}",
        "all", total.executions, total.states
    );
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
