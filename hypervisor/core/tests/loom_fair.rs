//! Model check: a CPU that goes idle against a unit that becomes runnable. One of the two must see the other.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p lull-core --release --test loom_fair`
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use lull_core::sched::fair::Fair;
use lull_core::sched::{Decision, Prev, Scheduler, UnitParams, WakeBy};
use lull_core::units::{CpuId, CpuSet, Ticks, VcpuId};

const CPU0: CpuId = CpuId::new(0);
const CPU1: CpuId = CpuId::new(1);
const SLICE: Ticks = Ticks::new(1000);

fn v(number: u32) -> VcpuId {
    VcpuId::new(number)
}

/// CPU 0 runs `v0`; CPU 1 is online, and about to look for work for the first time. `v1` is ready to be woken.
fn world() -> Arc<Fair> {
    let fair = Fair::new(2, 2, SLICE);
    fair.cpu_online(CPU0).unwrap();
    for unit in [v(0), v(1)] {
        fair.add(unit, UnitParams::default()).unwrap();
        assert!(fair.units().get(unit).unwrap().state.online());
    }
    assert!(fair.wake(v(0), Ticks::new(1), WakeBy::Event).is_empty());
    assert_eq!(fair.schedule(CPU0, Ticks::new(1), None).run, Some(v(0)));
    fair.cpu_online(CPU1).unwrap();
    Arc::new(fair)
}

fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn look(fair: &Fair) -> Decision {
    fair.schedule(CPU1, Ticks::new(2), None)
}

#[test]
fn a_wake_meets_a_cpu_that_goes_idle() {
    bounded(|| {
        let fair = world();
        let waker = {
            let fair = fair.clone();
            thread::spawn(move || fair.wake(v(1), Ticks::new(2), WakeBy::Event))
        };
        let decision = look(&fair);
        let told = waker.join().unwrap();
        assert!(
            decision.run == Some(v(1)) || decision.tickle.contains(CPU1) || told.contains(CPU1),
            "v1 waits while CPU 1 sleeps: {decision:?}, told {told:?}"
        );
    });
}

#[test]
fn a_preempted_unit_meets_a_cpu_that_goes_idle() {
    bounded(|| {
        let fair = world();
        // v1 waits behind v0; CPU 0's slice ends while CPU 1 looks.
        assert!(fair.wake(v(1), Ticks::new(1), WakeBy::Event).is_empty());
        let cpu0 = {
            let fair = fair.clone();
            thread::spawn(move || {
                let now = Ticks::new(1) + SLICE;
                let prev = Prev {
                    unit: v(0),
                    leave: lull_core::sched::Leave::Runnable,
                };
                let decision = fair.schedule(CPU0, now, Some(prev));
                let saved = if decision.run == Some(v(0)) {
                    CpuSet::EMPTY
                } else {
                    fair.context_saved(CPU0, prev, now)
                };
                (decision, saved)
            })
        };
        let decision = look(&fair);
        let (other, saved) = cpu0.join().unwrap();
        assert_ne!(decision.run, other.run, "one unit on two CPUs");
        let told = [decision.tickle, other.tickle, saved]
            .iter()
            .any(|told| told.contains(CPU1));
        assert!(
            decision.run.is_some() || told,
            "one waits while CPU 1 sleeps: {decision:?}, {other:?}, {saved:?}"
        );
        assert!(other.run.is_some() || other.tickle.contains(CPU0));
    });
}
