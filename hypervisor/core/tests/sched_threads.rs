//! Schedulers under real threads: four CPUs, units that halt and are kicked, and an administrator who changes
//! weights and affinities and takes units out and puts them back. A unit that runs twice at once, runs where it must not,
//! or is forgotten, fails the test; the watchdog turns a hang into a failure.
#![cfg(not(loom))]

use lull_core::sched::credit2::{Arrangement, Config};
use lull_core::sched::unit::Kick;
use lull_core::sched::{
    AnyScheduler, Cap, Leave, Prev, Removal, Scheduler, Setup, Topology, UnitParams, WakeBy, Weight,
};
use lull_core::units::{CpuId, CpuSet, DomId, TickRate, Ticks, VcpuId};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const CPUS: usize = 4;
const UNITS: usize = 9;
const KICKERS: usize = 2;
const ROUNDS: usize = 1_000;

/// What a unit is about: work that is given to it, and that it has seen.
#[derive(Default)]
struct Work {
    given: AtomicU64,
    done: AtomicU64,
    on_cpu: AtomicBool,
}

struct World {
    sched: AnyScheduler,
    clock: AtomicU64,
    resched: [AtomicBool; CPUS],
    work: [Work; UNITS + 1],
    kickers_left: AtomicUsize,
    deadline: Instant,
}

/// A small generator, so that runs differ only in what the threads make of them.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

impl World {
    fn now(&self) -> Ticks {
        Ticks::new(self.clock.fetch_add(100, SeqCst))
    }

    fn tickle(&self, targets: CpuSet) {
        for cpu in targets.iter() {
            self.resched[cpu.index()].store(true, SeqCst);
        }
    }

    fn late(&self) -> bool {
        Instant::now() > self.deadline
    }

    fn over(&self) -> bool {
        self.kickers_left.load(SeqCst) == 0 || self.late()
    }

    fn kick(&self, v: VcpuId) {
        let Some(unit) = self.sched.units().get(v) else {
            return;
        };
        match unit.state.kick() {
            Kick::WokeBlocked => self.tickle(self.sched.wake(v, self.now(), WakeBy::Event)),
            Kick::Running(_) | Kick::Pending => {}
        }
    }

    fn start(&self, v: VcpuId) {
        if self
            .sched
            .units()
            .get(v)
            .is_some_and(|unit| unit.state.online())
        {
            self.tickle(self.sched.wake(v, self.now(), WakeBy::Event));
        }
    }

    fn cpu(&self, index: usize) {
        let cpu = CpuId::new(index as u32);
        let mut dice = Dice(index as u64 + 17);
        let mut current: Option<VcpuId> = None;
        let mut leave = Some(Leave::Runnable);
        let mut until = None;
        while !self.over() {
            if until.is_some_and(|until| until <= self.now()) {
                leave = leave.or(Some(Leave::Runnable));
            }
            if self.resched[index].swap(false, SeqCst) {
                leave = leave.or(Some(Leave::Runnable));
            }
            if let Some(leave) = leave.take() {
                let prev = current.map(|unit| Prev { unit, leave });
                let decision = self.sched.schedule(cpu, self.now(), prev);
                self.tickle(decision.tickle);
                until = decision.until;
                if decision.run != current {
                    if let Some(prev) = prev {
                        // Right before it may run elsewhere.
                        self.work[prev.unit.index()].on_cpu.store(false, SeqCst);
                        self.tickle(self.sched.context_saved(cpu, prev, self.now()));
                    }
                    if let Some(v) = decision.run {
                        let twice = self.work[v.index()].on_cpu.swap(true, SeqCst);
                        assert!(!twice, "{v} runs twice");
                    }
                }
                current = decision.run;
            }
            let Some(v) = current else {
                std::thread::yield_now();
                continue;
            };
            let work = &self.work[v.index()];
            if let Some(unit) = self.sched.units().get(v) {
                unit.state.consume_kick();
            }
            work.done.store(work.given.load(SeqCst), SeqCst);
            leave = match dice.roll(8) {
                0 => Some(Leave::Yields),
                1 => Some(Leave::Runnable),
                2 => None,
                _ => Some(Leave::Blocks),
            };
        }
    }

    fn kicker(&self, index: usize) {
        let mut dice = Dice(index as u64 + 99);
        for round in 0..ROUNDS {
            let v = dice.roll(UNITS as u64) as usize;
            let work = &self.work[v];
            let mine = work.given.fetch_add(1, SeqCst) + 1;
            self.kick(VcpuId::new(v as u32));
            // Now and then, wait until it has been seen.
            while round % 8 == 0 && work.done.load(SeqCst) < mine {
                assert!(!self.late(), "v{v} is forgotten");
                std::thread::yield_now();
            }
        }
        self.kickers_left.fetch_sub(1, SeqCst);
    }

    fn administrator(&self) {
        let mut dice = Dice(4711);
        // The last unit is the one that comes and goes; nobody waits for it.
        let fleeting = VcpuId::new(UNITS as u32);
        while !self.over() {
            let v = VcpuId::new(dice.roll(UNITS as u64) as u32);
            let bits = dice.roll(15) + 1;
            let affinity: CpuSet = (0..CPUS)
                .filter(|cpu| bits & (1 << cpu) != 0)
                .map(|cpu| CpuId::new(cpu as u32))
                .collect();
            match self.sched.set_affinity(v, affinity, self.now()) {
                Ok(target) => self.tickle(target),
                Err(error) => panic!("{error}"),
            }
            // Not every scheduler knows these.
            if let Ok(target) = self.sched.set_soft_affinity(v, affinity, self.now()) {
                self.tickle(target);
            }
            let cap = Cap::new(dice.roll(200) as u16).filter(|_| dice.roll(2) == 0);
            if let Ok(target) = self
                .sched
                .set_cap(DomId::new(v.get() as u16 % 3), cap, self.now())
            {
                self.tickle(target);
            }
            let weight = Weight::new(dice.roll(1000) as u16 + 1).unwrap_or_default();
            assert_eq!(self.sched.set_weight(v, weight, self.now()), Ok(()));
            let _ = self.sched.add(fleeting, UnitParams::default());
            self.start(fleeting);
            if let Ok(Removal::RunsOn(cpu) | Removal::MadeRoom(cpu)) = self.sched.remove(fleeting) {
                self.tickle(CpuSet::single(cpu));
            }
            self.sched.dump(self.now(), |_| {});
            std::thread::yield_now();
        }
    }
}

fn nobody_runs_twice_and_nobody_is_forgotten(name: &str, arrangement: Arrangement) {
    let Some(rate) = TickRate::from_hz(2_000_000) else {
        panic!("not zero");
    };
    let setup = Setup {
        topology: Topology::regular(1, CPUS / 2, 2),
        units: UNITS + 1,
        domains: 3,
        rate,
        credit2: Config {
            arrangement,
            ..Config::default()
        },
    };
    let world = World {
        sched: AnyScheduler::by_name(name, setup),
        clock: AtomicU64::new(1),
        resched: Default::default(),
        work: Default::default(),
        kickers_left: AtomicUsize::new(KICKERS),
        deadline: Instant::now() + Duration::from_secs(120),
    };
    for cpu in 0..CPUS {
        assert_eq!(world.sched.cpu_online(CpuId::new(cpu as u32)), Ok(()));
    }
    for v in (0..UNITS).map(|v| VcpuId::new(v as u32)) {
        let params = UnitParams {
            domain: DomId::new(v.get() as u16 % 3),
            ..UnitParams::default()
        };
        assert_eq!(world.sched.add(v, params), Ok(()));
        world.start(v);
    }
    std::thread::scope(|scope| {
        let world = &world;
        for index in 0..CPUS {
            scope.spawn(move || world.cpu(index));
        }
        for index in 0..KICKERS {
            scope.spawn(move || world.kicker(index));
        }
        scope.spawn(|| world.administrator());
    });
    assert!(!world.late());
    let given: u64 = world.work.iter().map(|work| work.given.load(SeqCst)).sum();
    assert_eq!(given, (KICKERS * ROUNDS) as u64);
}

#[test]
fn fair() {
    nobody_runs_twice_and_nobody_is_forgotten("fair", Arrangement::All);
}

#[test]
fn credit2_with_one_runqueue() {
    nobody_runs_twice_and_nobody_is_forgotten("credit2", Arrangement::All);
}

#[test]
fn credit2_with_a_runqueue_per_core() {
    nobody_runs_twice_and_nobody_is_forgotten("credit2", Arrangement::Core);
}

#[test]
fn credit2_with_a_runqueue_per_cpu() {
    nobody_runs_twice_and_nobody_is_forgotten("credit2", Arrangement::Cpu);
}
