//! The CPUs, and time, which goes from event to event.

use super::actor::{Actor, Meter, Script};
use crate::machine::board::{Board, Handle, Nature, OUTSIDE, RATE, State};
use crate::machine::energy::Energy;
use crate::machine::events::{Events as Queue, What};
use crate::machine::faults::Faults;
use crate::machine::fiber::Fiber;
use crate::machine::observed::Observed;
use crate::machine::states::{Entry, States, machine};
use crate::machine::stopwatch::Stopwatch;
use crate::machine::topology::Topology as Shape;
use crate::machine::trace::Trace;
use crate::machine::watch::Watch;
use crate::rng::Rng;
use lull_core::call::CallTable;
use lull_core::dispatch::Machine;
use lull_core::governor::AnyGovernor;
use lull_core::idle::CpuIdle;
use lull_core::sched::credit2::Config;
use lull_core::sched::{AnyScheduler, CpuPlace, Setup, Topology};
use lull_core::units::{CpuId, CpuSet};
use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// When time begins.
const START: u64 = 1_000;
/// The stack of a CPU.
const STACK: usize = 256 << 10;

/// The CPUs, and time.
pub struct Stage {
    actor: Rc<Actor>,
    fibers: Vec<Fiber>,
}

impl Stage {
    /// So many CPUs that have not begun.
    ///
    /// # Errors
    /// There is no room for their stacks.
    pub fn new(cpus: u32, entry: Entry) -> Result<Self, String> {
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
    pub fn go(&mut self) {
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

    /// What was measured.
    pub fn script(&self) -> Ref<'_, Script> {
        self.actor.script.borrow()
    }

    fn resume(&mut self, cpu: u32) {
        let Some(fiber) = self.fibers.get_mut(cpu as usize) else {
            return;
        };
        let meter = &self.actor.meter;
        self.actor.board.set_cpu(cpu);
        meter.resumes();
        fiber.resume();
        if cpu == 0 {
            meter.gave_way();
        }
        self.actor.board.set_cpu(OUTSIDE);
    }

    /// All loops end.
    pub fn end(&mut self) {
        self.actor.board.end();
        self.actor.machine.stop();
        for cpu in 0..self.fibers.len() as u32 {
            self.resume(cpu);
        }
    }
}
