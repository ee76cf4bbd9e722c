//! Key `r`: what runs and waits where.

use lull_core::sched::unit::Phase;
use lull_core::sched::{CpuRow, DumpRow, Scheduler, UnitRow};

use crate::dumpln;
use crate::run::Running;
use crate::run::counters::text;
use crate::run::guests::vcpu_name;

/// Prints all runqueues.
pub fn print(running: &'static Running) {
    let sched = running.machine.sched();
    dumpln!(
        "Scheduler: {}; idle CPUs {}",
        sched.name(),
        sched.idle_cpus()
    );
    let now = crate::time::now();
    sched.dump(now, &mut |row| match row {
        DumpRow::Cpu(row) => print_cpu(running, &row),
        DumpRow::Unit(row) | DumpRow::Parked(row) => print_unit(running, &row),
    });
}

fn print_cpu(running: &Running, row: &CpuRow) {
    let left = row.until.map(|until| {
        crate::time::rate()
            .to_micros(until - crate::time::now())
            .get()
    });
    let current = row.current.map_or_else(
        || text::<24>(format_args!("idle")),
        |v| vcpu_name(running, v),
    );
    let slice = left.map_or_else(
        || text::<24>(format_args!("none")),
        |us| text(format_args!("{us} us left")),
    );
    dumpln!(
        "CPU[{:02}] current={current} slice={slice} waiting={} clock={}",
        row.cpu.get(),
        row.waiting,
        row.clock
    );
}

fn print_unit(running: &Running, row: &UnitRow) {
    let place = match row.phase {
        Phase::Running(_) => "runs",
        Phase::Queued => "waits",
        Phase::Blocked => "blocked",
        Phase::Offline => "offline",
    };
    dumpln!(
        "   [{}] {place} weight={} affinity={} ahead={} run={} us",
        vcpu_name(running, row.unit),
        row.weight,
        row.affinity,
        row.ahead,
        crate::time::rate().to_micros(row.run_time).get(),
    );
}
