//! Row `host`: wakes between two threads of this computer, the one part that runs on real silicon.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};

use anyhow::Result;
use lull_core::wake::{Events, SleepState, WakeWord};

use super::{
    bench::Bench,
    report::{Figure, Report},
};

pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let rounds: u32 = if bench.quick { 200 } else { 2_000 };
    let word = WakeWord::new();
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let watching = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if word.publish(SleepState::Watching).is_ok() {
                    while !word.is_pending() {
                        std::hint::spin_loop();
                    }
                }
                word.take();
                answers.fetch_add(1, Ordering::Release);
            }
        });
        let started = Instant::now();
        for round in 1..=u64::from(rounds) {
            let _ = word.post(Events::CALL);
            while answers.load(Ordering::Acquire) < round {
                std::hint::spin_loop();
            }
        }
        stop.store(true, Ordering::Relaxed);
        let _ = word.post(Events::STOP);
        started.elapsed()
    });
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let parked = thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                thread::park();
                answers.fetch_add(1, Ordering::Release);
            }
        });
        let started = Instant::now();
        for _ in 0..rounds / 10 {
            let before = answers.load(Ordering::Acquire);
            sleeper.thread().unpark();
            while answers.load(Ordering::Acquire) == before {
                std::hint::spin_loop();
            }
        }
        stop.store(true, Ordering::Relaxed);
        sleeper.thread().unpark();
        started.elapsed() * 10
    });
    let (watching, parked) = ((watching / rounds).as_nanos(), (parked / rounds).as_nanos());
    println!(
        "host threads: a wake and its answer by the wake word, watched: {watching} ns; by park and unpark: {parked} ns"
    );
    for (way, nanos) in [("wake word", watching), ("park, unpark", parked)] {
        report.add(Figure::new("host", way, "round.ns", nanos as f64));
    }
    Ok(())
}
