//! `cargo xtask sim`: a whole simulated machine, from 1 to 4096 CPUs, with all promises watched.

pub mod report;

mod curve;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use lull_sim::machine::{
    explore,
    faults::{Broken, Fault, Faults},
    load::Load,
    picture,
    plan::Plan,
    run,
    states::Entry,
    topology::Topology,
    traffic::Totals,
};

/// Options of `sim`.
#[derive(Args)]
pub struct SimArgs {
    /// CPUs
    #[arg(long, value_name = "N", default_value_t = 8)]
    cpus: u32,
    /// Sockets
    #[arg(long, value_name = "N", default_value_t = 1)]
    sockets: u32,
    /// Threads of a core
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: u32,
    /// A mixed load of so many vCPUs [default: 5 a CPU]
    #[arg(long, value_name = "N", conflicts_with = "load", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    vcpus: Option<u32>,
    /// What the vCPUs do: `KIND[*COUNT][:WEIGHT][@LOW-HIGH]`, separated by commas; kinds are idle, batch, periodic, server,
    /// pingpong, lock, storm, yield
    #[arg(long, value_name = "LIST")]
    load: Option<Load>,
    /// Virtual time in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0, conflicts_with = "ns")]
    seconds: f64,
    /// Virtual time in nanoseconds
    #[arg(long, value_name = "N")]
    ns: Option<u64>,
    /// What all randomness comes from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Whose C-states: skx, skl, acpi, spr
    #[arg(long, value_name = "NAME", default_value = "skx")]
    machine: String,
    /// How C-states are entered: mwait, blind (a monitor that misses stores), port, halt
    #[arg(long, value_name = "HOW", default_value_t = Entry::Mwait)]
    entry: Entry,
    /// Who chooses among C-states
    #[arg(long, value_name = "NAME", default_value = "lull")]
    governor: String,
    /// Who chooses among vCPUs: credit2, fair, null, rtds, arinc653
    #[arg(long, value_name = "NAME", default_value = "credit2")]
    scheduler: String,
    /// How credit2 chooses among idle CPUs: sleep-depth, first-idle, previous
    #[arg(long, value_name = "NAME", default_value = "sleep-depth")]
    placement: String,
    /// What the machine does within its contract, separated by commas: timer (late or early), spurious (wakes), ipi (slow),
    /// exit (from C-states sooner than said)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    faults: Vec<Fault>,
    /// One platform call in four takes up to so many ns longer, and events at one time come in any order
    #[arg(long, value_name = "NS", default_value_t = 0)]
    jitter: u64,
    /// Weights and affinities change, and vCPUs are removed and added, about once a millisecond
    #[arg(long)]
    changes: bool,
    /// CPUs leave the scheduler and come back, about once a millisecond
    #[arg(long)]
    offline: bool,
    /// For how long CPUs look for a kick before they block a vCPU, in microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    halt_poll: u64,
    /// CPUs call each other, post to each other and go offline, and NMIs come, all the time, beside the load; with --explore,
    /// machines of up to --cpus CPUs that do
    #[arg(long)]
    wakes: bool,
    /// Break the machine on purpose, to see that it is noticed: drop-ipi, ignore-store, lose-timer, forget-tickle,
    /// wrong-unit, drop-time, ignore-weight, skip-call
    #[arg(long = "break", value_name = "WHAT")]
    broken: Option<Broken>,
    /// Run many small random machines, with random loads, faults and delays; print how to replay what fails
    #[arg(long)]
    explore: bool,
    /// How many of them; the first has the seed of --seed
    #[arg(long, value_name = "N", default_value_t = 100, requires = "explore")]
    seeds: u64,
    /// Measure what a pick, a wake and a timer cost on this computer, from 1 CPU up to --cpus, with --vcpus in proportion;
    /// --svg then plots that
    #[arg(long, conflicts_with_all = ["explore", "load", "perfetto", "trace"])]
    curve: bool,
    /// Write a picture of the CPUs over time (the first 64 CPUs, the first 20 ms)
    #[arg(long, value_name = "FILE", conflicts_with = "explore")]
    svg: Option<PathBuf>,
    /// Write the same for a trace viewer (Chrome trace events, as ui.perfetto.dev opens them)
    #[arg(long, value_name = "FILE", conflicts_with = "explore")]
    perfetto: Option<PathBuf>,
    /// Write all that happened, a line each
    #[arg(long, value_name = "FILE", conflicts_with = "explore")]
    trace: Option<PathBuf>,
}

/// How much of a run pictures show, in ns.
const SHOWN: u64 = 20_000_000;

/// `cargo xtask sim`.
///
/// # Errors
/// If the options make no sense, or a promise was broken.
pub fn command(args: &SimArgs) -> Result<()> {
    let plan = args.plan()?;
    if args.explore {
        return exploration(args, &plan);
    }
    if args.curve {
        let points = curve::measure(&plan)?;
        return match &args.svg {
            Some(path) => write(path, &curve::svg(&points)),
            None => Ok(()),
        };
    }
    let began = Instant::now();
    let outcome = on_panic_show(&plan, || run::run(&plan)).map_err(|why| anyhow!(why))?;
    print!("{}", report::text(&plan, &outcome, began.elapsed()));
    if let Some(path) = &args.trace {
        write(path, &outcome.trace.text())?;
    }
    if let Some(path) = &args.svg {
        write(path, &picture::svg(&plan, &outcome))?;
    }
    if let Some(path) = &args.perfetto {
        write(path, &picture::perfetto(&plan, &outcome))?;
    }
    match outcome.violation {
        None => Ok(()),
        Some(violation) => bail!("{violation}\nreplay: {}", plan.command()),
    }
}

impl SimArgs {
    fn plan(&self) -> Result<Plan> {
        let length = match self.ns {
            Some(ns) => ns,
            None if self.seconds.is_finite() && self.seconds >= 0.0 => {
                (self.seconds * 1e9).round() as u64
            }
            None => bail!("{} seconds: expected a number above 0", self.seconds),
        };
        let vcpus = self.vcpus.unwrap_or_else(|| self.cpus.saturating_mul(5));
        let keep = if self.trace.is_some() {
            length
        } else if self.svg.is_some() || self.perfetto.is_some() {
            SHOWN
        } else {
            0
        };
        let plan = Plan {
            topology: Topology {
                cpus: self.cpus,
                sockets: self.sockets,
                threads: self.threads,
            },
            load: self.load.clone().unwrap_or_else(|| Load::mixed(vcpus)),
            length,
            seed: self.seed,
            machine: self.machine.clone(),
            entry: self.entry,
            governor: self.governor.clone(),
            scheduler: self.scheduler.clone(),
            placement: self.placement.clone(),
            faults: self.faults.iter().copied().collect::<Faults>(),
            jitter: self.jitter,
            broken: self.broken,
            changes: self.changes,
            wakes: self.wakes,
            offline: self.offline,
            halt_poll: self.halt_poll,
            keep,
            timed: self.curve,
        };
        plan.check().map_err(|why| anyhow!(why))?;
        Ok(plan)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// Runs `body`; should it panic, says how to replay what it ran.
fn on_panic_show<T>(plan: &Plan, body: impl FnOnce() -> T) -> T {
    let command = plan.command();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("{info}\nreplay: {command}");
    }));
    let done = body();
    std::panic::set_hook(before);
    done
}

fn exploration(args: &SimArgs, base: &Plan) -> Result<()> {
    let began = Instant::now();
    let (mut wakes, mut events, mut virtual_time) = (0, 0, 0);
    let mut nearest: f64 = 0.0;
    let mut traffic = Totals::default();
    let mut most_cpus = 0;
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let plan = if base.wakes {
            explore::random_wakes(seed, base.topology.cpus, base.broken)
        } else {
            explore::random(seed, base.broken)
        };
        most_cpus = most_cpus.max(plan.topology.cpus);
        let outcome = on_panic_show(&plan, || run::run(&plan)).map_err(|why| anyhow!(why))?;
        wakes += outcome.wakes;
        events += outcome.events + outcome.calls;
        virtual_time += outcome.length;
        traffic += outcome.traffic.unwrap_or_default();
        nearest = nearest.max(outcome.longest_overlap as f64 / outcome.bound as f64);
        if let Some(violation) = outcome.violation {
            println!("seed {seed}: {violation}\nshrinking ...");
            std::io::stdout().flush()?;
            let small = explore::shrink(&plan, violation.rule, &mut |plan| {
                on_panic_show(plan, || run::run(plan))
                    .ok()
                    .and_then(|outcome| outcome.violation)
            });
            bail!("{}\nreplay: {}", small.violation, small.plan.command());
        }
    }
    if base.wakes {
        println!("up to {most_cpus} CPUs: {traffic}");
    }
    let coexisted = if base.wakes {
        String::new()
    } else {
        format!(
            "a waiting vCPU and an idle CPU coexisted for at most {:.0} % of what is allowed; ",
            nearest * 100.0
        )
    };
    println!(
        "{} seeds from {}: all promises kept; {coexisted}{wakes} wakes, {events} events in {:.3} s of virtual time, {:.1} s of real time",
        args.seeds,
        args.seed,
        virtual_time as f64 / 1e9,
        began.elapsed().as_secs_f64()
    );
    Ok(())
}
