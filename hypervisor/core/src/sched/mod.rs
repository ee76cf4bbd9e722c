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
//! Lock order: a scheduler's locks are leaves. Nothing is called out to while one is held.

use crate::units::{CpuId, CpuSet, Ticks, VcpuId};
use core::fmt;
use core::num::NonZeroU16;

pub mod fair;
pub mod unit;

pub use unit::{Unit, UnitTable};

/// The share of a unit relative to others: one of weight 512 gets twice the time of one of weight 256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU16);

impl Weight {
    /// What a unit has that is not given another: 256, as in Xen's credit schedulers.
    pub const DEFAULT: Self = match NonZeroU16::new(256) {
        Some(weight) => Self(weight),
        None => Self(NonZeroU16::MIN),
    };

    /// A weight from 1 to 65535; `None` for zero.
    pub const fn new(weight: u16) -> Option<Self> {
        match NonZeroU16::new(weight) {
            Some(weight) => Some(Self(weight)),
            None => None,
        }
    }

    /// The number, from 1.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What a unit is given when it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitParams {
    /// Its share.
    pub weight: Weight,
    /// The pCPUs it may run on. At least one of them must be online.
    pub affinity: CpuSet,
}

impl Default for UnitParams {
    fn default() -> Self {
        Self {
            weight: Weight::DEFAULT,
            affinity: CpuSet::ALL,
        }
    }
}

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
    /// Come back at this time at the latest. `None` (always when idle): no timer on behalf of the scheduler.
    pub until: Option<Ticks>,
    /// Post RESCHED to this pCPU: it is idle and can take work that waits here.
    pub tickle: Option<CpuId>,
}

/// What [`Scheduler::remove`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a unit that runs must be brought out of the guest"]
pub enum Removal {
    /// The slot is free.
    Done,
    /// It runs on this pCPU: post RESCHED there. The slot is free once it has left.
    RunsOn(CpuId),
}

/// Why a scheduler refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedError {
    /// The slot number is beyond the capacity.
    NoSuchSlot {
        /// The slot asked for.
        unit: VcpuId,
        /// How many slots there are.
        capacity: usize,
    },
    /// The slot has a unit already.
    SlotTaken(VcpuId),
    /// The slot has no unit.
    NoUnit(VcpuId),
    /// The affinity holds no pCPU that is online.
    NoOnlineCpu(CpuSet),
    /// The pCPU is beyond the capacity.
    NoSuchCpu(CpuId),
    /// The pCPU has a unit running: it cannot go offline before that has left.
    CpuBusy(CpuId),
    /// The pCPU is the last that is online.
    LastCpu(CpuId),
}

impl fmt::Display for SchedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchedError::NoSuchSlot { unit, capacity } => {
                write!(f, "no slot for {unit}: expected less than {capacity}")
            }
            SchedError::SlotTaken(unit) => write!(f, "{unit} exists already"),
            SchedError::NoUnit(unit) => write!(f, "{unit} does not exist"),
            SchedError::NoOnlineCpu(affinity) => write!(
                f,
                "no CPU of {affinity} is online: expected at least one that is"
            ),
            SchedError::NoSuchCpu(cpu) => write!(f, "{cpu} does not exist"),
            SchedError::CpuBusy(cpu) => write!(f, "{cpu} runs a vCPU"),
            SchedError::LastCpu(cpu) => write!(f, "{cpu} is the last CPU that is online"),
        }
    }
}

impl core::error::Error for SchedError {}

/// A scheduler.
///
/// All calls may come from any pCPU at any time, except where a `cpu` argument says "the caller's own".
/// An `Option<CpuId>` that is returned asks for RESCHED to be posted to that pCPU.
pub trait Scheduler: Sync {
    /// Its name, as in `sched=NAME`.
    fn name(&self) -> &'static str;

    /// The run states, shared with the dispatch loops.
    fn units(&self) -> &UnitTable;

    /// Puts a unit into a free slot, offline: [`wake`](Self::wake) after
    /// [`RunState::online`](unit::RunState::online) makes it run.
    ///
    /// # Errors
    /// No such slot, slot taken, or no online pCPU in the affinity.
    fn add(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError>;

    /// Takes a unit out, whatever it does.
    ///
    /// # Errors
    /// There is none in this slot.
    fn remove(&self, v: VcpuId) -> Result<Removal, SchedError>;

    /// Queues a unit that was blocked. Only the one whose kick answered
    /// [`WokeBlocked`](unit::Kick::WokeBlocked), or whose `online` answered `true`, calls it.
    #[must_use = "the pCPU that should run it does not know yet"]
    fn wake(&self, v: VcpuId, now: Ticks) -> Option<CpuId>;

    /// Chooses what the caller's own pCPU runs next. `prev` is what it ran until now; it may be chosen again, unless it
    /// blocks or is gone. If another is chosen, or none, save its registers and call
    /// [`context_saved`](Self::context_saved).
    fn schedule(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision;

    /// The registers of the unit that [`schedule`](Self::schedule) took off the caller's own pCPU are saved: from now on
    /// it may run elsewhere, block, or be freed.
    #[must_use = "an idle pCPU that could run it does not know yet"]
    fn context_saved(&self, cpu: CpuId, prev: Prev, now: Ticks) -> Option<CpuId>;

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
    fn set_affinity(
        &self,
        v: VcpuId,
        affinity: CpuSet,
        now: Ticks,
    ) -> Result<Option<CpuId>, SchedError>;

    /// A pCPU joins, before its first [`schedule`](Self::schedule). It is taken as busy until then.
    ///
    /// # Errors
    /// There is no such pCPU.
    fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError>;

    /// A pCPU leaves: it runs nothing; what waits there moves. `moved` is called for each pCPU that must be posted
    /// RESCHED. Units that may run nowhere else any more run everywhere (and their affinity says so).
    ///
    /// # Errors
    /// There is no such pCPU, it runs a unit, or it is the last.
    fn cpu_offline(
        &self,
        cpu: CpuId,
        now: Ticks,
        moved: &mut dyn FnMut(CpuId),
    ) -> Result<(), SchedError>;

    /// Shows everything, for the debug key `r`: each pCPU, followed by what runs and waits there in the order in which
    /// it would run, then what is blocked or offline. No lock is held while `show` runs.
    fn dump(&self, now: Ticks, show: &mut dyn FnMut(DumpRow));
}

/// One line of a scheduler's dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpRow {
    /// A pCPU. The [`Unit`](Self::Unit) rows that follow it are on it.
    Cpu(CpuRow),
    /// A unit that runs or waits on the pCPU above.
    Unit(UnitRow),
    /// A unit that is blocked or offline, and so on no pCPU.
    Parked(UnitRow),
}

/// A pCPU in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuRow {
    /// Which one.
    pub cpu: CpuId,
    /// It runs nothing, and takes work at once.
    pub idle: bool,
    /// What runs.
    pub current: Option<VcpuId>,
    /// When its slice ends.
    pub until: Option<Ticks>,
    /// How many units wait.
    pub waiting: usize,
    /// The queue's virtual clock (fair) or the like; only differences mean something.
    pub clock: u64,
}

/// A unit in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitRow {
    /// Which one.
    pub unit: VcpuId,
    /// Where it is.
    pub phase: unit::Phase,
    /// Its share.
    pub weight: Weight,
    /// Where it may run.
    pub affinity: CpuSet,
    /// Its virtual run time relative to the clock of its queue: the lower, the sooner it runs.
    pub ahead: i64,
    /// Its time inside the guest so far.
    pub run_time: Ticks,
}
