//! Calls and wakes, measured (`test.wakes=bench`) or exercised at random under a watchdog (`test.wakes=soak`).
//!
//! Runs on the boot CPU before its dispatch loop, while all others turn theirs and are idle; then the machine ends.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lull_core::call::Wait;
use lull_core::options::WakeTest;
use lull_core::units::{CpuId, CpuSet, Nanos, Ticks};
use lull_core::wake::{Events, SleepState, Wake, WakeWord};

use super::Running;
use crate::apic::ipi;
use crate::console::{machine_channel, wake_records};
use crate::smp::calls;
use crate::time;

/// How long a wait may take before it is a failure.
const PATIENCE: Nanos = Nanos::new(20_000_000_000);

/// What the option asks for.
pub fn run(running: &'static Running) {
    let Some(test) = running.options.wakes.test else {
        return;
    };
    calls::open();
    let others: CpuSet = running
        .online
        .iter()
        .copied()
        .filter(|cpu| cpu.index() != 0)
        .collect();
    wait_for("all CPUs take calls", || {
        calls::on_many(&others, |_| (), 0, Wait::UntilDone) == Ok(others)
    });
    match test {
        WakeTest::Bench => Bench { running, others }.run(),
        WakeTest::Growth => super::wake_growth::run(running, others),
        WakeTest::Soak => Soak::new(running, others).run(),
    }
    running.machine.stop();
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = time::now() + time::rate().ticks(PATIENCE);
    while !holds() {
        assert!(time::now() < until, "waited in vain: {what}");
        calls::serve();
        spin_loop();
    }
}

pub(super) fn measure(name: &str, value: u64, unit: &str) {
    log::info!("{name}: {value} {unit}");
    machine_channel::emit(|sink| wake_records::measure(sink, name, value, unit));
}

/// Functions that were run anywhere.
static RAN: AtomicU64 = AtomicU64::new(0);

pub(super) fn nothing(_: u64) {
    RAN.fetch_add(1, Ordering::Relaxed);
}

/// Tells the boot CPU.
fn answer(_: u64) {
    // A slot that is not free yet is no failure: the next round finds it.
    let _ = calls::on(CpuId::new(0), nothing, 0, Wait::No);
}

/// Lines to dirty before an IPI.
static LINES: [AtomicU64; 64 * 8] = [const { AtomicU64::new(0) }; 64 * 8];

/// Does somebody look for calls?
static LOOKING: AtomicBool = AtomicBool::new(false);

/// Serves calls until it is told to stop.
fn look_for_calls(_: u64) {
    while LOOKING.load(Ordering::Relaxed) {
        calls::serve();
        spin_loop();
    }
}

struct Bench {
    running: &'static Running,
    others: CpuSet,
}

/// Calls in a storm.
const STORM: u64 = 100_000;
const ROUNDS: u64 = 1_000;

impl Bench {
    fn word(&self, cpu: CpuId) -> Option<&'static WakeWord> {
        Some(&self.running.machine.pcpu(cpu)?.word)
    }

    fn run(&self) {
        let Some(target) = self.others.lowest() else {
            log::warn!("there is nobody to wake");
            return;
        };
        self.sender(target);
        self.one_to_one("ipistorm-sync", target, STORM, || {
            let _ = calls::on(target, nothing, 0, Wait::UntilDone);
        });
        // The same, but each call finds the target asleep.
        self.storm("ipistorm-idle", target, STORM, Some(target), || {
            let _ = calls::on(target, nothing, 0, Wait::UntilDone);
        });
        // What that consists of, each alone: the call, to a CPU that looks for calls and does nothing else; a wake for nothing; a wake
        // with a scheduling pass.
        self.call_alone(target);
        self.storm("wake-notify", target, STORM, Some(target), || {
            self.running.machine.post(target, Events::NOTIFY);
        });
        self.storm("wake-resched", target, STORM, Some(target), || {
            self.running.machine.post(target, Events::RESCHED);
        });
        self.one_to_one("ipistorm-async", target, STORM, || {
            let _ = calls::on(target, nothing, 0, Wait::No);
        });
        self.one_to_one("one-to-all", target, ROUNDS, || {
            let _ = calls::on_many(&self.others, nothing, 0, Wait::UntilDone);
        });
        self.one_to_one("all-to-one", target, ROUNDS, || {
            let _ = calls::on_many(&self.others, answer, 0, Wait::UntilDone);
            calls::serve();
        });
        self.one_to_one("round-all-dirty", target, ROUNDS, || {
            for cpu in self.others.iter() {
                for line in LINES.iter().step_by(8) {
                    line.store(line.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
                let _ = calls::on(cpu, nothing, 0, Wait::UntilDone);
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
        if samples > 0 {
            measure("wake-sender", least, "ticks");
        }
    }

    fn call_alone(&self, target: CpuId) {
        LOOKING.store(true, Ordering::Relaxed);
        if calls::on(target, look_for_calls, 0, Wait::No).is_err() {
            return;
        }
        self.one_to_one("call-alone", target, STORM, || {
            let _ = calls::on(target, nothing, 0, Wait::UntilDone);
        });
        LOOKING.store(false, Ordering::Relaxed);
    }

    fn one_to_one(&self, name: &str, target: CpuId, rounds: u64, once: impl FnMut()) {
        self.storm(name, target, rounds, None, once);
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

    fn storm(
        &self,
        name: &str,
        target: CpuId,
        rounds: u64,
        asleep: Option<CpuId>,
        mut once: impl FnMut(),
    ) {
        // The machine comes to rest first.
        let rest = time::now() + time::rate().ticks(Nanos::new(1_000_000));
        while time::now() < rest {
            spin_loop();
        }
        let Some((own, theirs)) = self
            .running
            .machine
            .this_pcpu()
            .zip(self.running.machine.pcpu(target))
        else {
            return;
        };
        let (posts, passes) = (own.wakes.counts(), theirs.stats.counts().all_passes());
        let mut took = 0;
        // From one round to the next.
        let period;
        if let Some(cpu) = asleep {
            self.until_asleep(cpu);
            let first = time::now();
            for _ in 0..rounds {
                let start = time::now();
                once();
                took += (time::now() - start).get();
                self.until_asleep(cpu);
            }
            period = (time::now() - first).get();
        } else {
            let start = time::now();
            for _ in 0..rounds {
                once();
            }
            took = (time::now() - start).get();
            period = took;
        }
        let posts = own.wakes.counts().since(&posts);
        let passes = theirs.stats.counts().all_passes() - passes;
        for (what, value, unit) in [
            ("rounds", rounds, "rounds"),
            ("ticks", took / rounds.max(1), "ticks/round"),
            ("period", period / rounds.max(1), "ticks/round"),
            ("ipis", posts.ipis(), "IPIs"),
            ("store", posts.of(Wake::StoreWakes), "wakes"),
            ("will-look", posts.of(Wake::WillLook), "posts"),
            ("rides", posts.of(Wake::RidesAlong), "posts"),
            ("passes", passes, "passes"),
        ] {
            measure(&alloc::format!("{name}.{what}"), value, unit);
        }
    }
}

struct Soak {
    running: &'static Running,
    others: CpuSet,
    random: Random,
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit.max(1)
    }
}

/// Functions that were to run, the hops' included.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Runs here, and goes on to another CPU: `word` is a seed, and below it how many more hops.
fn hop(word: u64) {
    RAN.fetch_add(1, Ordering::Relaxed);
    let (hops, seed) = (word & 0xF, word >> 4);
    if hops == 0 {
        return;
    }
    let mut random = Random(seed | 1);
    let cpus = CPUS.load(Ordering::Relaxed);
    let target = CpuId::new(random.below(cpus) as u32);
    let next = random.below(1 << 50) << 4 | (hops - 1);
    ASKED.fetch_add(1, Ordering::Relaxed);
    if calls::on(target, hop, next, Wait::No).is_err() {
        // All slots under way: this chain ends here.
        ASKED.fetch_sub(1, Ordering::Relaxed);
    }
}

static CPUS: AtomicU64 = AtomicU64::new(1);

/// Sets a timer on the CPU that runs this.
fn arm(word: u64) {
    RAN.fetch_add(1, Ordering::Relaxed);
    if let Some(running) = super::running() {
        let deadline = time::now() + Ticks::new(word);
        running.machine.set_console_timer(Some(deadline));
    }
}

impl Soak {
    fn new(running: &'static Running, others: CpuSet) -> Self {
        CPUS.store(running.online.len() as u64, Ordering::Relaxed);
        let seed = running.options.wakes.seed;
        Self {
            running,
            others,
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        }
    }

    fn run(&mut self) {
        let seconds = self.running.options.run_for.map_or(5, |seconds| seconds.0);
        let seed = self.running.options.wakes.seed;
        log::info!("soak: {seconds} s, test.seed={seed}");
        let end = time::now() + time::rate().ticks(Nanos::new(u64::from(seconds) * 1_000_000_000));
        let mut watchdog = Watchdog::default();
        let mut steps = 0_u64;
        while time::now() < end {
            self.step();
            calls::serve();
            steps += 1;
            if steps.is_multiple_of(64) {
                watchdog.look(self.running);
            }
        }
        wait_for("every call has run", || {
            watchdog.look(self.running);
            RAN.load(Ordering::Relaxed) >= ASKED.load(Ordering::Relaxed)
        });
        let (ran, asked) = (RAN.load(Ordering::Relaxed), ASKED.load(Ordering::Relaxed));
        assert!(ran == asked, "{asked} calls were made, and {ran} have run");
        measure("soak.steps", steps, "steps");
        measure("soak.calls", ran, "calls");
    }

    fn step(&mut self) {
        let count = self.running.online.len() as u64;
        let target = CpuId::new(self.random.below(count) as u32);
        let word = self.random.below(1 << 50) << 4 | self.random.below(6);
        let wait = if self.random.below(2) == 0 {
            Wait::UntilDone
        } else {
            Wait::No
        };
        match self.random.below(16) {
            0..=6 => {
                ASKED.fetch_add(1, Ordering::Relaxed);
                let made = calls::on(target, hop, word, wait);
                assert!(made == Ok(()), "{target}: {made:?}");
            }
            kind @ 7..=8 => {
                // All, or some: those go by one command for each group that the interrupt controller knows.
                let chosen = self.random.below(u64::MAX);
                let some = self
                    .others
                    .iter()
                    .filter(|cpu| kind == 7 || chosen >> (cpu.get() & 31) & 1 == 1);
                let targets: CpuSet = some.collect();
                ASKED.fetch_add(targets.len() as u64, Ordering::Relaxed);
                let reached = calls::on_many(&targets, hop, word, wait);
                assert!(reached == Ok(targets), "{reached:?}");
            }
            9..=11 => self.running.machine.post(target, Events::RESCHED),
            12..=13 => {
                ASKED.fetch_add(1, Ordering::Relaxed);
                let ticks = self.random.below(200_000);
                let made = calls::on(target, arm, ticks, wait);
                assert!(made == Ok(()), "{target}: {made:?}");
            }
            14 if target.index() != 0 => ipi::send_nmi(target),
            _ => {
                // Time to fall asleep.
                let rest = time::now() + Ticks::new(self.random.below(50_000));
                while time::now() < rest {
                    spin_loop();
                }
            }
        }
    }
}

/// Names a CPU that sleeps on a pending event.
#[derive(Default)]
struct Watchdog {
    /// The words of all CPUs that slept on an event, and since when.
    seen: alloc::vec::Vec<(CpuId, u64, Ticks)>,
}

impl Watchdog {
    fn look(&mut self, running: &Running) {
        let now = time::now();
        let asleep: alloc::vec::Vec<(CpuId, u64)> = running
            .machine
            .pcpus()
            .filter(|(_, pcpu)| pcpu.word.is_pending())
            .filter(|(_, pcpu)| {
                matches!(pcpu.word.state(), SleepState::Watching | SleepState::Halted)
            })
            .map(|(cpu, pcpu)| (cpu, pcpu.word.value()))
            .collect();
        self.seen
            .retain(|&(cpu, value, _)| asleep.contains(&(cpu, value)));
        for (cpu, value) in asleep {
            match self
                .seen
                .iter()
                .find(|seen| (seen.0, seen.1) == (cpu, value))
            {
                None => self.seen.push((cpu, value, now)),
                Some(&(_, _, since)) => assert!(
                    now - since < time::rate().ticks(PATIENCE),
                    "lost wakeup: {cpu} sleeps on {:?}",
                    running.machine.pcpu(cpu).map(|pcpu| &pcpu.word)
                ),
            }
        }
    }
}
