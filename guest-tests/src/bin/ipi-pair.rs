//! Two vCPUs wake each other out of HLT, again and again.
//!
//! In each round CPU 0 passes a number to CPU 1 and halts; CPU 1 wakes, checks the number, passes the next one back and halts.
//! A CPU goes on only by what its *interrupt handler* has seen, so each half round takes one interrupt that ends one HLT, and a
//! lost or a doubled one shows.
//!
//! With `spin=1`, CPU 0 does not halt but spins until CPU 1, halted, has answered, and CPU 1 answers by a store alone. Between rounds
//! CPU 0 spins for 20 µs more. What is measured is the way from the interrupt's sending to the sight of the answer.
//! With `spin=2`, both spin, and no interrupt is sent: each goes on as soon as the other has run.
//!
//! Options: `rounds=1000`, `spin=0`, `watchdog-ms=60000`.
//!
//! Figures: `rounds`, `round_trip_ticks` (mean), `round_trip_{min,mean,max}`, `interrupts_cpu0`, `interrupts_cpu1`, `halts_cpu0`,
//! `halts_cpu1`.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use guest_tests::lapic::{self, Message, Target};
use guest_tests::percpu::{self, CpuIndex};
use guest_tests::stats::Summary;
use guest_tests::units::Ticks;
use guest_tests::{Machine, check_eq, cpu, figure, smp, timer, tsc, verdict};

guest_tests::guest_test! {
    name: "ipi-pair",
    summary: "two vCPUs wake each other out of HLT",
    cmdline: "rounds=1000",
    vcpus: 2,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: partner,
    interrupt: interrupt,
}

const VECTOR: u8 = 0x50;

/// The number that is passed: odd from CPU 0 to CPU 1, even back.
static BALL: AtomicU32 = AtomicU32::new(0);
/// Whole rounds that CPU 1 is to play.
static ROUNDS: AtomicU32 = AtomicU32::new(0);
/// CPU 0 spins instead of halting.
static SPINS: AtomicBool = AtomicBool::new(false);
/// CPU 1, too.
static BOTH_SPIN: AtomicBool = AtomicBool::new(false);
/// Between two rounds in which it spins.
const SETTLE_MICROS: u64 = 20;

/// Words of the per-CPU area: interrupts taken, HLTs executed.
const INTERRUPTS: usize = 0;
const HALTS: usize = 1;

fn interrupt(vector: u8) {
    if vector != VECTOR {
        verdict::fail(format_args!("interrupt {vector:#x} that nobody sent"));
    }
    percpu::here().user[INTERRUPTS].fetch_add(1, Ordering::SeqCst);
}

/// Halts until the handler has run for the `count`th time.
fn wait_for_interrupt(count: u32) {
    let here = percpu::here();
    loop {
        let taken = here.user[INTERRUPTS].load(Ordering::SeqCst);
        if taken >= count {
            check_eq!(taken, count, "interrupts taken where one more was due");
            return;
        }
        cpu::halt_while(&here.user[INTERRUPTS], taken);
        here.user[HALTS].fetch_add(1, Ordering::Relaxed);
    }
}

/// Spins until the number was given back.
fn wait_for_answer(number: u32) {
    while BALL.load(Ordering::SeqCst) != number {
        core::hint::spin_loop();
    }
}

/// Spins for a moment. The answer is when that ended.
fn settle() -> Ticks {
    let begin = cpu::now();
    let least = tsc::rate().micros(SETTLE_MICROS);
    loop {
        let now = cpu::now();
        if now.since(begin) >= least {
            return now;
        }
        core::hint::spin_loop();
    }
}

/// Passes `number` to `to` and wakes it.
fn pass(number: u32, to: CpuIndex) {
    BALL.store(number, Ordering::SeqCst);
    lapic::send(Target::Physical(to), Message::Fixed(VECTOR));
}

fn partner(own: CpuIndex) {
    if own.get() != 1 {
        return;
    }
    let mut round = 0;
    loop {
        if BOTH_SPIN.load(Ordering::Relaxed) {
            wait_for_answer(2 * round + 1);
        } else {
            wait_for_interrupt(round + 1);
        }
        check_eq!(
            BALL.load(Ordering::SeqCst),
            2 * round + 1,
            "number that CPU 1 was given"
        );
        round += 1;
        let last = round == ROUNDS.load(Ordering::SeqCst);
        if SPINS.load(Ordering::Relaxed) {
            BALL.store(2 * round, Ordering::SeqCst);
        } else {
            pass(2 * round, CpuIndex::BOOT);
        }
        if last {
            return;
        }
    }
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let rounds = options.number("rounds", 1000, 1..=100_000_000) as u32;
    let watchdog = options.number("watchdog-ms", 60_000, 1..=10_000_000);
    let spin = options.number("spin", 0, 0..=2);
    let (spins, both) = (spin != 0, spin == 2);
    options.report_unknown();
    smp::require(2);
    let Some(other) = CpuIndex::new(1) else {
        return;
    };
    ROUNDS.store(rounds, Ordering::SeqCst);
    SPINS.store(spins, Ordering::SeqCst);
    BOTH_SPIN.store(both, Ordering::SeqCst);
    smp::start();
    // Time for CPU 1 to halt: the first round is then like the others.
    timer::sleep_micros(1000);

    timer::watchdog(watchdog);
    let mut trip = Summary::new();
    let begin = cpu::now();
    let mut stamp = begin;
    for round in 0..rounds {
        if both {
            stamp = cpu::now();
            BALL.store(2 * round + 1, Ordering::SeqCst);
        } else {
            if spins {
                stamp = settle();
            }
            pass(2 * round + 1, other);
        }
        if spins {
            wait_for_answer(2 * round + 2);
        } else {
            wait_for_interrupt(round + 1);
        }
        check_eq!(
            BALL.load(Ordering::SeqCst),
            2 * round + 2,
            "number that CPU 0 was given back"
        );
        let now = cpu::now();
        trip.add(now.since(stamp).0);
        stamp = now;
    }
    let elapsed = if spins {
        trip.mean() * u64::from(rounds)
    } else {
        stamp.since(begin).0
    };
    timer::watchdog_off();
    // Nothing must come late either.
    cpu::open_window();

    let count = |of: CpuIndex, word: usize| percpu::of(of).user[word].load(Ordering::SeqCst);
    figure!("rounds", trip.count(), "rounds");
    figure!("round_trip_ticks", elapsed / u64::from(rounds), "ticks");
    figure!("round_trip_min", tsc::rate().nanos(Ticks(trip.min())), "ns");
    figure!(
        "round_trip_mean",
        tsc::rate().nanos(Ticks(trip.mean())),
        "ns"
    );
    figure!("round_trip_max", tsc::rate().nanos(Ticks(trip.max())), "ns");
    figure!(
        "interrupts_cpu0",
        count(CpuIndex::BOOT, INTERRUPTS),
        "interrupts"
    );
    figure!("interrupts_cpu1", count(other, INTERRUPTS), "interrupts");
    figure!("halts_cpu0", count(CpuIndex::BOOT, HALTS), "halts");
    figure!("halts_cpu1", count(other, HALTS), "halts");
    check_eq!(
        count(CpuIndex::BOOT, INTERRUPTS),
        if spins { 0 } else { rounds },
        "interrupts that CPU 0 took"
    );
    check_eq!(
        count(other, INTERRUPTS),
        if both { 0 } else { rounds },
        "interrupts that CPU 1 took"
    );
}
