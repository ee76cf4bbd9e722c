//! Whole runs.

use super::explore;
use super::faults::{Broken, Fault};
use super::outcome::Outcome;
use super::plan::Plan;
use super::run::run;
use super::states::Entry;
use super::topology::Topology;
use super::traffic::Totals;
use super::violation::Rule;

const MS: u64 = 1_000_000;

fn plan() -> Plan {
    Plan {
        length: 50 * MS,
        ..Plan::default()
    }
}

fn keeps_all(plan: &Plan) -> Outcome {
    let outcome = run(plan).unwrap();
    assert_eq!(outcome.violation, None, "{}", plan.command());
    outcome
}

#[test]
fn the_same_seed_gives_the_same_trace_to_the_byte() {
    for jitter in [0, 300] {
        let plan = Plan {
            keep: 50 * MS,
            jitter,
            changes: jitter > 0,
            faults: Fault::ALL.iter().copied().filter(|_| jitter > 0).collect(),
            ..plan()
        };
        let (first, second) = (keeps_all(&plan), keeps_all(&plan));
        assert!(
            first.wakes > 100 && first.trace.lines.len() > 1_000,
            "{first:?}"
        );
        assert!(first.trace.text() == second.trace.text(), "traces differ");
        assert_eq!(first.digest, second.digest);
        let other = keeps_all(&Plan { seed: 2, ..plan });
        assert_ne!(first.digest, other.digest);
    }
}

#[test]
fn every_way_into_a_c_state_keeps_all_promises() {
    for entry in Entry::ALL {
        let outcome = keeps_all(&Plan { entry, ..plan() });
        assert!(outcome.sleeps > 100, "{entry}");
        let slept: u64 = outcome.shares.iter().map(|share| share.time).sum();
        assert_eq!(slept, outcome.length * 8, "all time is in some state");
    }
}

#[test]
fn an_idle_machine_does_nothing_but_sleep_deeply() {
    let outcome = keeps_all(&Plan {
        load: "idle*4".parse().unwrap(),
        length: 1_000 * MS,
        ..plan()
    });
    let deep = outcome
        .shares
        .iter()
        .find(|share| share.name == "C6")
        .unwrap();
    assert!(
        deep.time > outcome.length * 8 / 10 * 9,
        "{:?}",
        outcome.shares
    );
    assert!(outcome.wakes <= 4, "only the starts: {}", outcome.wakes);
}

/// Who posts to several CPUs does so one after the other: the watcher must not have looked at the last of them before.
#[test]
fn posts_to_several_cpus_are_seen_when_they_come() {
    for seed in [1, 6] {
        keeps_all(&Plan {
            scheduler: "rtds".to_owned(),
            load: "pingpong*8".parse().unwrap(),
            topology: Topology {
                cpus: 8,
                sockets: 1,
                threads: 2,
            },
            machine: "skx".to_owned(),
            jitter: 300,
            seed,
            length: 200 * MS,
            ..plan()
        });
    }
}

#[test]
fn random_small_machines_keep_all_promises() {
    for seed in 1..=40 {
        keeps_all(&explore::random(seed, None));
    }
}

#[test]
fn cpus_that_call_and_wake_each_other_keep_all_promises() {
    let mut all = Totals::default();
    for seed in 1..=12 {
        let outcome = keeps_all(&explore::random_wakes(seed, 256, None));
        let traffic = outcome.traffic.unwrap();
        assert!(traffic.calls > 300 && traffic.runs > traffic.calls / 2);
        assert!(traffic.nmis > 10 && traffic.posts > 100, "{traffic:?}");
        all += traffic;
    }
    assert!(all.ipis > 1_000 && all.by_store > 1_000, "{all:?}");
    assert!(all.offline > 100 && all.refused > 100, "{all:?}");
}

#[test]
fn a_lost_call_and_a_lost_wake_are_noticed_among_calls_and_can_be_replayed() {
    for (broken, rule) in [
        (Broken::SkipCall, Rule::EachOnce),
        (Broken::DropIpi, Rule::NoLostWakeup),
        (Broken::IgnoreStore, Rule::NoLostWakeup),
        (Broken::LoseTimer, Rule::NoLostWakeup),
    ] {
        let found = (1..=6).find_map(|seed| {
            let plan = explore::random_wakes(seed, 64, Some(broken));
            let violation = run(&plan).unwrap().violation?;
            Some((plan, violation))
        });
        let (plan, violation) = found.unwrap_or_else(|| panic!("{broken} was not noticed"));
        assert_eq!(violation.rule, rule, "{broken}: {violation}");
        assert_eq!(run(&plan).unwrap().violation, Some(violation));
        assert!(plan.command().contains(" --wakes --break "));
    }
}

/// A check that nothing can make fail proves nothing.
#[test]
fn every_broken_machine_is_noticed_and_shrunk() {
    let rules = |broken| match broken {
        Broken::DropIpi | Broken::IgnoreStore | Broken::LoseTimer => {
            &[Rule::NoLostWakeup, Rule::WorkConserving][..]
        }
        Broken::ForgetTickle => &[Rule::WorkConserving],
        Broken::WrongUnit => &[Rule::OnePlace],
        Broken::DropTime => &[Rule::TimeConserved],
        Broken::IgnoreWeight => &[Rule::Weights],
        Broken::SkipCall => &[Rule::EachOnce],
    };
    for &broken in Broken::ALL
        .iter()
        .filter(|broken| !matches!(broken, Broken::IgnoreWeight | Broken::SkipCall))
    {
        let found = (1..=40).find_map(|seed| {
            let plan = explore::random(seed, Some(broken));
            run(&plan)
                .unwrap()
                .violation
                .map(|violation| (plan, violation))
        });
        let Some((plan, violation)) = found else {
            panic!("{broken} was not noticed");
        };
        assert!(
            rules(broken).contains(&violation.rule),
            "{broken}: {violation}"
        );
        let again = &mut |plan: &Plan| run(plan).unwrap().violation;
        let small = explore::shrink(&plan, violation.rule, again);
        assert!(small.plan.length <= plan.length);
        assert!(small.plan.load.vcpus() <= plan.load.vcpus());
        let replayed = run(&small.plan).unwrap().violation;
        assert_eq!(replayed, Some(small.violation), "{}", small.plan.command());
    }
}

fn weights() -> Plan {
    Plan {
        topology: Topology {
            cpus: 2,
            sockets: 1,
            threads: 1,
        },
        load: "batch,batch:512,batch:1024,batch:2048".parse().unwrap(),
        length: 20_100 * MS,
        ..Plan::default()
    }
}

#[test]
fn weights_give_shares_within_a_hundredth_of_the_ideal() {
    let outcome = keeps_all(&Plan {
        length: 10_000 * MS,
        ..weights()
    });
    let error = outcome.weight_error.unwrap();
    assert!(error < 0.01, "{error}");
    keeps_all(&weights());
}

#[test]
fn a_scheduler_that_ignores_weights_is_noticed() {
    let outcome = run(&Plan {
        broken: Some(Broken::IgnoreWeight),
        ..weights()
    });
    assert_eq!(outcome.unwrap().violation.unwrap().rule, Rule::Weights);
}

#[test]
fn looking_for_kicks_makes_wakes_shorter_and_keeps_all_promises() {
    let pairs = |halt_poll, scheduler: &str| {
        let outcome = keeps_all(&Plan {
            load: "pingpong*8".parse().unwrap(),
            length: 200 * MS,
            halt_poll,
            scheduler: scheduler.to_owned(),
            jitter: 300,
            ..plan()
        });
        outcome.measures.all_wakes().count()
    };
    for scheduler in ["credit2", "fair"] {
        let (blocked, looked_for) = (pairs(0, scheduler), pairs(200, scheduler));
        assert!(
            looked_for * 10 < blocked * 9,
            "{scheduler}: {blocked} wakes of blocked vCPUs, and {looked_for} with looks"
        );
    }
    keeps_all(&Plan {
        halt_poll: 200,
        changes: true,
        ..plan()
    });
}

#[test]
fn cpus_leave_the_scheduler_and_come_back_and_all_promises_hold() {
    for scheduler in ["credit2", "fair"] {
        for (seed, changes) in [(1, false), (2, true), (3, true)] {
            let plan = Plan {
                seed,
                scheduler: scheduler.to_owned(),
                jitter: 300,
                offline: true,
                changes,
                halt_poll: 100,
                ..plan()
            };
            let outcome = keeps_all(&plan);
            let stays = keeps_all(&Plan {
                offline: false,
                ..plan
            });
            assert!(outcome.wakes > 100, "{scheduler}: {outcome:?}");
            assert_ne!(outcome.digest, stays.digest);
        }
    }
}
