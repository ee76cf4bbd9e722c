//! `cargo xtask bench wake`: what calls and wakes cost, with each idea on and off, in the same build.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use lull_core::wake::{Events, SleepState, WakeWord};
use serde::Serialize;

use crate::{
    bochs, build, deps,
    emulated::{Emulated, On, measured, required},
    qemu::Accel,
    session::Ended,
    workspace,
};

/// Options of `bench wake`.
#[derive(Args)]
pub struct WakeArgs {
    /// Only in QEMU, or only in Bochs
    #[arg(long, value_name = "EMULATOR", value_parser = ["qemu", "bochs"])]
    only: Option<String>,
    /// Only these settings of the switches; bars that need others are left out
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = VARIANTS.map(|(name, _)| name))]
    variants: Vec<String>,
    /// CPUs in QEMU
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    cpus: u32,
    /// Write all figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The switches: a name, and the words for Lull.
const VARIANTS: [(&str, &str); 6] = [
    ("all on", ""),
    ("ipiless off", "wake.ipiless=off"),
    ("notify off", "wake.notify=off"),
    ("both off", "wake.ipiless=off wake.notify=off"),
    ("fence none", "ipi.fence=none wake.ipiless=off"),
    ("fence full", "ipi.fence=full wake.ipiless=off"),
];

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

#[derive(Serialize)]
struct Figure {
    emulator: &'static str,
    cpus: u32,
    variant: &'static str,
    name: String,
    value: u64,
}

/// A bar, and whether it holds.
struct Bar {
    what: String,
    value: f64,
    at_most: f64,
}

pub fn command(args: &WakeArgs) -> Result<()> {
    deps::bare_metal_target()?;
    let built = build::build(true)?;
    let dir = workspace::output_dir("bench-wake")?;
    let wants = |name: &str| args.only.as_deref().is_none_or(|only| only == name);
    let (mut figures, mut bars) = (Vec::new(), Vec::new());
    if wants("qemu") {
        let on = On::Qemu {
            version: deps::qemu()?,
            accel: Accel::Icount,
        };
        let words = "test.wakes=bench idle=poll";
        let runs = all_variants(
            &on,
            &built.image,
            &dir,
            "qemu",
            args.cpus,
            Wanted {
                words,
                variants: &args.variants,
            },
            &mut figures,
        )?;
        if let Some(sender) = runs
            .first()
            .and_then(|(_, ran)| measured(ran, "wake-sender"))
        {
            bars.push(Bar {
                what: "instructions of an elided wake (QEMU -icount, target polls)".to_owned(),
                value: sender as f64,
                at_most: 25.0,
            });
        }
    }
    if wants("bochs") {
        deps::iso_tools()?;
        let on = On::Bochs {
            bochs: bochs::find(bochs::Release::Current)?,
            model: "corei7_skylake_x".to_owned(),
        };
        let runs = all_variants(
            &on,
            &built.image,
            &dir,
            "bochs",
            2,
            Wanted {
                // C1 only, as where others have measured: at 10 MHz a choice between deep states takes as long as a sleep.
                words: "test.wakes=bench max_cstate=1,0",
                variants: &args.variants,
            },
            &mut figures,
        )?;
        bochs_bars(&runs, &mut bars)?;
    }
    host_threads();
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&figures)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!(
        "Ticks are instructions in QEMU, and emulated clocks in Bochs. Neither has caches, store buffers or exit latencies: what a\n\
         fence costs, and what a deep state costs to leave, is not in these figures. The book has the recipe for real hardware."
    );
    let mut missed = 0;
    for bar in &bars {
        let holds = bar.value <= bar.at_most;
        missed += usize::from(!holds);
        println!(
            "{} {:<66} {:>10.2}  (at most {})",
            if holds { "ok  " } else { "MISS" },
            bar.what,
            bar.value,
            bar.at_most
        );
    }
    if missed > 0 {
        bail!("{missed} bars are missed");
    }
    Ok(())
}

/// Words for Lull, and which settings of the switches to try.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    words: &'a str,
    /// All, if empty.
    variants: &'a [String],
}

impl Wanted<'_> {
    fn has(&self, variant: &str) -> bool {
        self.variants.is_empty() || self.variants.iter().any(|wanted| wanted == variant)
    }
}

type Runs = Vec<(&'static str, Ended)>;

fn all_variants(
    on: &On,
    image: &std::path::Path,
    dir: &std::path::Path,
    emulator: &'static str,
    cpus: u32,
    wanted: Wanted<'_>,
    figures: &mut Vec<Figure>,
) -> Result<Runs> {
    let mut runs = Vec::new();
    let words = wanted.words;
    for (variant, switches) in VARIANTS.into_iter().filter(|(name, _)| wanted.has(name)) {
        let ended = Emulated {
            on: on.clone(),
            image,
            dir,
            label: format!("{emulator}-{}", variant.replace(' ', "-")),
            cpus,
            words: format!("{words} {switches}"),
            limit: Duration::from_secs(600),
        }
        .run()?;
        runs.push((variant, ended));
    }
    println!(
        "{emulator}, {cpus} CPUs: ticks from one round to the next, IPIs and scheduling passes of the target, for each round"
    );
    print!("{:<16}", "");
    for (variant, _) in &runs {
        print!("{variant:>24}");
    }
    println!();
    for storm in STORMS {
        print!("{storm:<16}");
        for (variant, ended) in &runs {
            let get = |what: &str| measured(ended, &format!("{storm}.{what}")).unwrap_or(0);
            let rounds = get("rounds").max(1) as f64;
            print!(
                "{:>10} {:>6.2} {:>6.2}",
                get("period"),
                get("ipis") as f64 / rounds,
                get("passes") as f64 / rounds
            );
            for what in [
                "ticks",
                "period",
                "ipis",
                "store",
                "will-look",
                "rides",
                "passes",
            ] {
                figures.push(Figure {
                    emulator,
                    cpus,
                    variant,
                    name: format!("{storm}.{what}"),
                    value: get(what),
                });
            }
        }
        println!();
    }
    Ok(runs)
}

fn bochs_bars(runs: &Runs, bars: &mut Vec<Bar>) -> Result<()> {
    let run = |name: &str| {
        let mut named = runs.iter().filter(|(variant, _)| *variant == name);
        named.next().map(|(_, ended)| ended)
    };
    let share = |ended: &Ended| -> Result<f64> {
        let rounds = required(ended, "ipistorm-idle.rounds")? as f64;
        Ok(required(ended, "ipistorm-idle.ipis")? as f64 / rounds)
    };
    let period = |ended: &Ended, storm: &str| -> Result<f64> {
        Ok(required(ended, &format!("{storm}.period"))? as f64)
    };
    if let Some(on) = run("all on") {
        bars.push(Bar {
            what: "IPIs for each synchronous call to an idle CPU".to_owned(),
            value: share(on)?,
            at_most: 0.01,
        });
        bars.push(Bar {
            what: "scheduling passes of the called CPU".to_owned(),
            value: required(on, "ipistorm-idle.passes")? as f64,
            at_most: 0.0,
        });
    }
    if let Some(ipiless_off) = run("ipiless off") {
        bars.push(Bar {
            what: "calls without an IPI, with wake.ipiless=off".to_owned(),
            value: 1.0 - share(ipiless_off)?,
            at_most: 0.01,
        });
    }
    let Some(off) = run("both off") else {
        return Ok(());
    };
    if let Some(on) = run("all on") {
        bars.push(Bar {
            what: "ipistorm to an idle CPU, all on against both off".to_owned(),
            value: period(on, "ipistorm-idle")? / period(off, "ipistorm-idle")?,
            at_most: 0.4,
        });
    }
    if let Some(ipis) = run("ipiless off") {
        // Each alone: a wake by IPI that costs a pass (RESCHED does), and the call.
        let parts = period(ipis, "wake-resched")? + period(off, "call-alone")?;
        bars.push(Bar {
            what: "both off against an IPI wake, a scheduling pass and the call alone".to_owned(),
            value: period(off, "ipistorm-idle")? / parts,
            at_most: 1.1,
        });
    }
    Ok(())
}

/// Wakes between two threads of this machine: the one part that runs on real silicon.
fn host_threads() {
    const ROUNDS: u32 = 2_000;
    let word = WakeWord::new();
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let watching = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if word.publish(SleepState::Watching).is_ok() {
                    while !word.is_pending() {
                        std::hint::spin_loop();
                    }
                }
                word.take();
                answers.fetch_add(1, Ordering::Release);
            }
        });
        let started = Instant::now();
        for round in 1..=u64::from(ROUNDS) {
            let _ = word.post(Events::CALL);
            while answers.load(Ordering::Acquire) < round {
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        let _ = word.post(Events::STOP);
        started.elapsed()
    });
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let parked = thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                thread::park();
                answers.fetch_add(1, Ordering::Release);
            }
        });
        let started = Instant::now();
        for _ in 0..ROUNDS / 10 {
            let before = answers.load(Ordering::Acquire);
            sleeper.thread().unpark();
            while answers.load(Ordering::Acquire) == before {
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        sleeper.thread().unpark();
        started.elapsed() * 10
    });
    println!(
        "host threads: a wake and its answer by the wake word, watched: {} ns; by park and unpark: {} ns",
        (watching / ROUNDS).as_nanos(),
        (parked / ROUNDS).as_nanos()
    );
}
