//! What a wake, a call and a broadcast cost in a machine of this size (`test.wakes=growth`): one point of a curve.
//!
//! On the boot CPU, while all others are asleep: each sample waits for that first, and one of a single CPU counts only if that was. Medians are told, not means: where CPUs are
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
/// How often at most, for each sample that counts.
const TRIES: usize = 20;
/// How often all CPUs are looked at before each.
const LOOKS: usize = 2;
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
    let mut sample = |name: &str, to: To, once: &mut dyn FnMut(CpuId)| {
        let mut samples = Samples::default();
        for _ in 0..SAMPLES * TRIES {
            if samples.ticks.len() == SAMPLES {
                break;
            }
            let target = turn.next().unwrap_or(last);
            growth.until_all_sleep();
            if to == To::One {
                growth.until_sleeps(target);
            }
            let before = own.wakes.counts();
            let took = ticks(target, once);
            let posts = own.wakes.counts().since(&before);
            samples.add(to, took.saturating_sub(empty), &posts);
        }
        samples.tell(name);
    };
    sample("wake", To::One, &mut |target| {
        running.machine.post(target, Events::NOTIFY);
    });
    sample("call-send", To::One, &mut |target| {
        let _ = calls::on(target, nothing, 0, Wait::No);
    });
    sample("call", To::One, &mut |target| {
        let _ = calls::on(target, nothing, 0, Wait::UntilDone);
    });
    sample("broadcast-wake", To::All, &mut |_| {
        running.machine.post_many(&others, Events::NOTIFY);
    });
    sample("broadcast-send", To::All, &mut |_| {
        let _ = calls::on_many(&others, nothing, 0, Wait::No);
    });
    sample("broadcast-call", To::All, &mut |_| {
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

/// Whom it wakes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    One,
    All,
}

#[derive(Default)]
struct Samples {
    ticks: Vec<u64>,
    ipis: u64,
    stores: u64,
}

impl Samples {
    /// One that was not asleep any more does not count. Of all, some may always be awake: how many were woken is told.
    fn add(&mut self, to: To, ticks: u64, posts: &WakeCounts) {
        let (ipis, stores) = (posts.ipis(), posts.of(Wake::StoreWakes));
        if to == To::All || ipis + stores == 1 {
            self.ticks.push(ticks);
            self.ipis += ipis;
            self.stores += stores;
        }
    }

    fn tell(self, name: &str) {
        let rounds = self.ticks.len() as u64;
        if rounds == 0 {
            log::warn!("growth.{name}: the target was never asleep");
            return;
        }
        for (what, value, unit) in [
            ("ticks", median(self.ticks), "ticks"),
            ("rounds", rounds, "rounds"),
            ("ipis", self.ipis, "posts"),
            ("store", self.stores, "posts"),
        ] {
            measure(&alloc::format!("growth.{name}.{what}"), value, unit);
        }
    }
}

struct Growth {
    running: &'static Running,
    others: CpuSet,
}

impl Growth {
    /// Waits until all others are at the instruction that sleeps; where MONITOR on one CPU wakes all others, as Bochs has it, they never
    /// all are for long, and some of them must do.
    fn until_all_sleep(&self) {
        for _ in 0..LOOKS {
            for cpu in self.others.iter() {
                self.until_sleeps(cpu);
            }
            if self.others.iter().all(|cpu| self.sleeps(cpu)) {
                return;
            }
        }
    }

    /// Waits until this one is.
    fn until_sleeps(&self, cpu: CpuId) {
        let until = time::now() + time::rate().ticks(PATIENCE);
        while !self.sleeps(cpu) {
            assert!(time::now() < until, "{cpu} does not fall asleep");
            spin_loop();
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
