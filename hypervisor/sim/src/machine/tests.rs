//! Whole runs.

use super::faults::{Broken, Fault};
use super::load::Load;
use super::plan::Plan;
use super::run::run;
use super::states::Entry;
use super::violation::Rule;

const MS: u64 = 1_000_000;

fn small() -> Plan {
    Plan {
        length: 50 * MS,
        ..Plan::default()
    }
}

#[test]
fn a_mixed_load_keeps_all_promises_and_is_the_same_again() {
    let plan = Plan {
        keep: 50 * MS,
        ..small()
    };
    let (first, second) = (run(&plan).unwrap(), run(&plan).unwrap());
    assert_eq!(first.violation, None);
    assert!(first.wakes > 100, "{}", first.wakes);
    assert_eq!(first.trace.text(), second.trace.text(), "to the byte");
    assert_eq!(first.digest, second.digest);
    let other = run(&Plan { seed: 2, ..plan }).unwrap();
    assert_ne!(first.digest, other.digest);
}
