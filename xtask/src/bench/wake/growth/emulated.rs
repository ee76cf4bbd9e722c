//! The image itself, in QEMU and in Bochs: `test.wakes=growth`.

use anyhow::{Context, Result, ensure};

use super::{Cost, OPERATIONS, Point, Series, sizes};
use crate::{
    bench::wake::bench::{Bench, Boot, Emulator},
    emulated::required,
    session::Ended,
};

/// Ways to sleep: what series are called, and words for Lull.
type Ways = [(&'static str, &'static str); 2];

/// Machines of 2 CPUs and more, whose CPUs run in turns.
///
/// # Errors
/// A run does not end well, or has not measured something.
pub fn in_qemu(bench: &Bench, qemu: &Emulator, most: u32) -> Result<Vec<Series>> {
    let ways = [
        ("QEMU, polling", "idle=poll"),
        ("QEMU, by interrupts", "idle=hlt wake.ipiless=off"),
    ];
    grown(bench, qemu, ways, "instructions", most)
}

/// Machines of 2 CPUs and more, whose CPUs run at the same time.
///
/// # Errors
/// As [`in_qemu`].
pub fn in_bochs(bench: &Bench, bochs: &Emulator, most: u32) -> Result<Vec<Series>> {
    // C1 only: at 10 MHz a choice between deep states takes as long as a sleep.
    let ways = [
        ("Bochs, MWAIT", "max_cstate=1,0"),
        ("Bochs, by interrupts", "max_cstate=1,0 wake.ipiless=off"),
    ];
    grown(bench, bochs, ways, "ticks", most)
}

fn grown(
    bench: &Bench,
    emulator: &Emulator,
    ways: Ways,
    unit: &'static str,
    most: u32,
) -> Result<Vec<Series>> {
    let mut all = Vec::new();
    for (machine, words) in ways {
        let mut points = Vec::new();
        for cpus in sizes(most) {
            let ended = bench.boot(&Boot {
                emulator: &emulator.with(cpus),
                label: format!("growth {cpus}"),
                words: format!("test.wakes=growth {words}"),
            })?;
            let point = point(&ended, cpus).with_context(|| format!("{machine}, {cpus} CPUs"))?;
            points.push(point);
        }
        all.push(Series {
            machine,
            emulator: emulator.name,
            unit,
            points,
        });
    }
    Ok(all)
}

fn point(ended: &Ended, cpus: u32) -> Result<Point> {
    let found = required(ended, "growth.cpus")?;
    ensure!(found == u64::from(cpus), "{found} CPUs have come up");
    let costs = OPERATIONS.iter().map(|&(operation, _)| {
        let get = |what: &str| required(ended, &format!("growth.{operation}.{what}"));
        let rounds = get("rounds")?.max(1) as f64;
        Ok(Cost {
            operation,
            value: get("ticks")? as f64,
            all: None,
            ipis: get("ipis")? as f64 / rounds,
            stores: get("store")? as f64 / rounds,
        })
    });
    Ok(Point {
        cpus,
        costs: costs.collect::<Result<_>>()?,
    })
}
