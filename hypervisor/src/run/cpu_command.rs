//! Commands of the console that bring CPUs to and from schedulers. Each CPU does so by itself, soon after; what cannot be
//! done is refused, and then nothing is changed.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use lull_core::dispatch::CpuChange;
use lull_core::options::Problem;
use lull_core::units::{CpuId, CpuSet};

use super::Running;
use super::hosting::CONSOLE_CPU;

/// Takes CPUs out of their schedulers, or brings them back.
pub(super) fn switch(running: &Running, on: bool, cpus: CpuSet) -> Result<Vec<String>, Problem> {
    // One on which virtualization cannot be switched on has chosen no states, and turns no dispatch loop.
    let turns = |cpu: &CpuId| running.choice(*cpu).is_some();
    let there: CpuSet = running.online.iter().copied().filter(turns).collect();
    let word = cpus.to_string();
    let meant: Vec<CpuId> = if cpus == CpuSet::ALL {
        let all = there.iter().filter(|&cpu| on || cpu != CONSOLE_CPU);
        all.collect()
    } else if !cpus.is_subset(&there) {
        let missing = cpus.difference(&there);
        let why = format!("{missing} not there, or not up yet");
        return Err(Problem::new(&word, why, format!("CPUs of {there}")));
    } else if !on && cpus.contains(CONSOLE_CPU) {
        let why = format!("{CONSOLE_CPU} takes the debug keys");
        return Err(Problem::new(&word, why, "other CPUs"));
    } else {
        cpus.iter().collect()
    };
    let to = if on {
        CpuChange::Online
    } else {
        CpuChange::Offline
    };
    let is = |cpu: CpuId| {
        let pcpu = running.machine.pcpu(cpu);
        pcpu.is_some_and(|pcpu| pcpu.asked().is_none() && pcpu.is_parked() != on)
    };
    let changed: CpuSet = meant.iter().copied().filter(|&cpu| !is(cpu)).collect();
    // All are asked: one may be on its way to the other state, as it was asked before. The last word counts.
    for cpu in meant {
        running.machine.ask(cpu, to);
    }
    let verb = if on { "come back" } else { "go offline" };
    Ok(Vec::from([if changed.is_empty() {
        let state = if on { "online" } else { "offline" };
        format!("all of cpu {word} are {state} already")
    } else {
        format!("cpu {changed} {verb}")
    }]))
}
