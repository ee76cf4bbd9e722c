//! The same calls between real threads on real CPUs, each of which sleeps on its own wake word.

use super::Note;
use crate::call::{CallError, CallHost, CallTable, SLOTS, Wait};
use crate::units::{CpuId, CpuSet};
use crate::wake::{Events, SleepState, WakeWord};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::vec::Vec;

struct World {
    table: CallTable<Note>,
    words: Vec<WakeWord>,
    threads: Vec<OnceLock<Thread>>,
    /// How often each errand ran, by number.
    ran: Vec<AtomicU64>,
    /// CPUs that still have something to ask.
    busy: AtomicUsize,
    ipis: AtomicU64,
    elided: AtomicU64,
}

struct Host<'a> {
    cpu: CpuId,
    world: &'a World,
}

impl CallHost<Note> for Host<'_> {
    fn cpu(&self) -> CpuId {
        self.cpu
    }
    fn wake(&self, target: CpuId) {
        self.world.post(target, Events::CALL);
    }
    fn run(&self, Note(number, check): Note) {
        assert_eq!(check, number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        self.world.ran[number as usize].fetch_add(1, Ordering::Relaxed);
    }
    fn relax(&self) {
        thread::yield_now();
    }
}

impl World {
    fn new(cpus: usize, errands: usize) -> Self {
        let world = Self {
            table: CallTable::new(cpus),
            words: (0..cpus).map(|_| WakeWord::new()).collect(),
            threads: (0..cpus).map(|_| OnceLock::new()).collect(),
            ran: (0..errands).map(|_| AtomicU64::new(0)).collect(),
            busy: AtomicUsize::new(cpus),
            ipis: AtomicU64::new(0),
            elided: AtomicU64::new(0),
        };
        for cpu in 0..cpus {
            world.table.open(CpuId::new(cpu as u32));
        }
        world
    }

    fn post(&self, target: CpuId, events: Events) {
        let wake = self.words[target.index()].post(events);
        if wake.needs_ipi() {
            self.ipis.fetch_add(1, Ordering::Relaxed);
            self.threads[target.index()].wait().unpark();
        } else {
            self.elided.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As the idle path: publish, sleep, take, serve.
    fn idle(&self, host: &Host<'_>, state: SleepState) {
        let word = &self.words[host.cpu.index()];
        if word.publish(state).is_ok() {
            while !word.is_pending() {
                match state {
                    SleepState::Halted => thread::park(),
                    _ => thread::yield_now(),
                }
            }
        }
        if word.take().contains(Events::CALL) {
            self.table.serve(host);
        }
    }
}

const CPUS: usize = 6;
const ROUNDS: usize = 600;

/// Each CPU makes its calls, of every kind, and sleeps now and then; in the end each errand has run as often as it should.
fn storm(seed: u64) {
    let world = World::new(CPUS, CPUS * ROUNDS);
    let expected: Vec<u64> = thread::scope(|scope| {
        let cpus: Vec<_> = (0..CPUS)
            .map(|cpu| {
                let world = &world;
                scope.spawn(move || one_cpu(world, cpu, seed))
            })
            .collect();
        cpus.into_iter()
            .flat_map(|cpu| cpu.join().unwrap())
            .collect()
    });
    let ran: Vec<u64> = world
        .ran
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .collect();
    assert_eq!(ran, expected, "seed {seed}");
    assert!(
        world.ipis.load(Ordering::Relaxed) > 0 && world.elided.load(Ordering::Relaxed) > 0,
        "both ways of waking were tried"
    );
}

/// Gives how often each of its errands is to run.
fn one_cpu(world: &World, cpu: usize, seed: u64) -> Vec<u64> {
    let host = Host {
        cpu: CpuId::new(cpu as u32),
        world,
    };
    world.threads[cpu].set(thread::current()).unwrap();
    let mut random = seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ (cpu as u64 + 1);
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut expected = Vec::new();
    for round in 0..ROUNDS {
        let number = (cpu * ROUNDS + round) as u64;
        let note = Note(number, number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let target = CpuId::new(next(CPUS as u64) as u32);
        let wait = if next(2) == 0 {
            Wait::UntilDone
        } else {
            Wait::No
        };
        let times = match next(4) {
            0 => {
                let targets: CpuSet = (0..CPUS as u32)
                    .filter(|_| next(2) == 0)
                    .map(CpuId::new)
                    .collect();
                let called = world.table.many(&host, &targets, note, wait);
                assert_eq!(called, Ok(targets));
                targets.len() as u64
            }
            _ => {
                assert_eq!(world.table.single(&host, target, note, wait), Ok(()));
                1
            }
        };
        expected.push(times);
        if wait == Wait::UntilDone {
            assert_eq!(world.ran[number as usize].load(Ordering::Relaxed), times);
        }
    }
    if world.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
        for cpu in 0..CPUS {
            world.post(CpuId::new(cpu as u32), Events::STOP);
        }
    }
    let mut state = SleepState::Halted;
    while world.busy.load(Ordering::Acquire) > 0 {
        world.idle(&host, state);
        state = match state {
            SleepState::Halted => SleepState::Watching,
            _ => SleepState::Halted,
        };
    }
    // What nobody waited for may be here still.
    world.table.close(&host);
    expected
}

#[test]
fn every_call_between_threads_runs_as_often_as_it_should() {
    for seed in 1..=5 {
        storm(seed);
    }
}

#[test]
fn a_call_to_a_thread_that_goes_offline_runs_or_is_refused() {
    for round in 0..200 {
        let world = World::new(3, 2 * SLOTS);
        let asked: u64 = thread::scope(|scope| {
            let world = &world;
            let callers = [0, 1].map(|cpu| {
                scope.spawn(move || {
                    let host = Host {
                        cpu: CpuId::new(cpu),
                        world,
                    };
                    let mut made = 0;
                    for index in 0..SLOTS as u64 {
                        let number = u64::from(cpu) * SLOTS as u64 + index;
                        let note = Note(number, number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                        let target = CpuId::new(2);
                        made += match (round + index) % 2 {
                            0 => match world.table.single(&host, target, note, Wait::UntilDone) {
                                Ok(()) => 1,
                                Err(why) => {
                                    assert_eq!(why, CallError::Offline(target));
                                    0
                                }
                            },
                            _ => {
                                // Two others: a broadcast, which the other caller serves as it waits or closes.
                                let others = CpuSet::first(3);
                                let called = world.table.many(&host, &others, note, Wait::No);
                                called.unwrap().len() as u64
                            }
                        };
                    }
                    world.table.close(&host);
                    made
                })
            });
            let dying = Host {
                cpu: CpuId::new(2),
                world,
            };
            for _ in 0..round {
                world.table.serve(&dying);
            }
            world.table.close(&dying);
            callers.map(|caller| caller.join().unwrap()).iter().sum()
        });
        let ran: u64 = world
            .ran
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum();
        assert_eq!(ran, asked, "round {round}");
    }
}
