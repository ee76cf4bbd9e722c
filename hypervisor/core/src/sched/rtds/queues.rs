//! What the one lock guards: units, CPUs, and the two queues.

use super::{Box, SchedError, Sorted, Weight};
use crate::units::{CpuId, CpuSet, TickRate, Ticks, VcpuId};

/// Where a unit is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    #[default]
    Free,
    Blocked,
    Queued,
    /// It is runnable, and has used up its budget.
    Depleted,
    Running,
    Leaving,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub place: Place,
    pub period: Ticks,
    pub budget: Ticks,
    /// What is left of it in this period.
    pub left: Ticks,
    pub deadline: Ticks,
    /// Up to when it has been charged, while it runs.
    pub start: Ticks,
    /// How many budgets it has used up in this period.
    pub level: u32,
    pub extratime: bool,
    pub hard: CpuSet,
    pub soft: CpuSet,
    pub cpu: Option<CpuId>,
    pub dying: bool,
    pub weight: Weight,
    /// It was runnable all the period.
    pub whole_period: bool,
    /// How often it was, and did not get its budget; and the most that it did not get.
    pub missed: u64,
    pub shortest: Ticks,
}

impl Slot {
    /// A whole CPU, in millionths.
    pub const WHOLE: u64 = 1_000_000;
    /// Levels beyond this are the same.
    const MAX_LEVEL: u32 = 0x7FFF;

    pub fn utilization(&self) -> u64 {
        let budget = u128::from(self.budget.get()) * u128::from(Self::WHOLE);
        // Budgets are at most periods, so it fits.
        (budget / u128::from(self.period.get().max(1))) as u64
    }

    /// The order of urgency: first the level, then the deadline in microseconds since boot, for 4 years.
    pub fn key(&self, rate: TickRate) -> i64 {
        const DEADLINE_BITS: u32 = 47;
        let micros = rate
            .to_micros(self.deadline)
            .get()
            .min((1 << DEADLINE_BITS) - 1);
        let level = i64::from(self.level.min(Self::MAX_LEVEL));
        // 15 and 47 bits: not negative.
        (level << DEADLINE_BITS) | micros as i64
    }

    /// The key that it has if it is charged now.
    pub fn key_now(&self, rate: TickRate, now: Ticks) -> i64 {
        let mut charged = *self;
        charged.burn(now);
        charged.key(rate)
    }

    pub fn deadline_key(&self) -> i64 {
        i64::try_from(self.deadline.get()).unwrap_or(i64::MAX)
    }

    /// Charges it, while it runs.
    pub fn burn(&mut self, now: Ticks) {
        let mut ran = now - self.start;
        self.start = self.start.max(now);
        if ran < self.left {
            self.left -= ran;
        } else if self.extratime {
            ran -= self.left;
            let budget = self.budget.get().max(1);
            let more = ran.get() / budget;
            let levels = u32::try_from(more).unwrap_or(u32::MAX).saturating_add(1);
            self.level = self.level.saturating_add(levels).min(Self::MAX_LEVEL);
            self.left = Ticks::new(budget - ran.get() % budget);
        } else {
            self.left = Ticks::ZERO;
        }
    }

    /// Its period has ended: the next one begins at its deadline, or later if more have passed.
    pub fn end_period(&mut self, now: Ticks) {
        if self.whole_period && self.level == 0 && self.left > Ticks::ZERO {
            self.missed += 1;
            self.shortest = self.shortest.max(self.left);
        }
        self.whole_period = true;
        let period = self.period.get().max(1);
        let passed = (now - self.deadline).get() / period + 1;
        self.deadline = if self.deadline == Ticks::ZERO {
            now + self.period // Its first.
        } else {
            self.deadline + Ticks::new(passed.saturating_mul(period))
        };
        self.left = self.budget;
        self.level = 0;
        self.start = now;
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Here {
    pub current: Option<VcpuId>,
    pub until: Option<Ticks>,
    /// It was told to look, and has not.
    pub tickled: bool,
}

pub(super) struct Inner {
    pub slots: Box<[Slot]>,
    pub here: Box<[Here]>,
    pub online: CpuSet,
    /// Those that wait and have budget, most urgent first.
    pub waiting: Sorted,
    /// All that are runnable, earliest deadline first.
    pub deadlines: Sorted,
    /// The CPU that keeps the timer, and for when.
    pub keeper: Option<(CpuId, Ticks)>,
}

impl Inner {
    pub fn new(cpus: usize, units: usize) -> Self {
        Self {
            slots: (0..units).map(|_| Slot::default()).collect(),
            here: (0..cpus).map(|_| Here::default()).collect(),
            online: CpuSet::EMPTY,
            waiting: Sorted::new(),
            deadlines: Sorted::new(),
            keeper: None,
        }
    }

    pub fn slot(&mut self, v: VcpuId) -> Result<&mut Slot, SchedError> {
        let capacity = self.slots.len();
        let none = SchedError::NoSuchSlot { unit: v, capacity };
        let slot = self.slots.get_mut(v.index()).ok_or(none)?;
        if slot.place == Place::Free {
            Err(SchedError::NoUnit(v))
        } else {
            Ok(slot)
        }
    }

    /// Would all reservations fit, if this unit's were like that?
    pub fn admit(&self, v: VcpuId, with: &Slot) -> Result<(), SchedError> {
        let others = self.slots.iter().enumerate();
        let others =
            others.filter(|&(index, slot)| index != v.index() && slot.place != Place::Free);
        let asked: u64 =
            others.map(|(_, slot)| slot.utilization()).sum::<u64>() + with.utilization();
        let there = self.online.len() as u64 * Slot::WHOLE;
        if asked > there {
            Err(SchedError::Overbooked { asked, there })
        } else {
            Ok(())
        }
    }

    pub fn first_deadline(&self) -> Option<Ticks> {
        let first = self.deadlines.first()?;
        self.slots.get(first).map(|slot| slot.deadline)
    }

    /// Until when this CPU waits for a deadline, if it keeps the timer or nobody does.
    pub fn keep_timer(&mut self, cpu: CpuId) -> Option<Ticks> {
        let keeps = self.keeper.is_none_or(|(keeper, _)| keeper == cpu);
        if !keeps {
            return None;
        }
        let first = self.first_deadline();
        self.keeper = first.map(|first| (cpu, first));
        first
    }
}
