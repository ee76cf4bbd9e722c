//! How late a CPU is when its timer ends a sleep, for each of its states: to the first instruction of the handler, to the
//! first one after the sleep, and until its dispatch loop has the deadline.
//!
//! The boot CPU leaves the CPU that is measured one state, and sleeps meanwhile. The other sets one timer after the other, at
//! distances from a fixed seed, that the state pays for.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use alloc::format;
use alloc::vec::Vec;
use lull_core::call::Wait;
use lull_core::cstate::{CState, StateId};
use lull_core::governor::StateSet;
use lull_core::units::{CpuId, CpuSet, Nanos, Ticks};

use super::{Random, measure, nap, wait_for};
use crate::run::Running;
use crate::smp::calls;
use crate::{cpu, time};

/// Samples for each state, unless `test.rounds=` says otherwise.
const SAMPLES: u64 = 1_000;
/// And at most.
const MOST: usize = 4_096;
/// No sleep is shorter than that, or than so many ticks: on a slow machine, a CPU needs that long to fall asleep.
const SHORTEST: (Nanos, Ticks) = (Nanos::new(100_000), Ticks::new(20_000));

/// What is measured: names, in the order of a sample.
const STAMPS: [&str; 3] = ["handler", "exit", "loop"];

/// Do timers belong to this test?
static ACTIVE: AtomicBool = AtomicBool::new(false);
static TIMED: Timed = Timed::new();

/// What the CPU that is measured does. Written by it alone, between two series by the boot CPU.
struct Timed {
    wanted: AtomicU64,
    taken: AtomicU64,
    missed: AtomicU64,
    /// Distance of two timers: this, and up to this more.
    distance: AtomicU64,
    seed: AtomicU64,
    /// The state, by its index, and what its account said when the last timer came.
    state: AtomicU64,
    usage: AtomicU64,
    residency: AtomicU64,
    samples: [[AtomicU64; MOST]; STAMPS.len()],
}

impl Timed {
    const fn new() -> Self {
        Self {
            wanted: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            distance: AtomicU64::new(0),
            seed: AtomicU64::new(0),
            state: AtomicU64::new(0),
            usage: AtomicU64::new(0),
            residency: AtomicU64::new(0),
            samples: [const { [const { AtomicU64::new(0) }; MOST] }; STAMPS.len()],
        }
    }

    fn attempts(&self) -> u64 {
        self.taken.load(Ordering::Acquire) + self.missed.load(Ordering::Acquire)
    }

    /// All samples are there, or too many attempts gave none.
    fn is_done(&self) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        self.taken.load(Ordering::Acquire) >= wanted || self.attempts() >= 2 * wanted + 16
    }

    fn next_distance(&self) -> Ticks {
        let mut random = Random(self.seed.load(Ordering::Relaxed));
        let distance = self.distance.load(Ordering::Relaxed);
        let next = distance + random.below(distance);
        self.seed.store(random.0, Ordering::Relaxed);
        Ticks::new(next)
    }

    fn sorted(&self, stamp: usize) -> Vec<u64> {
        let taken = self.taken.load(Ordering::Acquire) as usize;
        let samples = self.samples.get(stamp).into_iter().flatten();
        let mut sorted: Vec<u64> = samples
            .take(taken)
            .map(|sample| sample.load(Ordering::Relaxed))
            .collect();
        sorted.sort_unstable();
        sorted
    }
}

/// A timer has come on the CPU that runs this. `false` if it is not one of this test.
pub fn came(running: &Running, deadline: Ticks) -> bool {
    let now = time::now();
    if !ACTIVE.load(Ordering::Acquire) {
        return false;
    }
    let Some(pcpu) = running.machine.this_pcpu() else {
        return false;
    };
    let (handler, exit) = (cpu::this().last_first_irq(), pcpu.account.last_exit());
    let Some(choice) = running.choice(cpu::this().id()) else {
        return false;
    };
    let state = TIMED.state.load(Ordering::Relaxed) as usize;
    let row = pcpu.account.snapshot(running.machine.platform());
    let times = row
        .states(&choice.usable)
        .nth(state)
        .copied()
        .unwrap_or_default();
    let usage = times.usage - TIMED.usage.swap(times.usage, Ordering::Relaxed);
    let residency = times.residency.get();
    let slept = residency - TIMED.residency.swap(residency, Ordering::Relaxed);
    // The one sleep since the last timer, in this very state, began before the time had come, and was not over.
    let asleep = usage == 1 && (handler.min(exit)).get().saturating_sub(slept) <= deadline.get();
    if asleep && handler >= deadline && exit >= deadline {
        let at = TIMED.taken.load(Ordering::Relaxed) as usize;
        let late = [handler, exit, now].map(|stamp| (stamp - deadline).get());
        for (samples, late) in TIMED.samples.iter().zip(late) {
            if let Some(sample) = samples.get(at) {
                sample.store(late, Ordering::Relaxed);
            }
        }
        TIMED.taken.fetch_add(1, Ordering::Release);
    } else {
        TIMED.missed.fetch_add(1, Ordering::Release);
    }
    if !TIMED.is_done() {
        running
            .machine
            .set_probe_timer(time::now() + TIMED.next_distance());
    }
    true
}

/// Sets the first timer of a series, on the CPU that is measured.
fn begin(_: u64) {
    if let Some(running) = crate::run::running() {
        running
            .machine
            .set_probe_timer(time::now() + TIMED.next_distance());
    }
}

/// Measures.
pub fn run(running: &'static Running, others: CpuSet) {
    let Some(target) = others.lowest() else {
        log::warn!("there is nobody to wake");
        return;
    };
    let Some((pcpu, choice)) = running.machine.pcpu(target).zip(running.choice(target)) else {
        return;
    };
    let table = choice.usable;
    let usual = pcpu.idle.off();
    ACTIVE.store(true, Ordering::Release);
    for (id, state) in table.iter() {
        if pcpu.idle.too_deep().contains(id) {
            continue;
        }
        let others = table.iter().filter(|(other, _)| *other != id);
        let off = others.fold(StateSet::NONE, |set, (other, _)| set.with(other, true));
        pcpu.idle.set_off(off);
        running.machine.idle_changed(target);
        series(running, target, id, state);
    }
    ACTIVE.store(false, Ordering::Release);
    pcpu.idle.set_off(usual);
    running.machine.idle_changed(target);
}

/// All samples of one state.
fn series(running: &'static Running, target: CpuId, id: StateId, state: &CState) {
    let Some((pcpu, choice)) = running.machine.pcpu(target).zip(running.choice(target)) else {
        return;
    };
    let wanted = running
        .options
        .wakes
        .rounds
        .unwrap_or(SAMPLES)
        .min(MOST as u64);
    let pays = state.target_residency.to_nanos().get().saturating_mul(2);
    let shortest = time::rate()
        .ticks(Nanos::new(pays).max(SHORTEST.0))
        .max(SHORTEST.1);
    TIMED.taken.store(0, Ordering::Relaxed);
    TIMED.missed.store(0, Ordering::Relaxed);
    TIMED.distance.store(shortest.get(), Ordering::Relaxed);
    TIMED.seed.store(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
    TIMED.state.store(id.index() as u64, Ordering::Relaxed);
    let before = pcpu.account.snapshot(running.machine.platform());
    let times = before
        .states(&choice.usable)
        .nth(id.index())
        .copied()
        .unwrap_or_default();
    TIMED.usage.store(times.usage, Ordering::Relaxed);
    TIMED
        .residency
        .store(times.residency.get(), Ordering::Relaxed);
    TIMED.wanted.store(wanted, Ordering::Release);
    if calls::on(target, begin, 0, Wait::UntilDone).is_err() {
        return;
    }
    // Twice as long is the longest distance of two. What a timer is late is more than made up for by the others.
    while !TIMED.is_done() {
        let before = TIMED.attempts();
        let left = wanted.saturating_sub(TIMED.taken.load(Ordering::Acquire));
        let then = time::now() + Ticks::new(shortest.get().saturating_mul(2 * left + 8));
        nap::until(running, then);
        assert!(TIMED.attempts() > before, "no timer came in {}", state.name);
    }
    let used = pcpu
        .account
        .snapshot(running.machine.platform())
        .since(&before);
    let entries: Vec<u64> = used
        .states(&choice.usable)
        .map(|times| times.usage)
        .collect();
    let own = entries.get(id.index()).copied().unwrap_or(0);
    let name = format!("latency.{}", state.name);
    let told = |what: &str, value, unit| measure(&format!("{name}.{what}"), value, unit);
    told("n", TIMED.taken.load(Ordering::Acquire), "samples");
    told("missed", TIMED.missed.load(Ordering::Acquire), "samples");
    told("entries", own, "sleeps");
    told("elsewhere", entries.iter().sum::<u64>() - own, "sleeps");
    told("inside", state.method.runs_handlers().into(), "");
    for (at, stamp) in STAMPS.iter().enumerate() {
        let sorted = TIMED.sorted(at);
        let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else {
            continue;
        };
        let share = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or(most)
        };
        for (what, value) in [
            ("min", least),
            ("p50", share(50)),
            ("p90", share(90)),
            ("p99", share(99)),
            ("max", most),
        ] {
            told(&format!("{stamp}.{what}"), value, "ticks");
        }
    }
    wait_for("the measured CPU takes calls", || {
        calls::on(target, |_| (), 0, Wait::UntilDone).is_ok()
    });
}
