//! One dispatch loop on a scripted machine: what the rest of the world does happens while the CPU sleeps or runs a guest.

mod mock;

use super::*;
use crate::cstate::{CState, CStateTable};
use crate::governor::StateSet;
use crate::sched::unit::Phase;
use crate::sched::{UnitParams, Weight};
use crate::timer::TimerKey;
use crate::units::{CpuId, CpuSet, Nanos, Ticks};
use crate::wake::{Cause, Events, Origin, SleepState, Wake, WokenHow};
use mock::*;
use std::string::String;
use std::vec::Vec;

/// What was counted must agree, at the end of every test.
fn counts(world: &World) -> DispatchCounts {
    let pcpu = world.machine.pcpu(CPU0).unwrap();
    let row = pcpu.account.snapshot(world.machine.platform());
    assert_eq!(row.check(Ticks::ZERO), Ok(()), "{row:?}");
    let sleeps: u64 = row.states(&world.table).map(|state| state.usage).sum();
    let counts = pcpu.stats.counts();
    assert_eq!(counts.check(sleeps), Ok(()));
    counts
}

#[test]
fn events_other_than_resched_cost_an_idle_cpu_no_pass() {
    let mut world = World::new(1);
    for (at, events) in [
        (2_000, Events::CALL),
        (3_000, Events::NOTIFY),
        (4_000, Events::TIMER),
        (5_000, Events::CONSOLE),
    ] {
        world.at(at, Act::Post(events));
    }
    world.at(6_000, Act::Stop);
    world.run();
    let counts = counts(&world);
    assert_eq!(counts.all_passes(), 1, "only the first");
    assert_eq!(counts.passes_for(PassCause::First), 1);
    assert_eq!(counts.avoided, 4);
    for reason in [
        WokenBy::Call,
        WokenBy::Notify,
        WokenBy::Timer,
        WokenBy::Console,
        WokenBy::Stop,
    ] {
        assert_eq!(counts.wakes_by(reason), 1, "{reason:?}");
    }
    assert_eq!(world.said(), ["call", "console"]);
    assert_eq!(world.arms(), [] as [u64; 0], "an idle CPU has no timer");
}

#[test]
fn a_limit_on_latency_goes_where_its_vcpu_goes() {
    let mut world = World::new(2);
    world.start(0);
    let (machine, v) = (world.machine.clone(), vcpu(0));
    let limits = |machine: &TestMachine| {
        [0, 1].map(|cpu| machine.pcpu(CpuId::new(cpu)).unwrap().idle.latency_limit())
    };
    let limit = Some(Nanos::new(7_000));
    machine.set_vcpu_latency(v, limit).unwrap();
    assert_eq!(limits(&machine), [None, None], "it has run nowhere");
    world.at(2_000, Act::Stop);
    world.run();
    assert_eq!(limits(&machine), [limit, None]);
    // Changed while it is here, it holds at once.
    let smaller = Some(Nanos::new(5_000));
    machine.set_vcpu_latency(v, smaller).unwrap();
    assert_eq!(limits(&machine), [smaller, None]);
    // The other CPU takes it: this one may go deeper again, and is told so, in case that it sleeps.
    let word = &machine.pcpu(CPU0).unwrap().word;
    let _ = word.take();
    machine.platform().0.cpu.set(1);
    machine.bring_latency(v);
    assert_eq!(limits(&machine), [None, smaller]);
    assert_eq!(word.take(), Events::CALL);
    machine.bring_latency(v);
    assert_eq!(word.take(), Events::empty(), "nothing has changed here");
    machine.drop_latency(v);
    assert_eq!(limits(&machine), [None, None]);
    assert_eq!(world.unit(0).latency_limit(), None);
}

#[test]
fn what_was_asked_of_a_cpu_holds_from_its_next_sleep() {
    let mut world = World::new(1);
    let deep = CState {
        name: "C6",
        ..CState::C1_HALT
    };
    world.table = CStateTable::new(&[CState::C1_HALT, deep]).unwrap();
    let control = &world.machine.pcpu(CPU0).unwrap().idle;
    control.set_off(StateSet::NONE.with(world.table.id(1).unwrap(), true));
    world.at(2_000, Act::Stop);
    world.run();
    let account = &world.machine.pcpu(CPU0).unwrap().account;
    let row = account.snapshot(world.machine.platform());
    let usage: Vec<u64> = row.states(&world.table).map(|state| state.usage).collect();
    assert_eq!(usage, [1, 0]);
}

#[test]
fn resched_costs_an_idle_cpu_one_pass() {
    let mut world = World::new(1);
    world.at(2_000, Act::Post(Events::RESCHED | Events::CALL));
    world.at(3_000, Act::Stop);
    world.run();
    let counts = counts(&world);
    assert_eq!(counts.passes_for(PassCause::Resched), 1);
    assert_eq!(counts.wakes_by(WokenBy::Resched), 1);
    assert_eq!(counts.avoided, 0);
}

#[test]
fn events_other_than_resched_cost_a_guest_no_pass_and_no_switch() {
    let mut world = World::new(1);
    world.start(0);
    for (at, events) in [
        (2_000, Events::CALL),
        (3_000, Events::NOTIFY),
        (4_000, Events::TIMER),
    ] {
        world.at(at, Act::Post(events));
    }
    world.at(5_000, Act::Stop);
    world.run();
    let counts = counts(&world);
    assert_eq!(counts.all_passes(), 1);
    assert_eq!((counts.switches, counts.avoided), (1, 3));
    assert_eq!(
        world.said(),
        [
            "load v0", "enter v0", "call", "enter v0", "enter v0", "enter v0", "save v0"
        ]
    );
}

#[test]
fn slices_end_and_the_other_runs() {
    let mut world = World::new(1);
    world.start(0);
    world.start(1);
    world.at(1_000 + 3 * SLICE + SLICE / 2, Act::Stop);
    world.run();
    let counts = counts(&world);
    assert_eq!(counts.passes_for(PassCause::SliceEnd), 3);
    assert_eq!(counts.switches, 4);
    let entered: Vec<_> = world
        .said()
        .into_iter()
        .filter(|s| s.starts_with("enter"))
        .collect();
    assert_eq!(entered, ["enter v0", "enter v1", "enter v0", "enter v1"]);
    let starts = world.arms();
    assert_eq!(starts.len(), 4, "armed once a slice");
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= SLICE));
    let now = world.machine.platform().0.now.get();
    let ran = |v| world.unit(v).run_time(Ticks::new(now)).get();
    assert!(ran(0).abs_diff(2 * SLICE) < 1000 && ran(1).abs_diff(SLICE * 3 / 2) < 1000);
    let row = world
        .machine
        .pcpu(CPU0)
        .unwrap()
        .account
        .snapshot(world.machine.platform());
    assert_eq!(row.guest.get(), ran(0) + ran(1));
}

#[test]
fn a_timer_that_fires_early_is_armed_again() {
    let mut world = World::new(1);
    world.start(0);
    world.at(2_000, Act::FireEarly);
    world.at(1_000 + SLICE * 3 / 2, Act::Stop);
    world.run();
    let arms = world.arms();
    assert_eq!(arms[0], arms[1], "the same deadline, armed twice");
    assert_eq!(counts(&world).passes_for(PassCause::SliceEnd), 1);
}

#[test]
fn a_halted_guest_blocks_and_a_kick_brings_it_back() {
    let mut world = World::new(1);
    world.start(0);
    world.outcomes(0, [RunOutcome::Block]);
    world.at(5_000, Act::Kick(0));
    world.at(9_000, Act::Stop);
    world.run();
    let counts = counts(&world);
    assert_eq!(counts.passes_for(PassCause::Blocked), 1);
    assert_eq!(counts.passes_for(PassCause::Resched), 1);
    assert_eq!(counts.wakes_by(WokenBy::Resched), 1);
    assert_eq!(
        world.said(),
        [
            "load v0", "enter v0", "save v0", "load v0", "enter v0", "save v0"
        ]
    );
    assert_eq!(world.ipis(), [0, 0], "one into HLT, one into the guest");
}

#[test]
fn a_kick_between_the_look_and_the_block_cancels_the_block() {
    let mut world = World::new(1);
    world.start(0);
    world.outcomes(0, [RunOutcome::Block]);
    world.kick_on_exit(0);
    world.at(9_000, Act::Stop);
    world.run();
    let counts = counts(&world);
    assert_eq!(counts.blocks_cancelled, 1);
    assert_eq!(counts.passes_for(PassCause::Blocked), 0, "not even a pass");
    assert_eq!(world.unit(0).state.phase(), Phase::Running(CPU0));
}

#[test]
fn a_vcpu_timer_wakes_the_cpu_and_then_the_vcpu() {
    let mut world = World::new(1);
    world.start(0);
    world.outcomes(0, [RunOutcome::Block]);
    world
        .machine
        .set_vcpu_timer(vcpu(0), Some(Ticks::new(7_000)))
        .unwrap();
    world.at(9_000, Act::Stop);
    world.run();
    assert_eq!(
        world.said(),
        [
            "load v0", "enter v0", "save v0", "timer v0", "load v0", "enter v0", "save v0"
        ]
    );
    let counts = counts(&world);
    assert_eq!(counts.wakes_by(WokenBy::Timer), 1);
    assert!(world.arms().contains(&7_000));
    assert_eq!(
        world.machine.pcpu(CPU0).unwrap().deadlines().len(),
        1,
        "the slice"
    );
}

#[test]
fn a_guest_is_interrupted_for_its_own_timer_without_a_pass() {
    let mut world = World::new(1);
    world.start(0);
    world
        .machine
        .set_vcpu_timer(vcpu(0), Some(Ticks::new(7_000)))
        .unwrap();
    world.at(9_000, Act::Stop);
    world.run();
    assert_eq!(
        world.said(),
        ["load v0", "enter v0", "timer v0", "enter v0", "save v0"]
    );
    let counts = counts(&world);
    assert_eq!((counts.all_passes(), counts.avoided), (1, 1));
}

#[test]
fn a_yield_and_a_death_ask_the_scheduler() {
    let mut world = World::new(1);
    world.start(0);
    world.start(1);
    world.outcomes(0, [RunOutcome::Yield, RunOutcome::Gone]);
    world.outcomes(1, [RunOutcome::Yield]);
    world
        .machine
        .set_vcpu_timer(vcpu(0), Some(Ticks::new(1 << 40)))
        .unwrap();
    world.at(9_000, Act::Stop);
    world.run();
    let counts = counts(&world);
    assert_eq!(counts.passes_for(PassCause::Yielded), 2);
    assert_eq!(counts.passes_for(PassCause::Gone), 1);
    assert!(world.said().contains(&String::from("removed v0")));
    assert_eq!(world.unit(0).state.phase(), Phase::Offline);
    let left = world.machine.pcpu(CPU0).unwrap().deadlines();
    assert!(
        left.iter().all(|(key, _)| *key == TimerKey::Slice),
        "{left:?}"
    );
    world
        .machine
        .add_vcpu(vcpu(0), UnitParams::default())
        .unwrap();
}

#[test]
fn the_run_ends_when_it_should() {
    let mut world = World::new(2);
    world.machine.end_at(Ticks::new(50_000));
    world.run();
    assert!(world.machine.platform().0.now.get() >= 50_000);
    assert_eq!(counts(&world).wakes_by(WokenBy::Timer), 1);
    let other = world.machine.pcpu(CpuId::new(1)).unwrap();
    assert_eq!(other.word.pending(), Events::STOP, "all CPUs are told");
}

#[test]
fn console_input_and_the_console_timer_reach_the_console() {
    let mut world = World::new(1);
    world.machine.set_console_timer(Some(Ticks::new(3_000)));
    world.at(5_000, Act::Post(Events::CONSOLE));
    world.at(6_000, Act::Stop);
    world.run();
    assert_eq!(world.said(), ["console", "console"]);
}

#[test]
fn a_post_interrupts_only_who_would_not_see_it() {
    let world = World::new(2);
    let (machine, other) = (&world.machine, CpuId::new(1));
    let word = &machine.pcpu(other).unwrap().word;
    machine.post(other, Events::CALL);
    assert_eq!(world.ipis(), [] as [u32; 0], "it is awake");
    assert_eq!(word.take(), Events::CALL);
    for (state, sent) in [
        (SleepState::Halted, 1),
        (SleepState::Watching, 1),
        (SleepState::Guest, 2),
    ] {
        word.publish(state).unwrap();
        machine.post(other, Events::CALL);
        machine.post(other, Events::NOTIFY);
        assert_eq!(world.ipis().len(), sent, "{state:?}");
        word.take();
    }
    let made = machine.pcpu(CPU0).unwrap().wakes.counts();
    assert_eq!(Wake::ALL.map(|wake| made.of(wake)), [1, 1, 1, 1, 3, 0]);
    machine.post(CPU0, Events::CALL);
    assert_eq!(
        machine.pcpu(CPU0).unwrap().wakes.counts().posted(),
        7,
        "none to itself"
    );
}

#[test]
fn a_kick_goes_where_the_vcpu_runs() {
    let world = World::new(2);
    let machine = &world.machine;
    let other = CpuId::new(1);
    machine.sched().cpu_online(other).unwrap();
    machine
        .add_vcpu(
            vcpu(0),
            UnitParams {
                weight: Weight::DEFAULT,
                affinity: CpuSet::single(other),
                ..UnitParams::default()
            },
        )
        .unwrap();
    machine.online_vcpu(vcpu(0));
    let decision = machine.sched().schedule(other, Ticks::new(1_000), None);
    assert_eq!(decision.run, Some(vcpu(0)));
    machine.pcpu(other).unwrap().word.take();
    // It was started with a token, which it takes before it looks.
    machine.kick(vcpu(0));
    assert!(!machine.pcpu(other).unwrap().word.is_pending());
    assert!(world.unit(0).state.consume_kick());
    machine.kick(vcpu(0));
    machine.kick(vcpu(0));
    assert_eq!(machine.pcpu(other).unwrap().word.take(), Events::NOTIFY);
    world.unit(0).state.consume_kick();
    machine.online_vcpu(vcpu(0));
    assert_eq!(
        machine.pcpu(other).unwrap().word.take(),
        Events::NOTIFY,
        "a second start is a kick"
    );
    machine.kick(vcpu(99));
    machine.online_vcpu(vcpu(99));
}

#[test]
fn a_guest_that_runs_is_notified_and_all_else_is_kicked() {
    let world = World::new(2);
    let machine = &world.machine;
    let other = CpuId::new(1);
    machine.sched().cpu_online(other).unwrap();
    let word = &machine.pcpu(other).unwrap().word;
    let params = UnitParams {
        affinity: CpuSet::single(other),
        ..UnitParams::default()
    };
    machine.add_vcpu(vcpu(0), params).unwrap();
    machine.online_vcpu(vcpu(0));
    let decision = machine.sched().schedule(other, Ticks::new(1_000), None);
    assert_eq!(decision.run, Some(vcpu(0)));
    word.take();
    world.unit(0).state.consume_kick();
    let kicked = || world.unit(0).state.consume_kick();
    assert!(!machine.notify(vcpu(0)), "the CPU is awake");
    assert_eq!((word.take(), kicked()), (Events::NOTIFY, true));
    word.publish(SleepState::Guest).unwrap();
    let before = world.ipis().len();
    assert!(machine.notify(vcpu(0)));
    assert_eq!(world.ipis()[before..], [1], "one interrupt");
    assert_eq!((word.is_pending(), kicked()), (false, false));
    // Another vCPU runs where it has blocked.
    world.unit(0).state.try_block(other).unwrap();
    assert!(!machine.notify(vcpu(0)));
    assert!(kicked(), "woken");
    assert!(!machine.notify(vcpu(99)));
}

#[test]
fn a_timer_follows_its_vcpu() {
    let world = World::new(2);
    let (machine, other) = (&world.machine, CpuId::new(1));
    let deadlines = |cpu| machine.pcpu(cpu).unwrap().deadlines();
    machine
        .set_vcpu_timer(vcpu(0), Some(Ticks::new(5_000)))
        .unwrap();
    assert_eq!(
        deadlines(CPU0),
        [(TimerKey::Vcpu(vcpu(0)), Ticks::new(5_000))]
    );
    // Set anew from another CPU: it moves there.
    machine.platform().0.cpu.set(1);
    machine
        .set_vcpu_timer(vcpu(0), Some(Ticks::new(6_000)))
        .unwrap();
    assert_eq!(deadlines(CPU0), []);
    assert_eq!(machine.pcpu(CPU0).unwrap().next_deadline(), None);
    assert_eq!(
        machine.pcpu(other).unwrap().next_deadline(),
        Some(Ticks::new(6_000))
    );
    // The vCPU comes to run on the first again: the timer comes along, unchanged.
    machine.platform().0.cpu.set(0);
    machine.bring_timer(vcpu(0));
    assert_eq!(
        deadlines(CPU0),
        [(TimerKey::Vcpu(vcpu(0)), Ticks::new(6_000))]
    );
    assert_eq!(deadlines(other), []);
    machine.set_vcpu_timer(vcpu(0), None).unwrap();
    assert_eq!(deadlines(CPU0), []);
    assert!(machine.set_vcpu_timer(vcpu(99), None).is_err());
}

#[test]
fn a_removed_vcpu_leaves_the_guest_and_its_slot() {
    let mut world = World::new(1);
    world.start(0);
    world.at(3_000, Act::Remove(0));
    world.at(9_000, Act::Stop);
    world.run();
    assert_eq!(world.unit(0).state.phase(), Phase::Offline);
    assert_eq!(world.said(), ["load v0", "enter v0", "save v0"]);
    assert_eq!(counts(&world).passes_for(PassCause::Resched), 1);
    world
        .machine
        .add_vcpu(vcpu(0), UnitParams::default())
        .unwrap();
}

#[test]
fn figures_that_cannot_be_true_together_are_named() {
    let good = DispatchCounts {
        turns: 3,
        avoided: 2,
        passes: [1, 0, 0, 0, 0, 0],
        ..DispatchCounts::default()
    };
    assert_eq!(good.check(0), Ok(()));
    let lost = DispatchCounts { avoided: 1, ..good };
    assert_eq!(
        std::format!("{}", lost.check(0).unwrap_err()),
        "3 turns, but 2 with or without a pass"
    );
    assert_eq!(
        std::format!("{}", good.check(4).unwrap_err()),
        "4 sleeps, but 0 ends of sleeps"
    );
    assert_eq!(good.since(&lost).avoided, 1);
}

#[test]
fn who_woke_and_who_was_woken_agree() {
    let mut world = World::new(2);
    world.start(0);
    world.outcomes(0, [RunOutcome::Block]);
    for (time, events) in [
        (10_000, Events::CALL),
        (20_000, Events::RESCHED),
        (30_000, Events::CALL),
    ] {
        world.at(time, Act::Post(events));
    }
    world.machine.set_console_timer(Some(Ticks::new(25_000)));
    world.at(40_000, Act::Stop);
    world.run();
    let pcpu = world.machine.pcpu(CPU0).unwrap();
    let (sleeper, dispatch) = (pcpu.wakers.counts(), counts(&world));
    assert_eq!(sleeper.owned(), world.machine.woke(CPU0));
    assert_eq!(sleeper.attributed(), sleeper.owned());
    assert_eq!(
        WokenHow::ALL.map(|how| sleeper.of(how)),
        [0, 4, 1, 0, 0, 0],
        "CPU 0 sleeps by HLT"
    );
    assert_eq!(sleeper.owned(), dispatch.all_wakes());
    let top: Vec<_> = sleeper.top().collect();
    assert_eq!(top[0].1, 4, "{top:?}");
    assert!(
        top.contains(&(Origin::new(CPU0, Cause::Timer), 1)),
        "{top:?}"
    );
}

#[test]
fn every_event_costs_a_pass_if_that_is_asked_for() {
    for (all, passes) in [(false, 0), (true, 2)] {
        let mut world = World::new(2);
        world.machine.set_passes_for_all(all);
        world.at(10_000, Act::Post(Events::CALL));
        world.at(20_000, Act::Post(Events::CALL));
        world.at(30_000, Act::Stop);
        world.run();
        assert_eq!(counts(&world).passes_for(PassCause::Resched), passes);
    }
}

/// A vCPU whose last halt has lasted so long, and that may be looked after for 100 µs.
fn polled(world: &mut World, halted: u64) {
    world.start(0);
    let unit = world.unit(0);
    unit.halt_poll.set_limit(Nanos::new(100_000));
    unit.halt_poll.learn(Nanos::new(halted));
    world.outcomes(0, [RunOutcome::Block]);
}

#[test]
fn a_kick_that_is_looked_for_costs_no_pass_and_no_interrupt() {
    let mut world = World::new(2);
    polled(&mut world, 8_000);
    world.at(5_000, Act::Post(Events::CALL));
    world.at(6_000, Act::Kick(0));
    world.at(200_000, Act::Stop);
    world.run();
    let counts = counts(&world);
    assert_eq!(counts.all_passes(), 1, "only the first");
    assert_eq!(counts.blocks_cancelled, 1);
    assert_eq!(world.ipis(), [0], "only the one that stops it");
    let came = world.unit(0).halt_poll.counts();
    assert_eq!((came.successes, came.failures), (1, 0));
    let polled = came.polled.get();
    assert!((4_000..6_000).contains(&polled), "{polled}");
    assert_eq!(
        world.said(),
        ["load v0", "enter v0", "call", "enter v0", "save v0"]
    );
}

#[test]
fn its_own_timer_ends_a_look() {
    let mut world = World::new(1);
    polled(&mut world, 8_000);
    world
        .machine
        .set_vcpu_timer(vcpu(0), Some(Ticks::new(7_000)))
        .unwrap();
    world.at(200_000, Act::Stop);
    world.run();
    assert_eq!(counts(&world).all_passes(), 1);
    assert_eq!(world.unit(0).halt_poll.counts().successes, 1);
}

#[test]
fn a_look_in_vain_ends_with_its_window_and_learns_from_the_halt() {
    let mut world = World::new(2);
    polled(&mut world, 8_000);
    world.at(51_000, Act::Kick(0));
    world.at(300_000, Act::Stop);
    world.run();
    let counts = counts(&world);
    assert_eq!(counts.passes_for(PassCause::Blocked), 1);
    let came = world.unit(0).halt_poll.counts();
    assert_eq!((came.successes, came.failures), (0, 1));
    assert!((10_000..10_200).contains(&came.polled.get()), "{came:?}");
    assert_eq!(
        world.unit(0).halt_poll.window(),
        Nanos::new(20_000),
        "50 us would have been worth waiting for"
    );
}

#[test]
fn nobody_is_looked_after_while_another_waits() {
    let mut world = World::new(1);
    polled(&mut world, 8_000);
    world.start(1);
    world.at(200_000, Act::Stop);
    world.run();
    let came = world.unit(0).halt_poll.counts();
    assert_eq!((came.successes, came.failures), (0, 1));
    assert!(came.polled.get() < 200, "{came:?}");
}

#[test]
fn a_look_ends_for_whatever_else_is_asked_of_the_cpu() {
    let mut world = World::new(2);
    polled(&mut world, 8_000);
    world.at(4_000, Act::Post(Events::CONSOLE));
    world.at(200_000, Act::Stop);
    world.run();
    assert!(world.said().contains(&String::from("console")));
    let came = world.unit(0).halt_poll.counts();
    assert_eq!((came.successes, came.failures), (0, 1));
    assert!(came.polled.get() < 4_000, "{came:?}");
}

/// CPU 0 runs vCPU 0, vCPU 1 waits with its timer on CPU 0; then CPU 0 is asked to go. CPU 1 is there, and never looks.
fn asked_to_go() -> World {
    let mut world = World::new(2);
    world.machine.cpu_online(CpuId::new(1)).unwrap();
    world.start(0);
    world.start(1);
    world
        .machine
        .set_vcpu_timer(vcpu(1), Some(Ticks::new(500_000)))
        .unwrap();
    world.at(5_000, Act::Ask(CpuChange::Offline));
    let deep = CState {
        name: "C6",
        ..CState::C1_HALT
    };
    world.table = CStateTable::new(&[CState::C1_HALT, deep]).unwrap();
    let control = &world.machine.pcpu(CPU0).unwrap().idle;
    control.set_own_limit(Some(Nanos::ZERO));
    world
}

#[test]
fn a_cpu_goes_offline_with_what_it_has() {
    let mut world = asked_to_go();
    world.at(10_000, Act::Post(Events::RESCHED));
    world.at(30_000, Act::Stop);
    world.run();
    let machine = &world.machine;
    let said = world.said();
    let at = |what: &str| said.iter().position(|said| said == what).unwrap();
    assert!(at("save v0") < at("parks"), "{said:?}");
    // Its vCPUs and their timers are with the other CPU.
    for unit in 0..2 {
        assert_eq!(world.unit(unit).state.phase(), Phase::Queued, "{unit}");
    }
    let deadlines = machine.pcpu(CpuId::new(1)).unwrap().deadlines();
    assert_eq!(deadlines, [(TimerKey::Vcpu(vcpu(1)), Ticks::new(500_000))]);
    assert!(machine.pcpu(CPU0).unwrap().is_parked());
    let counts = counts(&world);
    assert_eq!(counts.all_passes(), 1, "none while it was away: {counts:?}");
    let account = &machine.pcpu(CPU0).unwrap().account;
    let row = account.snapshot(machine.platform());
    let usage: Vec<u64> = row.states(&world.table).map(|state| state.usage).collect();
    assert_eq!(usage, [0, 2], "the deepest, in spite of its limit");
}

#[test]
fn a_cpu_comes_back_and_looks_for_work() {
    let mut world = asked_to_go();
    world.at(20_000, Act::Ask(CpuChange::Online));
    world.at(30_000, Act::Stop);
    world.run();
    let said = world.said();
    let back = said.iter().position(|said| said == "unparks").unwrap();
    assert!(
        said[back..].iter().any(|said| said.starts_with("load")),
        "{said:?}"
    );
    assert!(!world.machine.pcpu(CPU0).unwrap().is_parked());
    assert_eq!(counts(&world).passes_for(PassCause::First), 2);
}

#[test]
fn the_last_cpu_stays() {
    let mut world = World::new(1);
    world.start(0);
    world.at(5_000, Act::Ask(CpuChange::Offline));
    world.at(20_000, Act::Stop);
    world.run();
    let said = world.said();
    assert!(
        said.iter().any(|said| said.contains("the last CPU")),
        "{said:?}"
    );
    assert_eq!(world.machine.pcpu(CPU0).unwrap().asked(), None);
    assert!(
        said.iter().filter(|said| *said == "load v0").count() >= 2,
        "it runs on"
    );
    assert!(!said.contains(&String::from("parks")));
}
