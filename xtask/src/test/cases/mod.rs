//! The table of all cases, by group.

mod accounting;
mod acpi;
mod adversity;
mod bad_input;
mod bare;
mod bench;
mod bochs;
mod bochs_claims;
mod bochs_guests;
mod bochs_models;
mod clocks;
mod commands;
mod guests;
mod hardware_counters;
mod host;
mod keys;
mod machine;
mod numbers;
mod sched;
mod sim;

use super::case::Case;

/// All cases, in the order in which their groups are read.
pub fn all() -> Vec<Case> {
    [
        host::cases(),
        sim::cases(),
        bare::cases(),
        guests::cases(),
        adversity::cases(),
        machine::cases(),
        bochs::cases(),
        bochs_models::cases(),
        bochs_claims::cases(),
        bochs_guests::cases(),
        numbers::cases(),
        sched::cases(),
        accounting::cases(),
        keys::cases(),
        commands::cases(),
        bench::cases(),
        clocks::cases(),
        bad_input::cases(),
        acpi::cases(),
        hardware_counters::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The guest kernels. A test checks that the build makes exactly these: none is forgotten.
pub const GUESTS: [&str; 11] = [
    "adversity",
    "busy",
    "exits",
    "fault",
    "idle-timer",
    "ipi-pair",
    "marks",
    "quiet",
    "smp",
    "storm",
    "wakes",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_fit_a_folder() {
        let names: Vec<String> = all().into_iter().map(|case| case.name).collect();
        let folders: BTreeSet<String> = names.iter().map(|name| name.replace('/', "-")).collect();
        assert_eq!(folders.len(), names.len());
        for name in names {
            assert!(
                name.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/-".contains(c)),
                "{name}"
            );
        }
    }
}
