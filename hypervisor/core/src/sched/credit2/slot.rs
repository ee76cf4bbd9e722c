//! What the scheduler knows of a unit, and of a CPU.

use super::load::Load;
use super::rules::Rules;
use crate::sched::cpumask::AtomicCpuSet;
use crate::sched::held::{Bits, Held};
use crate::units::{CpuId, CpuSet, Ticks, VcpuId};

/// A runqueue's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueId(u32);

impl QueueId {
    pub const fn new(number: usize) -> Self {
        Self(number as u32)
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub const fn get(self) -> u32 {
        self.0
    }

    /// Its place in a set of runqueues: there are no more of them than CPUs.
    pub const fn bit(self) -> CpuId {
        CpuId::new(self.0)
    }
}

impl Bits for Option<QueueId> {
    fn to_bits(self) -> u64 {
        self.map_or(u64::MAX, |id| id.0.into())
    }
    fn from_bits(bits: u64) -> Self {
        (bits != u64::MAX).then_some(QueueId(bits as u32))
    }
}

/// Where a unit is: always in exactly one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// There is none in this slot.
    Free,
    /// Blocked or offline.
    Blocked,
    /// It waits in its runqueue.
    Queued,
    /// It runs on `cpu`.
    Running,
    /// It was taken off `cpu`, and its registers are not saved yet.
    Leaving,
    /// It is runnable, and waits for its domain's budget.
    Parked,
}

impl Bits for Place {
    fn to_bits(self) -> u64 {
        self as u64
    }
    fn from_bits(bits: u64) -> Self {
        match bits {
            1 => Self::Blocked,
            2 => Self::Queued,
            3 => Self::Running,
            4 => Self::Leaving,
            5 => Self::Parked,
            _ => Self::Free,
        }
    }
}

/// A unit. Guarded by the lock of the runqueue that it is assigned to, but for what says otherwise.
#[derive(Debug)]
pub(super) struct Slot {
    pub place: Held<Place>,
    /// The runqueue it is assigned to, in all places but `Free`; `None` also while it is carried to another.
    pub queue: Held<Option<QueueId>>,
    /// Its neighbours in the list of all units of the runqueue.
    pub next: Held<Option<VcpuId>>,
    pub previous: Held<Option<VcpuId>>,
    /// Where it runs, or ran last, or would like to.
    pub cpu: Held<Option<CpuId>>,
    /// What it had when its runqueue had seen `resets`.
    pub credit: Held<i64>,
    pub resets: Held<i64>,
    /// What it was lent for having been moved, and what `resets` was then.
    pub loan: Held<i64>,
    pub lent_at: Held<i64>,
    pub weight: Held<u32>,
    /// What the last division left over.
    pub residual: Held<u64>,
    /// Up to when it has been charged, while it runs.
    pub start: Held<Ticks>,
    pub hard: AtomicCpuSet,
    pub soft: AtomicCpuSet,
    /// It waits since it yielded.
    pub yielded: Held<bool>,
    /// The unit that it gave its time to last.
    pub yielded_to: Held<Option<VcpuId>>,
    /// Its soft affinity says something that its hard one does not.
    pub prefers: Held<bool>,
    /// It was removed while it ran.
    pub dying: Held<bool>,
    /// It goes to this runqueue when its registers are saved.
    pub moves_to: Held<Option<QueueId>>,
    /// The CPU that was told to take it, until that looks.
    pub tickled: Held<Option<CpuId>>,
    pub domain: Held<u32>,
    pub capped: Held<bool>,
    /// What it has of its domain's budget.
    pub budget: Held<i64>,
    /// In the list of those who wait for their domain's budget; guarded by the domain's lock.
    pub listed: Held<bool>,
    pub next_parked: Held<Option<VcpuId>>,
    average: Held<i64>,
    average_at: Held<u64>,
    runnable: Held<bool>,
    /// The latency it was promised, in ns; all ones: none.
    pub latency: Held<u64>,
}

impl Slot {
    pub fn new() -> Self {
        Self {
            place: Held::new(Place::Free),
            queue: Held::new(None),
            next: Held::new(None),
            previous: Held::new(None),
            cpu: Held::new(None),
            credit: Held::new(0),
            resets: Held::new(0),
            loan: Held::new(0),
            lent_at: Held::new(0),
            weight: Held::new(1),
            residual: Held::new(0),
            start: Held::new(Ticks::ZERO),
            hard: AtomicCpuSet::new(),
            soft: AtomicCpuSet::new(),
            yielded: Held::new(false),
            yielded_to: Held::new(None),
            prefers: Held::new(false),
            dying: Held::new(false),
            moves_to: Held::new(None),
            tickled: Held::new(None),
            domain: Held::new(0),
            capped: Held::new(false),
            budget: Held::new(0),
            listed: Held::new(false),
            next_parked: Held::new(None),
            average: Held::new(0),
            average_at: Held::new(0),
            runnable: Held::new(false),
            latency: Held::new(Rules::pack_limit(None)),
        }
    }

    /// Both affinities, and whether the soft one matters: not if it holds all of the hard one, or nothing of it.
    pub fn set_affinity(&self, hard: &CpuSet, soft: &CpuSet) {
        let both = hard.intersection(soft);
        self.hard.store(hard);
        self.soft.store(soft);
        self.prefers.set(!hard.is_subset(soft) && !both.is_empty());
    }

    /// Its own load.
    pub fn load(&self) -> Load {
        let mut load = Load::new(self.average.get(), self.average_at.get());
        load.now = self.runnable.get().into();
        load
    }

    pub fn set_load(&self, load: Load) {
        self.average.set(load.average);
        self.average_at.set(load.at());
        self.runnable.set(load.now > 0);
    }
}

/// A CPU. Guarded by the lock of its runqueue, but for what says otherwise.
#[derive(Debug)]
pub(super) struct Here {
    /// Its runqueue; `None` while it is offline.
    pub queue: Held<Option<QueueId>>,
    /// The threads of its core, itself included.
    pub siblings: CpuSet,
    /// It has any beside itself.
    pub threaded: bool,
    pub current: Held<Option<VcpuId>>,
    pub leaving: Held<Option<VcpuId>>,
    /// Since when it runs `current`.
    pub since: Held<Ticks>,
    pub until: Held<Ticks>,
    /// It was told to look, and has not.
    pub tickled: Held<bool>,
    /// What `current` woke itself may go first.
    pub urgent: Held<bool>,
    /// The unit for which it was told. Not guarded: set by whoever tells, taken by the CPU.
    pub claimed_for: Held<Option<VcpuId>>,
}

impl Here {
    pub fn new(siblings: CpuSet) -> Self {
        Self {
            queue: Held::new(None),
            siblings,
            threaded: siblings.len() > 1,
            current: Held::new(None),
            leaving: Held::new(None),
            since: Held::new(Ticks::ZERO),
            until: Held::new(Ticks::ZERO),
            tickled: Held::new(false),
            urgent: Held::new(false),
            claimed_for: Held::new(None),
        }
    }
}
