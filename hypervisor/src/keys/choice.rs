//! Key `C`: which C-states each CPU has, and why.

use alloc::vec::Vec;

use lull_core::cstate::select::Selected;
use lull_core::units::CpuId;

use crate::console::{choice, machine_channel};
use crate::dumpln;
use crate::run::Running;

/// Prints every state that was considered with its reason, once for all CPUs that chose alike.
pub fn print(running: &Running) {
    let all = running
        .online
        .iter()
        .filter_map(|&cpu| Some((cpu, running.choice(cpu)?)));
    for (cpus, choice) in groups(all) {
        explain(&cpus, choice);
        machine_channel::emit(|sink| choice::write(sink, &cpus, choice));
    }
}

fn explain(cpus: &[CpuId], choice: &Selected) {
    match cpus {
        [cpu] => dumpln!("=={cpu}=="),
        [first, .., last] => dumpln!("=={first} to {last}: {} CPUs, all alike==", cpus.len()),
        [] => return,
    }
    for note in &choice.notes {
        dumpln!("   {note}");
    }
    for one in &choice.considered {
        dumpln!("   {one}");
    }
    dumpln!(
        "   instead of a state that must not be entered: {}",
        choice.safe().method
    );
    for write in &choice.msr_writes {
        dumpln!("   {write}");
    }
}

/// The CPUs by what they chose, in order of the first of each.
fn groups<'a>(all: impl Iterator<Item = (CpuId, &'a Selected)>) -> Vec<(Vec<CpuId>, &'a Selected)> {
    let mut groups: Vec<(Vec<CpuId>, &Selected)> = Vec::new();
    for (cpu, choice) in all {
        let alike = |other: &Selected| {
            other.considered == choice.considered
                && other.notes == choice.notes
                && other.msr_writes == choice.msr_writes
        };
        match groups.iter_mut().find(|(_, other)| alike(other)) {
            Some((cpus, _)) => cpus.push(cpu),
            None => groups.push((Vec::from([cpu]), choice)),
        }
    }
    groups
}
