//! What the fair scheduler knows of a unit: a value that is moved from place to place, never copied.

use super::vtime::{VTime, virtual_length};
use super::{UnitParams, Weight};
use crate::units::{CpuId, CpuSet, DomId, Ticks, VcpuId};

/// A unit's scheduling data. Deliberately neither `Clone` nor `Copy`.
#[derive(Debug)]
pub(super) struct Entry {
    pub unit: VcpuId,
    pub vruntime: VTime,
    /// What the last charge left over, in 1/weight of a virtual tick.
    remainder: u16,
    pub weight: Weight,
    pub affinity: CpuSet,
    pub domain: DomId,
    /// It waits since it yielded.
    pub yielded: bool,
    /// Removed while it ran: it will be freed when it leaves its CPU.
    pub dying: bool,
    /// Once its registers are saved it goes to this CPU, to make room on the one that it ran on.
    pub steps_to: Option<CpuId>,
}

impl Entry {
    pub fn new(unit: VcpuId, params: UnitParams, now: VTime) -> Self {
        Self {
            unit,
            vruntime: now,
            remainder: 0,
            weight: params.weight,
            affinity: params.affinity,
            domain: params.domain,
            yielded: false,
            dying: false,
            steps_to: None,
        }
    }

    /// It has run for so long. Exact: what a division leaves over is kept for the next.
    pub fn charge(&mut self, ran: Ticks) {
        let weight = u128::from(self.weight.get());
        let scaled = u128::from(ran.get()) * 256 + u128::from(self.remainder);
        // Less than `weight`, so it fits.
        self.remainder = (scaled % weight) as u16;
        self.vruntime = self.vruntime.plus((scaled / weight) as u64);
    }

    /// Another share from now on. What it is owed compared with `clock`, or has had too much, stays the same time.
    pub fn set_weight(&mut self, weight: Weight, clock: VTime) {
        let ahead = i128::from(self.vruntime.ahead_of(clock));
        let scaled = ahead * i128::from(self.weight.get()) / i128::from(weight.get());
        let limit = i128::from(u64::MAX >> 3);
        let length = scaled.clamp(-limit, limit);
        self.vruntime = if length < 0 {
            clock.minus(length.unsigned_abs() as u64)
        } else {
            clock.plus(length as u64)
        };
        self.weight = weight;
        self.remainder = 0;
    }

    /// Is it owed more than `time` of running, compared with one that is at `other`?
    pub fn is_owed(&self, other: VTime, time: Ticks) -> bool {
        let behind = other.ahead_of(self.vruntime);
        behind > 0 && behind as u64 > virtual_length(time, self.weight)
    }

    /// It enters a queue that is at `clock`: what it is owed beyond `credit` of running is forgotten, and so is what it
    /// has had too much beyond `debt`.
    pub fn admit(&mut self, clock: VTime, credit: Ticks, debt: Ticks) {
        let earliest = clock.minus(virtual_length(credit, self.weight));
        let latest = clock.plus(virtual_length(debt, self.weight));
        self.vruntime = self.vruntime.later(earliest).earlier(latest);
    }
}
