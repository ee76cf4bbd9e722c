//! What the debug key `r` shows of RTDS.

use super::Rtds;
use super::queues::{Place, Slot};
use crate::sched::unit::Phase;
use crate::sched::{CpuRow, DumpRow, UnitDetail, UnitRow};
use crate::units::{Ticks, VcpuId};
use alloc::vec::Vec;

impl Rtds {
    /// Copies all, and shows the copy without the lock.
    pub(super) fn show(&self, now: Ticks, mut show: impl FnMut(DumpRow)) {
        let mut rows = Vec::with_capacity(2 * self.units.capacity() + self.cpus.len());
        {
            let inner = self.inner.lock();
            let row = |v: VcpuId| {
                inner
                    .slots
                    .get(v.index())
                    .map(|slot| self.row(v, slot, now))
            };
            for cpu in inner.online.iter() {
                let Some(here) = inner.here.get(cpu.index()) else {
                    continue;
                };
                rows.push(DumpRow::Cpu(CpuRow {
                    cpu,
                    idle: self.idle.contains(cpu),
                    current: here.current,
                    until: here.until,
                    waiting: 0,
                }));
                rows.extend(here.current.and_then(row).map(DumpRow::Unit));
            }
            for index in inner.waiting.iter(&self.run_links) {
                rows.extend(row(VcpuId::new(index as u32)).map(DumpRow::Unit));
            }
            for (index, slot) in inner.slots.iter().enumerate() {
                let v = VcpuId::new(index as u32);
                if matches!(
                    slot.place,
                    Place::Blocked | Place::Depleted | Place::Leaving
                ) {
                    rows.push(DumpRow::Parked(self.row(v, slot, now)));
                }
            }
        }
        for row in rows {
            show(row);
        }
    }

    fn row(&self, v: VcpuId, slot: &Slot, now: Ticks) -> UnitRow {
        let unit = self.units.get(v);
        UnitRow {
            unit: v,
            phase: unit.map_or(Phase::Offline, |unit| unit.state.phase()),
            weight: slot.weight,
            affinity: slot.hard,
            soft: slot.soft,
            run_time: unit.map_or(Ticks::ZERO, |unit| unit.run_time(now)),
            detail: UnitDetail::Rt {
                period: slot.period,
                budget: slot.budget,
                left: slot.left,
                deadline: slot.deadline,
                level: slot.level,
                missed: slot.missed,
                short: slot.shortest,
            },
        }
    }
}
