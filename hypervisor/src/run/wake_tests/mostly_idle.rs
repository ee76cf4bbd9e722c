//! A machine that is mostly idle: this CPU wakes one of the others now and then, by what CPUs wake each other for, and sleeps.
//!
//! When it does what is fixed beforehand, by a seed: machines with other switches are asked for the same at the same times.

use alloc::format;
use alloc::vec::Vec;
use lull_core::call::Wait;
use lull_core::residency::Snapshot;
use lull_core::units::{CpuId, CpuSet, Nanos, Ticks};
use lull_core::wake::{Events, Wake, WakeCounts};

use super::{Random, arm, measure, nap, nothing};
use crate::machine::BareMetal;
use crate::run::Running;
use crate::smp::calls;
use crate::time;

/// Wakes, unless `test.rounds=` says otherwise.
const WAKES: u64 = 1_000;
/// From one to the next: this, and up to twice this more. At least so many ticks: on a slow machine, falling asleep takes long.
const PAUSE: (Nanos, Ticks) = (Nanos::new(1_000_000), Ticks::new(40_000));

/// What the others have done so far.
struct Reading {
    times: Vec<Snapshot>,
    posts: WakeCounts,
    passes: u64,
}

impl Reading {
    fn of(running: &Running, others: &CpuSet) -> Self {
        let pcpus = || others.iter().filter_map(|cpu| running.machine.pcpu(cpu));
        Self {
            times: pcpus()
                .map(|pcpu| pcpu.account.snapshot(&BareMetal))
                .collect(),
            posts: running
                .machine
                .this_pcpu()
                .map(|own| own.wakes.counts())
                .unwrap_or_default(),
            passes: pcpus().map(|pcpu| pcpu.stats.counts().all_passes()).sum(),
        }
    }
}

/// Measures.
pub fn run(running: &'static Running, others: CpuSet) {
    let each: Vec<CpuId> = others.iter().collect();
    if each.is_empty() {
        log::warn!("there is nobody to wake");
        return;
    }
    let wakes = running.options.wakes.rounds.unwrap_or(WAKES);
    let mut random = Random(
        running
            .options
            .wakes
            .seed
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            | 1,
    );
    let pause = time::rate().ticks(PAUSE.0).max(PAUSE.1);
    let mut next = time::now() + pause;
    nap::until(running, next);
    let (start, before) = (time::now(), Reading::of(running, &others));
    let (mut busy, mut failed) = (0, 0);
    for _ in 0..wakes {
        next += pause + Ticks::new(random.below(2 * pause.get()));
        let target = each[random.below(each.len() as u64) as usize];
        let (kind, after) = (random.below(6), random.below(2 * pause.get()));
        nap::until(running, next);
        let begin = time::now();
        let made = match kind {
            0 => calls::on(target, nothing, 0, Wait::UntilDone),
            1 => calls::on(target, nothing, 0, Wait::No),
            2 => calls::on_many(&others, nothing, 0, Wait::UntilDone).map(|_| ()),
            3 => calls::on(target, arm, after, Wait::No),
            4 => {
                running.machine.post(target, Events::NOTIFY);
                Ok(())
            }
            _ => {
                running.machine.post(target, Events::RESCHED);
                Ok(())
            }
        };
        failed += u64::from(made.is_err());
        busy += (time::now() - begin).get();
    }
    // The last timers, too; and all end at the same time.
    nap::until(running, next + pause + pause);
    let now = Reading::of(running, &others);
    let span = (time::now() - start).get();
    tell(running, &each, &before, &now);
    let told = |what: &str, value, unit| measure(&format!("mostly-idle.{what}"), value, unit);
    told("span", span, "ticks");
    told("wakes", wakes, "wakes");
    told("failed", failed, "calls");
    told("busy", busy, "ticks");
}

/// What all the others have done meanwhile.
fn tell(running: &Running, each: &[CpuId], before: &Reading, now: &Reading) {
    let told = |what: &str, value, unit| measure(&format!("mostly-idle.{what}"), value, unit);
    let spans: Vec<Snapshot> = now
        .times
        .iter()
        .zip(&before.times)
        .map(|(now, before)| now.since(before))
        .collect();
    let sum = |of: fn(&Snapshot) -> u64| spans.iter().map(of).sum::<u64>();
    told("cpus", spans.len() as u64, "CPUs");
    told("elapsed", sum(|span| span.elapsed.get()), "ticks");
    told("c0", sum(|span| (span.c0 + span.irq()).get()), "ticks");
    told("aborted", sum(|span| span.aborted), "attempts");
    told("spurious", sum(|span| span.spurious), "sleeps");
    let posts = now.posts.since(&before.posts);
    told("ipis", posts.ipis(), "IPIs");
    told("store", posts.of(Wake::StoreWakes), "wakes");
    told("passes", now.passes - before.passes, "passes");
    // All CPUs have the same states.
    let Some(choice) = each.first().and_then(|&cpu| running.choice(cpu)) else {
        return;
    };
    for (id, state) in choice.usable.iter() {
        let of = |span: &Snapshot| span.states(&choice.usable).nth(id.index()).copied();
        let times = || spans.iter().filter_map(of);
        let (name, usage) = (state.name, times().map(|times| times.usage).sum());
        let residency = times().map(|times| times.residency.get()).sum();
        told(&format!("entries.{name}"), usage, "sleeps");
        told(&format!("residency.{name}"), residency, "ticks");
    }
}
