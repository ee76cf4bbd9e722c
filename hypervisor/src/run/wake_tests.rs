//! Calls and wakes, measured (`test.wakes=bench`, `latency`, `mostly-idle`) or exercised at random under a watchdog (`soak`).
//!
//! Runs on the boot CPU before its dispatch loop, while all others turn theirs and are idle; then the machine ends.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering};

use lull_core::call::Wait;
use lull_core::options::WakeTest;
use lull_core::units::{CpuId, CpuSet, Nanos, Ticks};
use lull_core::wake::{Events, SleepState};

use super::Running;
use crate::apic::ipi;
use crate::console::{machine_channel, wake_records};
use crate::smp::calls;
use crate::time;

pub mod latency;
mod mostly_idle;
mod nap;
mod storms;

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
        WakeTest::Bench => storms::run(running, others),
        WakeTest::Latency => latency::run(running, others),
        WakeTest::MostlyIdle => mostly_idle::run(running, others),
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
