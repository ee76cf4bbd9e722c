//! `cargo xtask bench governors`: the governors on the same idle traces, against each other and against the future.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lull_sim::{
    judge::{self, Case, FLOOR, GOVERNORS, MARGIN, PRICES},
    sets::Set,
};

/// Options of `bench governors`.
#[derive(Args)]
pub struct GovernorsArgs {
    /// The traces that Lull's constants were chosen on, or the ones that they are judged on
    #[arg(long, value_enum, default_value = "held-out")]
    set: WhichSet,
    /// Replay all traces in this directory (files .tsv) instead of the recordings that are built in
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Show every trace on every machine
    #[arg(long)]
    detail: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum WhichSet {
    Training,
    HeldOut,
}

/// `cargo xtask bench governors`.
///
/// # Errors
/// If recordings cannot be read.
pub fn command(args: &GovernorsArgs) -> Result<()> {
    let set = match args.set {
        WhichSet::Training => Set::Training,
        WhichSet::HeldOut => Set::HeldOut,
    };
    let traces = set
        .traces(args.traces.as_deref())
        .with_context(|| match &args.traces {
            Some(directory) => format!("cannot read the recordings in {}", directory.display()),
            None => "cannot read the recordings".to_owned(),
        })?;
    let cases = judge::run(set.machines(), &traces);

    println!(
        "{set:?} set: {} traces on {} machines. Regret: by how much energy + price x latency is above the oracle's, in %.",
        traces.len(),
        set.machines().len()
    );
    println!(
        "Prices are energy (us of a busy core) for a us of added wake latency. lull is told the price, as by governor.price=.\n"
    );
    summary(&cases);
    println!();
    verdicts(&cases);
    if args.detail {
        for price in 0..PRICES.len() {
            println!();
            detail(&cases, price);
        }
    }
    Ok(())
}

fn title(first: &str, width: usize) {
    print!("{first:width$}");
    for governor in GOVERNORS {
        print!("{governor:>12}");
    }
    println!();
}

fn summary(cases: &[Case]) {
    title("mean at price", 19);
    for (price, figure) in PRICES.iter().enumerate() {
        print!("{figure:<19}");
        for governor in 0..GOVERNORS.len() {
            let mean = judge::mean(cases, |case| case.regret(governor, price));
            print!("{:>12.2}", 100.0 * mean);
        }
        println!();
    }
    print!("{:<19}", "selections a period");
    for governor in 0..GOVERNORS.len() {
        let mut selections = 0.0;
        for price in 0..PRICES.len() {
            selections += judge::mean(cases, |case| {
                let bill = case.bill(governor, price);
                bill.selections as f64 / bill.periods.max(1) as f64
            });
        }
        print!("{:>12.2}", selections / PRICES.len() as f64);
    }
    println!();
    print!("{:<19}", "host, ns a period");
    for governor in GOVERNORS {
        match judge::host_time_ns(governor) {
            Some(ns) => print!("{ns:>12.0}"),
            None => print!("{:>12}", "as lull"),
        }
    }
    println!();
}

fn verdicts(cases: &[Case]) {
    println!(
        "lull against the best of menu and teo, with and without a stand-in for the tick; a case is a trace on a machine:"
    );
    for (price, figure) in PRICES.iter().enumerate() {
        let verdict = judge::verdict(cases, price);
        let all = cases.len();
        println!(
            "price {figure:<4} mean regret {:.3} of the best of their means",
            verdict.ratio
        );
        println!(
            "           regret + 1 over {MARGIN} of theirs in {} of {all} cases",
            verdict.scores_over
        );
        println!(
            "           regret over {MARGIN} of theirs in {} of {all} cases, in {} of them by more than {} % of the oracle's score{}",
            verdict.over.len(),
            verdict.clearly_over().count(),
            100.0 * FLOOR,
            if verdict.over.is_empty() { "" } else { ":" }
        );
        list(&verdict.over);
        println!(
            "           regret over {MARGIN} of theirs, averaged over the machines, in {} of {} traces{}",
            verdict.traces_over.len(),
            verdict.traces,
            if verdict.traces_over.is_empty() {
                ""
            } else {
                ":"
            }
        );
        list(&verdict.traces_over);
    }
}

fn list(all: &[judge::Over]) {
    for over in all {
        println!(
            "             {:<34} {:>7.2} % and {:.2} %",
            over.case,
            100.0 * over.own,
            100.0 * over.peer
        );
    }
}

fn detail(cases: &[Case], price: usize) {
    title(&format!("price {}", PRICES[price]), 32);
    for case in cases {
        print!("{:<6}{:<26}", case.machine, case.trace);
        for governor in 0..GOVERNORS.len() {
            print!("{:>12.2}", 100.0 * case.regret(governor, price));
        }
        println!();
    }
}
