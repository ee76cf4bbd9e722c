//! The scripted machine, and a runner whose guests do as they are told.

use super::*;
use crate::cstate::{CState, CStateFlags, CStateTable, MwaitHint};
use crate::governor::DeepestFit;
use crate::idle::MonitorTrust;
use crate::platform::{Clock, Ipi, IrqGate, OneShot, Sleeper};
use crate::sched::fair::Fair;
use crate::units::{TickRate, VcpuId};
use crate::wake::Cause;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

pub const CPU0: CpuId = CpuId::new(0);
pub const SLICE: u64 = 1_000_000;

pub fn vcpu(number: u32) -> VcpuId {
    VcpuId::new(number)
}

/// What another CPU, or a device, does.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Post(Events),
    Kick(u32),
    Remove(u32),
    FireEarly,
    Ask(CpuChange),
    Stop,
}

#[derive(Default)]
pub struct State {
    pub now: Cell<u64>,
    pub cpu: Cell<u32>,
    armed: Cell<Option<u64>>,
    first_irq: Cell<Option<u64>>,
    script: RefCell<VecDeque<(u64, Act)>>,
    arms: RefCell<Vec<u64>>,
    ipis: RefCell<Vec<u32>>,
    machine: OnceCell<Rc<TestMachine>>,
}

#[derive(Clone, Default)]
pub struct Mock(pub Rc<State>);

pub type TestMachine = Machine<Mock, Fair>;

impl Mock {
    /// Time passes until something happens, and it does. Nothing left to happen is a hang.
    fn something_happens(&self) {
        let state = &self.0;
        let next = state.script.borrow().front().map(|&(at, _)| at);
        let timer = state.armed.get();
        let first = [next, timer].into_iter().flatten().min();
        let at = first
            .expect("the CPU would sleep for ever")
            .max(state.now.get());
        state.now.set(at);
        state.first_irq.set(Some(at));
        if timer.is_some_and(|timer| timer <= at) {
            state.armed.set(None);
            let machine = state.machine.get().unwrap();
            return machine.post_from_handler(Events::TIMER, Cause::OwnTimer);
        }
        let Some((_, act)) = state.script.borrow_mut().pop_front() else {
            return;
        };
        let machine = state.machine.get().unwrap();
        state.cpu.set(1); // It is another CPU that acts.
        match act {
            Act::Post(events) => machine.post(CPU0, events),
            Act::Kick(v) => machine.kick(vcpu(v)),
            Act::Remove(v) => drop(machine.remove_vcpu(vcpu(v)).unwrap()),
            Act::FireEarly => {
                state.armed.set(None);
                state.cpu.set(0);
                machine.post_from_handler(Events::TIMER, Cause::OwnTimer);
            }
            Act::Ask(change) => machine.ask(CPU0, change),
            Act::Stop => machine.post(CPU0, Events::STOP),
        }
        state.cpu.set(0);
    }
}

impl Clock for Mock {
    fn now(&self) -> Ticks {
        self.0.now.set(self.0.now.get() + 1);
        Ticks::new(self.0.now.get())
    }
    fn rate(&self) -> TickRate {
        TickRate::from_hz(1_000_000_000).unwrap()
    }
}

impl OneShot for Mock {
    fn arm(&self, deadline: Ticks) {
        self.0.armed.set(Some(deadline.get()));
        self.0.arms.borrow_mut().push(deadline.get());
    }
    fn cancel(&self) {
        self.0.armed.set(None);
    }
}

impl Sleeper for Mock {
    fn interrupt_in_service(&self) -> bool {
        false
    }
    fn bus_master_active(&self) -> bool {
        false
    }
    fn prepare(&self, _flags: CStateFlags) {}
    fn recover(&self, _flags: CStateFlags) {}
    fn arm_monitor(&self, _word: &crate::wake::WakeWord) {}
    fn mwait(&self, _hint: MwaitHint, _gate: IrqGate) {
        self.something_happens();
    }
    fn halt(&self) {
        self.something_happens();
    }
    fn io_read(&self, _port: u16, _settle: bool) {
        self.something_happens();
    }
    /// Time passes, and what is due happens.
    fn relax(&self) {
        let state = &self.0;
        state.now.set(state.now.get() + 50);
        let next = state.script.borrow().front().map(|&(at, _)| at);
        let due = next.into_iter().chain(state.armed.get()).min();
        if due.is_some_and(|due| due <= state.now.get()) {
            self.something_happens();
        }
    }
    fn poll(&self) {}
    fn interrupt_window(&self) {}
    fn take_first_irq(&self) -> Option<Ticks> {
        self.0.first_irq.take().map(Ticks::new)
    }
}

impl Ipi for Mock {
    fn send(&self, target: CpuId) {
        self.0.ipis.borrow_mut().push(target.get());
    }
}

impl Platform for Mock {
    fn cpu(&self) -> CpuId {
        CpuId::new(self.0.cpu.get())
    }
}

/// Guests that run until something happens, and then do what was planned.
pub struct Guests {
    machine: Rc<TestMachine>,
    plans: RefCell<BTreeMap<VcpuId, VecDeque<RunOutcome>>>,
    kick_on_exit: Cell<Option<VcpuId>>,
    said: RefCell<Vec<String>>,
}

impl Guests {
    fn say(&self, what: &str, v: VcpuId) {
        self.said.borrow_mut().push(std::format!("{what} {v}"));
    }
}

impl Runner for Guests {
    fn enter(&self, v: VcpuId) -> RunOutcome {
        self.say("enter", v);
        let machine = &self.machine;
        let word = &machine.this_pcpu().unwrap().word;
        machine.sched().units().get(v).unwrap().state.consume_kick();
        let planned = self
            .plans
            .borrow_mut()
            .get_mut(&v)
            .and_then(VecDeque::pop_front);
        if let Some(outcome) = planned {
            if let Some(v) = self.kick_on_exit.take() {
                machine.kick(v);
            }
            return outcome;
        }
        if word.publish(SleepState::Guest).is_err() {
            return RunOutcome::Events;
        }
        machine.guest_entering(v, machine.platform().now());
        machine.platform().something_happens();
        machine.guest_left(v, machine.platform().now());
        word.leave_guest();
        RunOutcome::Events
    }

    fn timer_expired(&self, v: VcpuId) {
        self.say("timer", v);
        self.machine.kick(v);
    }

    fn console(&self) {
        self.said.borrow_mut().push("console".into());
    }

    fn call(&self) {
        self.said.borrow_mut().push("call".into());
    }

    fn parks(&self) {
        self.said.borrow_mut().push("parks".into());
    }

    fn unparks(&self) {
        self.said.borrow_mut().push("unparks".into());
    }

    fn refused(&self, change: CpuChange, why: SchedError) {
        self.said
            .borrow_mut()
            .push(std::format!("{change:?}: {why}"));
    }

    fn load(&self, v: VcpuId) {
        self.say("load", v);
    }

    fn save(&self, v: VcpuId) {
        self.say("save", v);
    }

    fn removed(&self, v: VcpuId) {
        self.say("removed", v);
    }
}

/// A machine of which CPU 0 runs the loop.
pub struct World {
    pub machine: Rc<TestMachine>,
    pub table: CStateTable,
    guests: Guests,
}

impl World {
    pub fn new(cpus: usize) -> Self {
        let mock = Mock::default();
        mock.0.now.set(1_000);
        let fair = Fair::new(cpus, 4, Ticks::new(SLICE));
        let machine = Rc::new(Machine::new(mock.clone(), fair, cpus));
        machine.cpu_online(CPU0).unwrap();
        assert!(mock.0.machine.set(machine.clone()).is_ok());
        Self {
            table: CStateTable::new(&[CState::C1_HALT]).unwrap(),
            guests: Guests {
                machine: machine.clone(),
                plans: RefCell::default(),
                kick_on_exit: Cell::default(),
                said: RefCell::default(),
            },
            machine,
        }
    }

    pub fn unit(&self, v: u32) -> &crate::sched::Unit {
        self.machine.sched().units().get(vcpu(v)).unwrap()
    }

    /// At this time, or as soon as the CPU sleeps or runs a guest after it.
    pub fn at(&mut self, time: u64, act: Act) {
        let state = &self.machine.platform().0;
        state.script.borrow_mut().push_back((time, act));
    }

    pub fn start(&mut self, v: u32) {
        self.machine
            .add_vcpu(vcpu(v), UnitParams::default())
            .unwrap();
        self.machine.online_vcpu(vcpu(v));
    }

    /// What the guest does when it is entered, instead of running until something happens.
    pub fn outcomes(&mut self, v: u32, plan: impl IntoIterator<Item = RunOutcome>) {
        let plan = plan.into_iter().collect();
        self.guests.plans.borrow_mut().insert(vcpu(v), plan);
    }

    /// The vCPU is kicked right when its next planned exit happens.
    pub fn kick_on_exit(&mut self, v: u32) {
        self.guests.kick_on_exit.set(Some(vcpu(v)));
    }

    pub fn run(&mut self) {
        let governor = DeepestFit;
        let mut idle = CpuIdle::new(self.table, governor, MonitorTrust::SeesStores);
        self.machine.run(&mut idle, &self.guests);
    }

    pub fn said(&self) -> Vec<String> {
        self.guests.said.borrow().clone()
    }

    pub fn arms(&self) -> Vec<u64> {
        self.machine.platform().0.arms.borrow().clone()
    }

    pub fn ipis(&self) -> Vec<u32> {
        self.machine.platform().0.ipis.borrow().clone()
    }
}
