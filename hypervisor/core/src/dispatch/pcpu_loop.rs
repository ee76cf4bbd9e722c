//! The loop of one pCPU.

use super::machine::Machine;
use super::pcpu::{CpuChange, Pcpu};
use super::stats::{PassCause, WokenBy};
use super::{RunOutcome, Runner};
use crate::governor::{Governor, IdleOutcome};
use crate::idle::{CpuIdle, IdleHost};
use crate::platform::Platform;
use crate::sched::{Leave, Prev, Scheduler};
use crate::timer::TimerKey;
use crate::units::{CpuId, Ticks, VcpuId};
use crate::wake::{Cause as WakeCause, Events, Origin, Taken, WokenHow};

/// What one pCPU knows from one turn to the next.
pub(super) struct PcpuLoop<'a, P, S, R> {
    machine: &'a Machine<P, S>,
    runner: &'a R,
    pcpu: &'a Pcpu,
    cpu: CpuId,
    /// What runs here; its registers are loaded.
    current: Option<VcpuId>,
    /// What the one-shot is armed for, if that is known and has not fired.
    armed: Option<Ticks>,
    /// A reason to ask the scheduler, from before the turn.
    cause: Option<PassCause>,
    /// It is offline: there is no scheduler to ask.
    parked: bool,
}

/// The loop ends.
struct Stop;

impl<'a, P: Platform, S: Scheduler, R: Runner> PcpuLoop<'a, P, S, R> {
    pub fn new(machine: &'a Machine<P, S>, runner: &'a R) -> Option<Self> {
        let cpu = machine.platform().cpu();
        Some(Self {
            machine,
            runner,
            pcpu: machine.pcpu(cpu)?,
            cpu,
            current: None,
            armed: None,
            cause: Some(PassCause::First),
            parked: false,
        })
    }

    /// Turns until STOP.
    pub fn run<G: Governor>(&mut self, idle: &mut CpuIdle<G>) {
        self.pcpu.account.start(self.now());
        self.act_for(WakeCause::Hypervisor);
        let mut events = Events::empty();
        while self.look(events).is_ok() {
            if self.pcpu.asked().is_some() {
                self.change(idle);
            }
            let cause = self.cause.take().filter(|_| !self.parked);
            self.pcpu.stats.turn(cause);
            if let Some(cause) = cause {
                self.pass(cause);
            }
            events = match self.current {
                Some(v) => {
                    self.enter(v);
                    Events::empty()
                }
                None => self.sleep(idle),
            };
        }
        self.park();
    }

    /// Handles events and deadlines until there are none.
    fn look(&mut self, mut events: Events) -> Result<(), Stop> {
        loop {
            self.expire();
            events |= self.pcpu.word.take();
            if events.is_empty() {
                return Ok(());
            }
            if events.contains(Events::STOP) {
                return Err(Stop);
            }
            if events.contains(Events::CALL) {
                self.runner.call();
            }
            if events.contains(Events::CONSOLE) {
                self.runner.console();
            }
            if events.contains(Events::RESCHED) || self.machine.passes_for_all() {
                self.want(PassCause::Resched);
            }
            if events.contains(Events::TIMER) {
                // It may have fired early: then it must be armed again.
                self.armed = None;
                self.runner.timer();
            }
            // NOTIFY has done its work by ending the guest or the sleep.
            events = Events::empty();
        }
    }

    /// Becomes what it was asked to, if that can be.
    fn change<G: Governor>(&mut self, idle: &mut CpuIdle<G>) {
        let Some(change) = self.pcpu.take_asked() else {
            return;
        };
        let sched = self.machine.sched();
        let done = match (change, self.parked) {
            (CpuChange::Online, true) => {
                let joined = sched.cpu_online(self.cpu);
                if joined.is_ok() {
                    self.set_parked(false, idle);
                    self.runner.unparks();
                }
                joined
            }
            (CpuChange::Offline, false) => {
                self.leave();
                let parted = sched.cpu_offline(self.cpu, self.now());
                parted.map(|tickle| {
                    self.machine.tickle(tickle);
                    self.set_parked(true, idle);
                    self.machine.move_timers_away();
                    self.runner.parks();
                })
            }
            (CpuChange::Online, false) | (CpuChange::Offline, true) => return,
        };
        if let Err(why) = done {
            self.runner.refused(change, why);
        }
        // Whatever it was about to ask for, it asks anew.
        self.cause = Some(PassCause::First);
    }

    /// Gives back what runs here, and takes nothing in its place.
    fn leave(&mut self) {
        let leave = self.cause.take().map_or(Leave::Runnable, leave_of);
        if let Some(unit) = self.current.take() {
            let prev = Prev { unit, leave };
            self.machine.sched().give_up(self.cpu, prev, self.now());
            self.pcpu.set_current(None);
            self.hand_back(prev);
        }
        let set = self.pcpu.set_deadline(TimerKey::Slice, None);
        debug_assert!(set.is_ok(), "only a vCPU can be unknown");
    }

    fn set_parked<G: Governor>(&mut self, parked: bool, idle: &mut CpuIdle<G>) {
        self.parked = parked;
        self.pcpu.set_parked(parked);
        idle.set_parked(parked);
    }

    fn expire(&mut self) {
        while let Some((key, deadline)) = self.pcpu.pop_expired(|| self.now()) {
            match key {
                TimerKey::Probe => self.runner.probe(deadline),
                TimerKey::LateWrites => self.runner.late_writes(),
                TimerKey::Slice => self.want(PassCause::SliceEnd),
                TimerKey::RunFor => self.machine.stop(),
                TimerKey::Console => self.runner.console(),
                TimerKey::Vcpu(v) => {
                    self.act_for(WakeCause::VcpuTimer(v));
                    self.runner.timer_expired(v);
                    self.act_for(WakeCause::Hypervisor);
                }
            }
        }
    }

    /// From now on, this CPU's posts are made on that behalf.
    fn act_for(&self, cause: WakeCause) {
        self.pcpu.set_origin(Origin::new(self.cpu, cause));
    }

    /// The first reason is the one that counts.
    fn want(&mut self, cause: PassCause) {
        self.cause.get_or_insert(cause);
    }

    /// Asks the scheduler, and changes to what it chose.
    fn pass(&mut self, cause: PassCause) {
        let sched = self.machine.sched();
        let prev = self.current.map(|unit| Prev {
            unit,
            leave: leave_of(cause),
        });
        let now = self.now();
        let decision = sched.schedule(self.cpu, now, prev);
        self.machine.tickle(decision.tickle);
        if decision.run != self.current {
            if let Some(prev) = prev {
                self.hand_back(prev);
            }
            if let Some(v) = decision.run {
                self.machine.bring_timer(v);
                self.machine.bring_latency(v);
                self.runner.load(v);
                self.pcpu.stats.switched();
            }
            self.current = decision.run;
            self.pcpu.set_current(self.current);
        }
        if let Some(v) = decision.run {
            self.halt_ends(v, now);
        }
        let set = self.pcpu.set_deadline(TimerKey::Slice, decision.until);
        debug_assert!(set.is_ok(), "only a vCPU can be unknown");
    }

    fn hand_back(&mut self, prev: Prev) {
        self.runner.save(prev.unit);
        if prev.leave == Leave::Gone {
            // While the slot is still its own.
            self.machine.cancel_vcpu_timer(prev.unit);
            self.machine.drop_latency(prev.unit);
        }
        let sched = self.machine.sched();
        self.machine
            .tickle(sched.context_saved(self.cpu, prev, self.now()));
        if prev.leave == Leave::Gone {
            self.runner.removed(prev.unit);
        }
    }

    fn enter(&mut self, v: VcpuId) {
        self.arm();
        self.act_for(WakeCause::Vcpu(v));
        let outcome = self.runner.enter(v);
        self.act_for(WakeCause::Hypervisor);
        match outcome {
            RunOutcome::Events => {}
            RunOutcome::Block if self.is_kicked(v) => self.pcpu.stats.block_cancelled(),
            RunOutcome::Block if self.poll(v) => self.pcpu.stats.block_cancelled(),
            // These come before any RESCHED that arrived meanwhile: one pass serves both.
            RunOutcome::Block => self.cause = Some(PassCause::Blocked),
            RunOutcome::Yield => self.cause = Some(PassCause::Yielded),
            RunOutcome::Gone => self.cause = Some(PassCause::Gone),
        }
    }

    /// The vCPU has halted: looks for a kick for as long as that has paid off lately ([`HaltPoll`]), unless there is
    /// something else to do. `true`: it came. Until then the vCPU is still the one that runs here, and pays for the time.
    ///
    /// [`HaltPoll`]: crate::sched::unit::HaltPoll
    #[inline]
    fn poll(&mut self, v: VcpuId) -> bool {
        let unit = self.machine.sched().units().get(v);
        let look = unit.and_then(|unit| unit.halt_poll.halts(|| self.now()));
        let Some((begin, window)) = look else {
            return false;
        };
        let until = begin + self.machine.platform().rate().ticks(window);
        let kicked = self.look_for_kick(v, until);
        let now = self.now();
        if let Some(unit) = unit {
            unit.halt_poll.looked(kicked, now - begin);
        }
        if kicked {
            self.halt_ends(v, now);
        }
        kicked
    }

    fn look_for_kick(&mut self, v: VcpuId, until: Ticks) -> bool {
        let (sched, platform) = (self.machine.sched(), self.machine.platform());
        loop {
            // Its own timer is one of those that may be due here.
            self.expire();
            if self.is_kicked(v) {
                return true;
            }
            if self.pcpu.word.is_pending() {
                let events = self.pcpu.word.take();
                if events.contains(Events::CALL) {
                    self.runner.call();
                }
                // The kick of a NOTIFY is in the vCPU's state; TIMER: deadlines are looked at by the clock.
                if events.contains(Events::TIMER) {
                    self.armed = None;
                    self.runner.timer();
                }
                let served = Events::CALL | Events::NOTIFY | Events::TIMER;
                let left = if self.machine.passes_for_all() {
                    events
                } else {
                    events.difference(served)
                };
                if !left.is_empty() {
                    self.pcpu.word.post_local(left);
                    return self.is_kicked(v);
                }
                continue;
            }
            if self.cause.is_some() || sched.others_wait(self.cpu) || self.now() >= until {
                return self.is_kicked(v);
            }
            platform.interrupt_window();
            platform.relax();
        }
    }

    /// The vCPU runs again: how long its halt was decides how long the next one is waited for.
    #[inline]
    fn halt_ends(&self, v: VcpuId, now: Ticks) {
        if let Some(unit) = self.machine.sched().units().get(v)
            && let Some(at) = unit.halt_poll.take_halted_at()
        {
            let halted = self.machine.platform().rate().to_nanos(now - at);
            unit.halt_poll.learn(halted);
        }
    }

    fn is_kicked(&self, v: VcpuId) -> bool {
        self.machine
            .sched()
            .units()
            .get(v)
            .is_some_and(|unit| unit.state.is_kicked())
    }

    /// The one-shot interrupts the guest at the earliest deadline.
    fn arm(&mut self) {
        let next = self.pcpu.next_deadline();
        if next == self.armed {
            return;
        }
        match next {
            Some(deadline) => self.machine.platform().arm(deadline),
            None => self.machine.platform().cancel(),
        }
        self.armed = next;
    }

    fn sleep<G: Governor>(&mut self, idle: &mut CpuIdle<G>) -> Events {
        let deadline = self.pcpu.next_deadline();
        let platform = self.machine.platform();
        // Before they are followed: what changes meanwhile ends the next stay.
        let changes = self.pcpu.idle.changes();
        if idle.follow(&self.pcpu.idle) {
            self.runner.idle_changed();
        }
        let host = Idling {
            machine: self.machine,
            runner: self.runner,
            pcpu: self.pcpu,
            changes,
        };
        let (word, account) = (&self.pcpu.word, &self.pcpu.account);
        let report = idle.idle(platform, word, account, deadline, &host);
        self.armed = None; // The idle path arms for itself.
        if let Some(how) = WokenHow::of(&report.taken) {
            self.pcpu.wakers.record(how, self.waker(&report.taken));
        }
        if let IdleOutcome::Slept { .. } = report.outcome {
            let now = self.now();
            let reached = deadline.is_some_and(|deadline| deadline <= now);
            self.runner.woken(now);
            let by = WokenBy::of(report.events, reached);
            self.pcpu.stats.woken(by);
            if by == WokenBy::Spurious {
                self.pcpu.wakers.spurious();
            }
        }
        report.events
    }

    /// Whom the wake is owed to. The own timer has been armed for somebody.
    fn waker(&self, taken: &Taken) -> Origin {
        if taken.origin.cause() != WakeCause::OwnTimer {
            return taken.origin;
        }
        let cause = match self.pcpu.next_timer() {
            Some(TimerKey::Vcpu(v)) => WakeCause::VcpuTimer(v),
            _ => WakeCause::Timer,
        };
        Origin::new(self.cpu, cause)
    }

    /// The loop has ended: what ran here is out of the guest for good.
    fn park(&mut self) {
        self.machine.platform().cancel();
        if let Some(v) = self.current.take() {
            self.runner.save(v);
            self.pcpu.set_current(None);
        }
    }

    fn now(&self) -> Ticks {
        self.machine.platform().now()
    }
}

/// How the vCPU leaves that a pass is about.
fn leave_of(cause: PassCause) -> Leave {
    match cause {
        PassCause::First | PassCause::Resched | PassCause::SliceEnd => Leave::Runnable,
        PassCause::Blocked => Leave::Blocks,
        PassCause::Yielded => Leave::Yields,
        PassCause::Gone => Leave::Gone,
    }
}

/// This CPU, as its idle path sees it while calls come and go.
struct Idling<'a, P, S, R> {
    machine: &'a Machine<P, S>,
    runner: &'a R,
    pcpu: &'a Pcpu,
    /// The changes that the idle path follows.
    changes: u32,
}

impl<P: Platform, S: Scheduler, R: Runner> IdleHost for Idling<'_, P, S, R> {
    #[inline]
    fn serve_calls(&self) {
        self.runner.call();
    }

    #[inline]
    fn may_stay(&self, deadline: Option<Ticks>) -> bool {
        self.pcpu.next_deadline() == deadline
            && self.pcpu.idle.changes() == self.changes
            && !self.machine.passes_for_all()
    }

    #[inline]
    fn stays(&self, taken: &Taken) {
        self.aborted(taken);
        self.pcpu.stats.woken(WokenBy::Call);
    }

    #[inline]
    fn aborted(&self, taken: &Taken) {
        if let Some(how) = WokenHow::of(taken) {
            // Calls are posted by others only.
            self.pcpu.wakers.record(how, taken.origin);
        }
        self.pcpu.stats.turn(None);
    }
}
