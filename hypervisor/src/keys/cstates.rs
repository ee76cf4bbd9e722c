//! Key `c`: for every CPU and C-state, what it was used for.

use alloc::format;
use alloc::string::String;

use lull_core::residency::{HwSnapshot, HwValue, Snapshot};
use lull_core::units::{Nanos, TickRate, Ticks};

use crate::dumpln;
use crate::run::counters::{Reading, Row, text};

/// Prints a reading: totals since boot, and the change since the reading before.
pub fn print(reading: &Reading, rate: TickRate) {
    dumpln!(
        "C-states, reading {} (residency is time in the state; irq, from the first handler inside it to the exit)",
        reading.seq
    );
    for (total, change) in reading.total.iter().zip(&reading.change) {
        print_cpu(total, change, rate);
    }
    print_sum(reading, rate);
    match reading.imbalance() {
        None => dumpln!("C0 + residency + irq = elapsed, guest + hypervisor = C0: on all CPUs"),
        Some((cpu, why)) => dumpln!("{cpu} does not add up: {why}"),
    }
}

fn print_cpu(total: &Row, change: &Row, rate: TickRate) {
    let times = &total.times;
    dumpln!(
        "==cpu{}== {} s, now {}; aborted before sleep {}, spurious {}",
        total.cpu.get(),
        seconds(rate.to_nanos(times.elapsed)),
        total.doing(),
        times.aborted,
        times.spurious,
    );
    let limit = total.asked.latency_limit.map_or_else(
        || text::<32>(format_args!("none")),
        |limit| text(format_args!("{} us", limit.get() / 1000)),
    );
    dumpln!(
        "   governor {}, latency limit {limit}; a state in brackets is off",
        total.asked.governor
    );
    dumpln!(
        "   state  method           latency[us]    usage    residency[ns]          irq[ns]   share    above    below rejected \
         shortest[us]  longest[us]    +usage +residency[ns]"
    );
    let changes = change.times.states(&total.table);
    for (((id, state), now), since) in total
        .table
        .iter()
        .zip(times.states(&total.table))
        .zip(changes)
    {
        let off = total.asked.off.contains(id);
        let (open, close) = if off { ("[", "]") } else { ("", "") };
        dumpln!(
            "   {:6} {:16} {:11} {:8} {:16} {:16} {:>7} {:8} {:8} {:8} {:>12} {:12} {:9} {:14}",
            text::<12>(format_args!("{open}{}{close}", state.name)),
            text::<24>(format_args!("{}", state.method)),
            state.exit_latency.get(),
            now.usage,
            rate.to_nanos(now.residency).get(),
            rate.to_nanos(now.irq).get(),
            share(now.residency, times.elapsed),
            now.above,
            now.below,
            now.rejected,
            now.shortest.map_or_else(
                || text::<24>(format_args!("-")),
                |stay| text(format_args!("{}", rate.to_micros(stay).get()))
            ),
            rate.to_micros(now.longest).get(),
            since.usage,
            rate.to_nanos(since.residency).get(),
        );
    }
    dumpln!(
        "   C0     {:28} {:8} {:16} {:16} {:>7} {:62} {:14}",
        "",
        "",
        rate.to_nanos(times.c0).get(),
        "",
        share(times.c0, times.elapsed),
        "",
        rate.to_nanos(change.times.c0).get(),
    );
    dumpln!(
        "         of it guest {} ns, hypervisor {} ns",
        rate.to_nanos(times.guest).get(),
        rate.to_nanos(times.hypervisor).get(),
    );
    print_hardware(&total.hardware, times.now, rate);
}

/// Xen's `PC2[..] CC3[..]`, with the age of the sample: to ask a CPU that sleeps would wake it.
fn print_hardware(hardware: &HwSnapshot, now: Ticks, rate: TickRate) {
    if hardware.at == Ticks::ZERO {
        return;
    }
    let mut line = String::new();
    let mut faults = String::new();
    for (counter, value) in hardware.iter() {
        match value {
            HwValue::Ticks(ticks) => {
                line += &format!(" {}[{}]", counter.name(), rate.to_nanos(ticks).get());
            }
            HwValue::Absent | HwValue::Faults => {
                faults.push(' ');
                faults += counter.name();
            }
        }
    }
    if !line.is_empty() {
        let age = rate.to_micros(now - hardware.at).get();
        dumpln!("   hardware, {age} us ago, in ns:{line}");
    }
    if !faults.is_empty() {
        dumpln!("   hardware: reading faults:{faults}");
    }
}

fn print_sum(reading: &Reading, rate: TickRate) {
    let sum = |of: fn(&Snapshot) -> Ticks| {
        reading
            .total
            .iter()
            .map(|row| of(&row.times))
            .sum::<Ticks>()
    };
    let elapsed = sum(|row| row.elapsed);
    let parts = [
        ("C0", sum(|row| row.c0)),
        ("C-states", sum(Snapshot::residency)),
        ("irq", sum(Snapshot::irq)),
    ];
    dumpln!(
        "==all== {} CPUs, {} s",
        reading.total.len(),
        seconds(rate.to_nanos(elapsed))
    );
    for (name, part) in parts {
        dumpln!(
            "   {name:8} {:16} ns {:>7}",
            rate.to_nanos(part).get(),
            share(part, elapsed)
        );
    }
}

/// A part of a whole, in percent with two digits.
fn share(part: Ticks, whole: Ticks) -> arrayvec::ArrayString<12> {
    let basis_points = u128::from(part.get()) * 10_000 / u128::from(whole.get().max(1));
    text(format_args!(
        "{}.{:02}%",
        basis_points / 100,
        basis_points % 100
    ))
}

/// Seconds with three digits.
pub(super) fn seconds(span: Nanos) -> arrayvec::ArrayString<24> {
    let millis = span.get() / 1_000_000;
    text(format_args!("{}.{:03}", millis / 1000, millis % 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_down() {
        assert_eq!(share(Ticks::new(1), Ticks::new(3)).as_str(), "33.33%");
        assert_eq!(share(Ticks::new(3), Ticks::new(3)).as_str(), "100.00%");
        assert_eq!(share(Ticks::ZERO, Ticks::ZERO).as_str(), "0.00%");
        assert_eq!(share(Ticks::MAX, Ticks::MAX).as_str(), "100.00%");
    }

    #[test]
    fn seconds_have_three_digits() {
        assert_eq!(seconds(Nanos::new(12_034_567_890)).as_str(), "12.034");
    }
}
