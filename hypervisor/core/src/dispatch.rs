//! The dispatch loop: what each pCPU does from start to stop.
//!
//! Each turn takes the events of the own wake word, expires deadlines, asks the scheduler **if there is a reason to**,
//! and then runs the chosen vCPU or sleeps. Reasons are: nothing was decided yet, RESCHED, the end of the slice, and a
//! vCPU that blocks, yields or is gone. A CPU that was woken by a cross-CPU call, a notification or a timer alone goes
//! back to what it did without a scheduling pass; both are counted ([`DispatchCounts`]).
//!
//! Invariants:
//! - Interrupts are off all the time, but inside of the sleeps, and of the VM entry that the [`Runner`] makes.
//! - The one-shot is armed here only: for the earliest deadline, before a guest is entered and before the CPU sleeps.
//!   It may fire early, and then again; a deadline expires when the clock says so.
//! - A vCPU's registers are saved ([`Runner::save`]) before it is handed back
//!   ([`Scheduler::context_saved`]), and loaded after that of its predecessor is.
//!
//! Lock order: a vCPU's timer lock, then a pCPU's deadline queue. No other lock is held while one of these is taken, and
//! nothing is called out to under either.
//!
//! Called by: the image and the simulator, once per pCPU.

use crate::governor::Governor;
use crate::idle::{CpuIdle, MonitorTrust};
use crate::platform::Platform;
use crate::sched::{SchedError, Scheduler};
use crate::units::{Ticks, VcpuId};

mod machine;
mod pcpu;
mod pcpu_loop;
mod stats;

pub use machine::Machine;
pub use pcpu::{CpuChange, Pcpu};
pub use stats::{DispatchCounts, DispatchStats, PassCause, WokenBy};

/// Why a vCPU came back from [`Runner::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum RunOutcome {
    /// The wake word has events, or a deadline was reached: look again. The vCPU would run on.
    Events,
    /// The vCPU halted, and has nothing pending.
    Block,
    /// The vCPU lets others go first.
    Yield,
    /// The vCPU is dead: it is removed, and its slot becomes free.
    Gone,
}

/// What the image, or the simulator, does for the vCPUs. All calls come from the pCPU they are about, interrupts off.
pub trait Runner {
    /// Runs a vCPU until there is something to look at.
    ///
    /// It takes the kick ([`RunState::consume_kick`](crate::sched::unit::RunState::consume_kick)), *then* evaluates
    /// which interrupts are pending, then enters the guest through the gate that publishes GUEST in the wake word and
    /// fails if an event is pending. Right around the entry it calls [`Machine::guest_entering`] and
    /// [`Machine::guest_left`]. It handles exits by itself, and comes back when the word has events, or the guest halts
    /// with nothing pending, yields, or dies.
    fn enter(&self, v: VcpuId) -> RunOutcome;

    /// The deadline of a vCPU's timer was reached. On any pCPU: set what is pending, and [kick](Machine::kick). It may
    /// have been set anew in the meantime: check the time.
    fn timer_expired(&self, v: VcpuId);

    /// The console has input, or its timer has expired.
    fn console(&self);

    /// The queue of cross-CPU calls has entries. It comes right out of the sleep, before anything is accounted for.
    fn call(&self) {}

    /// Something that was asked of this pCPU's sleeps has changed: what it does from now on is by that.
    fn idle_changed(&self) {}

    /// TIMER was posted to this pCPU: a timer that stands in for others may have interrupted here.
    fn timer(&self) {}

    /// The deadline that was set by [`Machine::set_probe_timer`] was reached.
    fn probe(&self, deadline: Ticks) {
        let _ = deadline;
    }

    /// The deadline that was set by [`Machine::set_late_writes`] was reached.
    fn late_writes(&self) {}

    /// The pCPU comes out of a sleep, at this time. Whatever it does delays what woke the pCPU.
    fn woken(&self, now: Ticks) {
        let _ = now;
    }

    /// The pCPU has left its scheduler, and sleeps from now on: it takes no calls.
    fn parks(&self) {}

    /// The pCPU comes back.
    fn unparks(&self) {}

    /// The pCPU could not do what it was asked, and goes on as before.
    fn refused(&self, change: CpuChange, why: SchedError) {
        let _ = (change, why);
    }

    /// The vCPU is about to run on this pCPU: its registers go in.
    fn load(&self, v: VcpuId) {
        let _ = v;
    }

    /// The vCPU leaves this pCPU: its registers must be in memory when this returns.
    fn save(&self, v: VcpuId) {
        let _ = v;
    }

    /// The vCPU that came back as [`RunOutcome::Gone`] was removed. Its slot is free.
    fn removed(&self, v: VcpuId) {
        let _ = v;
    }
}

impl<P: Platform, S: Scheduler> Machine<P, S> {
    /// Runs this pCPU until STOP is posted to it. Starts its account. The scheduler must know it as online already.
    pub fn run<G: Governor, R: Runner>(&self, idle: &mut CpuIdle<G>, runner: &R) {
        let sees_stores = idle.monitor() == MonitorTrust::SeesStores;
        let cpu = self.platform().cpu();
        let cpus = self.sched().cpus();
        cpus.set_states(cpu, idle.table(), sees_stores);
        if let Some(mut pcpu) = pcpu_loop::PcpuLoop::new(self, runner) {
            pcpu.run(idle);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
