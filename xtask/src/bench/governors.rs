//! `cargo xtask bench governors`: the governors on the same idle traces, against each other and against the future.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lull_sim::{
    judge::{self, Case, GOVERNORS, NOISE, PRICES},
    sets::Set,
};

/// Options of `bench governors`.
#[derive(Args)]
pub struct GovernorsArgs {
    /// The traces that Lull's constants were chosen on, or the ones that they are judged on
    #[arg(long, value_enum, default_value = "held-out")]
    set: WhichSet,
    /// Replay the whole recordings in this directory (files NAME.cpu0.tsv) instead of the parts that are built in
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
        .context("cannot read the recordings")?;
    let cases = judge::run(set.machines(), &traces);

    println!(
        "{set:?} set: {} traces on {} machines. Regret: by how much energy + price x latency is above the oracle's, in %.",
        traces.len(),
        set.machines().len()
    );
    println!(
        "Prices are energy (us of a busy core) for a us of added wake latency. lull-told is lull told the price.\n"
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
    print!("{first:width$}{:>11}", "lull-told");
    for governor in GOVERNORS {
        print!("{governor:>12}");
    }
    println!();
}

fn summary(cases: &[Case]) {
    title("mean at price", 14);
    for (price, figure) in PRICES.iter().enumerate() {
        let told = judge::mean(cases, |case| case.told_regret(price));
        print!("{figure:<14}{:>11.2}", 100.0 * told);
        for governor in 0..GOVERNORS.len() {
            let mean = judge::mean(cases, |case| case.regret(governor, price));
            print!("{:>12.2}", 100.0 * mean);
        }
        println!();
    }
    print!("{:<25}", "selections a period");
    for governor in 0..GOVERNORS.len() {
        let share = judge::mean(cases, |case| {
            let bill = &case.bills[governor];
            bill.selections as f64 / bill.periods.max(1) as f64
        });
        print!("{share:>12.2}");
    }
    println!();
}

fn verdicts(cases: &[Case]) {
    println!("against the best of menu and teo, with and without a stand-in for the tick:");
    for (price, figure) in PRICES.iter().enumerate() {
        for told in [true, false] {
            let name = if told { "lull-told" } else { "lull" };
            let verdict = judge::verdict(cases, price, told);
            print!(
                "price {figure:<4} {name:<10} mean regret {:.3} of it; over 1.05 of it in {} of {} cases",
                verdict.ratio,
                verdict.over,
                cases.len()
            );
            match verdict.worst {
                Some((case, own, peer)) if own > 1.05 * peer + NOISE => println!(
                    ", worst {case}: {:.2} % and {:.2} %",
                    100.0 * own,
                    100.0 * peer
                ),
                _ => println!(),
            }
        }
    }
}

fn detail(cases: &[Case], price: usize) {
    title(&format!("price {}", PRICES[price]), 32);
    for case in cases {
        print!("{:<6}{:<26}", case.machine, case.trace);
        print!("{:>11.2}", 100.0 * case.told_regret(price));
        for governor in 0..GOVERNORS.len() {
            print!("{:>12.2}", 100.0 * case.regret(governor, price));
        }
        println!();
    }
}
