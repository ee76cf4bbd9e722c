//! What the debug key `r` shows of credit2.

use super::Credit2;
use super::load::Load;
use super::queue::Queue;
use super::slot::{Place, Slot};
use crate::sched::unit::Phase;
use crate::sched::{CpuRow, DomainRow, DumpRow, QueueRow, UnitDetail, UnitRow, Weight};
use crate::units::{CpuId, CpuSet, DomId, Ticks, VcpuId};
use alloc::vec::Vec;

impl Credit2 {
    /// Copies one runqueue at a time, and shows the copy without a lock.
    pub(super) fn show(&self, now: Ticks, mut show: impl FnMut(DumpRow)) {
        let mut rows = Vec::with_capacity(3 * self.slots.len() + 2 * self.here.len() + 1);
        for rq in &self.queues {
            if rq.cpus.is_empty() {
                continue;
            }
            {
                let queue = rq.lock();
                rows.push(DumpRow::Queue(self.queue_row(&queue)));
                for cpu in queue.cpus.iter() {
                    self.cpu_rows(&queue, cpu, now, &mut rows);
                }
                for index in queue.waiting.iter(&self.links) {
                    let row = self.unit_row(&queue, VcpuId::new(index as u32), now);
                    rows.extend(row.map(DumpRow::Unit));
                }
                for (v, slot) in self.members(&queue) {
                    if matches!(slot.place.get(), Place::Blocked | Place::Parked) {
                        rows.extend(self.unit_row(&queue, v, now).map(DumpRow::Parked));
                    }
                }
            }
            for row in rows.drain(..) {
                show(row);
            }
        }
        for (index, domain) in self.domains.iter().enumerate() {
            let row = {
                let budget = domain.lock();
                DomainRow {
                    domain: DomId::new(index as u16),
                    cap: budget.cap,
                    units: budget.units,
                    budget: budget.pool,
                }
            };
            if row.units > 0 && row.cap.is_some() {
                show(DumpRow::Domain(row));
            }
        }
    }

    fn queue_row(&self, queue: &Queue) -> QueueRow {
        let tickled = |cpu: &CpuId| {
            self.here
                .get(cpu.index())
                .is_some_and(|here| here.tickled.get())
        };
        QueueRow {
            id: queue.id.get(),
            cpus: queue.cpus,
            idle: self.idle.load().intersection(&queue.cpus),
            tickled: queue.cpus.iter().filter(tickled).collect::<CpuSet>(),
            idle_cores: self.idle_cores(queue),
            max_weight: queue.max_weight,
            bias: queue.bias,
            load: u32::try_from(queue.load.now).unwrap_or(u32::MAX),
            average: Load::percent(queue.load.average),
            waiting: queue.waiting.len(),
        }
    }

    fn cpu_rows(&self, queue: &Queue, cpu: CpuId, now: Ticks, rows: &mut Vec<DumpRow>) {
        let Some(here) = self.here.get(cpu.index()) else {
            return;
        };
        let current = here.current.get();
        rows.push(DumpRow::Cpu(CpuRow {
            cpu,
            idle: self.idle.contains(cpu),
            current,
            until: current.map(|_| here.until.get()),
            waiting: 0,
        }));
        for v in current.into_iter().chain(here.leaving.get()) {
            rows.extend(self.unit_row(queue, v, now).map(DumpRow::Unit));
        }
    }

    fn unit_row(&self, queue: &Queue, v: VcpuId, now: Ticks) -> Option<UnitRow> {
        let slot: &Slot = self.slots.get(v.index())?;
        let unit = self.units.get(v);
        let weight = u16::try_from(slot.weight.get())
            .ok()
            .and_then(Weight::new)
            .unwrap_or_default();
        Some(UnitRow {
            unit: v,
            phase: unit.map_or(Phase::Offline, |unit| unit.state.phase()),
            weight,
            affinity: slot.hard.load(),
            soft: slot.soft.load(),
            run_time: unit.map_or(Ticks::ZERO, |unit| unit.run_time(now)),
            detail: UnitDetail::Credit {
                credit: self.credit(queue, slot),
                budget: slot.capped.get().then(|| slot.budget.get()),
                load: Load::percent(slot.load().average),
                parked: slot.place.get() == Place::Parked,
            },
        })
    }
}
