//! Row `mostly-idle`: one CPU wakes the others now and then, for the same time and by the same plan under each setting of
//! the switches. What do the others spend outside of idle, and how deep do they sleep?
//!
//! Only one other in Bochs: two that sleep in MWAIT there wake each other, each time that one of them arms its monitor.

use anyhow::{Context, Result, ensure};

use super::{
    bench::{Bench, Boot, Emulator},
    report::{self, Figure, Report},
};
use crate::{
    emulated::{measures, required},
    session::Ended,
};

const ROW: &str = "mostly-idle";
const CPUS_IN_QEMU: u32 = 4;
const CPUS_IN_BOCHS: u32 = 2;

/// Wakes with `--quick`.
const QUICK: u32 = 40;
/// Wakes where CPUs poll.
const POLLING: u32 = 200;

const SETTINGS: [(&str, &str); 6] = [
    ("all on", ""),
    ("ipiless off", "wake.ipiless=off"),
    ("notify off", "wake.notify=off"),
    ("early off", "irq-enable-early=off"),
    ("fence full", "ipi.fence=full"),
    (
        "all off",
        "wake.ipiless=off wake.notify=off irq-enable-early=off ipi.fence=full",
    ),
];

/// Counted for all of them together.
const COUNTED: [&str; 12] = [
    "cpus", "span", "wakes", "failed", "elapsed", "c0", "ipis", "store", "passes", "aborted",
    "spurious", "busy",
];

/// What one run came to.
struct Outcome {
    /// Ticks outside of idle, handlers inside of states included.
    c0: u64,
    elapsed: u64,
    poll: u64,
    c1: u64,
    deep: u64,
    deepest: String,
    ipis: u64,
    passes: u64,
    /// Ticks that the waker has spent in calls and wakes.
    busy: u64,
}

pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    if let Some(qemu) = bench.qemu()? {
        row(bench, &qemu.with(CPUS_IN_QEMU), "", report)?;
        // Only who polls is woken by a store there.
        row(bench, &qemu.with(CPUS_IN_QEMU), "idle=poll", report)?;
    }
    if let Some(bochs) = bench.bochs()? {
        row(bench, &bochs.with(CPUS_IN_BOCHS), "", report)?;
    }
    Ok(())
}

fn row(bench: &Bench, emulator: &Emulator, idle: &str, report: &mut Report) -> Result<()> {
    println!(
        "{}, {} CPUs{}{idle}: one wakes the others now and then (calls, wakes, timers); all others together",
        emulator.name,
        emulator.cpus,
        if idle.is_empty() { "" } else { ", " }
    );
    println!(
        "{:<12} {:>12} {:>7} {:>7} {:>7} {:>7} {:>8} {:>6} {:>7} {:>9}  outside idle",
        "", "outside idle", "of it", "POLL", "C1", "deep", "deepest", "IPIs", "passes", "waker"
    );
    let rounds = match (bench.quick, idle) {
        (true, _) => format!("test.rounds={QUICK}"),
        (false, "") => String::new(),
        // Polling is instructions, and takes the emulator long.
        (false, _) => format!("test.rounds={POLLING}"),
    };
    let mut first = None;
    for (setting, switches) in bench.variants(&SETTINGS) {
        let ended = bench.boot(&Boot {
            emulator,
            label: format!("mostly-idle {idle} {setting}"),
            words: format!("test.wakes=mostly-idle {idle} {switches} {rounds}"),
        })?;
        let mut add = |name: &str, value: u64| {
            let variant = format!("{setting}{}{idle}", if idle.is_empty() { "" } else { ", " });
            report.add(
                Figure::new(ROW, variant, name, value as f64).on(emulator.name, emulator.cpus),
            );
        };
        let outcome =
            outcome(&ended, &mut add).with_context(|| format!("{}, {setting}", emulator.name))?;
        // What it is compared with: all on, which comes first.
        let base = *first.get_or_insert(outcome.c0);
        print(setting, &outcome, base);
    }
    Ok(())
}

fn outcome(ended: &Ended, add: &mut impl FnMut(&str, u64)) -> Result<Outcome> {
    let get = |what: &str| required(ended, &format!("mostly-idle.{what}"));
    for what in COUNTED {
        add(what, get(what)?);
    }
    let (mut poll, mut c1, mut deep, mut deepest) = (0, 0, 0, String::from("none"));
    let states: Vec<String> = measures(ended)
        .filter_map(|(name, _)| name.strip_prefix("mostly-idle.entries."))
        .map(str::to_owned)
        .collect();
    ensure!(!states.is_empty(), "the run has told of no state");
    for state in states {
        let (entries, residency) = (
            get(&format!("entries.{state}"))?,
            get(&format!("residency.{state}"))?,
        );
        add(&format!("entries.{state}"), entries);
        add(&format!("residency.{state}"), residency);
        match state.as_str() {
            "POLL" => poll += residency,
            name if name.starts_with("C1") => c1 += residency,
            _ => deep += residency,
        }
        if entries > 0 {
            deepest = state;
        }
    }
    Ok(Outcome {
        c0: get("c0")?,
        elapsed: get("elapsed")?,
        poll,
        c1,
        deep,
        deepest,
        ipis: get("ipis")?,
        passes: get("passes")?,
        busy: get("busy")?,
    })
}

fn print(setting: &str, outcome: &Outcome, base: u64) {
    let share = |part: u64| part as f64 * 100.0 / outcome.elapsed.max(1) as f64;
    println!(
        "{setting:<12} {:>12} {:>6.2}% {:>6.2}% {:>6.2}% {:>6.2}% {:>8} {:>6} {:>7} {:>9}  {:.3} {}",
        outcome.c0,
        share(outcome.c0),
        share(outcome.poll),
        share(outcome.c1),
        share(outcome.deep),
        outcome.deepest,
        outcome.ipis,
        outcome.passes,
        outcome.busy,
        outcome.c0 as f64 / base.max(1) as f64,
        report::drawn(outcome.c0, base.saturating_mul(2))
    );
}
