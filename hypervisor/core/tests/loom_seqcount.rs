//! The sequence counter, model-checked: a reader never takes home half of a write.
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p lull-core --test loom_seqcount --release`.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test")]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;
use lull_core::sync::SeqCount;

/// Two words that must agree.
struct Pair {
    seq: SeqCount,
    words: [AtomicU64; 2],
}

impl Pair {
    fn set(&self, value: u64) {
        for word in &self.words {
            word.store(value, Relaxed);
        }
    }

    fn get(&self) -> [u64; 2] {
        [self.words[0].load(Relaxed), self.words[1].load(Relaxed)]
    }
}

/// One writer writes twice, one reader reads through `read`.
fn torn_reads(read: fn(&Pair) -> Option<[u64; 2]>) {
    loom::model(move || {
        let pair = Arc::new(Pair {
            seq: SeqCount::new(),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let writer = {
            let pair = Arc::clone(&pair);
            thread::spawn(move || {
                pair.seq.write(|| pair.set(1));
                pair.seq.write(|| pair.set(2));
            })
        };
        if let Some([first, second]) = read(&pair) {
            assert_eq!(first, second, "torn");
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_waits_for_a_consistent_pair() {
    torn_reads(|pair| Some(pair.seq.read(|| pair.get())));
}

#[test]
fn an_attempt_gives_a_consistent_pair_or_nothing() {
    torn_reads(|pair| pair.seq.try_read(|| pair.get()));
}

#[test]
#[should_panic(expected = "torn")]
fn the_model_finds_a_reader_that_does_not_ask_the_counter() {
    torn_reads(|pair| Some(pair.get()));
}
