//! Many IPIs from all other vCPUs to vCPU 0, which halts whenever it has seen them all. None may get lost.
//!
//! An IPI whose vector already waits in the IRR melts into it: that is legal, and no loss. So three parts with three rules:
//! - `handshake`: a sender writes a number, sends one IPI and waits until vCPU 0's handler has acknowledged it. Each IPI counts.
//! - `vectors`: a sender sends its share of 64 vectors, one IPI each, without waiting between them. Each vector must come exactly
//!   once a round.
//! - `forget`: a sender writes the next number and sends the same vector again, without ever waiting. Any may melt, but after the
//!   last one vCPU 0 must see the last number: it sleeps until it has.
//!
//! Options: `count=10000` (IPIs in all, in the first and the last part), `rounds=100` (of 64 vectors), `watchdog-ms=60000`,
//! `doubles=fail` (`allow` counts interrupts that come twice and goes on: some emulators deliver one that VMRUN injects a second
//! time).
//!
//! Figures: `senders`, `handshake_ipis`, `handshake_ticks` (per IPI), `vector_ipis`, `vector_ticks`, `forget_ipis`,
//! `forget_ticks`, `forget_interrupts` (fewer than were sent where they melted), `doubled_interrupts`, `halts`.
#![no_std]
#![no_main]

use core::fmt::Display;
use core::sync::atomic::{AtomicU32, Ordering};
use guest_tests::lapic::{self, Message, Target};
use guest_tests::percpu::{CpuIndex, MAX_CPUS};
use guest_tests::units::Ticks;
use guest_tests::{Machine, check, cpu, figure, smp, timer, verdict};

guest_tests::guest_test! {
    name: "storm",
    summary: "many IPIs to one halted vCPU, none lost",
    cmdline: "count=10000 rounds=100",
    vcpus: 2,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: sender,
    interrupt: interrupt,
}

/// First of the 64 vectors; sender `n` has its own at `FIRST_VECTOR + n`.
const FIRST_VECTOR: u8 = 0x60;
const VECTORS: u32 = 64;

/// What the senders are to do.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Part {
    Handshake = 1,
    Vectors = 2,
    Forget = 3,
}

/// The part that is on, or 0 between two parts.
static PART: AtomicU32 = AtomicU32::new(0);
/// How often each sender is to send (numbers or rounds).
static AMOUNT: AtomicU32 = AtomicU32::new(0);
/// Senders that have finished the part.
static FINISHED: AtomicU32 = AtomicU32::new(0);
/// The round of the second part.
static ROUND: AtomicU32 = AtomicU32::new(0);
/// The last number that each sender has written, and the last that the handler has seen of it.
static WRITTEN: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];
static SEEN: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];
/// How often each vector came.
static CAME: [AtomicU32; VECTORS as usize] = [const { AtomicU32::new(0) }; VECTORS as usize];
/// Interrupts taken in all: the word that vCPU 0 halts on.
static TAKEN: AtomicU32 = AtomicU32::new(0);

fn interrupt(vector: u8) {
    let place = usize::from(vector.wrapping_sub(FIRST_VECTOR));
    let Some(came) = CAME.get(place) else {
        verdict::fail(format_args!("interrupt {vector:#x} that nobody sent"))
    };
    came.fetch_add(1, Ordering::SeqCst);
    if let (Some(seen), Some(written)) = (SEEN.get(place), WRITTEN.get(place)) {
        seen.store(written.load(Ordering::SeqCst), Ordering::SeqCst);
    }
    TAKEN.fetch_add(1, Ordering::SeqCst);
}

fn send(vector: u8) {
    lapic::send(Target::Physical(CpuIndex::BOOT), Message::Fixed(vector));
}

/// A sender's life: waits for a part, plays it, says so.
fn sender(own: CpuIndex) {
    let (Some(written), Some(seen)) = (
        WRITTEN.get(own.get() as usize),
        SEEN.get(own.get() as usize),
    ) else {
        return;
    };
    let vector = FIRST_VECTOR + own.get() as u8;
    let senders = smp::count() - 1;
    let mut last = 0;
    loop {
        let part = wait_while(&PART, last);
        last = part;
        let amount = AMOUNT.load(Ordering::SeqCst);
        if part == Part::Handshake as u32 {
            for _ in 0..amount {
                let number = written.fetch_add(1, Ordering::SeqCst) + 1;
                send(vector);
                while seen.load(Ordering::SeqCst) != number {
                    cpu::pause();
                }
            }
        } else if part == Part::Vectors as u32 {
            for round in 1..=amount {
                while ROUND.load(Ordering::SeqCst) < round {
                    cpu::pause();
                }
                (own.get() - 1..VECTORS)
                    .step_by(senders as usize)
                    .for_each(|place| send(FIRST_VECTOR + place as u8));
            }
        } else if part == Part::Forget as u32 {
            for _ in 0..amount {
                written.fetch_add(1, Ordering::SeqCst);
                send(vector);
            }
        }
        FINISHED.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until `word` is neither 0 nor `value`, and gives what it is.
fn wait_while(word: &AtomicU32, value: u32) -> u32 {
    loop {
        let now = word.load(Ordering::SeqCst);
        if now != value && now != 0 {
            return now;
        }
        cpu::pause();
    }
}

/// Halts until `done`, which can become true only by an interrupt; counts the halts.
fn halt_until(halts: &mut u64, mut done: impl FnMut() -> bool) {
    loop {
        let taken = TAKEN.load(Ordering::SeqCst);
        if done() {
            return;
        }
        cpu::halt_while(&TAKEN, taken);
        *halts += 1;
    }
}

/// What vCPU 0 keeps of its side.
struct Receiver {
    senders: u32,
    halts: u64,
}

impl Receiver {
    /// Lets the senders play `part` while this CPU runs `receive`; gives the time and the interrupts it took.
    fn play(&mut self, part: Part, amount: u32, receive: impl FnOnce(&mut Self)) -> (Ticks, u32) {
        FINISHED.store(0, Ordering::SeqCst);
        AMOUNT.store(amount, Ordering::SeqCst);
        let taken = TAKEN.load(Ordering::SeqCst);
        let begin = cpu::now();
        PART.store(part as u32, Ordering::SeqCst);
        receive(self);
        let time = cpu::now().since(begin);
        let senders = self.senders;
        timer::spin_until(20_000, "all senders done", || {
            // A last IPI of a sender may still wait.
            cpu::open_window();
            FINISHED.load(Ordering::SeqCst) == senders
        });
        cpu::open_window();
        (time, TAKEN.load(Ordering::SeqCst).wrapping_sub(taken))
    }

    /// Halts until the handler has seen `number` of every sender.
    fn wait_for_all(&mut self, number: u32) {
        let senders = self.senders as usize;
        halt_until(&mut self.halts, || {
            SEEN.iter()
                .skip(1)
                .take(senders)
                .all(|seen| seen.load(Ordering::SeqCst) == number)
        });
    }
}

/// Interrupts that came more often than they were sent.
struct Doubles {
    allowed: bool,
    count: u32,
}

impl Doubles {
    /// Of `sent` interrupts none may be missing, and none may come twice unless that is allowed.
    fn check(&mut self, taken: u32, sent: u32, what: impl Display) {
        check!(taken >= sent, "{sent} {what} were sent, only {taken} taken");
        check!(
            taken == sent || self.allowed,
            "{sent} {what} were sent, but {taken} taken"
        );
        self.count += taken - sent;
    }
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let count = options.number("count", 10_000, 1..=100_000_000) as u32;
    let rounds = options.number("rounds", 100, 1..=1_000_000) as u32;
    let watchdog = options.number("watchdog-ms", 60_000, 1..=10_000_000);
    let mut doubles = Doubles {
        allowed: options.choice("doubles", &["fail", "allow"], 0) == 1,
        count: 0,
    };
    options.report_unknown();
    smp::require(2);
    smp::start();
    timer::watchdog(watchdog);
    let senders = smp::count() - 1;
    let share = count.div_ceil(senders);
    let all = share * senders;
    let mut receiver = Receiver { senders, halts: 0 };

    let (handshake_time, taken) = receiver.play(Part::Handshake, share, |receiver| {
        receiver.wait_for_all(share)
    });
    doubles.check(taken, all, "handshake IPIs");

    CAME.iter().for_each(|came| came.store(0, Ordering::SeqCst));
    let (vector_time, taken) = receiver.play(Part::Vectors, rounds, |receiver| {
        for round in 1..=rounds {
            ROUND.store(round, Ordering::SeqCst);
            let due = || CAME.iter().all(|came| came.load(Ordering::SeqCst) >= round);
            halt_until(&mut receiver.halts, due);
        }
    });
    for (came, place) in CAME.iter().zip(0u8..) {
        let times = came.load(Ordering::SeqCst);
        doubles.check(
            times,
            rounds,
            format_args!("IPIs of vector {:#x}", FIRST_VECTOR + place),
        );
    }
    check!(
        taken >= rounds * VECTORS,
        "{taken} interrupts taken for {} IPIs",
        rounds * VECTORS
    );

    let (forget_time, taken) = receiver.play(Part::Forget, share, |receiver| {
        receiver.wait_for_all(2 * share)
    });
    timer::watchdog_off();

    figure!("senders", senders, "vcpus");
    figure!("handshake_ipis", all, "ipis");
    figure!(
        "handshake_ticks",
        handshake_time.0 / u64::from(all),
        "ticks"
    );
    figure!("vector_ipis", rounds * VECTORS, "ipis");
    figure!(
        "vector_ticks",
        vector_time.0 / u64::from(rounds * VECTORS),
        "ticks"
    );
    figure!("forget_ipis", all, "ipis");
    figure!("forget_ticks", forget_time.0 / u64::from(all), "ticks");
    figure!("forget_interrupts", taken, "interrupts");
    figure!("doubled_interrupts", doubles.count, "interrupts");
    figure!("halts", receiver.halts, "halts");
    check!(
        taken >= senders && taken <= all,
        "{taken} interrupts for {all} IPIs of {senders} senders"
    );
}
