//! What a wake, a call and a broadcast cost in a machine of this size (`test.wakes=growth`): one point of a curve.
//!
//! On the boot CPU, while all others are asleep: each sample waits for that first. Medians are told, not means: where CPUs are
//! emulated in turns, a sample now and then has another CPU's turn in it.

use core::hint::{black_box, spin_loop};

use alloc::vec::Vec;
use lull_core::call::Wait;
use lull_core::units::{CpuId, CpuSet, Nanos};
use lull_core::wake::{Events, SleepState, Wake, WakeCounts};

use super::Running;
use super::wake_tests::{measure, nothing};
use crate::smp::calls;
use crate::time;

/// How often each is done.
const SAMPLES: usize = 101;
/// Within this time all CPUs are asleep, or something is wrong.
const PATIENCE: Nanos = Nanos::new(20_000_000_000);

/// Measures.
pub fn run(running: &'static Running, others: CpuSet) {
    let Some(own) = running.machine.this_pcpu() else {
        return;
    };
    let growth = Growth { running, others };
    // What reading the clock takes is in every sample.
    let nobody = CpuId::new(0);
    let empty = (0..SAMPLES).map(|_| ticks(nobody, black_box(&mut |_| ())));
    let empty = median(empty.collect());
    let each: Vec<CpuId> = others.iter().collect();
    let Some(last) = each.last().copied() else {
        log::warn!("there is nobody to wake");
        return;
    };
    measure("growth.cpus", each.len() as u64 + 1, "CPUs");

    // Every CPU in turn: none is special.
    let mut turn = each.iter().copied().cycle();
    let mut sample = |name: &str, once: &mut dyn FnMut(CpuId)| {
        let before = own.wakes.counts();
        let times = (0..SAMPLES).map(|_| {
            growth.until_all_sleep();
            ticks(turn.next().unwrap_or(last), once)
        });
        let took = median(times.collect()).saturating_sub(empty);
        told(name, took, &own.wakes.counts().since(&before));
    };
    sample("wake", &mut |target| {
        running.machine.post(target, Events::NOTIFY);
    });
    sample("call-send", &mut |target| {
        let _ = calls::on(target, nothing, 0, Wait::No);
    });
    sample("call", &mut |target| {
        let _ = calls::on(target, nothing, 0, Wait::UntilDone);
    });
    sample("broadcast-wake", &mut |_| {
        running.machine.post_many(&others, Events::NOTIFY);
    });
    sample("broadcast-send", &mut |_| {
        let _ = calls::on_many(&others, nothing, 0, Wait::No);
    });
    sample("broadcast-call", &mut |_| {
        let _ = calls::on_many(&others, nothing, 0, Wait::UntilDone);
    });
}

fn ticks(target: CpuId, once: &mut dyn FnMut(CpuId)) -> u64 {
    let start = time::now();
    once(target);
    (time::now() - start).get()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn told(name: &str, ticks: u64, posts: &WakeCounts) {
    for (what, value, unit) in [
        ("ticks", ticks, "ticks"),
        ("rounds", SAMPLES as u64, "rounds"),
        ("ipis", posts.ipis(), "posts"),
        ("store", posts.of(Wake::StoreWakes), "posts"),
    ] {
        measure(&alloc::format!("growth.{name}.{what}"), value, unit);
    }
}

struct Growth {
    running: &'static Running,
    others: CpuSet,
}

impl Growth {
    /// Waits until all others are at the instruction that sleeps.
    fn until_all_sleep(&self) {
        let until = time::now() + time::rate().ticks(PATIENCE);
        for cpu in self.others.iter() {
            while !self.sleeps(cpu) {
                assert!(time::now() < until, "{cpu} does not fall asleep");
                spin_loop();
            }
        }
    }

    fn sleeps(&self, cpu: CpuId) -> bool {
        self.running.machine.pcpu(cpu).is_some_and(|pcpu| {
            matches!(pcpu.word.state(), SleepState::Watching | SleepState::Halted)
                && !pcpu.word.is_pending()
                && pcpu.account.is_asleep()
        })
    }
}
