//! Calls and wakes one after the other: what each costs, in ticks, interrupts and scheduling passes of all CPUs.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lull_core::call::{CallError, Wait};
use lull_core::units::{CpuId, CpuSet, Nanos};
use lull_core::wake::{Events, SleepState, Wake, WakeWord};

use super::{RAN, measure, nothing, wait_for};
use crate::run::Running;
use crate::smp::calls;
use crate::time;

/// Calls in a storm of one CPU against one, unless `test.rounds=` says otherwise.
const STORM: u64 = 100_000;
/// Rounds where all CPUs take part.
const ROUNDS: u64 = 1_000;

/// Calls that were refused.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// Who is called by all.
static CENTRE: AtomicU64 = AtomicU64::new(0);

/// Lines to dirty before an IPI.
static LINES: [AtomicU64; 64 * 8] = [const { AtomicU64::new(0) }; 64 * 8];

/// Does somebody look for calls?
static LOOKING: AtomicBool = AtomicBool::new(false);

fn count_failure<T>(made: Result<T, CallError>) {
    if made.is_err() {
        FAILED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Calls the centre.
fn call_centre(_: u64) {
    let centre = CpuId::new(CENTRE.load(Ordering::Relaxed) as u32);
    count_failure(calls::on(centre, nothing, 0, Wait::No));
}

/// Serves calls until it is told to stop.
fn look_for_calls(_: u64) {
    while LOOKING.load(Ordering::Relaxed) {
        calls::serve();
        spin_loop();
    }
}

/// Measures.
pub fn run(running: &'static Running, others: CpuSet) {
    match others.lowest() {
        Some(target) => Storms { running, others }.run(target),
        None => log::warn!("there is nobody to wake"),
    }
}

struct Storms {
    running: &'static Running,
    others: CpuSet,
}

/// What all CPUs have counted.
#[derive(Clone, Copy, Default)]
struct Counts {
    ipis: u64,
    store: u64,
    will_look: u64,
    rides: u64,
    passes: u64,
    failed: u64,
    ran: u64,
}

impl Storms {
    fn word(&self, cpu: CpuId) -> Option<&'static WakeWord> {
        Some(&self.running.machine.pcpu(cpu)?.word)
    }

    fn run(&self, target: CpuId) {
        let asked = self.running.options.wakes.rounds;
        let (storm, rounds) = (asked.unwrap_or(STORM), asked.unwrap_or(ROUNDS));
        let call = |wait| count_failure(calls::on(target, nothing, 0, wait));
        self.sender(target);
        self.awake("ipistorm-sync", storm, || call(Wait::UntilDone));
        // The same, but each call finds the target asleep.
        self.asleep("ipistorm-idle", storm, target, || call(Wait::UntilDone));
        // What that consists of, each alone: the call, to a CPU that looks for calls and does nothing else; a wake for nothing; a wake
        // with a scheduling pass.
        self.call_alone(target, storm);
        self.asleep("wake-notify", storm, target, || {
            self.running.machine.post(target, Events::NOTIFY);
        });
        self.asleep("wake-resched", storm, target, || {
            self.running.machine.post(target, Events::RESCHED);
        });
        self.awake("ipistorm-async", storm, || call(Wait::No));
        self.awake("one-to-all", rounds, || {
            count_failure(calls::on_many(&self.others, nothing, 0, Wait::UntilDone));
        });
        self.all_to_one(target, rounds);
        self.awake("round-all-dirty", rounds, || {
            for cpu in self.others.iter() {
                for line in LINES.iter().step_by(8) {
                    line.store(line.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
                count_failure(calls::on(cpu, nothing, 0, Wait::UntilDone));
            }
        });
    }

    /// The sender's side of one wake of a CPU that watches its word: from `post()` to its return.
    fn sender(&self, target: CpuId) {
        let Some(word) = self.word(target) else {
            return;
        };
        let own = time::now;
        let (mut least, mut samples) = (u64::MAX, 0);
        let overhead = (0..16)
            .map(|_| {
                let start = own();
                (own() - start).get()
            })
            .min()
            .unwrap_or(0);
        let mut turns = 0_u64;
        while samples < 100 && turns < 10_000_000 {
            turns += 1;
            if word.state() != SleepState::Watching || word.is_pending() {
                spin_loop();
                continue;
            }
            let start = own();
            self.running.machine.post(target, Events::CALL);
            let took = (own() - start).get();
            least = least.min(took.saturating_sub(overhead));
            samples += 1;
        }
        // None, where no CPU watches.
        measure("wake-sender.samples", samples, "wakes");
        if samples > 0 {
            measure("wake-sender", least, "ticks");
        }
    }

    fn call_alone(&self, target: CpuId, rounds: u64) {
        LOOKING.store(true, Ordering::Relaxed);
        if calls::on(target, look_for_calls, 0, Wait::No).is_err() {
            return;
        }
        self.awake("call-alone", rounds, || {
            count_failure(calls::on(target, nothing, 0, Wait::UntilDone));
        });
        LOOKING.store(false, Ordering::Relaxed);
    }

    /// All CPUs call one at the same time: this one asks the others to. The round is over when all the calls have run.
    fn all_to_one(&self, centre: CpuId, rounds: u64) {
        CENTRE.store(centre.get().into(), Ordering::Relaxed);
        let callers: CpuSet = self.others.iter().filter(|cpu| *cpu != centre).collect();
        let mut expected = RAN.load(Ordering::Relaxed) + FAILED.load(Ordering::Relaxed);
        self.awake("all-to-one", rounds, || {
            if !callers.is_empty() {
                count_failure(calls::on_many(&callers, call_centre, 0, Wait::No));
            }
            call_centre(0);
            expected += callers.len() as u64 + 1;
            wait_for("all calls of all to one", || {
                RAN.load(Ordering::Relaxed) + FAILED.load(Ordering::Relaxed) >= expected
            });
        });
    }

    /// Waits until this CPU sleeps: has said so, and is at the instruction that does it.
    fn until_asleep(&self, cpu: CpuId) {
        let Some(pcpu) = self.running.machine.pcpu(cpu) else {
            return;
        };
        let asleep = || {
            matches!(pcpu.word.state(), SleepState::Watching | SleepState::Halted)
                && !pcpu.word.is_pending()
                && pcpu.account.is_asleep()
        };
        while !asleep() {
            spin_loop();
        }
    }

    /// The machine comes to rest.
    fn rest(&self) {
        let rest = time::now() + time::rate().ticks(Nanos::new(1_000_000));
        while time::now() < rest {
            spin_loop();
        }
        for cpu in self.others.iter() {
            // One that looks for calls never sleeps.
            if !LOOKING.load(Ordering::Relaxed) {
                self.until_asleep(cpu);
            }
        }
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts {
            failed: FAILED.load(Ordering::Relaxed),
            ran: RAN.load(Ordering::Relaxed),
            ..Counts::default()
        };
        for (_, pcpu) in self.running.machine.pcpus() {
            let posts = pcpu.wakes.counts();
            sum.ipis += posts.ipis();
            sum.store += posts.of(Wake::StoreWakes);
            sum.will_look += posts.of(Wake::WillLook);
            sum.rides += posts.of(Wake::RidesAlong);
            sum.passes += pcpu.stats.counts().all_passes();
        }
        sum
    }

    /// One round right after the other.
    fn awake(&self, name: &str, rounds: u64, mut once: impl FnMut()) {
        self.rest();
        let before = self.counts();
        let start = time::now();
        for _ in 0..rounds {
            once();
        }
        let took = (time::now() - start).get();
        // What was sent and not waited for is still under way, and so are passes.
        self.rest();
        self.told(name, rounds, (took, took), &before);
    }

    /// Each round finds the CPU asleep.
    fn asleep(&self, name: &str, rounds: u64, cpu: CpuId, mut once: impl FnMut()) {
        self.rest();
        let before = self.counts();
        let mut took = 0;
        let first = time::now();
        for _ in 0..rounds {
            let start = time::now();
            once();
            took += (time::now() - start).get();
            self.until_asleep(cpu);
        }
        let period = (time::now() - first).get();
        self.told(name, rounds, (took, period), &before);
    }

    /// `took` is for the rounds themselves, and from the first one to the end of the last.
    fn told(&self, name: &str, rounds: u64, took: (u64, u64), before: &Counts) {
        let now = self.counts();
        for (what, value, unit) in [
            ("rounds", rounds, "rounds"),
            ("ticks", took.0 / rounds.max(1), "ticks/round"),
            ("period", took.1 / rounds.max(1), "ticks/round"),
            ("ipis", now.ipis - before.ipis, "IPIs"),
            ("store", now.store - before.store, "wakes"),
            ("will-look", now.will_look - before.will_look, "posts"),
            ("rides", now.rides - before.rides, "posts"),
            ("passes", now.passes - before.passes, "passes"),
            ("ran", now.ran - before.ran, "functions"),
            ("failed", now.failed - before.failed, "calls"),
        ] {
            measure(&alloc::format!("{name}.{what}"), value, unit);
        }
    }
}
