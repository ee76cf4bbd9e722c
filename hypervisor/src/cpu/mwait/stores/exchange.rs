//! The trying itself: the boot CPU with each other CPU in turn, and the other way round with the first of them.
//!
//! Only two CPUs are busy at a time; the others halt in [`smp::wait_for_release`](crate::smp::wait_for_release), from
//! where they [`take_part`] when their turn comes. Every wait ends by the clock. A CPU that does not play along ends the
//! test without a verdict, and the exchange is never used again, so that it may come late without harm.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use lull_core::cstate::select::{MwaitTest, MwaitVerdict};
use lull_core::platform::OneShot;
use lull_core::units::{CpuId, Nanos, Ticks};

use super::{Round, Seen, judge, verdict};
use crate::apic::{ipi, vector};
use crate::cpu::mwait::BUSY_RETURNS;
use crate::cpu::safe::{self, Fault};
use crate::cpu::{self, regs, sleep};
use crate::time;

/// Rounds of each pair of CPUs.
const ROUNDS: usize = 4;
/// How far ahead the sleeper's timer is: far enough for an emulator that is held up now and then.
const AHEAD: Nanos = Nanos::new(10_000_000);
/// Before and after the other CPU arms its own monitor, so that the sleeper sleeps, or sleeps again.
const PAUSE: Nanos = Nanos::new(100_000);
/// How long before the timer the store must be made, to count.
const MARGIN: Nanos = Nanos::new(1_000_000);
/// How long one CPU waits for the other: its own self-test may still be under way.
const PATIENCE: Nanos = Nanos::new(1_000_000_000);

/// What the test came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tested {
    /// Whether stores wake. `None`: not known.
    pub store_wakes: Option<bool>,
    /// The CPU that slept over a store, and how many of its rounds were lost.
    pub lost: Option<(CpuId, usize)>,
    /// Rounds that showed something.
    pub rounds: usize,
}

/// Words alone in their monitored lines.
#[repr(align(128))]
struct Line(AtomicU64);

/// What the two CPUs tell each other.
struct Exchange {
    /// The sleeper watches it.
    word: Line,
    /// The other CPU arms its own monitor here.
    other: Line,
    /// Whose turn it is, and as what: see [`Job::pack`]. 0: nobody's.
    job: AtomicU32,
    /// How far the round is: see [`Phase`].
    phase: AtomicU8,
    due: AtomicU64,
    woke: AtomicU64,
    stored: AtomicU64,
    returns: AtomicU32,
    slept: AtomicBool,
}

static EXCHANGE: Exchange = Exchange {
    word: Line(AtomicU64::new(0)),
    other: Line(AtomicU64::new(0)),
    job: AtomicU32::new(0),
    phase: AtomicU8::new(0),
    due: AtomicU64::new(0),
    woke: AtomicU64::new(0),
    stored: AtomicU64::new(0),
    returns: AtomicU32::new(0),
    slept: AtomicBool::new(false),
};

/// How far a round is. The first two are set by the sleeper.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Phase {
    /// The sleeper is about to sleep.
    Ready = 1,
    /// The sleeper is up, and has told when.
    Up = 2,
    /// The other CPU needs this round's figures no more.
    Over = 3,
}

impl Phase {
    fn set(self) {
        EXCHANGE.phase.store(self as u8, Ordering::Release);
    }

    /// Waits for the other CPU. `None`: in vain.
    fn wait(self) -> Option<()> {
        wait_until(|| EXCHANGE.phase.load(Ordering::Acquire) == self as u8)
    }
}

/// Waits until `done`. `None`: in vain.
fn wait_until(done: impl Fn() -> bool) -> Option<()> {
    let end = regs::rdtsc() + time::rate().ticks(PATIENCE).get();
    while !done() {
        if regs::rdtsc() >= end {
            return None;
        }
        core::hint::spin_loop();
    }
    Some(())
}

/// 0 = not known, 1 = stores get lost, 2 = stores wake.
static VERDICT: AtomicU8 = AtomicU8::new(0);

/// What the test found, for all CPUs. `None`: it was not made, or showed nothing.
pub fn store_wakes() -> Option<bool> {
    match VERDICT.load(Ordering::Acquire) {
        0 => None,
        found => Some(found == 2),
    }
}

/// The part that an AP plays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    Sleep,
    Store,
}

impl Job {
    const fn pack(self, cpu: CpuId) -> u32 {
        (cpu.get() + 1) << 1 | self as u32
    }
}

/// The way of sleeping that the self-test of this CPU found to work; `true`: with interrupts masked.
fn way(test: MwaitTest) -> Option<bool> {
    match (test.masked, test.open) {
        (MwaitVerdict::Works, _) => Some(true),
        (_, MwaitVerdict::Works) => Some(false),
        _ => None,
    }
}

/// Tests the boot CPU with all others. Called by the boot CPU, when the others have been started and its own self-test
/// is done.
pub fn test(timer: &impl OneShot, online: &[CpuId]) -> Tested {
    let mut tested = Tested {
        store_wakes: None,
        lost: None,
        rounds: 0,
    };
    let me = cpu::this().id();
    let Some(masked) = way(cpu::this().mwait_test()) else {
        return tested;
    };
    let mut all_wake = true;
    let others = online.iter().copied().filter(|&cpu| cpu != me);
    let as_partner = others.clone().take(1).map(|cpu| (cpu, Job::Store));
    for (cpu, job) in as_partner.chain(others.map(|cpu| (cpu, Job::Sleep))) {
        let Some(rounds) = try_with(timer, cpu, job, masked) else {
            return tested;
        };
        tested.rounds += rounds.iter().filter(|r| **r != Round::Unclear).count();
        match verdict(&rounds) {
            Some(true) => {}
            // A CPU that showed nothing takes the proof away from all.
            None => all_wake = false,
            Some(false) => {
                let lost = rounds.iter().filter(|r| **r == Round::Lost).count();
                let sleeper = if job == Job::Sleep { cpu } else { me };
                tested.lost = Some((sleeper, lost));
                break;
            }
        }
    }
    tested.store_wakes = match tested.lost {
        Some(_) => Some(false),
        None => (all_wake && tested.rounds > 0).then_some(true),
    };
    VERDICT.store(
        tested.store_wakes.map_or(0, |wakes| 1 + u8::from(wakes)),
        Ordering::Release,
    );
    tested
}

/// All rounds with one AP. `None`: it does not play along.
fn try_with(
    timer: &impl OneShot,
    cpu: CpuId,
    job: Job,
    masked: bool,
) -> Option<ArrayVec<Round, ROUNDS>> {
    EXCHANGE.job.store(job.pack(cpu), Ordering::Release);
    ipi::send(cpu, vector::RELEASE);
    // It takes its part by taking the job away.
    wait_until(|| EXCHANGE.job.load(Ordering::Acquire) == 0)?;
    let mut rounds = ArrayVec::new();
    for round in 1..=ROUNDS {
        match job {
            Job::Store => sleep_once(timer, masked).ok()?,
            Job::Sleep => {
                store_once()?;
                Phase::Up.wait()?;
            }
        }
        rounds.push(judge(
            Seen {
                due: EXCHANGE.due.load(Ordering::Acquire),
                woke: EXCHANGE.woke.load(Ordering::Acquire),
                stored: EXCHANGE.stored.load(Ordering::Acquire),
                returns: EXCHANGE.returns.load(Ordering::Acquire),
                slept: EXCHANGE.slept.load(Ordering::Acquire),
            },
            time::rate().ticks(MARGIN).get(),
        ));
        // In the last round nobody waits: the next pair has the exchange then.
        match job {
            _ if round == ROUNDS => {}
            Job::Store => Phase::Over.wait()?,
            Job::Sleep => Phase::Over.set(),
        }
    }
    Some(rounds)
}

/// Plays this CPU's part, if it is its turn. Called by a CPU that waits for its release, with interrupts off, before it
/// halts: whoever gives it a part interrupts it.
pub fn take_part(timer: &impl OneShot) {
    let me = cpu::this().id();
    let given = EXCHANGE.job.load(Ordering::Acquire);
    let Some(job) = [Job::Sleep, Job::Store]
        .into_iter()
        .find(|job| job.pack(me) == given)
    else {
        return;
    };
    EXCHANGE.job.store(0, Ordering::Release);
    // A failure here lets the boot CPU wait in vain, which ends the test.
    let _ = play(timer, job);
}

fn play(timer: &impl OneShot, job: Job) -> Option<()> {
    let masked = way(cpu::this().mwait_test());
    for round in 1..=ROUNDS {
        let last = round == ROUNDS;
        match job {
            Job::Sleep => {
                sleep_once(timer, masked?).ok()?;
                if !last {
                    Phase::Over.wait()?;
                }
            }
            Job::Store => {
                store_once()?;
                if !last {
                    Phase::Up.wait()?;
                    Phase::Over.set();
                }
            }
        }
    }
    Some(())
}

/// Sleeps until the word is not 0 or the timer is due, and tells how it went.
fn sleep_once(timer: &impl OneShot, masked: bool) -> Result<(), Fault> {
    let word = &EXCHANGE.word;
    word.0.store(0, Ordering::Release);
    let _ = cpu::this().take_first_irq();
    let due = regs::rdtsc() + time::rate().ticks(AHEAD).get();
    EXCHANGE.due.store(due, Ordering::Release);
    timer.arm(Ticks::new(due));
    Phase::Ready.set();

    let (mut returns, mut slept) = (0, false);
    let outcome = loop {
        if regs::rdtsc() >= due || returns >= BUSY_RETURNS {
            break Ok(());
        }
        if let Err(fault) = safe::monitor(word) {
            break Err(fault);
        }
        if word.0.load(Ordering::Acquire) != 0 {
            slept = false;
            break Ok(());
        }
        // Masked, a due timer stays pending and ends this at once; open, it is taken here.
        let mwait = if masked {
            safe::mwait_probe(true)
        } else {
            safe::sti_mwait_cli_probe(false)
        };
        if let Err(fault) = mwait {
            break Err(fault);
        }
        returns += 1;
        if word.0.load(Ordering::Acquire) != 0 {
            slept = true;
            break Ok(());
        }
    };
    EXCHANGE.woke.store(regs::rdtsc(), Ordering::Release);
    EXCHANGE.returns.store(returns, Ordering::Release);
    EXCHANGE.slept.store(slept, Ordering::Release);
    timer.cancel();
    sleep::open_window();
    let _ = cpu::this().take_first_irq();
    Phase::Up.set();
    outcome
}

/// Waits for the sleeper, arms a monitor of its own, and stores to the sleeper's word.
fn store_once() -> Option<()> {
    Phase::Ready.wait()?;
    time::spin_for(PAUSE);
    safe::monitor(&EXCHANGE.other).ok()?;
    time::spin_for(PAUSE);
    EXCHANGE.stored.store(regs::rdtsc(), Ordering::Release);
    EXCHANGE.word.0.fetch_add(1, Ordering::AcqRel);
    Some(())
}
