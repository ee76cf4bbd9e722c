//! What `mfence; lfence` costs after a locked operation: the order in which a post and a weak ICR write stand.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use anyhow::{Result, anyhow};

use super::{clock::Clock, cores::Cores, instructions};

/// Operations in a batch: reading the clock around one would cost more than it.
const BATCH: u64 = 1_000;

/// A post is such an operation, on a line of its own.
#[repr(align(128))]
struct Word(AtomicU64);

impl Word {
    #[inline(always)]
    fn post(&self) {
        black_box(self.0.fetch_or(black_box(1), Ordering::AcqRel));
    }
}

/// Median ticks of one operation of each kind, on the sender's CPU.
///
/// # Errors
/// The system does not let a thread run there.
pub fn measure(clock: &Clock, cores: &Cores, batches: u32) -> Result<Vec<(&'static str, f64)>> {
    thread::scope(|scope| {
        let measured = scope.spawn(|| {
            cores.pin_sender()?;
            let word = Word(AtomicU64::new(0));
            Ok(vec![
                ("locked", timed(clock, batches, || word.post())),
                (
                    "locked; mfence",
                    timed(clock, batches, || {
                        word.post();
                        instructions::mfence();
                    }),
                ),
                (
                    "locked; lfence",
                    timed(clock, batches, || {
                        word.post();
                        instructions::lfence();
                    }),
                ),
                (
                    "locked; mfence; lfence",
                    timed(clock, batches, || {
                        word.post();
                        instructions::mfence_lfence();
                    }),
                ),
            ])
        });
        measured
            .join()
            .map_err(|_| anyhow!("the thread that times fences failed"))?
    })
}

/// Median ticks of one, over many batches.
fn timed(clock: &Clock, batches: u32, mut once: impl FnMut()) -> f64 {
    let empty = clock.overhead();
    let mut times: Vec<u64> = (0..batches.max(1))
        .map(|_| {
            let began = clock.now();
            for _ in 0..BATCH {
                once();
            }
            clock.now().saturating_sub(began).saturating_sub(empty)
        })
        .collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or(0);
    median as f64 / BATCH as f64
}
