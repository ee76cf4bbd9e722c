//! Row `latency`: a timer ends a sleep, in each state the CPU has. How late are its handler, the exit, and the dispatch loop?

use anyhow::{Context, Result, ensure};

use super::{
    bench::{Bench, Boot, Emulator},
    report::{self, Figure, Report},
};
use crate::{
    emulated::{measures, required},
    session::Ended,
};

const ROW: &str = "latency";

/// Whether C1 and C1E take interrupts inside (as the CPU's table says: those two), no state, or all that can.
const EARLY: [(&str, &str); 3] = [
    ("auto", "irq-enable-early=auto"),
    ("off", "irq-enable-early=off"),
    ("force", "irq-enable-early=force"),
];

/// What is measured in the image, and what it is.
const STAMPS: [&str; 3] = ["handler", "exit", "loop"];
const SHARES: [&str; 5] = ["min", "p50", "p90", "p99", "max"];

/// Samples of each state with `--quick`.
const QUICK: u32 = 20;

pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    if let Some(qemu) = bench.qemu()? {
        // HLT and POLL are all that it has. Neither knows of early interrupts.
        row(bench, &qemu.with(2), &EARLY[..1], report)?;
    }
    if let Some(bochs) = bench.bochs()? {
        row(bench, &bochs.with(2), &EARLY, report)?;
    }
    Ok(())
}

fn row(
    bench: &Bench,
    emulator: &Emulator,
    settings: &[(&str, &str)],
    report: &mut Report,
) -> Result<()> {
    println!(
        "{}, 2 CPUs: ticks from the deadline of a timer to the first instruction of its handler, to the first one after\n\
         the sleep, and until the dispatch loop has it; `inside`: the state takes interrupts before it ends",
        emulator.name
    );
    println!(
        "{:<6} {:<6} {:>6} {:>6}  {:<8}{:>7}{:>7}{:>7}{:>7}{:>7}",
        "early", "state", "inside", "n", "to", "min", "p50", "p90", "p99", "max"
    );
    let rounds = if bench.quick {
        format!("test.rounds={QUICK}")
    } else {
        String::new()
    };
    for (early, words) in settings {
        let ended = bench.boot(&Boot {
            emulator,
            label: format!("latency {early}"),
            words: format!("test.wakes=latency {words} {rounds}"),
        })?;
        let states = states(&ended);
        ensure!(
            !states.is_empty(),
            "{}, early interrupts {early}: the run has measured the latency of no state",
            emulator.name
        );
        let most = scale(&ended, &states)?;
        for state in &states {
            one_state(&ended, early, state, most, emulator, report)
                .with_context(|| format!("{}, early interrupts {early}, {state}", emulator.name))?;
        }
    }
    Ok(())
}

/// The states that were measured, shallow to deep.
fn states(ended: &Ended) -> Vec<String> {
    measures(ended)
        .filter_map(|(name, _)| name.strip_prefix("latency.")?.strip_suffix(".n"))
        .map(str::to_owned)
        .collect()
}

/// The largest median, for the drawn bars.
fn scale(ended: &Ended, states: &[String]) -> Result<u64> {
    let medians = states.iter().flat_map(|state| {
        STAMPS.map(|stamp| required(ended, &format!("latency.{state}.{stamp}.p50")))
    });
    medians
        .collect::<Result<Vec<u64>>>()?
        .into_iter()
        .max()
        .context("no median")
}

fn one_state(
    ended: &Ended,
    early: &str,
    state: &str,
    most: u64,
    emulator: &Emulator,
    report: &mut Report,
) -> Result<()> {
    let get = |what: &str| required(ended, &format!("latency.{state}.{what}"));
    let mut add = |what: &str, value: u64| {
        let name = format!("{state}.{what}");
        let figure = Figure::new(ROW, format!("early {early}"), name, value as f64);
        report.add(figure.on(emulator.name, emulator.cpus));
    };
    for what in ["n", "missed", "entries", "elsewhere", "inside"] {
        add(what, get(what)?);
    }
    let inside = if get("inside")? == 1 { "yes" } else { "no" };
    let mut start = format!("{early:<6} {state:<6} {inside:>6} {:>6}", get("n")?);
    for stamp in STAMPS {
        print!("{start:<27}  {stamp:<8}");
        for share in SHARES {
            let value = get(&format!("{stamp}.{share}"))?;
            print!("{value:>7}");
            add(&format!("{stamp}.{share}"), value);
        }
        println!("  {}", report::drawn(get(&format!("{stamp}.p50"))?, most));
        start.clear();
    }
    Ok(())
}
