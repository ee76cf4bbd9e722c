//! `cargo xtask bench wake --quick`: that every row measures what it says, and what can be counted exactly. Nothing that is timed.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{bochs::Release, test::case::Case};

/// What `--quick` does of each, in the image.
const ROUNDS: u64 = 200;
const SAMPLES: u64 = 20;
const WAKES: u64 = 40;

const EMULATORS: [&str; 2] = ["qemu", "bochs"];

pub fn cases() -> Vec<Case> {
    vec![
        Case::bochs("bench/wake-quick", |lab| {
            lab.context.bochs(Release::Current)?;
            let args = [
                "--rows",
                "storms,latency,mostly-idle",
                "--variants",
                "all on,ipiless off",
            ];
            let figures = measured(&lab.context.built.image, lab.dir, &args, 4)?;
            storms(&figures)?;
            latency(&figures)?;
            mostly_idle(&figures)
        }),
        Case::icount("bench/wake-growth", |lab| {
            let args = ["--rows", "growth", "--only", "qemu"];
            growth(&measured(&lab.context.built.image, lab.dir, &args, 4)?)
        }),
    ]
}

/// All figures, by emulator, variant and name.
struct Figures(BTreeMap<(String, String, String), f64>);

impl Figures {
    fn get(&self, emulator: &str, variant: &str, name: &str) -> Result<u64> {
        let key = (emulator.to_owned(), variant.to_owned(), name.to_owned());
        let value = self.0.get(&key);
        let value = value.with_context(|| format!("{emulator}, {variant}: no figure {name}"))?;
        Ok(*value as u64)
    }

    fn expect(&self, emulator: &str, variant: &str, name: &str, expected: u64) -> Result<()> {
        let value = self.get(emulator, variant, name)?;
        ensure!(
            value == expected,
            "{emulator}, {variant}: {name} is {value}, expected {expected}"
        );
        Ok(())
    }
}

fn measured(image: &Path, dir: &Path, args: &[&str], expected_bars: usize) -> Result<Figures> {
    let json = dir.join("figures.json");
    let xtask = std::env::current_exe().context("xtask does not find itself")?;
    let output = Command::new(xtask)
        .args(["bench", "wake", "--quick"])
        .args(args)
        .arg("--image")
        .arg(image)
        .arg("--json")
        .arg(&json)
        .output()?;
    fs::write(dir.join("out.txt"), &output.stdout)?;
    fs::write(dir.join("err.txt"), &output.stderr)?;
    ensure!(
        output.status.success(),
        "bench wake: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let json: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let bars = json["bars"].as_array().context("no bars")?;
    ensure!(bars.len() == expected_bars, "{} bars: {bars:?}", bars.len());
    let figures = json["figures"].as_array().context("no figures")?;
    let mut all = BTreeMap::new();
    for figure in figures {
        let text = |field: &str| {
            let text = figure[field].as_str();
            text.map(str::to_owned)
                .with_context(|| format!("{figure}: no {field}"))
        };
        let mut variant = text("variant")?;
        if figure["row"] == "growth" {
            // Machines of several sizes.
            variant = format!("{variant}, {}", figure["cpus"]);
        }
        let key = (text("emulator")?, variant, text("name")?);
        let value = figure["value"].as_f64().context("no value")?;
        if all.insert(key, value).is_some() {
            bail!("{figure}: told twice");
        }
    }
    Ok(Figures(all))
}

/// Every call has run, wakes cost an interrupt exactly where stores are no wakes, and only RESCHED costs a pass.
fn storms(figures: &Figures) -> Result<()> {
    for emulator in EMULATORS {
        for (variant, ipis) in [("all on", 0), ("ipiless off", ROUNDS)] {
            let expect = |name: &str, expected| figures.expect(emulator, variant, name, expected);
            for storm in [
                "ipistorm-sync",
                "ipistorm-idle",
                "call-alone",
                "ipistorm-async",
                "one-to-all",
                "all-to-one",
                "round-all-dirty",
            ] {
                expect(&format!("{storm}.rounds"), ROUNDS)?;
                expect(&format!("{storm}.ran"), ROUNDS)?;
                expect(&format!("{storm}.failed"), 0)?;
                expect(&format!("{storm}.passes"), 0)?;
            }
            for (storm, passes) in [
                ("ipistorm-idle", 0),
                ("wake-notify", 0),
                ("wake-resched", ROUNDS),
            ] {
                expect(&format!("{storm}.ipis"), ipis)?;
                expect(&format!("{storm}.store"), ROUNDS - ipis)?;
                expect(&format!("{storm}.passes"), passes)?;
            }
        }
    }
    Ok(())
}

/// A wake costs an interrupt exactly where stores are no wakes, and no more instructions in a larger machine.
fn growth(figures: &Figures) -> Result<()> {
    let mut costs = Vec::new();
    for (variant, ipis) in [("QEMU, polling", 0), ("QEMU, by interrupts", 1)] {
        for cpus in [2, 4] {
            let get = |name: &str| figures.get("qemu", &format!("{variant}, {cpus}"), name);
            for (name, targets) in [("wake", 1), ("call", 1), ("broadcast-wake", cpus - 1)] {
                let woken = (
                    get(&format!("{name}.ipis"))?,
                    get(&format!("{name}.stores"))?,
                );
                let expected = (ipis * targets, (1 - ipis) * targets);
                ensure!(
                    woken == expected,
                    "{variant}, {cpus} CPUs, {name}: {woken:?} woken by interrupts and stores, expected {expected:?}"
                );
            }
            costs.push(get("wake.instructions")?);
        }
    }
    let (by_store, by_interrupt) = (costs[0], costs[2]);
    ensure!(
        costs == [by_store, by_store, by_interrupt, by_interrupt]
            && (1..=25).contains(&by_store)
            && by_store < by_interrupt,
        "instructions of one wake by a store with 2 and 4 CPUs, and by an interrupt: {costs:?}"
    );
    Ok(())
}

/// Every state was measured, in nothing but itself, and handlers run inside of it where it says so.
fn latency(figures: &Figures) -> Result<()> {
    let states = [
        ("qemu", "early auto", "POLL", true),
        ("qemu", "early auto", "C1", true),
        ("bochs", "early auto", "C1", true),
        ("bochs", "early auto", "C1E", false),
        ("bochs", "early auto", "C6", false),
        ("bochs", "early off", "POLL", true),
        ("bochs", "early off", "C1", false),
        ("bochs", "early off", "C6", false),
        ("bochs", "early force", "C1E", true),
    ];
    for (emulator, variant, state, inside) in states {
        let get = |name: &str| figures.get(emulator, variant, &format!("{state}.{name}"));
        let expect = |name: &str, expected| {
            figures.expect(emulator, variant, &format!("{state}.{name}"), expected)
        };
        expect("n", SAMPLES)?;
        expect("elsewhere", 0)?;
        expect("inside", inside.into())?;
        let shares = |stamp: &str| {
            ["min", "p50", "p90", "p99", "max"]
                .iter()
                .map(|share| get(&format!("{stamp}.{share}")))
                .collect::<Result<Vec<u64>>>()
        };
        let (handler, exit) = (shares("handler")?, shares("exit")?);
        for shares in [&handler, &exit, &shares("loop")?] {
            ensure!(
                shares.is_sorted(),
                "{emulator}, {variant}, {state}: {shares:?}"
            );
        }
        // All shares are of the same sleeps.
        let first = handler
            .iter()
            .zip(&exit)
            .all(|(handler, exit)| handler < exit);
        ensure!(
            first == inside,
            "{emulator}, {variant}, {state}: handler {handler:?}, exit {exit:?}"
        );
    }
    Ok(())
}

/// All that was asked for was done, and all time is in one state or outside of all.
fn mostly_idle(figures: &Figures) -> Result<()> {
    for (emulator, idle, cpus) in [
        ("qemu", "", 3),
        ("qemu", ", idle=poll", 3),
        ("bochs", "", 1),
    ] {
        for variant in ["all on", "ipiless off"] {
            let variant = format!("{variant}{idle}");
            let get = |name: &str| figures.get(emulator, &variant, name);
            figures.expect(emulator, &variant, "wakes", WAKES)?;
            figures.expect(emulator, &variant, "failed", 0)?;
            figures.expect(emulator, &variant, "cpus", cpus)?;
            let in_states: u64 = figures
                .0
                .iter()
                .filter(|((of, setting, name), _)| {
                    of == emulator && *setting == variant && name.starts_with("residency.")
                })
                .map(|(_, value)| *value as u64)
                .sum();
            let (c0, elapsed) = (get("c0")?, get("elapsed")?);
            ensure!(
                c0 + in_states == elapsed && c0 > 0,
                "{emulator}, {variant}: {c0} outside of idle and {in_states} in it, of {elapsed}"
            );
            let (ipis, stores) = (get("ipis")?, get("store")?);
            // Who halts is woken by an interrupt, who watches by a store.
            let by_store = variant.starts_with("all on") && (emulator, idle) != ("qemu", "");
            ensure!(
                if by_store {
                    ipis == 0 && stores > 0
                } else {
                    ipis > 0 && stores == 0
                },
                "{emulator}, {variant}: {ipis} interrupts, {stores} wakes by a store"
            );
        }
    }
    Ok(())
}
