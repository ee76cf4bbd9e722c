//! The CPU's own residency counters, in Bochs, which is told of MSRs that its models do not have.
//!
//! They hold a value and never count: what they show since the start is 0, and not nothing.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::test::case::{Case, Lab};

pub fn cases() -> Vec<Case> {
    vec![Case::bochs("bochs/hardware-counters", counters)]
}

/// Skylake-SP: CC3, CC6, CC7, PC2, PC3, PC6 and PC7, and no other.
fn counters(lab: &Lab<'_>) -> Result<()> {
    const CC6: u32 = 0x3FD;
    const PC6: u32 = 0x3F9;
    /// CC3, CC7, PC2, PC3, PC7.
    const MISSING: [u32; 5] = [0x3FC, 0x3FE, 0x60D, 0x3F8, 0x3FA];
    /// CC1, CC6 of Xeon Phi, MC6, PC8, PC9, PC10.
    const FOREIGN: [u32; 6] = [0x660, 0x3FF, 0x664, 0x630, 0x631, 0x632];

    let ran = lab
        .bochs("run", "corei7_skylake_x")
        .msr(CC6, 0x12_3456_7890)
        .msr(PC6, 0x1000)
        .word("seconds=2")
        .run()?;
    ran.ok()?;
    for cpu in &ran.last_reading()?.cpus {
        let mut hardware = cpu.counters.hardware.clone();
        ensure!(
            hardware.remove("at").flatten().is_some_and(|at| at > 0),
            "no sample was taken"
        );
        let found: Vec<_> = hardware
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        let expected = [
            ("CC3", None),
            ("CC6", Some(0)),
            ("CC7", None),
            ("PC2", None),
            ("PC3", None),
            ("PC6", Some(0)),
            ("PC7", None),
        ];
        ensure!(found == expected, "expected {expected:?}, found {found:?}");
    }
    // Bochs writes down each read of an MSR that it does not know.
    let path = lab.dir.join("run.log");
    let log =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    for cpu in 0..2 {
        let reads: Vec<u32> = log
            .lines()
            .filter(|line| line.contains(&format!("[CPU{cpu}  ]")))
            .filter_map(|line| line.split_once("RDMSR: Unknown register 0x"))
            .filter_map(|(_, number)| u32::from_str_radix(number.trim(), 16).ok())
            .collect();
        for msr in MISSING {
            let times = reads.iter().filter(|read| **read == msr).count();
            ensure!(
                times == 1,
                "CPU {cpu}: MSR {msr:#x} faults, and was read {times} times, expected once"
            );
        }
        let read: BTreeSet<u32> = reads.into_iter().collect();
        let foreign: Vec<_> = FOREIGN.iter().filter(|msr| read.contains(msr)).collect();
        ensure!(
            foreign.is_empty(),
            "CPU {cpu}: MSRs that the model does not have were read: {foreign:x?}"
        );
    }
    Ok(())
}
