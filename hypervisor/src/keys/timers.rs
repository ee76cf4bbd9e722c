//! Key `a`: the deadlines of every CPU.

use lull_core::timer::TimerKey;

use crate::dumpln;
use crate::run::Running;
use crate::run::counters::text;
use crate::run::guests::vcpu_name;

/// Prints all deadline queues. A negative time is a deadline that has passed and was not handled yet.
pub fn print(running: &'static Running) {
    for (cpu, pcpu) in running.machine.pcpus() {
        dumpln!("CPU{:02}:", cpu.get());
        let deadlines = pcpu.deadlines();
        if deadlines.is_empty() {
            dumpln!("  none");
        }
        for (key, deadline) in deadlines {
            let now = crate::time::now();
            let micros = crate::time::rate().to_micros(deadline.abs_diff(now)).get();
            let sign = if deadline < now { "-" } else { "" };
            let what = match key {
                TimerKey::Slice => text::<32>(format_args!("slice")),
                TimerKey::RunFor => text(format_args!("end of the run")),
                TimerKey::Console => text(format_args!("console")),
                TimerKey::Probe => text(format_args!("test")),
                TimerKey::LateWrites => text(format_args!("MSR writes")),
                TimerKey::Vcpu(v) => text(format_args!("APIC timer of {}", vcpu_name(running, v))),
            };
            dumpln!(
                "  ex={:>12}us {what}",
                text::<24>(format_args!("{sign}{micros}"))
            );
        }
    }
}
