//! The hardware: CPUs that run, sleep or are inside a guest, their one-shots, their monitors, and interrupts on their way.
//!
//! Each call of the [platform](lull_core::platform) takes time, and other CPUs run meanwhile: the calling fiber gives way,
//! unless nothing at all happens before the call is done. Interrupts are off but where the platform opens them.

use super::energy::Energy;
use super::events::{Events as Queue, What};
use super::faults::{Broken, Fault, Faults, LATE_TIMER, SLOW_IPI};
use super::fiber;
use super::observed::Observed;
use super::states::States;
use super::topology::Topology;
use super::trace::{Doing, Line, Trace};
use super::watch::Watch;
use crate::rng::Rng;
use lull_core::dispatch::Machine;
use lull_core::sched::Scheduler;
use lull_core::units::CpuId;
use lull_core::wake::{Cause, Events, Origin, WakeWord};
use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// What stands for "no CPU": the world outside.
pub const OUTSIDE: u32 = u32::MAX;

/// How long each call takes, in ns.
pub mod cost {
    /// Reading the clock.
    pub const CLOCK: u64 = 10;
    /// Writing the one-shot.
    pub const ONE_SHOT: u64 = 40;
    /// Looking at something.
    pub const LOOK: u64 = 3;
    /// MONITOR.
    pub const MONITOR: u64 = 15;
    /// An interrupt handler.
    pub const HANDLER: u64 = 150;
    /// Sending an interrupt.
    pub const SEND: u64 = 80;
    /// Into a guest, and out of it.
    pub const WORLD_SWITCH: u64 = 300;
    /// An exit that the hypervisor handles.
    pub const EXIT: u64 = 400;
    /// The registers of a vCPU in or out.
    pub const REGISTERS: u64 = 120;
    /// A step of a short wait: PAUSE.
    pub const RELAX: u64 = 40;
    /// A poll gives up after so long, to look.
    pub const POLL: u64 = 400;
    /// A sleep that ends before it begins.
    pub const NO_SLEEP: u64 = 60;
}

/// The dispatch loops on this hardware.
pub type Sim<S> = Machine<Handle<S>, Observed<S>>;

/// What the hardware of one CPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Hypervisor code, with interrupts off.
    Runs,
    /// A guest.
    Guest,
    /// A C-state.
    Sleeps {
        /// By its index.
        state: u8,
        /// Since when.
        since: u64,
        /// The value of the wake word that the monitor was armed on, if a store ends the sleep.
        watches: Option<u64>,
    },
    /// On the way out of a C-state.
    Wakes,
}

pub(super) struct Cpu {
    pub mode: Mode,
    /// The wait that a [`What::Resume`] must name.
    pub turn: u32,
    timer_pending: bool,
    ipi_pending: bool,
    /// Interrupts from CPUs that are about to be sent, or on their way.
    in_flight: u32,
    /// When the one-shot is due.
    armed: Option<u64>,
    /// The earliest event of the one-shot that is on its way.
    one_shot_at: u64,
    monitor: Option<u64>,
    first_irq: Option<u64>,
    /// Time inside guests.
    pub guest_time: u64,
    pub entries: u64,
    /// Sleeps that ended, so that one can be told from the next.
    pub sleeps: u64,
}

/// What changes with every call.
pub(super) struct State {
    pub cpus: Vec<Cpu>,
    pub events: Queue,
    pub rng: Rng,
    pub trace: Trace,
    pub energy: Energy,
    /// Calls and events.
    pub steps: u64,
}

/// What the machine is like.
#[derive(Clone, Copy, Debug)]
pub struct Nature {
    /// Where the CPUs are.
    pub topology: Topology,
    /// What it does within its contract.
    pub faults: Faults,
    /// What it does outside of it.
    pub broken: Option<Broken>,
    /// One call in four takes up to so many ns longer.
    pub jitter: u64,
}

/// The hardware, and the time.
pub struct Board<S: Scheduler> {
    pub(super) nature: Nature,
    pub(super) states: States,
    now: Cell<u64>,
    cpu: Cell<u32>,
    /// The run is over: sleeps and guests end at once, and nothing takes time.
    ending: Cell<bool>,
    pub(super) state: RefCell<State>,
    pub(super) watch: Arc<Watch>,
    machine: OnceCell<Weak<Sim<S>>>,
}

/// The hardware as the core sees it.
pub struct Handle<S: Scheduler>(pub Rc<Board<S>>);

impl<S: Scheduler> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Scheduler> Board<S> {
    /// CPUs that have not been started. Times begin at `start`.
    pub(super) fn new(
        nature: Nature,
        states: States,
        state: State,
        watch: Arc<Watch>,
        start: u64,
    ) -> Self {
        watch.set_now(start);
        Self {
            nature,
            states,
            now: Cell::new(start),
            cpu: Cell::new(OUTSIDE),
            ending: Cell::new(false),
            state: RefCell::new(state),
            watch,
            machine: OnceCell::new(),
        }
    }

    /// The loops that run here.
    pub fn install(&self, machine: &Rc<Sim<S>>) {
        let installed = self.machine.set(Rc::downgrade(machine));
        debug_assert!(installed.is_ok(), "a board has one machine");
    }

    /// The time, in ns.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// The time is this from now on.
    pub fn set_now(&self, now: u64) {
        self.now.set(now);
        self.watch.set_now(now);
    }

    /// The CPU whose code runs, or [`OUTSIDE`].
    pub fn cpu(&self) -> u32 {
        self.cpu.get()
    }

    /// This CPU's code runs from now on.
    pub fn set_cpu(&self, cpu: u32) {
        self.cpu.set(cpu);
    }

    /// Is the run over?
    pub fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// The run is over.
    pub fn end(&self) {
        self.ending.set(true);
    }

    pub(super) fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Writes down what the CPU does from now on.
    fn notes(&self, cpu: u32, doing: Doing) {
        let mut state = self.state();
        let now = self.now();
        state.trace.add(now, Line::Cpu { cpu, doing });
        state.energy.change(now, cpu, doing);
    }

    /// Writes down what is not a CPU's.
    pub fn note(&self, line: Line) {
        self.state().trace.add(self.now(), line);
    }

    /// Time passes on the CPU that calls, and others run.
    pub fn spend(&self, ns: u64) {
        if !fiber::is_inside() || self.is_ending() {
            return;
        }
        let cpu = self.cpu();
        {
            let mut state = self.state();
            state.steps += 1;
            let jitter = self.nature.jitter;
            let extra = if jitter > 0 && state.rng.one_in(4) {
                state.rng.between(0, jitter)
            } else {
                0
            };
            let at = self.now() + ns + extra;
            // Alone in the world until then, and nobody has been given anything: no need to give way.
            if state.events.is_quiet_until(at) && !self.watch.has_posts() {
                drop(state);
                return self.set_now(at);
            }
            let turn = state.next_turn(cpu);
            state.events.push(at, What::Resume { turn }, cpu);
        }
        self.wait(cpu);
    }

    /// Gives way until somebody resumes this CPU.
    fn wait(&self, cpu: u32) {
        fiber::suspend();
        debug_assert_eq!(self.cpu(), cpu, "resumed as another CPU");
    }

    /// The wake word of a CPU, as its hardware sees it.
    fn with_word<T>(&self, cpu: u32, look: impl FnOnce(&WakeWord) -> T) -> Option<T> {
        let machine = self.machine.get()?.upgrade()?;
        let pcpu = machine.pcpu(CpuId::new(cpu))?;
        Some(by_hardware(|| look(&pcpu.word)))
    }

    /// Interrupts are open for a moment: what is pending is taken.
    pub fn take_interrupts(&self) {
        let cpu = self.cpu();
        let timer = {
            let mut state = self.state();
            let now = self.now();
            let Some(own) = state.cpus.get_mut(cpu as usize) else {
                return;
            };
            if !own.timer_pending && !own.ipi_pending {
                return;
            }
            own.first_irq.get_or_insert(now);
            own.ipi_pending = false;
            std::mem::take(&mut own.timer_pending)
        };
        if timer && let Some(machine) = self.machine.get().and_then(Weak::upgrade) {
            machine.post_from_handler(Events::TIMER, Cause::OwnTimer);
        }
        self.spend(cost::HANDLER);
    }

    /// Sleeps until an interrupt, or, if `armed`, a store to the wake word; a poll, also until its time is over.
    pub fn sleep(&self, state_index: u8, watches: bool, polls: bool) {
        if !fiber::is_inside() || self.is_ending() {
            return;
        }
        let cpu = self.cpu();
        let word = self
            .with_word(cpu, |word| (word.value(), word.is_pending()))
            .unwrap_or_default();
        {
            let mut state = self.state();
            let now = self.now();
            let Some(own) = state.cpus.get_mut(cpu as usize) else {
                return;
            };
            let armed = own.monitor.take().filter(|_| watches);
            let missed = armed.is_some_and(|armed| armed != word.0) || (polls && word.1);
            if missed || own.timer_pending || own.ipi_pending {
                drop(state);
                return self.spend(cost::NO_SLEEP);
            }
            own.mode = Mode::Sleeps {
                state: state_index,
                since: now,
                watches: if polls { Some(word.0) } else { armed },
            };
            own.sleeps += 1;
            let turn = state.next_turn(cpu);
            if polls {
                state
                    .events
                    .push(now + cost::POLL, What::Resume { turn }, cpu);
            }
            if self.nature.faults.has(Fault::Spurious) && state.rng.one_in(6) {
                let at = now + state.rng.exponential(30_000);
                state.events.push(at, What::Spurious, cpu);
            }
        }
        self.notes(cpu, Doing::Sleep(state_index));
        self.wait(cpu);
        if let Some(own) = self.state().cpus.get_mut(cpu as usize) {
            own.mode = Mode::Runs;
        }
        self.notes(cpu, Doing::Hypervisor);
    }

    /// Runs a guest for so long, or until an interrupt. How long that was.
    pub fn run_guest(&self, v: u32, ns: u64) -> u64 {
        if self.is_ending() {
            return 0;
        }
        self.spend(cost::WORLD_SWITCH);
        let cpu = self.cpu();
        let began = self.now();
        let entered = {
            let mut state = self.state();
            let Some(own) = state.cpus.get_mut(cpu as usize) else {
                return 0;
            };
            own.entries += 1;
            let enters = !own.timer_pending && !own.ipi_pending && !self.is_ending();
            if enters {
                own.mode = Mode::Guest;
                let turn = state.next_turn(cpu);
                state
                    .events
                    .push(began.saturating_add(ns), What::Resume { turn }, cpu);
            }
            enters
        };
        if entered {
            self.watch.enters(cpu, v);
            self.notes(cpu, Doing::Guest(v));
            self.wait(cpu);
            self.watch.leaves(v);
        }
        let ran = self.now() - began;
        if let Some(own) = self.state().cpus.get_mut(cpu as usize) {
            own.mode = Mode::Runs;
            own.guest_time += ran;
        }
        if entered {
            self.notes(cpu, Doing::Hypervisor);
        }
        self.spend(cost::WORLD_SWITCH);
        self.take_interrupts();
        ran
    }

    /// An interrupt reaches a CPU.
    pub fn interrupt(&self, cpu: u32, by_timer: bool) {
        let mut state = self.state();
        let now = self.now();
        let Some(own) = state.cpus.get_mut(cpu as usize) else {
            return;
        };
        if by_timer {
            own.timer_pending = true;
        } else {
            own.ipi_pending = true;
            own.in_flight = own.in_flight.saturating_sub(1);
        }
        match own.mode {
            Mode::Guest => {
                own.mode = Mode::Runs;
                let turn = state.next_turn(cpu);
                state.events.push(now, What::Resume { turn }, cpu);
            }
            Mode::Sleeps { .. } => {
                drop(state);
                self.wake(cpu);
            }
            Mode::Runs | Mode::Wakes => {}
        }
    }

    /// A CPU begins to leave its C-state.
    pub fn wake(&self, cpu: u32) {
        let mut state = self.state();
        let now = self.now();
        let Some(own) = state.cpus.get_mut(cpu as usize) else {
            return;
        };
        let Mode::Sleeps { state: index, .. } = own.mode else {
            return;
        };
        own.mode = Mode::Wakes;
        let worst = self.states.exit_latency(index);
        let latency = if self.nature.faults.has(Fault::Exit) {
            state.rng.between(worst / 4, worst)
        } else {
            worst
        };
        let turn = state.next_turn(cpu);
        state.events.push(now + latency, What::Resume { turn }, cpu);
        drop(state);
        self.notes(cpu, Doing::Waking(index));
    }

    /// Something was posted to a CPU: if it watches its wake word, it wakes.
    pub fn stored(&self, cpu: u32) {
        let Some(value) = self.with_word(cpu, WakeWord::value) else {
            return;
        };
        let sees = {
            let mut state = self.state();
            let mode = state.cpus.get(cpu as usize).map(|own| own.mode);
            let Some(Mode::Sleeps {
                watches: Some(armed),
                ..
            }) = mode
            else {
                return;
            };
            let ignored = self.nature.broken == Some(Broken::IgnoreStore) && state.rng.one_in(8);
            armed != value && !ignored
        };
        if sees {
            self.wake(cpu);
        }
    }

    /// The one-shot of a CPU may be due.
    pub fn one_shot(&self, cpu: u32) {
        let mut state = self.state();
        let now = self.now();
        let early = self.nature.faults.has(Fault::Timer) && state.rng.one_in(8);
        let lost = self.nature.broken == Some(Broken::LoseTimer) && state.rng.one_in(8);
        let Some(own) = state.cpus.get_mut(cpu as usize) else {
            return;
        };
        if own.one_shot_at > now {
            return; // An earlier one was pushed, and has had its turn.
        }
        own.one_shot_at = u64::MAX;
        let Some(armed) = own.armed else {
            return;
        };
        if armed > now && !(early && armed - now < LATE_TIMER) {
            own.one_shot_at = armed;
            state.events.push(armed, What::OneShot, cpu);
            return;
        }
        own.armed = None;
        drop(state);
        if !lost {
            self.note(Line::OneShot { cpu });
            self.interrupt(cpu, true);
        }
    }

    fn arm(&self, deadline: u64) {
        let cpu = self.cpu();
        let mut state = self.state();
        let late = if self.nature.faults.has(Fault::Timer) {
            state.rng.between(0, LATE_TIMER)
        } else {
            0
        };
        let at = deadline.saturating_add(late).max(self.now());
        let Some(own) = state.cpus.get_mut(cpu as usize) else {
            return;
        };
        own.armed = Some(at);
        if at < own.one_shot_at {
            own.one_shot_at = at;
            state.events.push(at, What::OneShot, cpu);
        }
    }

    /// Does a CPU sleep, or run a guest, with an event pending and nothing on its way that would bring it out?
    pub fn is_stranded(&self, cpu: u32) -> bool {
        let out = {
            let state = self.state();
            state.cpus.get(cpu as usize).is_some_and(|own| {
                matches!(own.mode, Mode::Sleeps { .. } | Mode::Guest) && own.in_flight == 0
            })
        };
        out && self.with_word(cpu, WakeWord::is_pending) == Some(true)
    }

    /// Is a CPU in a C-state, or in a guest?
    pub fn is_out(&self, cpu: u32) -> bool {
        let state = self.state();
        let own = state.cpus.get(cpu as usize);
        own.is_some_and(|own| matches!(own.mode, Mode::Sleeps { .. } | Mode::Guest))
    }

    /// An NMI reaches a CPU, ends what it is in, and its handler posts events to `target`: always with an interrupt.
    pub fn nmi(&self, cpu: u32, target: u32, events: Events) {
        let origin = Origin::new(CpuId::new(cpu), Cause::Nmi);
        let owed = self.with_word(target, |word| word.post_from_nmi(events, origin));
        if owed.is_some_and(|wake| wake.needs_ipi()) {
            self.sends(target);
            self.send_from(cpu, target);
        }
        self.watch.posted(CpuId::new(target));
        let in_guest = {
            let state = self.state();
            let own = state.cpus.get(cpu as usize);
            own.is_some_and(|own| own.mode == Mode::Guest)
        };
        if in_guest {
            let mut state = self.state();
            let turn = state.next_turn(cpu);
            if let Some(own) = state.cpus.get_mut(cpu as usize) {
                own.mode = Mode::Runs;
            }
            let now = self.now();
            state.events.push(now, What::Resume { turn }, cpu);
        } else {
            self.wake(cpu);
        }
    }

    /// An interrupt for a CPU is about to be sent.
    fn sends(&self, to: u32) {
        if let Some(own) = self.state().cpus.get_mut(to as usize) {
            own.in_flight += 1;
        }
    }

    fn send(&self, to: u32) {
        self.send_from(self.cpu(), to);
    }

    fn send_from(&self, from: u32, to: u32) {
        let mut state = self.state();
        let slow = if self.nature.faults.has(Fault::Ipi) {
            state.rng.between(0, SLOW_IPI)
        } else {
            0
        };
        let at = self.now() + self.nature.topology.ipi_latency(from, to) + slow;
        if self.nature.broken != Some(Broken::DropIpi) || !state.rng.one_in(8) {
            state.events.push(at, What::Ipi, to);
        } else if let Some(own) = state.cpus.get_mut(to as usize) {
            own.in_flight = own.in_flight.saturating_sub(1);
        }
        drop(state);
        self.note(Line::Ipi { from, to });
    }
}

/// Looks at something that the core's code does not look at: where accesses are counted, no access of its own.
fn by_hardware<T>(look: impl FnOnce() -> T) -> T {
    #[cfg(feature = "count-accesses")]
    return lull_core::sync::counted::Accesses::uncounted(look);
    #[cfg(not(feature = "count-accesses"))]
    look()
}

impl State {
    /// So many CPUs that run hypervisor code.
    pub fn new(cpus: u32, events: Queue, rng: Rng, trace: Trace, energy: Energy) -> Self {
        let cpu = || Cpu {
            mode: Mode::Runs,
            turn: 0,
            timer_pending: false,
            ipi_pending: false,
            in_flight: 0,
            armed: None,
            one_shot_at: u64::MAX,
            monitor: None,
            first_irq: None,
            guest_time: 0,
            entries: 0,
            sleeps: 0,
        };
        Self {
            cpus: std::iter::repeat_with(cpu).take(cpus as usize).collect(),
            events,
            rng,
            trace,
            energy,
            steps: 0,
        }
    }

    /// Whatever the CPU waited for before does not resume it any more.
    pub fn next_turn(&mut self, cpu: u32) -> u32 {
        self.cpus.get_mut(cpu as usize).map_or(0, |own| {
            own.turn = own.turn.wrapping_add(1);
            own.turn
        })
    }
}

mod platform;

pub use platform::RATE;
