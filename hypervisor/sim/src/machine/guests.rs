//! The vCPUs: what the image does for them, done to [programs](super::program).
//!
//! The order is that of the image's loop around a VM entry: take the kick, look at what has come in, decide, enter through
//! the gate that publishes GUEST.

use super::board::{Board, Sim, cost};
use super::faults::Broken;
use super::load::{Kind, Load};
use super::measure::Measures;
use super::program::{Inbox, Op, Program, REQUEST_INTERVAL, SharedLock, View};
use super::stopwatch::{Operation, Stopwatch};
use super::trace::Line;
use super::traffic::Traffic;
use crate::rng::Rng;
use lull_core::dispatch::{RunOutcome, Runner};
use lull_core::platform::Clock;
use lull_core::sched::Scheduler;
use lull_core::sched::unit::Phase;
use lull_core::units::{Ticks, VcpuId};
use lull_core::wake::SleepState;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

struct Vcpu {
    program: Program,
    rng: Rng,
    inbox: Inbox,
    /// What it does, if that was begun and is not done.
    doing: Option<Op>,
    /// When it was kicked out of its block, until it runs.
    kicked: Option<u64>,
    ran: u64,
}

/// All vCPUs, and what they have in common.
pub struct Guests<S: Scheduler> {
    machine: Rc<Sim<S>>,
    board: Rc<Board<S>>,
    vcpus: RefCell<Vec<Vcpu>>,
    locks: RefCell<Vec<SharedLock>>,
    measures: RefCell<Measures>,
    stopwatch: Arc<Stopwatch>,
    traffic: Option<Rc<Traffic<S>>>,
}

impl<S: Scheduler> Guests<S> {
    /// The vCPUs of a load. None is started.
    pub fn new(
        machine: Rc<Sim<S>>,
        board: Rc<Board<S>>,
        stopwatch: Arc<Stopwatch>,
        load: &Load,
        seed: u64,
        traffic: Option<Rc<Traffic<S>>>,
    ) -> Self {
        let mut vcpus = Vec::with_capacity(load.vcpus() as usize);
        for (index, part) in load.each() {
            let me = vcpus.len() as u32;
            let group = part.kind.group() as u32;
            let first = me - index % group;
            let size = group.min(part.count - (index - index % group));
            vcpus.push(Vcpu {
                program: Program::new(part.kind, me, first, size),
                rng: Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(me) << 20 | 1)),
                inbox: Inbox::default(),
                doing: None,
                kicked: None,
                ran: 0,
            });
        }
        let locks = vcpus.len() / Kind::Lock.group() + 1;
        Self {
            machine,
            board,
            locks: RefCell::new(vec![SharedLock::default(); locks]),
            vcpus: RefCell::new(vcpus),
            measures: RefCell::default(),
            stopwatch,
            traffic,
        }
    }

    /// A new vCPU takes the slot of one that was removed: its program begins anew.
    pub fn restart(&self, v: u32) {
        self.with(v as usize, |vcpu| {
            vcpu.program.restart();
            vcpu.inbox = Inbox::default();
            vcpu.doing = None;
            vcpu.kicked = None;
        });
    }

    /// What was measured so far.
    pub fn measures(&self) -> std::cell::Ref<'_, Measures> {
        self.measures.borrow()
    }

    /// How long each vCPU was inside the guest.
    pub fn run_times(&self) -> Vec<u64> {
        self.vcpus.borrow().iter().map(|vcpu| vcpu.ran).collect()
    }

    /// A request for a server comes in, from outside. When the next one does.
    pub fn arrival(&self, v: u32) -> Option<u64> {
        let now = self.board.now();
        let next = {
            let mut vcpus = self.vcpus.borrow_mut();
            let vcpu = vcpus.get_mut(v as usize)?;
            vcpu.inbox.requests.push_back(now);
            now + vcpu.rng.exponential(REQUEST_INTERVAL)
        };
        self.kick(v);
        Some(next)
    }

    /// When the first request comes, if the vCPU serves any.
    pub fn first_arrival(&self, v: u32) -> Option<u64> {
        let mut vcpus = self.vcpus.borrow_mut();
        let vcpu = vcpus.get_mut(v as usize)?;
        let serves = vcpu.program.kind() == Kind::Server;
        serves.then(|| self.board.now() + vcpu.rng.exponential(REQUEST_INTERVAL))
    }

    fn kick(&self, v: u32) {
        let id = VcpuId::new(v);
        let unit = self.machine.sched().units().get(id);
        if unit.is_some_and(|unit| unit.state.phase() == Phase::Blocked && !unit.state.is_kicked())
        {
            self.board.watch.kicked(id);
            self.board.note(Line::Kick { vcpu: v });
            if let Some(vcpu) = self.vcpus.borrow_mut().get_mut(v as usize) {
                vcpu.kicked.get_or_insert(self.board.now());
            }
        }
        self.machine.kick(id);
    }

    /// What the vCPU does now.
    fn next(&self, v: usize) -> Op {
        let now = self.board.now();
        let (mut vcpus, mut locks) = (self.vcpus.borrow_mut(), self.locks.borrow_mut());
        let Some(vcpu) = vcpus.get_mut(v) else {
            return Op::Halt;
        };
        if let Some(op) = vcpu.doing.take() {
            return op;
        }
        let mut measured = Vec::new();
        let op = vcpu.program.next(&mut View {
            now,
            rng: &mut vcpu.rng,
            inbox: &mut vcpu.inbox,
            locks: &mut locks,
            measured: &mut measured,
        });
        if !measured.is_empty() {
            let mut measures = self.measures.borrow_mut();
            measured
                .into_iter()
                .for_each(|time| measures.response(vcpu.program.kind(), time));
        }
        op
    }

    fn with<T>(&self, v: usize, change: impl FnOnce(&mut Vcpu) -> T) -> Option<T> {
        self.vcpus.borrow_mut().get_mut(v).map(change)
    }

    /// Enters the guest for so long at most. `false` if the gate refused.
    fn run(&self, v: usize, ns: u64) -> bool {
        let (id, platform) = (VcpuId::new(v as u32), self.machine.platform());
        let Some(pcpu) = self.machine.this_pcpu() else {
            return false;
        };
        if pcpu.word.publish(SleepState::Guest).is_err() {
            self.with(v, |vcpu| vcpu.doing = Some(Op::Run(ns)));
            return false;
        }
        let kicked = self.with(v, |vcpu| vcpu.kicked.take()).flatten();
        if let Some(kicked) = kicked {
            let kind = self.with(v, |vcpu| vcpu.program.kind());
            let late = self.board.now() - kicked;
            self.measures
                .borrow_mut()
                .wake(kind.unwrap_or(Kind::Idle), late);
        }
        self.machine.guest_entering(id, platform.now());
        let ran = self.board.run_guest(v as u32, ns);
        self.machine.guest_left(id, platform.now());
        pcpu.word.leave_guest();
        self.with(v, |vcpu| {
            vcpu.ran += ran;
            vcpu.doing = Some(Op::Run(ns - ran)).filter(|_| ran < ns);
        });
        true
    }
}

impl<S: Scheduler> Runner for Guests<S> {
    fn enter(&self, v: VcpuId) -> RunOutcome {
        let count = self.vcpus.borrow().len();
        let index = if self.board.nature.broken == Some(Broken::WrongUnit) && count > 1 {
            (v.index() & !1).min(count - 1)
        } else {
            v.index()
        };
        let Some(unit) = self.machine.sched().units().get(v) else {
            return RunOutcome::Gone;
        };
        loop {
            unit.state.consume_kick();
            self.board.spend(cost::LOOK);
            let op = self.next(index);
            match op {
                Op::Run(ns) => {
                    if !self.run(index, ns) {
                        return RunOutcome::Events;
                    }
                }
                Op::Halt => {
                    // What it was woken for was nothing to it.
                    self.with(index, |vcpu| vcpu.kicked = None);
                    if self.with(index, |vcpu| vcpu.inbox.is_empty()) != Some(false) {
                        return RunOutcome::Block;
                    }
                    // What it was looking for may be what came in meanwhile.
                    let again = self.next(index);
                    if again == Op::Halt {
                        return RunOutcome::Block;
                    }
                    self.with(index, |vcpu| vcpu.doing = Some(again));
                }
                Op::Send(to) => {
                    self.board.spend(cost::EXIT);
                    self.with(to as usize, |vcpu| vcpu.inbox.ipis += 1);
                    self.kick(to);
                }
                Op::Timer(at) => {
                    self.board.spend(cost::EXIT);
                    let set = || self.machine.set_vcpu_timer(v, Some(Ticks::new(at)));
                    let set = self.stopwatch.time(Operation::Timer, set);
                    debug_assert!(set.is_ok(), "{v} has a slot");
                }
                Op::Yield => {
                    self.board.spend(cost::EXIT);
                    return RunOutcome::Yield;
                }
            }
            let pending = self
                .machine
                .this_pcpu()
                .is_some_and(|pcpu| pcpu.word.is_pending());
            if pending || self.board.is_ending() {
                return RunOutcome::Events;
            }
        }
    }

    fn timer_expired(&self, v: VcpuId) {
        self.with(v.index(), |vcpu| vcpu.inbox.timer = true);
        self.kick(v.get());
    }

    fn console(&self) {
        self.traffic.iter().for_each(|traffic| traffic.console());
    }

    fn call(&self) {
        self.traffic.iter().for_each(|traffic| traffic.serve());
    }

    fn probe(&self, deadline: Ticks) {
        self.traffic
            .iter()
            .for_each(|traffic| traffic.probe(deadline));
    }

    /// It has told another CPU of the timers that go there.
    fn parks(&self) {
        let others = self.machine.pcpus();
        for (cpu, _) in others.filter(|(_, pcpu)| !pcpu.is_parked()) {
            self.board.watch.posted(cpu);
        }
    }

    fn load(&self, _v: VcpuId) {
        self.board.spend(cost::REGISTERS);
    }

    fn save(&self, _v: VcpuId) {
        self.board.spend(cost::REGISTERS);
    }
}
