//! What the debug key `r` shows, of whichever scheduler.

use super::unit::Phase;
use super::{Cap, Weight};
use crate::units::{CpuId, CpuSet, DomId, Ticks, VcpuId};

/// One line of a scheduler's dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpRow {
    /// A runqueue that several pCPUs share. The rows up to the next are about it.
    Queue(QueueRow),
    /// A domain that has a bound of its own.
    Domain(DomainRow),
    /// A pCPU. The [`Unit`](Self::Unit) rows that follow it are on it.
    Cpu(CpuRow),
    /// A unit that runs on the pCPU above, or waits there or in the runqueue above.
    Unit(UnitRow),
    /// A unit that is blocked or offline, and so on no pCPU.
    Parked(UnitRow),
}

/// A shared runqueue in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// Its number.
    pub id: u32,
    /// The pCPUs that it feeds.
    pub cpus: CpuSet,
    /// Those of them that are idle.
    pub idle: CpuSet,
    /// Those that were told to look and have not.
    pub tickled: CpuSet,
    /// The idle ones whose whole core is idle.
    pub idle_cores: CpuSet,
    /// The largest weight of a unit that is assigned to it.
    pub max_weight: u32,
    /// The pCPU that was chosen last.
    pub bias: CpuId,
    /// How many units run and wait.
    pub load: u32,
    /// The same over the last second, in percent of one unit.
    pub average: u32,
    /// How many wait.
    pub waiting: usize,
}

/// A domain in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainRow {
    /// Which one.
    pub domain: DomId,
    /// Its bound.
    pub cap: Option<Cap>,
    /// How many units it has.
    pub units: u32,
    /// What is left of its budget that no unit has taken; negative if it was overrun.
    pub budget: i64,
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
    /// How many units wait here, and nowhere else.
    pub waiting: usize,
}

/// A unit in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitRow {
    /// Which one.
    pub unit: VcpuId,
    /// Where it is.
    pub phase: Phase,
    /// Its share.
    pub weight: Weight,
    /// Where it may run.
    pub affinity: CpuSet,
    /// Where it prefers to run.
    pub soft: CpuSet,
    /// Its time inside the guest so far.
    pub run_time: Ticks,
    /// What the scheduler knows besides.
    pub detail: UnitDetail,
}

/// What only one scheduler knows of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitDetail {
    /// Nothing.
    None,
    /// `fair`: its virtual run time relative to the clock of its queue. The lower, the sooner it runs.
    Ahead(i64),
    /// `credit2`.
    Credit {
        /// What it has left. The more, the sooner it runs.
        credit: i64,
        /// What it has of its domain's budget; `None` if there is no cap.
        budget: Option<i64>,
        /// How much of the last second it was runnable, in percent.
        load: u32,
        /// It waits for its domain's budget.
        parked: bool,
    },
    /// `rtds`.
    Rt {
        /// How often it gets its budget.
        period: Ticks,
        /// What it gets.
        budget: Ticks,
        /// What is left of that.
        left: Ticks,
        /// When it gets it anew.
        deadline: Ticks,
        /// How often it has used up a budget in this period.
        level: u32,
        /// How often it was runnable for a whole period and did not get its budget.
        missed: u64,
        /// The most that it did not get.
        short: Ticks,
    },
}
