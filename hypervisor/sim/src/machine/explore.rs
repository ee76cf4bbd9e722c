//! Looks for a run in which a promise is broken, and for the smallest one that shows it.

use super::faults::{Broken, Fault, Faults};
use super::load::{Kind, Load, Part};
use super::plan::Plan;
use super::states::Entry;
use super::topology::Topology;
use super::violation::{Rule, Violation};
use crate::rng::Rng;
use lull_core::governor::AnyGovernor;
use lull_core::sched::Weight;

const MS: u64 = 1_000_000;
/// The schedulers that take any load and leave no CPU idle while something waits. The others serve whom there is room for.
const GENERAL: [&str; 2] = ["credit2", "fair"];

/// A random small run. The same seed gives the same run.
pub fn random(seed: u64, broken: Option<Broken>) -> Plan {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..4 {
        rng.bits(); // Neighbouring seeds begin alike.
    }
    let cpus = rng.between(1, 8) as u32;
    let pick = |rng: &mut Rng, count: usize| rng.between(0, count as u64 - 1) as usize;
    let parts = (0..rng.between(1, 5))
        .map(|_| random_part(&mut rng, cpus))
        .collect();
    let machines = ["skx", "skl", "acpi", "spr"];
    Plan {
        topology: Topology {
            cpus,
            sockets: rng.between(1, u64::from(cpus.min(2))) as u32,
            threads: rng.between(1, 2) as u32,
        },
        load: Load(parts),
        length: rng.between(10, 60) * MS,
        seed,
        machine: machines[pick(&mut rng, machines.len())].to_owned(),
        entry: Entry::ALL[pick(&mut rng, Entry::ALL.len())],
        governor: AnyGovernor::NAMES[pick(&mut rng, AnyGovernor::NAMES.len())].to_owned(),
        scheduler: GENERAL[pick(&mut rng, GENERAL.len())].to_owned(),
        faults: if rng.one_in(2) {
            Faults::random(&mut rng)
        } else {
            Faults::NONE
        },
        jitter: [0, 50, 300, 2_000][pick(&mut rng, 4)],
        broken,
        changes: rng.one_in(3),
        // Not drawn, so that a seed means what it meant.
        halt_poll: [0, 0, 50, 200][(seed >> 1 & 3) as usize],
        offline: seed % 3 == 2,
        ..Plan::default()
    }
}

/// A random run of a machine with 2 to `cpus` CPUs that call and wake each other. The same seed gives the same run.
pub fn random_wakes(seed: u64, cpus: u32, broken: Option<Broken>) -> Plan {
    /// So many CPUs, for so long.
    const CPU_NS: u64 = 400 * MS;
    let mut rng = Rng::new(seed.wrapping_mul(0xd134_2543_de82_ef95) | 1);
    for _ in 0..4 {
        rng.bits();
    }
    let most = u64::from(cpus.max(2));
    // Small, of any size, or as large as it gets.
    let cpus = match rng.between(0, 3) {
        0 => rng.between(2, most.min(8)),
        1 => most,
        _ => rng.between(2, most),
    };
    let small = random(rng.bits(), broken);
    let parts = rng.between(1, 3);
    let parts = (0..parts)
        .map(|_| random_part(&mut rng, cpus as u32))
        .collect();
    Plan {
        topology: Topology {
            cpus: cpus as u32,
            sockets: rng.between(1, cpus.min(4)) as u32,
            threads: rng.between(1, 2) as u32,
        },
        load: Load(parts),
        length: (CPU_NS / cpus).clamp(3 * MS, 40 * MS),
        seed,
        wakes: true,
        ..small
    }
}

fn random_part(rng: &mut Rng, cpus: u32) -> Part {
    let kind = Kind::ALL[rng.between(0, Kind::ALL.len() as u64 - 1) as usize];
    let weight = if rng.one_in(3) {
        Weight::new(rng.between(64, 2048) as u16).unwrap_or_default()
    } else {
        Weight::DEFAULT
    };
    let pinned = rng.one_in(4).then(|| {
        let low = rng.between(0, u64::from(cpus) - 1) as u32;
        (low, rng.between(low.into(), u64::from(cpus) - 1) as u32)
    });
    Part {
        kind,
        count: kind.group() as u32 * rng.between(1, 3) as u32,
        weight,
        cpus: pinned,
    }
}

/// A run that breaks a promise.
#[derive(Clone, Debug)]
pub struct Found {
    /// The run.
    pub plan: Plan,
    /// The promise.
    pub violation: Violation,
}

/// How many runs may be tried to make one smaller.
const TRIES: usize = 300;

/// Makes a run that breaks `rule` as small as possible, so that it still does. `run` runs a plan and says what was broken.
///
/// # Panics
/// Never: a run that cannot be repeated comes back as it was given.
pub fn shrink(plan: &Plan, rule: Rule, run: &mut dyn FnMut(&Plan) -> Option<Violation>) -> Found {
    let mut tries = 0;
    let mut still = |plan: &Plan| {
        tries += 1;
        if tries > TRIES {
            return None;
        }
        run(plan).filter(|violation| violation.rule == rule)
    };
    let mut best = Found {
        plan: plan.clone(),
        violation: still(plan).unwrap_or(Violation {
            at: plan.length,
            rule,
            text: "seen once, and not again".to_owned(),
        }),
    };
    loop {
        // What comes after the violation shows nothing.
        let mut smaller = Vec::new();
        let shorter = best.violation.at.max(1);
        if shorter < best.plan.length {
            smaller.push(Plan {
                length: shorter,
                ..best.plan.clone()
            });
        }
        smaller.extend(simpler(&best.plan));
        let found = smaller.into_iter().find_map(|plan| {
            let violation = still(&plan)?;
            Some(Found { plan, violation })
        });
        match found {
            Some(found) => best = found,
            None => return best,
        }
    }
}

/// Each plan that lacks something which this one has, what saves most first.
fn simpler(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut changed = plan.clone();
        change(&mut changed);
        changed
    };
    let parts = &plan.load.0;
    for at in 0..parts.len() {
        if parts.len() > 1 {
            all.push(with(&|plan| {
                plan.load.0.remove(at);
            }));
        }
        let count = parts[at].count;
        for fewer in [count / 2, count - 1] {
            if (1..count).contains(&fewer) {
                all.push(with(&|plan| plan.load.0[at].count = fewer));
            }
        }
        if parts[at].cpus.is_some() {
            all.push(with(&|plan| plan.load.0[at].cpus = None));
        }
        if parts[at].weight != Weight::DEFAULT {
            all.push(with(&|plan| plan.load.0[at].weight = Weight::DEFAULT));
        }
    }
    if plan.offline {
        all.push(with(&|plan| plan.offline = false));
    }
    if plan.halt_poll > 0 {
        all.push(with(&|plan| plan.halt_poll = 0));
    }
    let cpus = plan.topology.cpus;
    for fewer in [cpus / 2, cpus - 1] {
        let pinned = parts
            .iter()
            .filter_map(|part| part.cpus)
            .any(|(low, _)| low >= fewer);
        if (1..cpus).contains(&fewer) && !pinned {
            all.push(with(&|plan| {
                plan.topology.cpus = fewer;
                plan.topology.sockets = plan.topology.sockets.min(fewer);
            }));
        }
    }
    for &fault in Fault::ALL {
        if plan.faults.has(fault) {
            all.push(with(&|plan| plan.faults = plan.faults.with(fault, false)));
        }
    }
    if plan.wakes && plan.broken != Some(Broken::SkipCall) {
        all.push(with(&|plan| plan.wakes = false));
    }
    if plan.changes {
        all.push(with(&|plan| plan.changes = false));
    }
    if plan.jitter > 0 {
        all.push(with(&|plan| plan.jitter = 0));
    }
    if plan.topology.threads > 1 {
        all.push(with(&|plan| plan.topology.threads = 1));
    }
    if plan.topology.sockets > 1 {
        all.push(with(&|plan| plan.topology.sockets = 1));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_run_and_every_run_can_be_run() {
        for seed in 0..200 {
            let plan = random(seed, None);
            assert_eq!(plan, random(seed, None));
            assert_eq!(plan.check(), Ok(()), "{plan:?}");
        }
        assert_ne!(random(1, None).load, random(2, None).load);
    }

    #[test]
    fn what_does_not_matter_is_taken_away() {
        let plan = Plan {
            load: "server*3,batch*4:99@1-2,lock*8".parse().unwrap(),
            jitter: 300,
            faults: Fault::ALL.iter().copied().collect(),
            ..Plan::default()
        };
        // What matters: two batch vCPUs and the slow interrupt.
        let mut run = |plan: &Plan| {
            let batch = plan.load.0.iter().filter(|part| part.kind == Kind::Batch);
            let matters = batch.map(|part| part.count).sum::<u32>() >= 2;
            (matters && plan.faults.has(Fault::Ipi)).then(|| Violation {
                at: 500.min(plan.length),
                rule: Rule::OnePlace,
                text: String::new(),
            })
        };
        let small = shrink(&plan, Rule::OnePlace, &mut run);
        assert_eq!(small.plan.load.to_string(), "batch*2");
        assert_eq!(small.plan.length, 500);
        assert_eq!((small.plan.jitter, small.plan.topology.cpus), (0, 1));
        assert_eq!(small.plan.faults, Faults::NONE.with(Fault::Ipi, true));
    }
}
