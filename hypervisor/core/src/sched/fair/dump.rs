//! What the debug key `r` shows of the fair scheduler.

use super::entry::Entry;
use super::{Fair, Place, VTime};
use crate::sched::unit::Phase;
use crate::sched::{CpuRow, DumpRow, UnitDetail, UnitRow};
use crate::units::{CpuSet, Ticks};
use alloc::vec::Vec;

impl Fair {
    /// Copies one queue at a time, and shows the copy without a lock.
    pub(super) fn show(&self, now: Ticks, mut show: impl FnMut(DumpRow)) {
        let mut rows = Vec::with_capacity(self.slots.len());
        for cpu in self.online.iter() {
            let Ok(rq) = self.queue(cpu) else { continue };
            let header = {
                let queue = rq.lock();
                let clock = queue.clock().unwrap_or(self.clock.now());
                let entries = queue.current.iter().chain(&queue.leaving);
                let entries = entries.chain(&queue.waiting);
                rows.extend(entries.map(|entry| self.unit_row(entry, clock, now)));
                let current = queue.current.as_ref().map(|entry| entry.unit);
                CpuRow {
                    cpu,
                    idle: self.idle.contains(cpu),
                    current,
                    until: current.map(|_| queue.slice_end),
                    waiting: queue.waiting.len(),
                }
            };
            show(DumpRow::Cpu(header));
            for row in rows.drain(..) {
                show(DumpRow::Unit(row));
            }
        }
        for slot in &self.slots {
            let row = match &*slot.place.lock() {
                Place::Parked(entry) => Some(self.unit_row(entry, self.clock.now(), now)),
                Place::Free | Place::Out => None,
            };
            if let Some(row) = row {
                show(DumpRow::Parked(row));
            }
        }
    }

    fn unit_row(&self, entry: &Entry, clock: VTime, now: Ticks) -> UnitRow {
        let unit = self.units.get(entry.unit);
        UnitRow {
            unit: entry.unit,
            phase: unit.map_or(Phase::Offline, |unit| unit.state.phase()),
            weight: entry.weight,
            affinity: entry.affinity,
            soft: CpuSet::ALL,
            run_time: unit.map_or(Ticks::ZERO, |unit| unit.run_time(now)),
            detail: UnitDetail::Ahead(entry.vruntime.ahead_of(clock)),
        }
    }
}
