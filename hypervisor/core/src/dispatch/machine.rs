//! All pCPUs, and what one of them does to another: post, kick, set timers, stop.

use super::pcpu::{CpuChange, Pcpu};
use crate::platform::Platform;
use crate::sched::unit::Kick;
use crate::sched::{Removal, SchedError, Scheduler, UnitParams, WakeBy, Weight};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::timer::{TimerKey, UnknownVcpu};
use crate::units::{CpuId, CpuSet, Nanos, Ticks, VcpuId};
use crate::wake::{Batch, Cause, Events, Origin};
use alloc::boxed::Box;

/// The pCPUs, the scheduler and the platform under them. One value, shared by all.
///
/// All methods are called with interrupts off, from the pCPU that [`Platform::cpu`] names.
#[derive(Debug)]
pub struct Machine<P, S> {
    platform: P,
    sched: S,
    pcpus: Box<[Pcpu]>,
    /// Every event costs a scheduling pass.
    passes_for_all: AtomicBool,
}

impl<P: Platform, S: Scheduler> Machine<P, S> {
    /// A machine with CPUs 0 to `cpus - 1`. The scheduler must have been made for as many.
    pub fn new(platform: P, sched: S, cpus: usize) -> Self {
        let vcpus = sched.units().capacity();
        let pcpu = |cpu| {
            let account = sched.cpus().account(CpuId::new(cpu as u32));
            Pcpu::new(vcpus, account.cloned().unwrap_or_default())
        };
        let pcpus = (0..cpus).map(pcpu).collect();
        Self {
            platform,
            sched,
            pcpus,
            passes_for_all: AtomicBool::new(false),
        }
    }

    /// The platform.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The scheduler. To change what runs, prefer the methods here, which also tell the pCPUs.
    pub fn sched(&self) -> &S {
        &self.sched
    }

    /// One pCPU; `None` if there is no such.
    pub fn pcpu(&self, cpu: CpuId) -> Option<&Pcpu> {
        self.pcpus.get(cpu.index())
    }

    /// All pCPUs.
    pub fn pcpus(&self) -> impl Iterator<Item = (CpuId, &Pcpu)> {
        self.pcpus
            .iter()
            .enumerate()
            .map(|(index, pcpu)| (CpuId::new(index as u32), pcpu))
    }

    /// `true`: every event costs a scheduling pass, as where "look at this" and "the runqueue changed" are one. To compare.
    pub fn set_passes_for_all(&self, on: bool) {
        self.passes_for_all.store(on, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn passes_for_all(&self) -> bool {
        self.passes_for_all.load(Ordering::Relaxed)
    }

    /// The pCPU this runs on. Its wake word is the one that the VM-entry gate publishes GUEST in.
    pub fn this_pcpu(&self) -> Option<&Pcpu> {
        self.pcpu(self.platform.cpu())
    }

    /// A pCPU joins. Before its [`run`](Self::run), and before vCPUs are added that may run there only.
    ///
    /// # Errors
    /// There is no such pCPU.
    pub fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError> {
        self.sched.cpu_online(cpu)
    }

    /// Asks a pCPU to go offline, or to come back. It does so by itself, soon: [`Pcpu::asked`] says whether it
    /// has looked.
    pub fn ask(&self, cpu: CpuId, change: CpuChange) {
        if let Some(pcpu) = self.pcpu(cpu) {
            pcpu.ask(change);
            self.post(cpu, Events::RESCHED);
        }
    }

    /// The vCPUs' timers of this pCPU go to another one, since this one is about to sleep for long.
    pub(super) fn move_timers_away(&self) {
        let here = self.platform.cpu();
        let Some(own) = self.pcpu(here) else { return };
        let mut others = self.pcpus();
        let other = others.find(|(cpu, pcpu)| *cpu != here && !pcpu.is_parked());
        let Some((to, target)) = other else { return };
        let mut moved = false;
        for (key, _) in own.deadlines() {
            let TimerKey::Vcpu(v) = key else { continue };
            let Some(unit) = self.sched.units().get(v) else {
                continue;
            };
            let mut queued_on = unit.timer();
            if *queued_on != Some(here) {
                continue;
            }
            let deadline = own.take_deadline(key);
            *queued_on = deadline.map(|_| to);
            let set = target.set_deadline(key, deadline);
            debug_assert!(set.is_ok(), "{v} has a slot");
            moved = true;
        }
        if moved {
            // It arms its one-shot for them before it sleeps or runs a guest again.
            self.post(to, Events::NOTIFY);
        }
    }

    /// Posts events to a pCPU, and interrupts it if nothing less gets its attention.
    #[inline(always)]
    pub fn post(&self, target: CpuId, events: Events) {
        // The short way, for a CPU that watches its word: no interrupt, and no more instructions than it takes. The own one never
        // does: it is here.
        if let (Some(pcpu), Some(own)) = (self.pcpu(target), self.this_pcpu())
            && pcpu.word.post_if_watched(events, own.origin())
        {
            own.wakes.count_store(events);
            own.count_woke(target);
        } else {
            self.post_any(target, events);
        }
    }

    /// [`post`](Self::post), whatever the target does.
    #[inline(never)]
    fn post_any(&self, target: CpuId, events: Events) {
        let Some(pcpu) = self.pcpu(target) else {
            debug_assert!(false, "{events:?} to {target}, which does not exist");
            return;
        };
        if target == self.platform.cpu() {
            pcpu.word.post_local(events);
            return;
        }
        let wake = match self.this_pcpu() {
            Some(own) => {
                let wake = pcpu.word.post_as(events, own.origin());
                if wake.ends_sleep() {
                    own.count_woke(target);
                }
                own.wakes.count(events, wake)
            }
            // It has no books.
            None => pcpu.word.post(events),
        };
        if wake.needs_ipi() {
            self.platform.send(target);
        }
    }

    /// Posts events to this pCPU from an interrupt handler of its own.
    pub fn post_from_handler(&self, events: Events, cause: Cause) {
        let here = self.platform.cpu();
        if let Some(own) = self.pcpu(here)
            && own.word.post_from_handler(events, Origin::new(here, cause))
        {
            own.count_woke(here);
        }
    }

    /// How many sleeps of a pCPU all others, and its own interrupts, say that they have ended. While all are quiet: as many as it
    /// says itself, NMI handlers' apart.
    pub fn woke(&self, target: CpuId) -> u64 {
        self.pcpus.iter().map(|pcpu| pcpu.woke(target)).sum()
    }

    /// [`post`](Self::post) to several pCPUs, with as few interrupts as the interrupt controller takes. Nobody else who
    /// posts to one of them meanwhile has to wait for the end of this.
    pub fn post_many(&self, targets: &CpuSet, events: Events) {
        let here = self.platform.cpu();
        let own = self.pcpu(here);
        let origin = own.map_or(Origin::NOBODY, Pcpu::origin);
        let mut batch = Batch::new();
        for target in targets.iter() {
            let Some(pcpu) = self.pcpu(target) else {
                debug_assert!(false, "{events:?} to {target}, which does not exist");
                continue;
            };
            if target == here {
                pcpu.word.post_local(events);
                continue;
            }
            let wake = batch.post(target, &pcpu.word, events, origin);
            if let Some(own) = own
                && own.wakes.count(events, wake).ends_sleep()
            {
                own.count_woke(target);
            }
        }
        let due = batch.due(|cpu| self.pcpu(cpu).map(|pcpu| &pcpu.word));
        match due.lowest() {
            None => {}
            Some(only) if due.len() == 1 => self.platform.send(only),
            Some(_) => self.platform.send_many(&due),
        }
    }

    /// Tells all pCPUs to leave their dispatch loops.
    pub fn stop(&self) {
        self.post_many(&CpuSet::first(self.pcpus.len()), Events::STOP);
    }

    /// Something is pending for a vCPU: it looks before it next blocks or enters the guest, is brought out of the guest,
    /// or is woken. What is pending must have been stored before.
    pub fn kick(&self, v: VcpuId) {
        let Some(unit) = self.sched.units().get(v) else {
            return;
        };
        match unit.state.kick() {
            // On the own pCPU it is this very code that comes before the next entry, which sees the token.
            Kick::Running(cpu) if cpu == self.platform.cpu() => {}
            Kick::Running(cpu) => self.post(cpu, Events::NOTIFY),
            Kick::WokeBlocked => self.wake(v, self.waker()),
            Kick::Pending => {}
        }
    }

    /// [`kick`](Self::kick) for something that the processor itself takes if it runs the vCPU's guest and is notified. `true`: so it
    /// will; the guest goes on.
    pub fn notify(&self, v: VcpuId) -> bool {
        let Some(unit) = self.sched.units().get(v) else {
            return false;
        };
        let here = self.platform.cpu();
        let word = |cpu| self.pcpu(cpu).map(|pcpu| &pcpu.word);
        match unit.state.in_guest(word) {
            Some(cpu) if cpu != here => {
                self.platform.notify(cpu);
                true
            }
            _ => {
                self.kick(v);
                false
            }
        }
    }

    /// Adds a vCPU, offline.
    ///
    /// # Errors
    /// As [`Scheduler::add`].
    pub fn add_vcpu(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError> {
        self.sched.add(v, params)
    }

    /// Starts a vCPU that was offline. One that was started before is kicked.
    pub fn online_vcpu(&self, v: VcpuId) {
        let Some(unit) = self.sched.units().get(v) else {
            return;
        };
        if unit.state.online() {
            self.wake(v, self.waker());
        } else {
            self.kick(v);
        }
    }

    /// Removes a vCPU, whatever it does; its slot is free once it has left the guest.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_vcpu(&self, v: VcpuId) -> Result<Removal, SchedError> {
        self.cancel_vcpu_timer(v);
        let removal = self.sched.remove(v)?;
        if let Removal::RunsOn(cpu) | Removal::MadeRoom(cpu) = removal {
            self.post(cpu, Events::RESCHED);
        }
        Ok(removal)
    }

    /// Changes a vCPU's share.
    ///
    /// # Errors
    /// There is none.
    pub fn set_weight(&self, v: VcpuId, weight: Weight) -> Result<(), SchedError> {
        self.sched.set_weight(v, weight, self.platform.now())
    }

    /// Changes where a vCPU may run.
    ///
    /// # Errors
    /// There is none, or no pCPU of the set is online.
    pub fn set_affinity(&self, v: VcpuId, affinity: CpuSet) -> Result<(), SchedError> {
        let tickle = self.sched.set_affinity(v, affinity, self.platform.now())?;
        self.tickle(tickle);
        Ok(())
    }

    /// Sets, changes or (by `None`) cancels a vCPU's timer, on this pCPU. Usually the vCPU runs here.
    ///
    /// # Errors
    /// The vCPU is beyond the capacity of the unit table.
    pub fn set_vcpu_timer(&self, v: VcpuId, deadline: Option<Ticks>) -> Result<(), UnknownVcpu> {
        let unit = self.sched.units().get(v).ok_or(UnknownVcpu(v))?;
        let here = self.platform.cpu();
        let key = TimerKey::Vcpu(v);
        let mut queued_on = unit.timer();
        if let Some(pcpu) = queued_on
            .filter(|&cpu| cpu != here)
            .and_then(|cpu| self.pcpu(cpu))
        {
            pcpu.set_deadline(key, None)?;
        }
        if let Some(pcpu) = self.pcpu(here) {
            pcpu.set_deadline(key, deadline)?;
        }
        *queued_on = deadline.map(|_| here);
        Ok(())
    }

    /// Sets, changes or (by `None`) drops a vCPU's limit on exit latency: it holds on the pCPU that the vCPU last ran on.
    ///
    /// # Errors
    /// The vCPU is beyond the capacity of the unit table.
    pub fn set_vcpu_latency(&self, v: VcpuId, limit: Option<Nanos>) -> Result<(), UnknownVcpu> {
        let unit = self.sched.units().get(v).ok_or(UnknownVcpu(v))?;
        let at = unit.latency_at();
        unit.set_latency_limit(limit);
        if let Some(cpu) = *at {
            self.claim_latency(cpu, v, limit);
        }
        Ok(())
    }

    /// Sets for how long at most a pCPU looks for a kick before it blocks this vCPU; zero: not at all.
    ///
    /// # Errors
    /// The vCPU is beyond the capacity of the unit table.
    pub fn set_vcpu_halt_poll(&self, v: VcpuId, limit: Nanos) -> Result<(), UnknownVcpu> {
        let unit = self.sched.units().get(v).ok_or(UnknownVcpu(v))?;
        unit.halt_poll.set_limit(limit);
        Ok(())
    }

    /// Sets, changes or (by `None`) drops a pCPU's own limit on exit latency.
    pub fn set_cpu_latency(&self, cpu: CpuId, limit: Option<Nanos>) {
        if let Some(pcpu) = self.pcpu(cpu) {
            pcpu.idle.set_own_limit(limit);
            self.idle_changed(cpu);
        }
    }

    /// Something in a pCPU's [`idle`](Pcpu::idle) was changed: it may be asleep in what it would not choose any more.
    pub fn idle_changed(&self, cpu: CpuId) {
        if cpu != self.platform.cpu() {
            self.post(cpu, Events::CALL);
        }
    }

    /// Sets, changes or cancels the console's timer on this pCPU; when it expires, [`Runner::console`] is called there.
    ///
    /// [`Runner::console`]: super::Runner::console
    pub fn set_console_timer(&self, deadline: Option<Ticks>) {
        self.set_fixed_timer(TimerKey::Console, deadline);
    }

    /// Sets a test's timer on this pCPU; when it expires, [`Runner::probe`](super::Runner::probe) is called there.
    pub fn set_probe_timer(&self, deadline: Ticks) {
        self.set_fixed_timer(TimerKey::Probe, Some(deadline));
    }

    /// Has [`Runner::late_writes`](super::Runner::late_writes) called on this pCPU at this time.
    pub fn set_late_writes(&self, deadline: Ticks) {
        self.set_fixed_timer(TimerKey::LateWrites, Some(deadline));
    }

    /// [Stops](Self::stop) all pCPUs at this time. The timer is on this pCPU.
    pub fn end_at(&self, deadline: Ticks) {
        self.set_fixed_timer(TimerKey::RunFor, Some(deadline));
    }

    /// A vCPU of this pCPU is about to be entered: guest time begins. Called right before the entry.
    pub fn guest_entering(&self, v: VcpuId, now: Ticks) {
        if let Some(pcpu) = self.this_pcpu() {
            pcpu.account.enter_guest(now);
        }
        if let Some(unit) = self.sched.units().get(v) {
            unit.guest_entering(now);
        }
    }

    /// The guest was left: guest time ends, and is charged to the vCPU. Called right after the exit.
    pub fn guest_left(&self, v: VcpuId, now: Ticks) {
        if let Some(unit) = self.sched.units().get(v) {
            unit.guest_left(now);
        }
        if let Some(pcpu) = self.this_pcpu() {
            pcpu.account.leave_guest(now);
        }
    }

    /// Posts RESCHED where a scheduler asked for it.
    #[inline]
    pub(super) fn tickle(&self, targets: CpuSet) {
        if targets.is_empty() {
            return;
        }
        for cpu in targets.iter() {
            self.post(cpu, Events::RESCHED);
        }
    }

    /// The vCPU runs here from now on: so does its timer.
    pub(super) fn bring_timer(&self, v: VcpuId) {
        let Some(unit) = self.sched.units().get(v) else {
            return;
        };
        let here = self.platform.cpu();
        let mut queued_on = unit.timer();
        let Some(from) = queued_on
            .filter(|&cpu| cpu != here)
            .and_then(|cpu| self.pcpu(cpu))
        else {
            return;
        };
        let key = TimerKey::Vcpu(v);
        let deadline = from.take_deadline(key);
        if let Some(pcpu) = self.pcpu(here)
            && pcpu.set_deadline(key, deadline).is_ok()
        {
            *queued_on = deadline.map(|_| here);
        }
    }

    /// The vCPU runs here from now on: so its limit holds here, and no longer where it ran before.
    pub(super) fn bring_latency(&self, v: VcpuId) {
        let Some(unit) = self.sched.units().get(v) else {
            return;
        };
        let here = self.platform.cpu();
        let mut at = unit.latency_at();
        let from = at.replace(here).filter(|&from| from != here);
        // Read under the lock under which it is changed.
        let Some(limit) = unit.latency_limit() else {
            return;
        };
        if let Some(from) = from {
            self.claim_latency(from, v, None);
        }
        self.claim_latency(here, v, Some(limit));
    }

    /// The vCPU is gone, and its limit with it.
    pub(super) fn drop_latency(&self, v: VcpuId) {
        let Some(unit) = self.sched.units().get(v) else {
            return;
        };
        let mut at = unit.latency_at();
        unit.set_latency_limit(None);
        if let Some(cpu) = at.take() {
            self.claim_latency(cpu, v, None);
        }
    }

    fn claim_latency(&self, cpu: CpuId, v: VcpuId, limit: Option<Nanos>) {
        if let Some(pcpu) = self.pcpu(cpu)
            && pcpu.idle.claim(v, limit)
        {
            self.idle_changed(cpu);
        }
    }

    /// As [`set_vcpu_timer`](Self::set_vcpu_timer) with `None`, for a vCPU that may be any number.
    pub(super) fn cancel_vcpu_timer(&self, v: VcpuId) {
        // A vCPU beyond the capacity has no timer to cancel.
        let _: Result<(), UnknownVcpu> = self.set_vcpu_timer(v, None);
    }

    fn wake(&self, v: VcpuId, by: WakeBy) {
        self.tickle(self.sched.wake(v, self.platform.now(), by));
    }

    /// Who causes what this code does now: the vCPU whose exit it handles, if it does.
    fn waker(&self) -> WakeBy {
        let cpu = self.platform.cpu();
        match self.pcpu(cpu) {
            Some(pcpu) if pcpu.serves_exit() => WakeBy::Runner(cpu),
            _ => WakeBy::Event,
        }
    }

    fn set_fixed_timer(&self, key: TimerKey, deadline: Option<Ticks>) {
        if let Some(pcpu) = self.this_pcpu() {
            let set = pcpu.set_deadline(key, deadline);
            debug_assert!(set.is_ok(), "only a vCPU can be unknown");
        }
    }
}
