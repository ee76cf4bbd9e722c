//! Schedulers: which vCPU runs on which pCPU, until when.
//!
//! A scheduler knows vCPUs as *units*: a slot number, a weight and an affinity. It knows no register, sends no interrupt
//! and arms no timer: it answers, and [`dispatch`](crate::dispatch) acts on the answer. Every answer that asks for an
//! action is `#[must_use]`.
//!
//! The life of a unit, and who calls what:
//!
//! ```text
//!           add              online/kick + wake           schedule
//! (free) ─────────▶ Offline ───────────────────▶ Queued ───────────▶ Running(cpu)
//!    ▲                                             ▲  ▲                   │
//!    │                            kick + wake      │  └───────────────────┤ context_saved: still runnable
//!    │                  Blocked ───────────────────┘                      │
//!    │                     ▲──────────────────────────────────────────────┤ context_saved: blocks, was not kicked
//!    └────────────────────────────────────────────────────────────────────┘ context_saved: gone
//! ```
//!
//! - [`Scheduler::schedule`] chooses. The unit it takes off stays `Running(cpu)` until its registers are saved and
//!   [`Scheduler::context_saved`] hands it back: no other pCPU can run it, or steal it, in between.
//! - A unit is in exactly one place: free, offline, blocked, waiting in one runqueue, or running on one pCPU.
//! - No scheduler allocates while it holds a lock; capacities are fixed at creation.
//!
//! Which scheduler: [`AnyScheduler`], by name. [`credit2`] is the default; what each is for is said at its head.
//!
//! Lock order: a scheduler's locks are leaves. Nothing is called out to while one is held.

use crate::units::{CpuId, CpuSet, DomId, Ticks, VcpuId};

mod any;
pub mod arinc653;
mod cpumask;
pub mod credit2;
mod dump;
mod error;
pub mod fair;
mod held;
pub mod null;
mod params;
pub mod placement;
pub mod rtds;
mod sorted;
pub mod topology;
pub mod unit;

pub use any::{AnyScheduler, Setup};
pub use dump::{CpuRow, DomainRow, DumpRow, QueueRow, UnitDetail, UnitRow};
pub use error::SchedError;
pub use params::{Cap, RtParams, UnitParams, Weight};
pub use placement::CpuTable;
pub use topology::{CpuPlace, Topology};
pub use unit::{Unit, UnitTable};

/// Why a unit leaves a pCPU, or comes up for the choice again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leave {
    /// Its slice ended, or another may be due: it would run on.
    Runnable,
    /// It asked that others run first, once.
    Yields,
    /// It halted. It blocks unless it was kicked in the meantime.
    Blocks,
    /// It will never run again; its slot becomes free.
    Gone,
}

/// The unit that ran until now on the pCPU that schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prev {
    /// Which one.
    pub unit: VcpuId,
    /// Why it is up.
    pub leave: Leave,
}

/// What a pCPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the chosen vCPU is marked as running here: not running it loses it"]
pub struct Decision {
    /// Run this unit; it is `Running` on the pCPU from now on. `None`: be idle.
    pub run: Option<VcpuId>,
    /// Come back at this time at the latest. `None`: no timer on behalf of the scheduler.
    ///
    /// An idle pCPU has a time only if it keeps the scheduler's own timer: for budgets that somebody waits for, or a
    /// table of frames.
    pub until: Option<Ticks>,
    /// Post RESCHED to these pCPUs: each can take work that waits, or must give up what it runs.
    pub tickle: CpuSet,
}

impl Decision {
    /// Nothing to run, and no timer.
    pub const IDLE: Self = Self {
        run: None,
        until: None,
        tickle: CpuSet::EMPTY,
    };
}

/// Who caused a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WakeBy {
    /// A timer, a device, or a pCPU that runs something else.
    Event,
    /// The unit that runs on this pCPU, the caller's own, itself: by an interrupt that it sent.
    ///
    /// It waits for an answer, perhaps without halting, so what is woken is not held off by what protects runners from
    /// frequent preemption.
    Runner(CpuId),
}

/// What [`Scheduler::remove`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a unit that runs must be brought out of the guest"]
pub enum Removal {
    /// The slot is free.
    Done,
    /// The slot is free, and this pCPU can take another unit: post RESCHED there.
    MadeRoom(CpuId),
    /// It runs on this pCPU: post RESCHED there. The slot is free once it has left.
    RunsOn(CpuId),
}

/// A scheduler.
///
/// All calls may come from any pCPU at any time, except where a `cpu` argument says "the caller's own".
/// A [`CpuSet`] that is returned asks for RESCHED to be posted to those pCPUs, usually none or one.
///
/// Changes of parameters that a scheduler does not have are refused ([`SchedError::NotKnown`]).
pub trait Scheduler: Sync {
    /// Its name, as in `sched=NAME`.
    fn name(&self) -> &'static str;

    /// The run states, shared with the dispatch loops.
    fn units(&self) -> &UnitTable;

    /// What the pCPUs do, as their dispatch loops write it.
    fn cpus(&self) -> &CpuTable;

    /// Puts a unit into a free slot, offline: [`wake`](Self::wake) after
    /// [`RunState::online`](unit::RunState::online) makes it run.
    ///
    /// # Errors
    /// No such slot, slot taken, no online pCPU in the affinity, or what the scheduler has no room for.
    fn add(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError>;

    /// Takes a unit out, whatever it does.
    ///
    /// # Errors
    /// There is none in this slot.
    fn remove(&self, v: VcpuId) -> Result<Removal, SchedError>;

    /// Queues a unit that was blocked. Only the one whose kick answered
    /// [`WokeBlocked`](unit::Kick::WokeBlocked), or whose `online` answered `true`, calls it.
    #[must_use = "the pCPU that should run it does not know yet"]
    fn wake(&self, v: VcpuId, now: Ticks, by: WakeBy) -> CpuSet;

    /// Chooses what the caller's own pCPU runs next. `prev` is what it ran until now; it may be chosen again, unless it
    /// blocks or is gone. If another is chosen, or none, save its registers and call
    /// [`context_saved`](Self::context_saved).
    fn schedule(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision;

    /// Takes what runs off the caller's own pCPU and chooses nothing in its place: the pCPU is about to part. Save the
    /// registers and call [`context_saved`](Self::context_saved), then [`cpu_offline`](Self::cpu_offline).
    fn give_up(&self, cpu: CpuId, prev: Prev, now: Ticks);

    /// The registers of the unit that [`schedule`](Self::schedule) took off the caller's own pCPU are saved: from now on
    /// it may run elsewhere, block, or be freed.
    #[must_use = "an idle pCPU that could run it does not know yet"]
    fn context_saved(&self, cpu: CpuId, prev: Prev, now: Ticks) -> CpuSet;

    /// Does a unit wait that the caller's own pCPU could take, and no other was told to take? A hint: `true` also for one that may not run
    /// there. Asked again and again while a vCPU is waited for.
    fn others_wait(&self, cpu: CpuId) -> bool;

    /// Changes a unit's share from now on.
    ///
    /// # Errors
    /// There is none in this slot.
    fn set_weight(&self, v: VcpuId, weight: Weight, now: Ticks) -> Result<(), SchedError>;

    /// Changes where a unit may run. If it runs elsewhere, it is still there until that pCPU has rescheduled.
    ///
    /// # Errors
    /// There is none in this slot, or no pCPU of the set is online.
    #[must_use = "the unit may run, or wait, where it must not"]
    fn set_affinity(&self, v: VcpuId, affinity: CpuSet, now: Ticks) -> Result<CpuSet, SchedError>;

    /// Changes where a unit prefers to run, among where it may.
    ///
    /// # Errors
    /// There is none in this slot, or the scheduler has no preferences.
    #[must_use = "the unit may wait while a preferred pCPU is idle"]
    fn set_soft_affinity(&self, v: VcpuId, soft: CpuSet, now: Ticks) -> Result<CpuSet, SchedError> {
        let _ = (v, soft, now);
        Err(SchedError::NotKnown("soft affinity"))
    }

    /// Changes how much time all units of a domain may have together; `None`: as much as there is.
    ///
    /// # Errors
    /// There is no such domain, or the scheduler has no caps.
    #[must_use = "units that waited for the cap may run"]
    fn set_cap(&self, domain: DomId, cap: Option<Cap>, now: Ticks) -> Result<CpuSet, SchedError> {
        let _ = (domain, cap, now);
        Err(SchedError::NotKnown("cap"))
    }

    /// Changes a unit's period and budget from its next period on.
    ///
    /// # Errors
    /// There is none in this slot, the scheduler has no periods, or all units together would need more than there is.
    fn set_rt(&self, v: VcpuId, params: RtParams, now: Ticks) -> Result<(), SchedError> {
        let _ = (v, params, now);
        Err(SchedError::NotKnown("period"))
    }

    /// A pCPU joins, before its first [`schedule`](Self::schedule). It is taken as busy until then.
    ///
    /// # Errors
    /// There is no such pCPU.
    fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError>;

    /// A pCPU leaves: it runs nothing; what waits there moves. Units that may run nowhere else any more run everywhere (and their affinity says so).
    ///
    /// # Errors
    /// There is no such pCPU, it runs a unit, or it is the last.
    fn cpu_offline(&self, cpu: CpuId, now: Ticks) -> Result<CpuSet, SchedError>;

    /// Shows everything, for the debug key `r`: each pCPU, followed by what runs and waits there in the order in which
    /// it would run, then what is blocked or offline. No lock is held while `show` runs.
    fn dump(&self, now: Ticks, show: impl FnMut(DumpRow));
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
