//! Cross-CPU calls.

use crate::model::check::{Check, property};
use crate::model::explore;
use crate::model::machine::{Cpu, How};
use crate::model::rt;
use lull_core::call::{CallError, CallHost, CallTable, Errand, Wait};
use lull_core::sync::watched::{AtomicUsize, Ordering};
use lull_core::units::{CpuId, CpuSet};
use lull_core::wake::Events;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

/// A call, by number, and the number once more: both words must arrive.
#[derive(Clone, Copy, Debug)]
struct Call(u64, u64);

const CHECK: u64 = 0x5555;

impl Call {
    const fn number(number: usize) -> Self {
        Self(number as u64, number as u64 ^ CHECK)
    }
}

impl Errand for Call {
    fn to_words(self) -> [u64; 2] {
        [self.0, self.1]
    }
    fn from_words([number, check]: [u64; 2]) -> Self {
        Self(number, check)
    }
}

const CALLS: usize = 6;

struct World {
    cpus: Vec<Cpu>,
    table: CallTable<Call>,
    /// What each call has written.
    written: Vec<AtomicUsize>,
    count: Count,
}

/// What really happened, seen from outside of the model.
struct Count {
    ran: [Cell<u32>; CALLS],
    /// Changes whenever anything is done that somebody may wait for.
    progress: Cell<u64>,
    /// For each CPU: turns of waiting without progress, and the progress then. `None`: it does not run any more.
    waits: [Cell<Option<(u64, u32)>>; 3],
    /// The model checker has let a CPU wait for so long while another could have gone on that nothing is left to learn.
    unfair: Cell<bool>,
}

/// How a thread leaves an execution that is unfair.
struct Unfair;

/// After so many turns, a CPU that waits sees everything that was stored before it began to.
const TURNS: u32 = 3;

#[expect(unsafe_code, reason = "coroutines of one thread share it")]
// SAFETY: loom runs all threads of a model on one thread of the host.
unsafe impl Sync for Count {}

impl World {
    fn new(cpus: usize) -> Arc<Self> {
        let world = Self {
            cpus: (0..cpus).map(|_| Cpu::new()).collect(),
            table: CallTable::new(cpus),
            written: (0..CALLS).map(|_| AtomicUsize::new(0)).collect(),
            count: Count {
                ran: Default::default(),
                progress: Cell::new(0),
                waits: Default::default(),
                unfair: Cell::new(false),
            },
        };
        for cpu in 0..cpus {
            world.table.open(CpuId::new(cpu as u32));
            world.count.waits[cpu].set(Some((0, 0)));
        }
        Arc::new(world)
    }

    fn on(&self, cpu: usize) -> Host<'_> {
        Host { world: self, cpu }
    }

    fn ran(&self, number: usize) -> u32 {
        self.count.ran[number].get()
    }

    /// Sleeps and serves until so many calls have run here, or nothing wakes it any more.
    fn serve_until(&self, cpu: usize, how: How, calls: u64) {
        let host = self.on(cpu);
        let id = CpuId::new(cpu as u32);
        while self.table.served(id) < calls {
            let Some(events) = self.cpus[cpu].idle_once(how) else {
                return;
            };
            if events.contains(Events::CALL) {
                self.table.serve(&host);
            }
        }
    }

    /// The same, where others wait for it: its run does not end with a sleep.
    fn serve_all(&self, cpu: usize, how: How, calls: u64) {
        let host = self.on(cpu);
        let id = CpuId::new(cpu as u32);
        while self.table.served(id) < calls {
            let mut events = self.cpus[cpu].idle_once(how);
            while events.is_none() {
                host.relax();
                events = self.cpus[cpu].try_wake(how);
            }
            if events.is_some_and(|events| events.contains(Events::CALL)) {
                self.table.serve(&host);
            }
        }
    }

    /// After all have ended: what is on its way arrives. Nothing is left then.
    fn settle(&self) {
        for (cpu, state) in self.cpus.iter().enumerate() {
            while let Some(events) = state.settle() {
                if events.contains(Events::CALL) {
                    self.table.serve(&self.on(cpu));
                }
                if events.is_empty() {
                    break;
                }
            }
            property!(
                !self.table.is_pending(CpuId::new(cpu as u32)),
                "no call is left",
                "CPU {cpu} has calls in its queue that nobody will wake it for"
            );
        }
    }

    fn expect(&self, number: usize, times: u32) {
        let ran = self.ran(number);
        property!(
            ran <= times,
            "a call runs once",
            "call {number} ran {ran} times instead of {times}"
        );
        property!(
            ran == times,
            "no call is left",
            "call {number} ran {ran} times instead of {times}"
        );
    }

    fn expect_written(&self, number: usize) {
        property!(
            self.written[number].load(Ordering::Relaxed) == 1,
            "done after it has run",
            "call {number} was said to be done, and what it writes is not there"
        );
    }
}

struct Host<'a> {
    world: &'a World,
    cpu: usize,
}

impl CallHost<Call> for Host<'_> {
    fn cpu(&self) -> CpuId {
        CpuId::new(self.cpu as u32)
    }

    fn wake(&self, target: CpuId) {
        self.world.cpus[target.index()].wake(Events::CALL);
        let progress = &self.world.count.progress;
        progress.set(progress.get() + 1);
    }

    fn run(&self, Call(number, check): Call) {
        property!(
            number < CALLS as u64 && check == number ^ CHECK,
            "contents of the call",
            "{number:#x} came with {check:#x}"
        );
        let ran = &self.world.count.ran[number as usize];
        ran.set(ran.get() + 1);
        self.world.written[number as usize].store(1, Ordering::Relaxed);
        let progress = &self.world.count.progress;
        progress.set(progress.get() + 1);
    }

    fn relax(&self) {
        if explore::is_on() {
            // It knows a deadlock when it sees one.
            return rt::wait_for_change();
        }
        let count = &self.world.count;
        let now = count.progress.get();
        let turns = match count.waits[self.cpu].get() {
            Some((then, turns)) if then == now => turns + 1,
            _ => 0,
        };
        count.waits[self.cpu].set(Some((now, turns)));
        let stuck = |wait: &Cell<Option<(u64, u32)>>| {
            wait.get()
                .is_none_or(|(then, turns)| then == now && turns >= TURNS)
        };
        property!(
            !count.waits.iter().all(stuck),
            "no deadlock",
            "CPU {} waits, and nobody gets on",
            self.cpu
        );
        if count.unfair.get() || turns >= 2 * TURNS {
            count.unfair.set(true);
            panic::panic_any(Unfair);
        }
        rt::wait_for_change();
    }
}

/// One CPU does something.
fn act(world: &World, cpu: usize, body: impl FnOnce(&World, &Host<'_>)) {
    let acted = panic::catch_unwind(AssertUnwindSafe(|| body(world, &world.on(cpu))));
    world.count.waits[cpu].set(None);
    if let Err(why) = acted
        && !why.is::<Unfair>()
    {
        panic::resume_unwind(why);
    }
}

fn spawn(
    world: &Arc<World>,
    cpu: usize,
    body: impl FnOnce(&World, &Host<'_>) + 'static,
) -> rt::JoinHandle {
    let world = Arc::clone(world);
    rt::spawn(move || act(&world, cpu, body))
}

/// Ends the execution; `judge` only if it was fair.
fn end(
    world: &World,
    threads: impl IntoIterator<Item = rt::JoinHandle>,
    judge: impl FnOnce(&World),
) {
    for thread in threads {
        thread.join();
    }
    if !world.count.unfair.get() {
        judge(world);
    }
}

/// Two CPUs call each other, and wait.
fn each_other(second: Wait) {
    let world = World::new(2);
    let other = spawn(&world, 1, move |world, host| {
        world
            .table
            .single(host, CpuId::new(0), Call::number(1), second)
            .unwrap();
        if second == Wait::UntilDone {
            world.expect_written(1);
        }
        world.serve_all(1, How::Masked, 1);
    });
    act(&world, 0, |world, host| {
        world
            .table
            .single(host, CpuId::new(1), Call::number(0), Wait::UntilDone)
            .unwrap();
        world.expect_written(0);
        world.serve_all(0, How::Halt, 1);
    });
    end(&world, [other], |world| {
        world.settle();
        world.expect(0, 1);
        world.expect(1, 1);
    });
}

/// Two callers, one queue, and a target that sleeps.
fn two_callers(how: How) {
    let world = World::new(3);
    let callers = [1, 2].map(|cpu| {
        spawn(&world, cpu, move |world, host| {
            world
                .table
                .single(host, CpuId::new(0), Call::number(cpu), Wait::No)
                .unwrap();
        })
    });
    act(&world, 0, |world, _| world.serve_until(0, how, 2));
    end(&world, callers, |world| {
        world.settle();
        world.expect(1, 1);
        world.expect(2, 1);
    });
}

/// Two callers that wait, and a target that serves both.
fn two_waiting(how: How) {
    let world = World::new(3);
    let callers = [1, 2].map(|cpu| {
        spawn(&world, cpu, move |world, host| {
            world
                .table
                .single(host, CpuId::new(0), Call::number(cpu), Wait::UntilDone)
                .unwrap();
            world.expect_written(cpu);
        })
    });
    act(&world, 0, |world, _| world.serve_all(0, how, 2));
    end(&world, callers, |world| {
        world.settle();
        world.expect(1, 1);
        world.expect(2, 1);
    });
}

/// Serves so many calls, awake all the time.
fn serve_awake(world: &World, host: &Host<'_>, calls: u64) {
    while world.table.served(host.cpu()) < calls {
        if !world.table.serve(host) {
            host.relax();
        }
    }
}

/// More calls of one CPU than it has slots.
fn slots() {
    let world = World::new(2);
    let caller = spawn(&world, 1, |world, host| {
        for number in 0..3 {
            world
                .table
                .single(host, CpuId::new(0), Call::number(number), Wait::No)
                .unwrap();
        }
    });
    act(&world, 0, |world, host| serve_awake(world, host, 3));
    end(&world, [caller], |world| {
        world.settle();
        for number in 0..3 {
            world.expect(number, 1);
        }
    });
}

/// One descriptor, two targets, and a caller that waits or does not.
fn broadcast(wait: Wait) {
    let world = World::new(3);
    let targets = [1, 2].map(|cpu| {
        spawn(&world, cpu, |world, host| match host.cpu {
            1 => world.serve_all(1, How::Halt, 1),
            _ => serve_awake(world, host, 1),
        })
    });
    act(&world, 0, |world, host| {
        let targets = CpuSet::inclusive(1, 2);
        let called = world
            .table
            .many(host, &targets, Call::number(0), wait)
            .unwrap();
        assert_eq!(called, targets);
        if wait == Wait::UntilDone {
            property!(
                world.ran(0) == 2,
                "done after it has run",
                "it ran on {} of 2",
                world.ran(0)
            );
            world.expect_written(0);
        }
    });
    end(&world, targets, |world| {
        world.settle();
        world.expect(0, 2);
    });
}

/// A broadcast that nobody waits for, to sleepers.
fn broadcast_and_go(how: How) {
    let world = World::new(3);
    let targets = [1, 2].map(|cpu| {
        spawn(&world, cpu, move |world, host| {
            world.serve_until(host.cpu, how, 1)
        })
    });
    act(&world, 0, |world, host| {
        let targets = CpuSet::inclusive(1, 2);
        world
            .table
            .many(host, &targets, Call::number(0), Wait::No)
            .unwrap();
    });
    end(&world, targets, |world| {
        world.settle();
        world.expect(0, 2);
    });
}

/// Two broadcasts to one sleeper, which must not miss the second while it looks for the first.
fn two_broadcasts() {
    let world = World::new(3);
    let callers = [1, 2].map(|cpu| {
        spawn(&world, cpu, move |world, host| {
            let others: CpuSet = [0, 3 - cpu as u32].into_iter().map(CpuId::new).collect();
            world
                .table
                .many(host, &others, Call::number(cpu), Wait::No)
                .unwrap();
        })
    });
    act(&world, 0, |world, _| world.serve_until(0, How::Halt, 2));
    end(&world, callers, |world| {
        // The callers are awake, and look before they sleep.
        for cpu in [1, 2] {
            world.table.serve(&world.on(cpu));
        }
        world.settle();
        world.expect(1, 2);
        world.expect(2, 2);
    });
}

/// The target goes offline while it is called.
fn offline(wait: Wait, broadcast: bool) {
    let world = World::new(3);
    let dying = spawn(&world, 1, |world, host| {
        world.table.serve(host);
        world.table.close(host);
    });
    let third = broadcast.then(|| spawn(&world, 2, |world, host| serve_awake(world, host, 1)));
    if third.is_none() {
        world.count.waits[2].set(None);
    }
    let called = Cell::new(0);
    act(&world, 0, |world, host| {
        let target = CpuId::new(1);
        let made = if broadcast {
            let targets = CpuSet::inclusive(1, 2);
            world.table.many(host, &targets, Call::number(0), wait)
        } else {
            world
                .table
                .single(host, target, Call::number(0), wait)
                .map(|()| CpuSet::single(target))
        };
        match made {
            Ok(cpus) => called.set(cpus.len() as u32),
            Err(why) => assert_eq!(why, CallError::Offline(target)),
        }
    });
    let threads = [Some(dying), third].into_iter().flatten();
    end(&world, threads, |world| {
        let (ran, taken) = (world.ran(0), called.get());
        property!(
            ran >= taken,
            "a call that was taken runs",
            "it was taken by {taken}, and ran {ran} times"
        );
        property!(
            ran <= taken,
            "a call runs once",
            "it was taken by {taken}, and ran {ran} times"
        );
    });
}

pub fn all() -> Vec<Check> {
    vec![
        Check::new("call/each-other")
            .variant(|| each_other(Wait::UntilDone))
            .variant(|| each_other(Wait::No)),
        Check::new("call/two-callers-halt").variant(|| two_callers(How::Halt)),
        Check::new("call/two-callers-masked").variant(|| two_callers(How::Masked)),
        Check::new("call/two-callers-guest").variant(|| two_callers(How::Guest)),
        Check::new("call/two-waiting").variant(|| two_waiting(How::Halt)),
        Check::new("call/slots").variant(slots),
        Check::new("call/broadcast")
            .variant(|| broadcast(Wait::UntilDone))
            .variant(|| broadcast(Wait::No)),
        Check::new("call/broadcast-and-go")
            .variant(|| broadcast_and_go(How::Halt))
            .variant(|| broadcast_and_go(How::Masked)),
        Check::new("call/two-broadcasts").variant(two_broadcasts),
        Check::new("call/offline").variant(|| offline(Wait::UntilDone, false)),
        Check::new("call/offline-and-go").variant(|| offline(Wait::No, false)),
        Check::new("call/offline-broadcast")
            .variant(|| offline(Wait::UntilDone, true))
            .variant(|| offline(Wait::No, true)),
    ]
}
