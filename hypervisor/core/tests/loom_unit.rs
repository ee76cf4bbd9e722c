//! Model check: a kick against a block, in every interleaving and with every value that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p lull-core --release --test loom_unit`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use lull_core::sched::unit::{Kick, Phase, RunState};
use lull_core::units::CpuId;

const CPU: CpuId = CpuId::new(0);

/// A vCPU with a word of pending interrupts, accessed as weakly as the protocol allows.
struct Vcpu {
    state: RunState,
    pending: AtomicU64,
    wakes: AtomicU64,
    notified: AtomicU64,
}

impl Vcpu {
    fn running() -> Arc<Self> {
        let state = RunState::new();
        state.set_queued();
        state.set_running(CPU);
        Arc::new(Self {
            state,
            pending: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            notified: AtomicU64::new(0),
        })
    }

    fn interrupt(&self, bit: u64) {
        self.pending.fetch_or(bit, Ordering::Relaxed);
        match self.state.kick() {
            Kick::WokeBlocked => {
                self.wakes.fetch_add(1, Ordering::Relaxed);
            }
            Kick::Running(cpu) => {
                assert_eq!(cpu, CPU);
                self.notified.fetch_add(1, Ordering::Relaxed);
            }
            Kick::Pending => {}
        }
    }

    /// The runner's order: take the token, look, block. Returns what it saw.
    fn look_and_block(&self) -> (u64, bool) {
        let mut seen = 0;
        loop {
            self.state.consume_kick();
            seen |= self.pending.load(Ordering::Relaxed);
            if self.state.try_block(CPU).is_ok() {
                return (seen, true);
            }
            thread::yield_now();
        }
    }
}

#[test]
fn a_kick_is_seen_before_the_block_or_wakes_after_it() {
    loom::model(|| {
        let vcpu = Vcpu::running();
        let kicker = {
            let vcpu = vcpu.clone();
            thread::spawn(move || vcpu.interrupt(1))
        };
        let (seen, _) = vcpu.look_and_block();
        kicker.join().unwrap();
        let woken = vcpu.wakes.load(Ordering::Relaxed);
        assert!(seen == 1 || woken == 1, "lost: seen {seen}, woken {woken}");
        assert_eq!(vcpu.state.is_woken(), woken == 1);
    });
}

#[test]
fn of_two_kicks_both_are_seen_or_one_wakes() {
    loom::model(|| {
        let vcpu = Vcpu::running();
        let kickers: Vec<_> = [1, 2]
            .into_iter()
            .map(|bit| {
                let vcpu = vcpu.clone();
                thread::spawn(move || vcpu.interrupt(bit))
            })
            .collect();
        let (seen, _) = vcpu.look_and_block();
        for kicker in kickers {
            kicker.join().unwrap();
        }
        let woken = vcpu.wakes.load(Ordering::Relaxed);
        assert!(woken <= 1, "two wakers");
        assert!(seen == 3 || woken == 1, "lost: seen {seen}, woken {woken}");
        // The one that wakes brings everything along: after the token, both are visible.
        if woken == 1 {
            vcpu.state.set_queued();
            vcpu.state.set_running(CPU);
            assert!(vcpu.state.consume_kick());
            assert_eq!(vcpu.pending.load(Ordering::Relaxed), 3);
        }
    });
}

/// A token that `consume_kick` does not see makes its kicker post NOTIFY: nothing is entered over it.
#[test]
fn a_kick_while_running_is_seen_or_notifies() {
    loom::model(|| {
        let vcpu = Vcpu::running();
        let kicker = {
            let vcpu = vcpu.clone();
            thread::spawn(move || vcpu.interrupt(1))
        };
        let taken = vcpu.state.consume_kick();
        let seen = vcpu.pending.load(Ordering::Relaxed);
        kicker.join().unwrap();
        assert!(!taken || seen == 1, "a token without what it stands for");
        assert!(seen == 1 || vcpu.notified.load(Ordering::Relaxed) == 1);
        assert_eq!(vcpu.state.phase(), Phase::Running(CPU));
    });
}

/// The model notices what must not be: interrupts evaluated before the token is taken.
#[test]
#[should_panic(expected = "lost")]
fn looking_before_taking_the_token_loses_a_kick() {
    loom::model(|| {
        let vcpu = Vcpu::running();
        let kicker = {
            let vcpu = vcpu.clone();
            thread::spawn(move || vcpu.interrupt(1))
        };
        let seen = vcpu.pending.load(Ordering::Relaxed);
        vcpu.state.consume_kick();
        let blocked = vcpu.state.try_block(CPU).is_ok();
        kicker.join().unwrap();
        let woken = vcpu.wakes.load(Ordering::Relaxed);
        assert!(!blocked || seen == 1 || woken == 1, "lost");
    });
}
