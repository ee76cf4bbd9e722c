//! Frames are where the table says, for ever.

use super::*;
use crate::sched::tests::sim::{Habit, MS, SECOND, Sim, cpu, rate, set, v};

const BUSY: Habit = Habit { work: 0, sleep: 0 };

fn frame(unit: u32, length: u64) -> MinorFrame {
    MinorFrame {
        unit: v(unit),
        length: Ticks::new(length),
    }
}

fn machine(cpus: usize, units: u32) -> Sim<Arinc653> {
    let mut sim = Sim::new(Arinc653::new(cpus, units as usize, rate()));
    sim.watchful = false;
    for unit in 0..units {
        sim.run(unit, UnitParams::default(), BUSY);
    }
    sim.settle();
    sim
}

fn set_table(sim: &mut Sim<Arinc653>, frames: &[MinorFrame], major: u64) {
    let now = sim.time();
    let told = sim.sched.set_table(frames, Ticks::new(major), now).unwrap();
    sim.tickle(told);
    sim.settle();
}

#[test]
fn without_a_table_each_has_ten_milliseconds_in_turn() {
    let mut sim = machine(2, 3);
    let got = sim.measure(3 * SECOND, 3);
    assert_eq!(got, [SECOND; 3]);
    assert_eq!(sim.current(1), None, "one CPU runs the table");
}

#[test]
fn no_drift_over_a_million_frames() {
    let frames = [
        frame(0, 3_000_001),
        frame(1, 2_999_999),
        frame(0, 1_000_000),
    ];
    let major = 10_000_007;
    let mut line = Timeline::of(&frames, Ticks::new(major), Ticks::new(1_000)).unwrap();
    let mut late = 1_u64;
    for number in 0..1_000_000_u64 {
        // Each look is late by another bit: up to a quarter of a millisecond.
        late = late * 48_271 % 250_007;
        let begin = 1_000 + number * major;
        let (owner, until) = line.at(Ticks::new(begin + late));
        assert_eq!(owner, Some(v(0)), "frame {number}");
        assert_eq!(until, Some(Ticks::new(begin + 3_000_001)), "frame {number}");
    }
}

#[test]
fn a_table_with_slack_holds_to_the_tick() {
    let mut sim = machine(1, 3);
    let frames = [frame(2, 2 * MS), frame(0, MS), frame(2, 3 * MS)];
    set_table(&mut sim, &frames, 10 * MS);
    let got = sim.measure(SECOND, 3);
    assert_eq!(got, [100 * MS, 0, 500 * MS]);
}

#[test]
fn a_blocked_unit_leaves_its_frame_idle_and_gets_it_when_it_wakes() {
    let mut sim = machine(1, 2);
    set_table(&mut sim, &[frame(0, 5 * MS), frame(1, 5 * MS)], 10 * MS);
    sim.run_for(MS);
    sim.leave(0, Leave::Blocks);
    assert_eq!(sim.current(0), None);
    sim.run_for(MS);
    sim.kick(v(0), WakeBy::Event);
    sim.settle();
    assert_eq!(sim.current(0), Some(v(0)), "in the middle of its frame");
    sim.run_for(4 * MS);
    assert_eq!(sim.current(0), Some(v(1)), "which ended when it was to end");
}

#[test]
fn a_malformed_table_is_refused_and_the_old_one_stays() {
    let mut sim = machine(1, 2);
    set_table(&mut sim, &[frame(1, 5 * MS)], 10 * MS);
    let now = sim.time();
    let set = |frames: &[MinorFrame], major| sim.sched.set_table(frames, Ticks::new(major), now);
    assert_eq!(set(&[], 10), Err(BadTable::Empty));
    assert_eq!(set(&[frame(0, 0)], 10), Err(BadTable::NoTime(v(0))));
    assert_eq!(
        set(&[frame(0, 6), frame(1, 5)], 10),
        Err(BadTable::Overfull {
            minor: Ticks::new(11),
            major: Ticks::new(10)
        })
    );
    assert_eq!(set(&[frame(0, 1); 65], 100), Err(BadTable::TooLong(65)));
    assert_eq!(set(&[frame(7, 1)], 10), Err(BadTable::NoUnit(v(7))));
    assert_eq!(
        set(&[frame(0, 1); 64], 64),
        Ok(super::tests::set(&[0])),
        "64 are not too many"
    );
}

#[test]
fn the_table_moves_to_another_cpu() {
    let mut sim = machine(2, 1);
    set_table(&mut sim, &[frame(0, 5 * MS)], 10 * MS);
    sim.run_for(6 * MS);
    assert_eq!(sim.current(0), None, "slack");
    assert_eq!(sim.cpu_offline(0), Ok(()));
    let got = sim.measure(SECOND, 1);
    assert_eq!(got[0], SECOND / 2);
    assert_eq!(
        sim.cpu_offline(1),
        Err(SchedError::CpuBusy(cpu(1))).or(Err(SchedError::LastCpu(cpu(1))))
    );
}
