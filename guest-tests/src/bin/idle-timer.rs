//! Works and sleeps in a known duty cycle, and keeps its own record of it by the TSC.
//!
//! `duty=` percent of each period is work (a spin on the TSC), the rest is `hlt` until a timer. Periods lie on a fixed grid, so
//! that an overshoot of one sleep does not shift the following ones.
//!
//! Options: `duty=30` (0 to 100), `period-us=10000`, `periods=100`, `tolerance-permille=` (if given, the duty that came out must
//! be within this of what was asked: for machines with exact time).
//!
//! Figures: `periods`, `elapsed_ticks`, `work_ticks`, `sleep_ticks`, `duty_permille`, `overshoot_{min,mean,max}`, `halts`,
//! `spurious_wakes`, `early_timers`, `missed_sleeps`.
#![no_std]
#![no_main]

use guest_tests::stats::{Summary, permille};
use guest_tests::units::Ticks;
use guest_tests::{Machine, check, check_eq, cpu, figure, timer, trap, tsc};

guest_tests::guest_test! {
    name: "idle-timer",
    summary: "works and sleeps in a known duty cycle",
    cmdline: "duty=30 period-us=10000 periods=100",
    vcpus: 1,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: trap::no_ap,
    interrupt: trap::no_interrupts,
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let duty = options.number("duty", 30, 0..=100);
    let period = tsc::rate().micros(options.number("period-us", 10_000, 100..=10_000_000));
    let periods = options.number("periods", 100, 1..=1_000_000);
    let tolerance = options.number_if_given("tolerance-permille", 0..=1000);
    options.report_unknown();

    let work = Ticks(period.0 * duty / 100);
    let (mut worked, mut slept) = (0, 0);
    let (mut sleeps, mut missed, mut halts, mut spurious, mut early) = (0, 0, 0, 0, 0);
    let mut overshoot = Summary::new();

    // Stamps are chained: the end of one interval is the start of the next, so nothing is left out.
    let begin = cpu::now();
    let mut stamp = begin;
    for number in 1..=periods {
        let stop = stamp.after(work);
        let mut now = cpu::now();
        while now < stop {
            now = cpu::now();
        }
        worked += now.since(stamp).0;
        stamp = now;
        let wake_at = begin.after(Ticks(period.0 * number));
        if stamp >= wake_at {
            missed += 1;
            continue;
        }
        let wake = timer::sleep_until(wake_at);
        now = cpu::now();
        check!(
            wake.handler >= wake_at,
            "woken at {} for a deadline of {}",
            wake.handler,
            wake_at
        );
        slept += now.since(stamp).0;
        stamp = now;
        sleeps += 1;
        overshoot.add(tsc::rate().nanos(wake.handler.since(wake_at)).0);
        halts += u64::from(wake.halts);
        spurious += u64::from(wake.spurious);
        early += u64::from(wake.early);
    }
    let elapsed = stamp.since(begin).0;

    let result = permille(worked, elapsed);
    figure!("periods", periods, "periods");
    figure!("elapsed_ticks", elapsed, "ticks");
    figure!("work_ticks", worked, "ticks");
    figure!("sleep_ticks", slept, "ticks");
    figure!("duty_permille", result, "permille");
    figure!("overshoot_min", overshoot.min(), "ns");
    figure!("overshoot_mean", overshoot.mean(), "ns");
    figure!("overshoot_max", overshoot.max(), "ns");
    figure!("halts", halts, "halts");
    figure!("spurious_wakes", spurious, "wakes");
    figure!("early_timers", early, "interrupts");
    figure!("missed_sleeps", missed, "periods");

    check_eq!(
        sleeps + missed,
        periods,
        "periods that slept or had no time left to"
    );
    check_eq!(
        worked + slept,
        elapsed,
        "work and sleep against the time that went by"
    );
    check!(
        worked >= work.0 * periods,
        "worked {worked} ticks, less than {} x {work}",
        periods
    );
    check_eq!(
        halts,
        sleeps + spurious + early,
        "halts against sleeps, spurious wakes and early timers"
    );
    if missed == 0 && work < period {
        check!(
            elapsed >= period.0 * periods,
            "{periods} periods of {period} ticks took only {elapsed}"
        );
    }
    if let Some(tolerance) = tolerance {
        check!(
            result.abs_diff(duty * 10) <= tolerance,
            "duty of {result} permille, asked for {duty} %, within {tolerance} permille"
        );
    }
}
