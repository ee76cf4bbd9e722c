//! How soon what was woken runs: a halted vCPU by another, all others at once, and a vCPU by its own timer.
//!
//! Each round begins when all others have halted, after vCPU 0 has slept `settle-us`. Then vCPU 0 sends an interrupt and halts:
//!
//! - `wake`: to vCPU 1. From before the send until vCPU 1's handler begins. `answer`: until vCPU 0, woken by the answer, goes on.
//! - `all_send`: to all others by one command. From before the send until behind it. `all_wake`: until the last handler has begun.
//!   `all_answer`: until vCPU 0 goes on, woken by the last one.
//! - `timer`: alone. From the deadline that was set until the handler of the timer begins, out of HLT (as cyclictest does it).
//!
//! Options: `rounds=200` (to 1000, of each), `settle-us=100`, `interval-us=1000` (of the timer).
//!
//! Figures: each of these (the first with two vCPUs or more) as `NAME_min`, `NAME_p50`, `NAME_p90`, `NAME_p99`, `NAME_max`,
//! `NAME_mean`, in ticks; `rounds`, `cpus`, `spurious_wakes`, `early_timers`.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use guest_tests::lapic::{self, Message, Target};
use guest_tests::percpu::{self, CpuIndex};
use guest_tests::stats::Samples;
use guest_tests::{Machine, check, check_eq, cpu, figure, smp, timer, tsc, verdict};

guest_tests::guest_test! {
    name: "wakes",
    summary: "how soon a vCPU runs that was woken by another, with all others, or by its timer",
    cmdline: "rounds=200",
    vcpus: 2,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: sleeper,
    interrupt: interrupt,
}

/// To a vCPU that halts.
const WAKE: u8 = 0x50;
/// From the last that has woken, to vCPU 0.
const ANSWER: u8 = 0x51;

/// Words of the per-CPU area: interrupts taken; whether it is about to halt, or halted; returns from HLT without an interrupt.
const TAKEN: usize = 0;
const ASLEEP: usize = 1;
const SPURIOUS: usize = 2;

/// Those that were woken and have not answered.
static OUTSTANDING: AtomicU32 = AtomicU32::new(0);
/// TSC at the start of the latest handler.
static WOKEN_AT: AtomicU64 = AtomicU64::new(0);

/// The most rounds.
const MOST: usize = 1000;

static WAKES: Samples<MOST> = Samples::new();
static ANSWERS: Samples<MOST> = Samples::new();
static ALL_SENDS: Samples<MOST> = Samples::new();
static ALL_WAKES: Samples<MOST> = Samples::new();
static ALL_ANSWERS: Samples<MOST> = Samples::new();
static TIMERS: Samples<MOST> = Samples::new();

fn interrupt(vector: u8) {
    let now = cpu::now();
    let own = CpuIndex::current();
    let due = if own == CpuIndex::BOOT { ANSWER } else { WAKE };
    if vector != due {
        verdict::fail(format_args!(
            "interrupt {vector:#x} on CPU {own} that nobody sent"
        ));
    }
    if vector == WAKE {
        WOKEN_AT.fetch_max(now.0, Ordering::SeqCst);
    }
    percpu::here().user[TAKEN].fetch_add(1, Ordering::SeqCst);
}

/// Every other vCPU: halts, and answers if it is the last that wakes.
fn sleeper(own: CpuIndex) {
    let here = percpu::of(own);
    let mut seen = 0;
    loop {
        here.user[ASLEEP].store(1, Ordering::SeqCst);
        cpu::halt_while(&here.user[TAKEN], seen);
        let taken = here.user[TAKEN].load(Ordering::SeqCst);
        if taken == seen {
            here.user[SPURIOUS].fetch_add(1, Ordering::SeqCst);
            continue;
        }
        here.user[ASLEEP].store(0, Ordering::SeqCst);
        check_eq!(taken, seen + 1, "interrupts taken where one was sent");
        seen = taken;
        if OUTSTANDING.fetch_sub(1, Ordering::SeqCst) == 1 {
            lapic::send(Target::Physical(CpuIndex::BOOT), Message::Fixed(ANSWER));
        }
    }
}

fn others() -> impl Iterator<Item = CpuIndex> {
    CpuIndex::first(smp::count()).skip(1)
}

/// Sleeps, which lets others run that share the CPU, until all of them halt.
fn settle(micros: u64) {
    for _ in 0..10_000 {
        timer::sleep_micros(micros);
        if others().all(|cpu| percpu::of(cpu).user[ASLEEP].load(Ordering::SeqCst) != 0) {
            return;
        }
    }
    verdict::fail(format_args!("the other vCPUs do not halt"));
}

/// What one round took.
struct Round {
    send: u64,
    wake: u64,
    answer: u64,
}

/// Wakes `count` others by `send`, and halts until the last of them has answered.
fn round(count: u32, send: impl FnOnce()) -> Round {
    let here = &percpu::here().user[TAKEN];
    let before = here.load(Ordering::SeqCst);
    OUTSTANDING.store(count, Ordering::SeqCst);
    WOKEN_AT.store(0, Ordering::SeqCst);
    let begin = cpu::now();
    send();
    let sent = cpu::now();
    while here.load(Ordering::SeqCst) == before {
        cpu::halt_while(here, before);
    }
    let end = cpu::now();
    check_eq!(
        here.load(Ordering::SeqCst),
        before + 1,
        "answers where one was due"
    );
    let woken = WOKEN_AT.load(Ordering::SeqCst);
    check!(
        woken >= begin.0,
        "a vCPU woke at {woken}, before it was woken at {begin}"
    );
    Round {
        send: sent.since(begin).0,
        wake: woken - begin.0,
        answer: end.since(begin).0,
    }
}

fn tell(name: &str, samples: &Samples<MOST>) {
    samples.sort();
    let ticks = |what: &str, value: u64| figure!(format_args!("{name}_{what}"), value, "ticks");
    for (what, permille) in [
        ("min", 0),
        ("p50", 500),
        ("p90", 900),
        ("p99", 990),
        ("max", 1000),
    ] {
        ticks(what, samples.permille(permille));
    }
    ticks("mean", samples.mean());
}

fn with_others(rounds: u64, settle_micros: u64) {
    let Some(other) = CpuIndex::new(1) else {
        return;
    };
    smp::start();
    for _ in 0..rounds {
        settle(settle_micros);
        let took = round(1, || {
            lapic::send(Target::Physical(other), Message::Fixed(WAKE));
        });
        WAKES.add(took.wake);
        ANSWERS.add(took.answer);
    }
    tell("wake", &WAKES);
    tell("answer", &ANSWERS);
    for _ in 0..rounds {
        settle(settle_micros);
        let took = round(smp::count() - 1, || {
            lapic::send(Target::Others, Message::Fixed(WAKE));
        });
        ALL_SENDS.add(took.send);
        ALL_WAKES.add(took.wake);
        ALL_ANSWERS.add(took.answer);
    }
    tell("all_send", &ALL_SENDS);
    tell("all_wake", &ALL_WAKES);
    tell("all_answer", &ALL_ANSWERS);
    let spurious: u32 = others()
        .map(|cpu| percpu::of(cpu).user[SPURIOUS].load(Ordering::SeqCst))
        .sum();
    figure!("spurious_wakes", spurious, "wakes");
}

fn overshoot(rounds: u64, interval: u64) {
    let mut early = 0;
    for _ in 0..rounds {
        let deadline = cpu::now().after(tsc::rate().micros(interval));
        let wake = timer::sleep_until(deadline);
        check!(
            wake.handler >= deadline,
            "woken at {} for a deadline of {deadline}",
            wake.handler
        );
        TIMERS.add(wake.handler.since(deadline).0);
        early += u64::from(wake.early);
    }
    tell("timer", &TIMERS);
    figure!("early_timers", early, "interrupts");
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let rounds = options.number("rounds", 200, 1..=MOST as u64);
    let settle_micros = options.number("settle-us", 100, 1..=1_000_000);
    let interval = options.number("interval-us", 1000, 10..=1_000_000);
    options.report_unknown();
    figure!("cpus", smp::count(), "vcpus");
    figure!("rounds", rounds, "rounds");
    // Before the others are started: nothing but the timer wakes anybody.
    overshoot(rounds, interval);
    if smp::count() > 1 {
        with_others(rounds, settle_micros);
    }
}
