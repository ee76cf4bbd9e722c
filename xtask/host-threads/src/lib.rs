//! The wake word between two threads on two cores of this computer, against what its system offers.
//!
//! The only part of `bench wake` that runs on real silicon, with caches, store buffers and a kernel: in a package of its own, which
//! is optimised in every build, and still checks arithmetic. A sender wakes a sleeper that
//! *is asleep* when it is woken (its word says so, or the kernel does), and notes what that cost it; the sleeper notes when it
//! knows. Nobody gives way meanwhile but where there is only one core.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use anyhow::{Context, Result, anyhow};
use lull_sim::machine::measure::Times;

use bells::{Bell, Condition, Counter, Flag, Park, Sleeper, Watched, WordOverPark};
pub use clock::Clock;
pub use cores::Cores;

mod bells;
mod clock;
mod cores;
mod fence;
mod instructions;

/// How often each is done.
#[derive(Clone, Copy)]
pub struct Rounds {
    /// Wakes.
    pub wakes: u32,
    /// Batches in which the fence is timed.
    pub batches: u32,
}

impl Rounds {
    /// For figures.
    pub const FULL: Self = Self {
        wakes: 20_000,
        batches: 1_000,
    };
    /// For tests.
    pub const QUICK: Self = Self {
        wakes: 200,
        batches: 20,
    };
}

/// What one way to wake costs.
pub struct Woken {
    /// As people call it.
    pub name: &'static str,
    /// What the sleeper does until it is woken.
    pub sleeps: &'static str,
    /// The sender's side, in ticks of the clock.
    pub sender: Times,
    /// From the sender's begin until the woken thread knows, in ticks of the clock.
    pub latency: Times,
}

/// All figures.
pub struct Report {
    /// What ticks are.
    pub clock: Clock,
    /// Where the threads ran.
    pub cores: Cores,
    /// Each way to wake.
    pub ways: Vec<Woken>,
    /// A name, and the ticks of one such operation (the median of many means).
    pub fences: Vec<(&'static str, f64)>,
}

/// Measures all. With one CPU only, whoever waits gives way.
///
/// # Errors
/// The system refuses something, or a wake is not answered.
pub fn measure(rounds: Rounds) -> Result<Report> {
    let clock = Clock::choose();
    let cores = Cores::choose()?;
    let wakes = rounds.wakes;
    let ways = vec![
        woken(&clock, &cores, wakes, Watched::new())?,
        woken(&clock, &cores, wakes, Flag::new())?,
        woken(&clock, &cores, wakes, WordOverPark::new())?,
        woken(&clock, &cores, wakes, Park::new())?,
        woken(&clock, &cores, wakes, Condition::new())?,
        woken(&clock, &cores, wakes, Counter::new()?)?,
    ];
    let fences = fence::measure(&clock, &cores, rounds.batches)?;
    Ok(Report {
        clock,
        cores,
        ways,
        fences,
    })
}

/// Both threads of one measurement.
struct Pair<'a, B> {
    clock: &'a Clock,
    cores: &'a Cores,
    bell: B,
    stop: AtomicBool,
    answers: AtomicU64,
    /// When the woken thread knew.
    knew: AtomicU64,
    sleeper: Sleeper,
}

fn woken<B: Bell>(clock: &Clock, cores: &Cores, rounds: u32, bell: B) -> Result<Woken> {
    let pair = Pair {
        clock,
        cores,
        bell,
        stop: AtomicBool::new(false),
        answers: AtomicU64::new(0),
        knew: AtomicU64::new(0),
        sleeper: Sleeper::default(),
    };
    let (sent, slept) = thread::scope(|scope| {
        let sleeper = scope.spawn(|| pair.sleep());
        let sender = scope.spawn(|| pair.send(rounds));
        let sent = sender
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the sender failed")));
        if sent.is_err() {
            pair.end();
        }
        let slept = sleeper.join();
        (
            sent,
            slept.unwrap_or_else(|_| Err(anyhow!("the sleeper failed"))),
        )
    });
    let context = || format!("waking by {}", B::NAME);
    slept.with_context(context)?;
    let (sender, latency) = sent.with_context(context)?;
    Ok(Woken {
        name: B::NAME,
        sleeps: B::SLEEPS,
        sender,
        latency,
    })
}

impl<B: Bell> Pair<'_, B> {
    fn sleep(&self) -> Result<()> {
        // The sender must not wait for one that never begins.
        let pinned = self.cores.pin_sleeper();
        self.sleeper.introduce();
        loop {
            self.bell.sleep(self.cores);
            self.knew.store(self.clock.now(), Ordering::Relaxed);
            self.answers.fetch_add(1, Ordering::Release);
            if self.stop.load(Ordering::Acquire) {
                return pinned;
            }
        }
    }

    /// The sender gives up: the sleeper must not wait for it.
    fn end(&self) {
        let sleeper = self.sleeper.wait(self.cores);
        self.stop.store(true, Ordering::Release);
        self.bell.wake(&sleeper.thread);
    }

    fn send(&self, rounds: u32) -> Result<(Times, Times)> {
        let pinned = self.cores.pin_sender();
        let empty = self.clock.overhead();
        let (mut sender, mut latency) = (Times::default(), Times::default());
        let sleeper = self.sleeper.wait(self.cores);
        let mut asleep = self.bell.watcher(sleeper.id)?;
        // The first rounds are slow: nothing is in a cache yet.
        let warm_up = u64::from(rounds / 20 + 1);
        let all = warm_up + u64::from(rounds);
        for round in 1..=all {
            let mut looked = asleep(&self.bell);
            while !matches!(looked, Ok(true)) {
                looked?;
                self.cores.relax();
                looked = asleep(&self.bell);
            }
            if round == all {
                self.stop.store(true, Ordering::Release);
            }
            let began = self.clock.now();
            self.bell.wake(&sleeper.thread);
            let done = self.clock.now();
            while self.answers.load(Ordering::Acquire) < round {
                self.cores.relax();
            }
            if round > warm_up {
                sender.add(done.saturating_sub(began).saturating_sub(empty));
                let knew = self.knew.load(Ordering::Relaxed);
                latency.add(knew.saturating_sub(began).saturating_sub(empty));
            }
        }
        pinned.map(|()| (sender, latency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_wakes_as_often_as_it_is_asked_to() {
        let report = measure(Rounds {
            wakes: 50,
            batches: 3,
        });
        let report = report.unwrap();
        assert_eq!(report.ways.len(), 6);
        for way in &report.ways {
            let counts = (way.sender.count(), way.latency.count());
            assert_eq!(counts, (50, 50), "{}", way.name);
            // Whoever is woken knows of it no sooner than the sender begins; a store that is watched may be faster than the clock.
            assert!(way.latency.max() > 0, "{}", way.name);
        }
        let names: Vec<_> = report.fences.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.last(), Some(&"locked; mfence; lfence"));
        assert!(report.fences.iter().all(|(_, ticks)| *ticks > 0.0));
    }
}
