//! `cargo xtask bench sched`: what choosing costs, how fair it is, how soon what wakes runs, and where.
//!
//! Instructions come from the image in QEMU, by guest `ipi-pair`; everything else from simulated machines.

use std::{fs, path::Path, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use lull_core::sched::placement::Placement;
use lull_sim::machine::{
    outcome::Outcome, plan::Plan, run, stopwatch::Operation, topology::Topology,
};
use placement_loads::{LENGTH, LIGHT, MIXED_DEPTH, SEEDS, Workload};
use serde::Serialize;

use crate::{
    build::{self, Built, Bundle},
    deps, guest_arg,
    qemu::{self, Accel, Console, Cpu},
    session::Session,
    workspace,
};

mod placement_loads;

/// Options of `bench sched`.
#[derive(Args)]
pub struct SchedArgs {
    /// Only the simulated machines, or only QEMU
    #[arg(long, value_name = "WHAT", value_parser = ["sim", "qemu"])]
    only: Option<String>,
    /// Write all figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How long a machine may take.
const LIMIT: Duration = Duration::from_secs(240);
const SECOND: u64 = 1_000_000_000;

#[derive(Serialize)]
struct Figure {
    name: String,
    /// The scheduler, or the placement policy.
    by: &'static str,
    value: f64,
    unit: &'static str,
}

/// Figures, and the bars that were missed.
#[derive(Default)]
struct Report {
    figures: Vec<Figure>,
    missed: usize,
}

impl Report {
    fn add(&mut self, name: &str, by: &'static str, value: f64, unit: &'static str) {
        self.figures.push(Figure {
            name: name.to_owned(),
            by,
            value,
            unit,
        });
    }

    fn bar(&mut self, what: &str, value: f64, at_most: f64) {
        let holds = value <= at_most;
        self.missed += usize::from(!holds);
        println!(
            "{} {what:<72} {value:>10.3}  (at most {at_most})",
            if holds { "ok  " } else { "MISS" }
        );
    }
}

/// `cargo xtask bench sched`.
///
/// # Errors
/// If something is missing, a run does not end well, or a bar is missed.
pub fn command(args: &SchedArgs) -> Result<()> {
    let wants = |name: &str| args.only.as_deref().is_none_or(|only| only == name);
    let mut report = Report::default();
    if wants("qemu") {
        instructions(&mut report)?;
    }
    if wants("sim") {
        choices(&mut report)?;
        fairness(&mut report)?;
        latency(&mut report)?;
        placement(&mut report)?;
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report.figures)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if report.missed > 0 {
        bail!("{} bars are missed", report.missed);
    }
    Ok(())
}

/// What is counted on the image: a name, CPUs, the guest's options, and the schedulers that can run it.
const COUNTED: [(&str, u32, &str, &[&str]); 3] = [
    (
        "one CPU: spins until a halted vCPU has answered",
        1,
        "spin=1 rounds=300",
        &["credit2", "fair"],
    ),
    (
        "one CPU: two vCPUs wake each other, two switches",
        1,
        "rounds=300",
        &["credit2", "fair"],
    ),
    (
        "two CPUs: two vCPUs wake each other, two wakes of an idle CPU",
        2,
        "rounds=300",
        &["credit2", "fair", "null"],
    ),
];

fn instructions(report: &mut Report) -> Result<()> {
    deps::bare_metal_target()?;
    let version = deps::qemu()?;
    let built = build::build(true)?;
    let dir = workspace::output_dir("bench-sched")?;
    println!("Instructions of a round, guests' own included (QEMU -icount)");
    println!("KVM needs 19487 for the first, Xen 9988284 (25790 without its rate limit)");
    for (name, cpus, options, schedulers) in COUNTED {
        for &scheduler in schedulers {
            let round = pair(version, &built, &dir, cpus, options, scheduler)?;
            println!("{name:<64} {scheduler:<8} {round:>9.0}");
            report.add(name, scheduler, round, "instructions");
        }
    }
    Ok(())
}

fn pair(
    version: qemu::Version,
    built: &Built,
    dir: &Path,
    cpus: u32,
    options: &str,
    scheduler: &str,
) -> Result<f64> {
    let bundle = dir.join("pair.cpio");
    let guest = format!("ipi-pair,cmdline=\"{options}\"").parse()?;
    let guests = guest_arg::complete(&[guest], built)?;
    Bundle::of_guests(&guests, built)?.write(&bundle)?;
    let machine = qemu::Machine {
        version,
        board: qemu::BOARD,
        accel: Accel::Icount,
        cpu: Cpu::Default,
        cpus,
        disabled_cpus: 0,
        mem: "512M".to_owned(),
        kernel: built.image.clone(),
        bundle: Some(bundle),
        cmdline: format!("exit-port=0xf4 sched={scheduler}"),
        console: Console::File(dir.join("pair.txt")),
        debugcon: dir.join("pair.jsonl"),
        acpi_tables: Vec::new(),
        globals: Vec::new(),
        gdb: false,
    };
    let session = Session::start(&machine, None, |command| {
        command.stdout(Stdio::null());
    })?;
    let ended = session.finish(Some(LIMIT))?;
    let passed = ended.channel.guests().any(|guest| guest.passed());
    ensure!(passed, "the guest did not pass ({})", ended.how());
    let mut figures = ended.channel.figures();
    figures
        .find(|figure| figure.name == "round_trip_ticks")
        .and_then(|figure| figure.number())
        .context("the guest has not measured its rounds")
}

fn simulated(plan: &Plan) -> Result<Outcome> {
    let outcome = run::run(plan).map_err(|why| anyhow!(why))?;
    match &outcome.violation {
        None => Ok(outcome),
        Some(violation) => bail!("{violation}\nreplay: {}", plan.command()),
    }
}

fn plan(topology: (u32, u32, u32), load: &str, length: u64) -> Result<Plan> {
    let (cpus, sockets, threads) = topology;
    Ok(Plan {
        topology: Topology {
            cpus,
            sockets,
            threads,
        },
        load: load.parse().map_err(|why: String| anyhow!(why))?,
        length,
        ..Plan::default()
    })
}

/// A pick and a wake against the number of vCPUs that wait on the same CPU.
fn choices(report: &mut Report) -> Result<()> {
    println!(
        "\nNanoseconds of this computer, median: the cost grows, if at all, with the logarithm"
    );
    println!(
        "{:>16} {:>16} {:>10} {:>10}",
        "runnable vCPUs", "scheduler", "pick", "wake"
    );
    for runnable in [1, 10, 100, 1000] {
        for scheduler in ["credit2", "fair"] {
            let load = format!("batch*{runnable},server*8");
            let outcome = simulated(&Plan {
                scheduler: scheduler.to_owned(),
                timed: true,
                ..plan((1, 1, 1), &load, 5 * SECOND)?
            })?;
            let times = outcome.host.context("nothing was measured")?;
            let median = |operation: Operation| times[operation as usize].percentile(50.0) as f64;
            let (pick, wake) = (median(Operation::Pick), median(Operation::Wake));
            println!("{runnable:>16} {scheduler:>16} {pick:>10.0} {wake:>10.0}");
            report.add(&format!("pick, {runnable} runnable"), scheduler, pick, "ns");
            report.add(&format!("wake, {runnable} runnable"), scheduler, wake, "ns");
        }
    }
    Ok(())
}

/// Weights 1:2:4:8 on two CPUs.
fn fairness(report: &mut Report) -> Result<()> {
    println!(
        "\nWeights 1 : 2 : 4 : 8 on two CPUs for 10 s: the share that is furthest from the ideal"
    );
    for scheduler in ["credit2", "fair"] {
        let load = "batch,batch:512,batch:1024,batch:2048";
        let outcome = simulated(&Plan {
            scheduler: scheduler.to_owned(),
            ..plan((2, 1, 1), load, 10 * SECOND)?
        })?;
        let error = outcome.weight_error.context("nothing was judged")? * 100.0;
        println!("{scheduler:>16} {error:>9.3} %");
        report.add("fairness error", scheduler, error, "%");
        if scheduler == "credit2" {
            report.bar("percent that a share of credit2 is off", error, 1.0);
        }
    }
    Ok(())
}

/// From the kick to the guest: with a CPU for each, and with five vCPUs a CPU.
fn latency(report: &mut Report) -> Result<()> {
    println!("\nMicroseconds from a wake to the guest, 8 CPUs");
    println!(
        "{:<28} {:>10} {:>10} {:>10} {:>10}",
        "", "scheduler", "mean", "p50", "p99"
    );
    let loads: [(&str, &str, &[&str]); 2] = [
        ("a vCPU a CPU", "server*8", &["null", "credit2", "fair"]),
        (
            "five a CPU, two never halt",
            "batch*2,server*20,pingpong*10,periodic*8",
            &["credit2", "fair"],
        ),
    ];
    for (name, load, schedulers) in loads {
        for &scheduler in schedulers {
            let outcome = simulated(&Plan {
                scheduler: scheduler.to_owned(),
                ..plan((8, 1, 2), load, 2 * SECOND)?
            })?;
            let wakes = outcome.measures.all_wakes();
            let us = |ns: u64| ns as f64 / 1000.0;
            let (mean, p50, p99) = (
                wakes.mean() / 1000.0,
                us(wakes.percentile(50.0)),
                us(wakes.percentile(99.0)),
            );
            println!("{name:<28} {scheduler:>10} {mean:>10.2} {p50:>10.2} {p99:>10.2}");
            for (what, value) in [("mean", mean), ("p50", p50), ("p99", p99)] {
                report.add(
                    &format!("wake to guest, {name}, {what}"),
                    scheduler,
                    value,
                    "us",
                );
            }
        }
    }
    Ok(())
}

/// Means over all seeds.
struct Placed {
    mean: f64,
    p99: f64,
    energy: f64,
}

fn placed(workload: &Workload, policy: &str) -> Result<Placed> {
    let mut sum = Placed {
        mean: 0.0,
        p99: 0.0,
        energy: 0.0,
    };
    for seed in SEEDS {
        let outcome = simulated(&Plan {
            seed,
            placement: policy.to_owned(),
            ..plan(workload.topology, workload.load, LENGTH)?
        })?;
        let wakes = outcome.measures.all_wakes();
        let part = 1.0 / SEEDS.len() as f64;
        sum.mean += wakes.mean() / 1000.0 * part;
        sum.p99 += wakes.percentile(99.0) as f64 / 1000.0 * part;
        sum.energy += outcome.energy() * part;
    }
    Ok(sum)
}

fn placement(report: &mut Report) -> Result<()> {
    println!(
        "\nWhere credit2 wakes a vCPU: means over {} seeds of {} s",
        SEEDS.len(),
        LENGTH / SECOND
    );
    println!(
        "{:<14} {:<12} {:>14} {:>12} {:>22}",
        "load", "policy", "wake mean us", "p99 us", "energy, core seconds"
    );
    for workload in [&MIXED_DEPTH, &LIGHT] {
        let mut all = Vec::new();
        for policy in Placement::NAMES {
            let placed = placed(workload, policy)?;
            println!(
                "{:<14} {policy:<12} {:>14.2} {:>12.1} {:>22.3}",
                workload.name, placed.mean, placed.p99, placed.energy
            );
            for (what, value, unit) in [
                ("wake mean", placed.mean, "us"),
                ("wake p99", placed.p99, "us"),
                ("energy", placed.energy, "core s"),
            ] {
                report.add(&format!("{}, {what}", workload.name), policy, value, unit);
            }
            all.push(placed);
        }
        let [sleep_depth, first_idle, ..] = all.as_slice() else {
            bail!("a policy is missing");
        };
        let (latency, energy) = if workload.name == MIXED_DEPTH.name {
            (
                ("mean wake latency", sleep_depth.mean / first_idle.mean, 0.8),
                1.0,
            )
        } else {
            (
                ("p99 wake latency", sleep_depth.p99 / first_idle.p99, 1.0),
                0.9,
            )
        };
        let against = |what| format!("{}: {what} against first idle", workload.name);
        report.bar(&against(latency.0), latency.1, latency.2);
        report.bar(
            &against("energy"),
            sleep_depth.energy / first_idle.energy,
            energy,
        );
    }
    Ok(())
}
