//! What the core's operations cost on this computer, against the number of CPUs and vCPUs.

use std::{fmt::Write as _, time::Instant};

use anyhow::{Result, anyhow, bail};
use lull_sim::machine::{
    load::Load, measure::Times, plan::Plan, run, stopwatch::Operation, topology::Topology,
};

/// One size.
pub struct Point {
    cpus: u32,
    /// By [`Operation::ALL`]; in ns.
    times: [Times; 3],
}

/// Wakes that a size is measured with, about.
const WAKES: u64 = 200_000;

/// Measures and prints sizes from 1 CPU up to that of `base`, each four times the one before.
///
/// # Errors
/// A promise was broken.
pub fn measure(base: &Plan) -> Result<Vec<Point>> {
    print!(
        "{:>6}{:>8}{:>10}{:>12}{:>9}{:>12}",
        "CPUs", "vCPUs", "wakes", "events", "s", "us a wake"
    );
    for operation in Operation::ALL {
        let name = operation.name();
        print!("{:>14}{:>10}", format!("{name} p50 ns"), "p99");
    }
    println!();
    let (all_cpus, all_vcpus) = (base.topology.cpus, base.load.vcpus());
    let mut points = Vec::new();
    let mut cpus = 1;
    loop {
        let vcpus = (u64::from(all_vcpus) * u64::from(cpus)).div_ceil(all_cpus.into()) as u32;
        let plan = Plan {
            topology: Topology {
                cpus,
                sockets: base.topology.sockets.min(cpus),
                ..base.topology
            },
            load: Load::mixed(vcpus),
            // A vCPU of the mix wakes about 250 times a second.
            length: (WAKES * 1_000_000_000 / (250 * u64::from(vcpus.max(1))))
                .clamp(20_000_000, 20_000_000_000)
                .min(base.length.max(20_000_000) * 20),
            ..base.clone()
        };
        let began = Instant::now();
        let outcome = run::run(&plan).map_err(|why| anyhow!(why))?;
        let took = began.elapsed().as_secs_f64();
        print!(
            "{cpus:>6}{vcpus:>8}{:>10}{:>12}{took:>9.2}{:>12.2}",
            outcome.wakes,
            outcome.events + outcome.calls,
            took * 1e6 / outcome.wakes.max(1) as f64
        );
        if let Some(times) = outcome.host {
            for time in &times {
                print!("{:>14}{:>10}", time.percentile(50.0), time.percentile(99.0));
            }
            points.push(Point { cpus, times });
        }
        println!();
        if let Some(violation) = outcome.violation {
            bail!("{violation}\nreplay: {}", plan.command());
        }
        if cpus == all_cpus {
            return Ok(points);
        }
        cpus = cpus.saturating_mul(4).min(all_cpus);
    }
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const EDGE: f64 = 50.0;

/// Medians and 99th percentiles, both axes logarithmic.
pub fn svg(points: &[Point]) -> String {
    let most_cpus = points
        .last()
        .map_or(2.0, |point| f64::from(point.cpus).max(2.0));
    let times = points.iter().flat_map(|point| &point.times);
    let highest = times
        .map(|times| times.percentile(99.0))
        .max()
        .unwrap_or(10)
        .max(20) as f64;
    let x = |cpus: u32| EDGE + f64::from(cpus).log2() / most_cpus.log2() * (WIDTH - 2.0 * EDGE);
    let y = |ns: f64| {
        HEIGHT
            - EDGE
            - (ns.max(10.0) / 10.0).log2() / (highest / 10.0).log2() * (HEIGHT - 2.0 * EDGE)
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{EDGE}\" y=\"20\">ns on the host against CPUs; solid: median, dashed: 99th percentile</text>\n"
    );
    for point in points {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(point.cpus),
            HEIGHT - EDGE + 18.0,
            point.cpus
        );
    }
    let mut ns = 10.0;
    while ns <= highest {
        let _ = writeln!(
            svg,
            "<path d=\"M{EDGE} {y:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{ns}</text>",
            WIDTH - EDGE,
            EDGE - 4.0,
            y = y(ns)
        );
        ns *= 10.0;
    }
    for (index, (operation, colour)) in Operation::ALL
        .iter()
        .zip(["#c33", "#36c", "#393"])
        .enumerate()
    {
        for (percent, dash) in [(50.0, ""), (99.0, " stroke-dasharray=\"4 3\"")] {
            let line: Vec<String> = points
                .iter()
                .filter_map(|point| {
                    let times = point.times.get(index)?;
                    Some(format!(
                        "{:.1},{:.1}",
                        x(point.cpus),
                        y(times.percentile(percent) as f64)
                    ))
                })
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                line.join(" ")
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            WIDTH - EDGE + 4.0,
            EDGE + 16.0 * index as f64,
            operation.name()
        );
    }
    svg.push_str("</svg>\n");
    svg
}
