//! What a simulated run came to, as text.

use std::{fmt::Write as _, fs, time::Duration};

use lull_sim::machine::{load::Kind, measure::Times, outcome::Outcome, plan::Plan};

/// Everything, as tables.
pub fn text(plan: &Plan, outcome: &Outcome, took: Duration) -> String {
    let mut text = String::new();
    let seconds = outcome.length as f64 / 1e9;
    let _ = writeln!(
        text,
        "{} CPUs ({} sockets, {} threads a core), {} vCPUs, scheduler {}, governor {}, machine {}, entry {}, seed {}",
        plan.topology.cpus,
        plan.topology.sockets,
        plan.topology.threads,
        plan.load.vcpus(),
        plan.scheduler,
        plan.governor,
        plan.machine,
        plan.entry,
        plan.seed
    );
    let _ = writeln!(
        text,
        "{seconds:.3} s of virtual time in {:.1} s: {} events, {} platform calls, {} wakes, {} sleeps, {} passes, {} switches",
        took.as_secs_f64(),
        outcome.events,
        outcome.calls,
        outcome.wakes,
        outcome.sleeps,
        outcome.passes,
        outcome.switches
    );
    if let Some(peak) = peak_memory() {
        let _ = writeln!(text, "peak memory {:.0} MiB", peak as f64 / 1024.0);
    }
    let _ = writeln!(
        text,
        "CPUs inside guests {:.1} %; at most {} vCPUs waited at once; a waiting vCPU and an idle CPU that may run it \
         coexisted for at most {:.1} us of {:.1}",
        outcome.guest_time as f64 * 100.0 / (outcome.length as f64 * f64::from(plan.topology.cpus)),
        outcome.most_waiting,
        outcome.longest_overlap as f64 / 1e3,
        outcome.bound as f64 / 1e3
    );
    if let Some(traffic) = &outcome.traffic {
        let _ = writeln!(text, "{traffic}");
    }
    text.push('\n');
    times(&mut text, outcome);
    text.push('\n');
    energy(&mut text, plan, outcome);
    text.push('\n');
    fairness(&mut text, plan, outcome);
    let _ = writeln!(
        text,
        "digest of the trace {:016x}, {} lines",
        outcome.digest,
        outcome.trace.count()
    );
    let verdict = match &outcome.violation {
        None => "all promises kept".to_owned(),
        Some(violation) => format!("BROKEN: {violation}"),
    };
    let _ = writeln!(text, "{verdict}");
    text
}

fn times(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(
        text,
        "{:<26}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}",
        "us", "count", "mean", "p50", "p90", "p99", "p99.9", "max"
    );
    let mut row = |name: &str, times: &Times| {
        let us = |ns: u64| ns as f64 / 1e3;
        let _ = write!(
            text,
            "{name:<26}{:>9}{:>9.1}",
            times.count(),
            times.mean() / 1e3
        );
        for percent in [50.0, 90.0, 99.0, 99.9] {
            let _ = write!(text, "{:>9.1}", us(times.percentile(percent)));
        }
        let _ = writeln!(text, "{:>10.1}", us(times.max()));
    };
    row("wake to guest", &outcome.measures.all_wakes());
    for (kind, times) in &outcome.measures.wakes {
        row(&format!("  {kind}"), times);
    }
    for (kind, times) in &outcome.measures.responses {
        let what = match kind {
            Kind::Periodic => "tick late",
            Kind::Server => "request",
            Kind::PingPong => "round trip",
            Kind::Lock => "wait for lock",
            Kind::Idle | Kind::Batch | Kind::Storm | Kind::Yield => continue,
        };
        row(&format!("{kind}: {what}"), times);
    }
}

fn energy(text: &mut String, plan: &Plan, outcome: &Outcome) {
    let all_time = outcome.length as f64 * f64::from(plan.topology.cpus);
    let all_energy = outcome.energy();
    let _ = writeln!(
        text,
        "{:<10}{:>12}{:>20}",
        "state", "CPU time %", "energy, core s (%)"
    );
    for share in &outcome.shares {
        let _ = writeln!(
            text,
            "{:<10}{:>12.2}{:>12.4} ({:>4.1})",
            share.name,
            share.time as f64 * 100.0 / all_time,
            share.energy,
            share.energy * 100.0 / all_energy.max(f64::MIN_POSITIVE)
        );
    }
    let _ = writeln!(text, "energy {all_energy:.4} s of a core that runs");
}

/// vCPUs that never halt compete: what each got, for its weight.
fn fairness(text: &mut String, plan: &Plan, outcome: &Outcome) {
    let mut shares: Vec<f64> = outcome
        .run_times
        .iter()
        .zip(plan.load.each())
        .filter(|((kind, _), _)| *kind == Kind::Batch)
        .map(|((_, ran), (_, part))| {
            *ran as f64 / outcome.length as f64 * 256.0 / f64::from(part.weight.get())
        })
        .collect();
    if shares.len() < 2 {
        return;
    }
    shares.sort_by(f64::total_cmp);
    let at = |part: f64| shares[((shares.len() - 1) as f64 * part).round() as usize];
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let _ = writeln!(
        text,
        "fairness of {} vCPUs that never halt, CPU for each 256 of weight: min {:.4}, p1 {:.4}, p50 {:.4}, p99 {:.4}, max {:.4}; \
         Jain's index {:.4}",
        shares.len(),
        shares[0],
        at(0.01),
        at(0.5),
        at(0.99),
        at(1.0),
        sum * sum / (shares.len() as f64 * squares.max(f64::MIN_POSITIVE))
    );
}

/// In KiB, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
