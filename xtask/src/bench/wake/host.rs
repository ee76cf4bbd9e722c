//! Row `host`: the same wake word between two threads on two cores of this computer, and what a fence costs there.

use anyhow::Result;
use lull_host_threads::{Report as Measured, Rounds, Woken, measure};

use super::{
    bench::Bench,
    report::{Figure, Report},
};

const ROW: &str = "host";

/// Measures and prints; the figures are in ns, and in ticks of the time-stamp counter where that is the clock.
///
/// # Errors
/// The system refuses something, or a wake is not answered.
pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let rounds = if bench.quick {
        Rounds::QUICK
    } else {
        Rounds::FULL
    };
    let measured = measure(rounds)?;
    println!(
        "host threads, {}: {} wakes of a thread that is asleep, for each way",
        measured.cores.describe(),
        rounds.wakes
    );
    match measured.clock.tsc_rate() {
        Some(rate) => println!(
            "cycles are those of the time-stamp counter, {rate:.3} in a ns, read in steps of {}",
            measured.clock.step()
        ),
        None => {
            println!("no time-stamp counter that all cores share: the system's clock, no cycles")
        }
    }
    println!(
        "{:<22} {:<22} {:>8} {:>8} {:>8} {:>8} {:>10} {:>8} {:>8} {:>8} {:>9}",
        "woken by",
        "which until then",
        "send p50",
        "p90",
        "p99",
        "of park",
        "cycles p50",
        "late p50",
        "p90",
        "p99",
        "max"
    );
    let park = measured.ways.iter().find(|way| way.name == "park, unpark");
    let park = park.map_or(f64::NAN, |way| way.sender.percentile(50.0) as f64);
    for way in &measured.ways {
        row(&measured, way, park);
        for (side, times) in [("sender", &way.sender), ("latency", &way.latency)] {
            let mut add = |what: &str, ticks: f64| {
                let name = format!("{side}.{what}");
                if measured.clock.tsc_rate().is_some() {
                    report.add(Figure::new(ROW, way.name, format!("{name}.cycles"), ticks));
                }
                let nanos = measured.clock.nanos(ticks);
                report.add(Figure::new(ROW, way.name, format!("{name}.ns"), nanos));
            };
            for (what, percent) in [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)] {
                add(what, times.percentile(percent) as f64);
            }
            add("mean", times.mean());
            add("max", times.max() as f64);
        }
    }
    fences(&measured, report);
    Ok(())
}

fn row(measured: &Measured, way: &Woken, park: f64) {
    let nanos = |ticks: u64| measured.clock.nanos(ticks as f64);
    let median = way.sender.percentile(50.0);
    let cycles = measured
        .clock
        .tsc_rate()
        .map_or_else(|| "-".to_owned(), |_| median.to_string());
    print!("{:<22} {:<22}", way.name, way.sleeps);
    print!(
        " {:>8.0} {:>8.0} {:>8.0} {:>8.3} {cycles:>10}",
        nanos(median),
        nanos(way.sender.percentile(90.0)),
        nanos(way.sender.percentile(99.0)),
        median as f64 / park
    );
    println!(
        " {:>8.0} {:>8.0} {:>8.0} {:>9.0}",
        nanos(way.latency.percentile(50.0)),
        nanos(way.latency.percentile(90.0)),
        nanos(way.latency.percentile(99.0)),
        nanos(way.latency.max())
    );
}

fn fences(measured: &Measured, report: &mut Report) {
    println!(
        "a locked operation, and what a fence behind it adds (each a median of means of many)"
    );
    let bare = measured.fences.first().map_or(0.0, |(_, ticks)| *ticks);
    for (name, ticks) in &measured.fences {
        let cycles = if measured.clock.tsc_rate().is_some() {
            format!("{ticks:>8.1} cycles")
        } else {
            String::new()
        };
        let (nanos, added) = (
            measured.clock.nanos(*ticks),
            measured.clock.nanos(ticks - bare),
        );
        println!("{name:<24} {nanos:>8.2} ns {cycles}  adds {added:>6.2} ns");
        report.add(Figure::new(ROW, *name, "fence.ns", nanos));
        if measured.clock.tsc_rate().is_some() {
            report.add(Figure::new(ROW, *name, "fence.cycles", *ticks));
        }
    }
}
