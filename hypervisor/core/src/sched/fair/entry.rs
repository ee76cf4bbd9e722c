//! What the fair scheduler knows of a unit: a value that is moved from place to place, never copied.

use super::vtime::{VTime, virtual_length};
use super::{MEMORY_SLICES, UnitParams, Weight};
use crate::units::{CpuSet, Ticks, VcpuId};

/// A unit's scheduling data. Deliberately neither `Clone` nor `Copy`.
#[derive(Debug)]
pub(super) struct Entry {
    pub unit: VcpuId,
    pub vruntime: VTime,
    /// What the last charge left over, in 1/weight of a virtual tick.
    remainder: u16,
    pub weight: Weight,
    pub affinity: CpuSet,
    /// Removed while it ran: it will be freed when it leaves its CPU.
    pub dying: bool,
}

impl Entry {
    pub fn new(unit: VcpuId, params: UnitParams, now: VTime) -> Self {
        Self {
            unit,
            vruntime: now,
            remainder: 0,
            weight: params.weight,
            affinity: params.affinity,
            dying: false,
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

    /// Another share from now on.
    pub fn set_weight(&mut self, weight: Weight) {
        self.weight = weight;
        self.remainder = 0;
    }

    /// Is it owed more than `time` of running, compared with one that is at `other`?
    pub fn is_owed(&self, other: VTime, time: Ticks) -> bool {
        let behind = other.ahead_of(self.vruntime);
        behind > 0 && behind as u64 > virtual_length(time, self.weight)
    }

    /// It enters a queue that is at `clock`: what it is owed beyond `credit` of running is forgotten, and so is what it
    /// has had too much beyond [`MEMORY_SLICES`].
    pub fn admit(&mut self, clock: VTime, credit: Ticks, slice: Ticks) {
        let ahead = Ticks::new(slice.get().saturating_mul(MEMORY_SLICES));
        let earliest = clock.minus(virtual_length(credit, self.weight));
        let latest = clock.plus(virtual_length(ahead, self.weight));
        self.vruntime = self.vruntime.later(earliest).earlier(latest);
    }

    /// It is not owed more than `credit` of running, compared with `clock`.
    pub fn forgive(&mut self, clock: VTime, credit: Ticks) {
        let earliest = clock.minus(virtual_length(credit, self.weight));
        self.vruntime = self.vruntime.later(earliest);
    }
}
