//! Row `storms`: calls and wakes one after the other, with each idea on and off.

use anyhow::{Context, Result};

use super::{
    bench::{Bench, Boot, Emulator, VARIANTS},
    report::{Figure, Report},
};
use crate::{emulated::required, session::Ended};

const ROW: &str = "storms";

const STORMS: [&str; 9] = [
    "ipistorm-sync",
    "ipistorm-idle",
    "call-alone",
    "wake-notify",
    "wake-resched",
    "ipistorm-async",
    "one-to-all",
    "all-to-one",
    "round-all-dirty",
];

/// What each of them measures.
const MEASURED: [&str; 10] = [
    "rounds",
    "ticks",
    "period",
    "ipis",
    "store",
    "will-look",
    "rides",
    "passes",
    "ran",
    "failed",
];

/// Rounds of each with `--quick`.
const QUICK: u32 = 200;

type Runs = Vec<(&'static str, Ended)>;

pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    if let Some(qemu) = bench.qemu()? {
        let runs = all_variants(bench, &qemu, "test.wakes=bench idle=poll", report)?;
        if let Some(on) = named(&runs, "all on") {
            // Without a sample there is none, and that is an error.
            report.bar(
                ROW,
                "instructions of an elided wake (QEMU -icount, target polls)",
                required(on, "wake-sender")? as f64,
                25.0,
            );
        }
    }
    if let Some(bochs) = bench.bochs()? {
        // C1 only, as where others have measured: at 10 MHz a choice between deep states takes as long as a sleep.
        let runs = all_variants(bench, &bochs, "test.wakes=bench max_cstate=1,0", report)?;
        bochs_bars(bench, &runs, report)?;
    }
    Ok(())
}

fn named<'a>(runs: &'a Runs, name: &str) -> Option<&'a Ended> {
    let mut named = runs.iter().filter(|(variant, _)| *variant == name);
    named.next().map(|(_, ended)| ended)
}

fn all_variants(
    bench: &Bench,
    emulator: &Emulator,
    words: &str,
    report: &mut Report,
) -> Result<Runs> {
    let rounds = if bench.quick {
        format!("test.rounds={QUICK}")
    } else {
        String::new()
    };
    let mut runs = Vec::new();
    for (variant, switches) in bench.variants(&VARIANTS) {
        let ended = bench.boot(&Boot {
            emulator,
            label: format!("storms {variant}"),
            words: format!("{words} {switches} {rounds}"),
        })?;
        runs.push((variant, ended));
    }
    println!(
        "{}, {} CPUs: ticks from one round to the next, IPIs and scheduling passes, for each round",
        emulator.name, emulator.cpus
    );
    print!("{:<16}", "");
    for (variant, _) in &runs {
        print!("{variant:>24}");
    }
    println!();
    for storm in STORMS {
        print!("{storm:<16}");
        for (variant, ended) in &runs {
            let get = |what: &str| {
                required(ended, &format!("{storm}.{what}"))
                    .with_context(|| format!("{}, {variant}: storm {storm}", emulator.name))
            };
            let rounds = get("rounds")?.max(1) as f64;
            print!(
                "{:>10} {:>6.2} {:>6.2}",
                get("period")?,
                get("ipis")? as f64 / rounds,
                get("passes")? as f64 / rounds
            );
            for what in MEASURED {
                let figure =
                    Figure::new(ROW, *variant, format!("{storm}.{what}"), get(what)? as f64);
                report.add(figure.on(emulator.name, emulator.cpus));
            }
        }
        println!();
    }
    Ok(runs)
}

fn bochs_bars(bench: &Bench, runs: &Runs, report: &mut Report) -> Result<()> {
    let share = |ended: &Ended| -> Result<f64> {
        let rounds = required(ended, "ipistorm-idle.rounds")? as f64;
        Ok(required(ended, "ipistorm-idle.ipis")? as f64 / rounds)
    };
    let period = |ended: &Ended, storm: &str| -> Result<f64> {
        Ok(required(ended, &format!("{storm}.period"))? as f64)
    };
    if let Some(on) = named(runs, "all on") {
        let what = "IPIs for each synchronous call to an idle CPU";
        report.bar(ROW, what, share(on)?, 0.01);
        let passes = required(on, "ipistorm-idle.passes")? as f64;
        report.bar(ROW, "scheduling passes of the called CPU", passes, 0.0);
    }
    if let Some(ipiless_off) = named(runs, "ipiless off") {
        let what = "calls without an IPI, with wake.ipiless=off";
        report.bar(ROW, what, 1.0 - share(ipiless_off)?, 0.01);
    }
    let Some(off) = named(runs, "both off").filter(|_| !bench.quick) else {
        return Ok(());
    };
    if let Some(on) = named(runs, "all on") {
        let ratio = period(on, "ipistorm-idle")? / period(off, "ipistorm-idle")?;
        let what = "ipistorm to an idle CPU, all on against both off";
        report.bar(ROW, what, ratio, 0.4);
    }
    if let Some(ipis) = named(runs, "ipiless off") {
        // Each alone: a wake by IPI that costs a pass (RESCHED does), and the call.
        let parts = period(ipis, "wake-resched")? + period(off, "call-alone")?;
        let what = "both off against an IPI wake, a scheduling pass and the call alone";
        report.bar(ROW, what, period(off, "ipistorm-idle")? / parts, 1.1);
    }
    Ok(())
}
