//! What one wake and one broadcast cost in a machine of any size, in accesses to the memory that its CPUs share.
//!
//! All CPUs run the core's dispatch loop and idle loop on the [`board`](super::board), and are asleep when the first one does one
//! thing. Counted is what the core's own code does: the loads, stores and atomic read-modify-writes of `lull_core::sync`. On a real
//! machine each may be a cache miss, so the count is what grows with a machine, whatever its clock. What is told of a thing:
//!
//! - what the **sender** does, from the call to its return;
//! - what **all CPUs** do until they sleep again, those that wake included, less what they do when nothing is done to them.
//!
//! Nothing else happens: no guests, no faults, no randomness.

use super::board::{Board, Handle, Nature, OUTSIDE, RATE, Sim, State};
use super::energy::Energy;
use super::events::{Events as Queue, What};
use super::faults::Faults;
use super::fiber::Fiber;
use super::observed::Observed;
use super::states::{Entry, States, machine};
use super::stopwatch::Stopwatch;
use super::topology::Topology as Shape;
use super::trace::Trace;
use super::watch::Watch;
use crate::rng::Rng;
use lull_core::call::{CallHost, CallTable, Errand, Wait};
use lull_core::dispatch::{Machine, RunOutcome, Runner};
use lull_core::governor::AnyGovernor;
use lull_core::idle::CpuIdle;
use lull_core::platform::Clock;
use lull_core::sched::credit2::Config;
use lull_core::sched::{AnyScheduler, CpuPlace, Setup, Topology};
use lull_core::sync::counted::Accesses;
use lull_core::units::{CpuId, CpuSet, MAX_CPUS, Ticks, VcpuId};
use lull_core::wake::{Events, SleepState};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// When time begins.
const START: u64 = 1_000;
/// From one thing to the next, in ns: all are asleep again long before.
const PAUSE: u64 = 5_000_000;
/// How often each is done; the last time counts, when nothing is new to anybody.
const ROUNDS: usize = 3;
/// The stack of a CPU.
const STACK: usize = 256 << 10;

/// What the first CPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing: what all others are compared with.
    Nothing,
    /// Wakes the last CPU, for nothing.
    Wake,
    /// Calls the last CPU, and does not wait: to wait is to look again and again, as long as the way out of a C-state takes.
    Send,
    /// Wakes all others, for nothing.
    WakeAll,
    /// Calls all others, and does not wait.
    SendAll,
}

impl Operation {
    /// All of them, in the order in which they are done.
    pub const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Wake,
        Self::Send,
        Self::WakeAll,
        Self::SendAll,
    ];

    /// As the image names it, too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Wake => "wake",
            Self::Send => "call-send",
            Self::WakeAll => "broadcast-wake",
            Self::SendAll => "broadcast-send",
        }
    }
}

/// What it costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// What was done.
    pub operation: Operation,
    /// The sender's accesses.
    pub sender: Accesses,
    /// Those of all CPUs.
    pub machine: Accesses,
    /// Posts that an interrupt was sent for.
    pub ipis: u64,
}

/// Does everything once on a machine of so many CPUs, whose C-states are entered in that way.
///
/// # Errors
/// There is no such machine, or a CPU did not sleep when it should have.
pub fn measure(cpus: u32, entry: Entry) -> Result<Vec<Cost>, String> {
    if !(2..=MAX_CPUS as u32).contains(&cpus) {
        return Err(format!("{cpus} CPUs: expected 2 to {MAX_CPUS}"));
    }
    let mut stage = Stage::new(cpus, entry)?;
    stage.go();
    stage.end();
    let script = stage.actor.script.borrow();
    if let Some(why) = &script.failure {
        return Err(why.clone());
    }
    let idle = script.last(Operation::Nothing)?;
    Operation::ALL
        .into_iter()
        .skip(1)
        .map(|operation| {
            let cost = script.last(operation)?;
            Ok(Cost {
                machine: cost.machine - idle.machine,
                ..cost
            })
        })
        .collect()
}

/// Runs nothing.
#[derive(Clone, Copy)]
struct Nought;

impl Errand for Nought {
    fn to_words(self) -> [u64; 2] {
        [0; 2]
    }

    fn from_words(_: [u64; 2]) -> Self {
        Self
    }
}

/// What has been measured so far.
#[derive(Default)]
struct Script {
    costs: Vec<Cost>,
    /// When the last one began.
    began: Accesses,
    done: bool,
    failure: Option<String>,
}

impl Script {
    fn last(&self, operation: Operation) -> Result<Cost, String> {
        let mut costs = self.costs.iter().rev();
        let cost = costs.find(|cost| cost.operation == operation);
        cost.copied()
            .ok_or_else(|| format!("`{}` was not measured", operation.name()))
    }
}

/// The first CPU's accesses: while it runs, and when it has given way.
#[derive(Default)]
struct Meter {
    before: Cell<Accesses>,
    resumed: Cell<Accesses>,
}

impl Meter {
    fn now(&self) -> Accesses {
        let mut all = self.before.get();
        all += Accesses::so_far() - self.resumed.get();
        all
    }
}

/// What all CPUs run, and who makes the first one do something.
struct Actor {
    machine: Rc<Sim<AnyScheduler>>,
    board: Rc<Board<AnyScheduler>>,
    table: CallTable<Nought>,
    others: CpuSet,
    meter: Meter,
    script: RefCell<Script>,
}

impl Actor {
    fn first(&self) -> Option<&lull_core::dispatch::Pcpu> {
        self.machine.pcpu(CpuId::new(0))
    }

    fn sleeps(&self, cpu: CpuId) -> bool {
        let pcpu = self.machine.pcpu(cpu);
        pcpu.is_some_and(|pcpu| {
            let state = pcpu.word.state();
            matches!(state, SleepState::Watching | SleepState::Halted) && !pcpu.word.is_pending()
        })
    }

    /// The next thing is done.
    fn step(&self) {
        let (number, awake) = Accesses::uncounted(|| {
            let number = self.script.borrow().costs.len();
            (number, self.others.iter().find(|&cpu| !self.sleeps(cpu)))
        });
        {
            let mut script = self.script.borrow_mut();
            let began = script.began;
            if let Some(last) = script.costs.last_mut() {
                last.machine = Accesses::so_far() - began;
            }
            script.began = Accesses::so_far();
            if let Some(cpu) = awake {
                script.failure = Some(format!("{cpu} is awake, after {PAUSE} ns without work"));
            }
            script.done = number == ROUNDS * Operation::ALL.len() || script.failure.is_some();
            if script.done {
                return;
            }
        }
        let operation = Operation::ALL[number % Operation::ALL.len()];
        let ipis =
            || Accesses::uncounted(|| self.first().map_or(0, |own| own.wakes.counts().ipis()));
        let (sent, before) = (ipis(), self.meter.now());
        self.act(operation);
        let sender = self.meter.now() - before;
        self.script.borrow_mut().costs.push(Cost {
            operation,
            sender,
            machine: Accesses::default(),
            ipis: ipis() - sent,
        });
    }

    fn act(&self, operation: Operation) {
        let Some(last) = self.others.iter().last() else {
            return;
        };
        let called = match operation {
            Operation::Nothing => Ok(self.others),
            Operation::Wake => {
                self.board.watch.posted(last);
                self.machine.post(last, Events::NOTIFY);
                Ok(self.others)
            }
            Operation::WakeAll => {
                let posted = |cpu| self.board.watch.posted(cpu);
                self.others.iter().for_each(posted);
                self.machine.post_many(&self.others, Events::NOTIFY);
                Ok(self.others)
            }
            Operation::Send => self
                .table
                .single(self, last, Nought, Wait::No)
                .map(|()| self.others),
            Operation::SendAll => self.table.many(self, &self.others, Nought, Wait::No),
        };
        if called != Ok(self.others) {
            self.script.borrow_mut().failure = Some(format!("`{}`: {called:?}", operation.name()));
        }
    }
}

impl CallHost<Nought> for Actor {
    fn cpu(&self) -> CpuId {
        CpuId::new(self.board.cpu())
    }

    fn wake(&self, target: CpuId) {
        self.board.watch.posted(target);
        self.machine.post(target, Events::CALL);
    }

    fn wake_many(&self, targets: &CpuSet) {
        let posted = |cpu| self.board.watch.posted(cpu);
        targets.iter().for_each(posted);
        self.machine.post_many(targets, Events::CALL);
    }

    fn run(&self, _: Nought) {}

    fn relax(&self) {
        self.board.spend(super::board::cost::RELAX);
    }
}

impl Runner for Actor {
    fn enter(&self, _: VcpuId) -> RunOutcome {
        RunOutcome::Gone
    }

    fn timer_expired(&self, _: VcpuId) {}

    fn console(&self) {}

    fn call(&self) {
        self.table.serve(self);
    }

    fn probe(&self, _: Ticks) {
        if !self.board.is_ending() {
            self.step();
            self.arm();
        }
    }
}

impl Actor {
    fn arm(&self) {
        let at = self.machine.platform().now() + Ticks::new(PAUSE);
        self.machine.set_probe_timer(at);
    }
}

/// The CPUs, and time.
struct Stage {
    actor: Rc<Actor>,
    fibers: Vec<Fiber>,
}

impl Stage {
    fn new(cpus: u32, entry: Entry) -> Result<Self, String> {
        let states = States::new(&machine("skx")?, entry);
        let shape = Shape {
            cpus,
            sockets: 1,
            threads: 1,
        };
        let watch = Arc::new(Watch::new(cpus, 0, u64::MAX));
        let state = State::new(
            cpus,
            Queue::new(None),
            Rng::new(1),
            Trace::new(0),
            Energy::new(shape, states.costs.clone(), START),
        );
        let nature = Nature {
            topology: shape,
            faults: Faults::NONE,
            broken: None,
            jitter: 0,
        };
        let board = Rc::new(Board::new(nature, states, state, watch.clone(), START));
        let place = |cpu| CpuPlace {
            core: shape.core(cpu),
            socket: shape.socket(cpu),
            node: shape.socket(cpu),
        };
        let setup = Setup {
            topology: Topology::new((0..cpus).map(place)),
            units: 0,
            domains: 1,
            rate: RATE,
            credit2: Config::default(),
        };
        let sched = AnyScheduler::by_name(AnyScheduler::NAMES[0], setup);
        let stopwatch = Arc::new(Stopwatch::new(false));
        let observed = Observed::new(sched, watch, stopwatch, None, 1);
        let machine = Rc::new(Machine::new(Handle(board.clone()), observed, cpus as usize));
        board.install(&machine);
        let mut others = CpuSet::first(cpus as usize);
        for cpu in others.iter() {
            machine.cpu_online(cpu).map_err(|why| why.to_string())?;
        }
        others.remove(CpuId::new(0));
        let actor = Rc::new(Actor {
            table: CallTable::new(cpus as usize),
            others,
            meter: Meter::default(),
            script: RefCell::default(),
            machine,
            board,
        });
        let fibers = (0..cpus)
            .map(|cpu| {
                let actor = actor.clone();
                let (table, trust) = (actor.board.states.table, actor.board.states.trust);
                Fiber::new(STACK, move || {
                    let mut idle = CpuIdle::new(table, AnyGovernor::default(), trust);
                    actor.table.open(CpuId::new(cpu));
                    if cpu == 0 {
                        actor.arm();
                    }
                    actor.machine.run(&mut idle, &*actor);
                    actor.table.close(&*actor);
                })
                .map_err(|why| format!("no room for the stack of a CPU: {why}"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        {
            let mut state = actor.board.state();
            for cpu in 0..cpus {
                let turn = state.next_turn(cpu);
                state.events.push(START, What::Resume { turn }, cpu);
            }
        }
        Ok(Self { actor, fibers })
    }

    /// Lets events happen until the script is done.
    fn go(&mut self) {
        let board = self.actor.board.clone();
        while !self.actor.script.borrow().done {
            let next = board.state().events.pop();
            let Some(event) = next else { break };
            board.set_now(event.at);
            match event.what {
                What::Resume { turn } => {
                    let waits = {
                        let state = board.state();
                        let own = state.cpus.get(event.who as usize);
                        own.is_some_and(|own| own.turn == turn)
                    };
                    if waits {
                        self.resume(event.who);
                    }
                }
                What::OneShot => board.one_shot(event.who),
                What::Ipi => board.interrupt(event.who, false),
                _ => {}
            }
            while board.watch.has_posts() {
                for cpu in board.watch.take_posted() {
                    board.stored(cpu.get());
                }
            }
        }
    }

    fn resume(&mut self, cpu: u32) {
        let Some(fiber) = self.fibers.get_mut(cpu as usize) else {
            return;
        };
        let meter = &self.actor.meter;
        self.actor.board.set_cpu(cpu);
        meter.resumed.set(Accesses::so_far());
        fiber.resume();
        if cpu == 0 {
            meter.before.set(meter.now());
        }
        self.actor.board.set_cpu(OUTSIDE);
    }

    /// All loops end.
    fn end(&mut self) {
        self.actor.board.end();
        self.actor.machine.stop();
        for cpu in 0..self.fibers.len() as u32 {
            self.resume(cpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(costs: &[Cost], operation: Operation) -> Cost {
        let mut found = costs.iter().filter(|cost| cost.operation == operation);
        *found.next().unwrap()
    }

    #[test]
    fn a_wake_does_not_grow_and_a_broadcast_grows_by_the_cpus() {
        for entry in [Entry::Mwait, Entry::Halt] {
            let [small, large] = [2, 64].map(|cpus| measure(cpus, entry).unwrap());
            for operation in [Operation::Wake, Operation::Send] {
                let (small, large) = (cost(&small, operation), cost(&large, operation));
                assert_eq!(small.sender, large.sender, "{operation:?} {entry:?}");
                assert!(small.sender.updates > 0);
            }
            let all = cost(&large, Operation::WakeAll);
            assert!(all.sender.updates >= 63, "{all:?}");
            let ipis = if entry == Entry::Mwait { 0 } else { 63 };
            assert_eq!(all.ipis, ipis, "{entry:?}");
            // Each that wakes does something, too.
            assert!(all.machine.updates >= all.sender.updates + 63);
        }
    }

    #[test]
    fn a_machine_of_one_cpu_wakes_nobody() {
        assert!(measure(1, Entry::Mwait).is_err());
    }
}
