//! Simulated machines: some seconds each, in this very process. What a run came to is in `report.txt`.

use std::{fs, path::Path, time::Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lull_sim::machine::{explore, faults::Broken, load::Load, plan::Plan, run, topology::Topology};

use crate::{sim::report, test::case::Case};

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::host("sim/mixed-64", |dir| {
            mixed(dir, 64, 320, 200_000_000, 10_000)
        }),
        Case::host("sim/mixed-1024", |dir| {
            mixed(dir, 1024, 10_000, 20_000_000, 20_000)
        }),
        Case::host("sim/explore", |_| exploration(200)),
        Case::host("sim/wakes", |_| wakes(60)),
        Case::host("sim/weights", weights),
    ];
    cases.extend(
        Broken::ALL
            .iter()
            .map(|&broken| Case::host(format!("sim/break-{broken}"), move |_| noticed(broken))),
    );
    cases
}

fn mixed(dir: &Path, cpus: u32, vcpus: u32, length: u64, wakes: u64) -> Result<()> {
    let plan = Plan {
        topology: Topology {
            cpus,
            sockets: 2,
            threads: 2,
        },
        load: Load::mixed(vcpus),
        length,
        ..Plan::default()
    };
    let began = Instant::now();
    let outcome = run::run(&plan).map_err(|why| anyhow!(why))?;
    let path = dir.join("report.txt");
    fs::write(&path, report::text(&plan, &outcome, began.elapsed()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    if let Some(violation) = outcome.violation {
        bail!("{violation}\nreplay: {}", plan.command());
    }
    ensure!(
        outcome.wakes >= wakes,
        "{} wakes: expected at least {wakes}",
        outcome.wakes
    );
    Ok(())
}

fn exploration(seeds: u64) -> Result<()> {
    for seed in 1..=seeds {
        let plan = explore::random(seed, None);
        let outcome = run::run(&plan).map_err(|why| anyhow!(why))?;
        if let Some(violation) = outcome.violation {
            bail!("{violation}\nreplay: {}", plan.command());
        }
    }
    Ok(())
}

/// CPUs that call and wake each other, 256 at most.
fn wakes(seeds: u64) -> Result<()> {
    let mut most = 0;
    for seed in 1..=seeds {
        let plan = explore::random_wakes(seed, 256, None);
        most = most.max(plan.topology.cpus);
        let outcome = run::run(&plan).map_err(|why| anyhow!(why))?;
        if let Some(violation) = outcome.violation {
            bail!("{violation}\nreplay: {}", plan.command());
        }
    }
    ensure!(most == 256, "no machine had 256 CPUs, but {most} at most");
    Ok(())
}

fn hogs(broken: Option<Broken>, length: u64) -> Result<Plan> {
    let load = "batch,batch:512,batch:1024,batch:2048".parse();
    Ok(Plan {
        topology: Topology {
            cpus: 2,
            sockets: 1,
            threads: 1,
        },
        load: load.map_err(|why: String| anyhow!(why))?,
        length,
        broken,
        ..Plan::default()
    })
}

/// Weights 1:2:4:8 on two CPUs, for 10 s: within a hundredth of the work-conserving ideal.
fn weights(_: &Path) -> Result<()> {
    let outcome = run::run(&hogs(None, 10_000_000_000)?).map_err(|why| anyhow!(why))?;
    let error = outcome.weight_error.context("nothing was judged")?;
    ensure!(
        error <= 0.01,
        "a share is {:.2} % off: at most 1 % is allowed",
        error * 100.0
    );
    Ok(())
}

fn noticed(broken: Broken) -> Result<()> {
    let plans: Vec<Plan> = if broken == Broken::IgnoreWeight {
        vec![hogs(Some(broken), 20_100_000_000)?]
    } else {
        (1..=40)
            .map(|seed| match broken {
                Broken::SkipCall => explore::random_wakes(seed, 64, Some(broken)),
                _ => explore::random(seed, Some(broken)),
            })
            .collect()
    };
    for plan in plans {
        let outcome = run::run(&plan).map_err(|why| anyhow!(why))?;
        if outcome.violation.is_some() {
            return Ok(());
        }
    }
    bail!("a machine that is broken by `{broken}` was not noticed")
}
