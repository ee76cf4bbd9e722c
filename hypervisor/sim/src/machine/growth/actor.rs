//! What all CPUs run, and what the first one does when its timer expires.

use super::{Cost, Operation, ROUNDS};
use crate::machine::board::{Board, Sim, cost};
use lull_core::call::{CallHost, CallTable, Errand, Wait};
use lull_core::dispatch::{Pcpu, RunOutcome, Runner};
use lull_core::platform::Clock;
use lull_core::sched::AnyScheduler;
use lull_core::sync::counted::Accesses;
use lull_core::units::{CpuId, CpuSet, Ticks, VcpuId};
use lull_core::wake::{Events, SleepState, Wake};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// From one thing to the next, in ns: all are asleep again long before.
const PAUSE: u64 = 5_000_000;
/// Runs nothing.
#[derive(Clone, Copy)]
pub struct Nought;

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
pub struct Script {
    costs: Vec<Cost>,
    /// When the last one began.
    began: Accesses,
    /// Nothing more comes.
    pub done: bool,
    failure: Option<String>,
}

impl Script {
    /// What the last of these cost.
    ///
    /// # Errors
    /// There was none, or something failed before.
    pub fn last(&self, operation: Operation) -> Result<Cost, String> {
        if let Some(why) = &self.failure {
            return Err(why.clone());
        }
        let mut costs = self.costs.iter().rev();
        let cost = costs.find(|cost| cost.operation == operation);
        cost.copied()
            .ok_or_else(|| format!("`{}` was not measured", operation.name()))
    }
}

/// The first CPU's accesses: while it runs, and when it has given way.
#[derive(Default)]
pub struct Meter {
    before: Cell<Accesses>,
    resumed: Cell<Accesses>,
}

impl Meter {
    /// A CPU is about to run.
    pub fn resumes(&self) {
        self.resumed.set(Accesses::so_far());
    }

    /// It was the first that has run.
    pub fn gave_way(&self) {
        self.before.set(self.now());
    }

    fn now(&self) -> Accesses {
        let mut all = self.before.get();
        all += Accesses::so_far() - self.resumed.get();
        all
    }
}

/// What all CPUs run, and who makes the first one do something.
pub struct Actor {
    pub machine: Rc<Sim<AnyScheduler>>,
    pub board: Rc<Board<AnyScheduler>>,
    pub table: CallTable<Nought>,
    /// All but the first.
    pub others: CpuSet,
    pub meter: Meter,
    pub script: RefCell<Script>,
}

impl Actor {
    fn first(&self) -> Option<&Pcpu> {
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
        let posts = || {
            let counts = || self.first().map(|own| own.wakes.counts());
            Accesses::uncounted(counts).unwrap_or_default()
        };
        let (sent, before) = (posts(), self.meter.now());
        self.act(operation);
        let sender = self.meter.now() - before;
        let posts = posts().since(&sent);
        self.script.borrow_mut().costs.push(Cost {
            operation,
            sender,
            machine: Accesses::default(),
            ipis: posts.ipis(),
            stores: posts.of(Wake::StoreWakes),
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
        self.board.spend(cost::RELAX);
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
    /// The next thing comes after a pause. On the first CPU.
    pub fn arm(&self) {
        let at = self.machine.platform().now() + Ticks::new(PAUSE);
        self.machine.set_probe_timer(at);
    }
}
