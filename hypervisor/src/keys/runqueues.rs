//! Key `r`: what runs and waits where, and how deep the CPUs sleep.

use arrayvec::ArrayString;
use lull_core::sched::placement::Doing;
use lull_core::sched::unit::Phase;
use lull_core::sched::{CpuRow, DomainRow, DumpRow, QueueRow, Scheduler, UnitDetail, UnitRow};
use lull_core::units::Ticks;

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
    sched.dump(now, |row| match row {
        DumpRow::Queue(row) => print_queue(&row),
        DumpRow::Domain(row) => print_domain(&row),
        DumpRow::Cpu(row) => print_cpu(running, &row),
        DumpRow::Unit(row) | DumpRow::Parked(row) => print_unit(running, &row),
    });
}

fn print_queue(row: &QueueRow) {
    dumpln!(
        "Runqueue {}: ncpus={} cpus={} max_weight={} pick_bias={} instload={} aveload={}% waiting={}",
        row.id,
        row.cpus.len(),
        row.cpus,
        row.max_weight,
        row.bias.get(),
        row.load,
        row.average,
        row.waiting
    );
    dumpln!(
        "   idlers: {}; tickled: {}; fully idle cores: {}",
        row.idle,
        row.tickled,
        row.idle_cores
    );
}

fn print_domain(row: &DomainRow) {
    let cap = row.cap.map_or(0, |cap| cap.percent());
    dumpln!(
        "Domain: {} c {cap} v {} budget={} us",
        row.domain,
        row.units,
        micros(row.budget)
    );
}

fn print_cpu(running: &'static Running, row: &CpuRow) {
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
        "CPU[{:02}] current={current} slice={slice} waiting={} {}",
        row.cpu.get(),
        row.waiting,
        doing(running.machine.sched().cpus().doing(row.cpu))
    );
}

/// What the CPU does, as wakers see it.
fn doing(doing: Doing) -> ArrayString<48> {
    match doing {
        Doing::Nothing => text(format_args!("not started")),
        Doing::Awake => text(format_args!("awake")),
        Doing::Guest => text(format_args!("in the guest")),
        Doing::Asleep {
            exit_latency,
            watching,
        } => {
            let how = if watching { ", watching" } else { "" };
            let us = exit_latency.get() / 1000;
            text(format_args!("asleep, {us} us deep{how}"))
        }
    }
}

fn print_unit(running: &'static Running, row: &UnitRow) {
    let parked = matches!(row.detail, UnitDetail::Credit { parked: true, .. });
    let place = match row.phase {
        _ if parked => "parked",
        Phase::Running(_) => "runs",
        Phase::Queued => "waits",
        Phase::Blocked => "blocked",
        Phase::Offline => "offline",
    };
    let rate = crate::time::rate();
    dumpln!(
        "   [{}] {place} w={} hard={} soft={} run={} us{}",
        vcpu_name(running, row.unit),
        row.weight,
        row.affinity,
        row.soft,
        rate.to_micros(row.run_time).get(),
        detail(&row.detail)
    );
}

fn detail(detail: &UnitDetail) -> ArrayString<128> {
    let us = |ticks: Ticks| crate::time::rate().to_micros(ticks).get();
    match *detail {
        UnitDetail::None => ArrayString::new(),
        UnitDetail::Ahead(ahead) => text(format_args!(" ahead={} us", micros(ahead))),
        UnitDetail::Credit {
            credit,
            budget,
            load,
            ..
        } => {
            let budget = budget.map_or_else(ArrayString::new, |budget| {
                text::<32>(format_args!(" budget={} us", micros(budget)))
            });
            let credit = micros(credit);
            text(format_args!(" credit={credit} us{budget} load={load}%"))
        }
        UnitDetail::Rt {
            period,
            budget,
            left,
            deadline,
            level,
            missed,
            short,
        } => text(format_args!(
            " period={} us budget={} us left={} us deadline in {} us level={level} missed={missed} short={} us",
            us(period),
            us(budget),
            us(left),
            us(deadline - crate::time::now()),
            us(short)
        )),
    }
}

/// A difference of ticks in microseconds.
fn micros(ticks: i64) -> i64 {
    let us = crate::time::rate()
        .to_micros(Ticks::new(ticks.unsigned_abs()))
        .get();
    let us = i64::try_from(us).unwrap_or(i64::MAX);
    if ticks < 0 { -us } else { us }
}
