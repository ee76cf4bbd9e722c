//! A scheduler, and beside it somebody who writes down what it says.
//!
//! Each answer passes through unchanged (unless the machine is [broken](super::faults::Broken) on purpose).

use super::faults::Broken;
use super::stopwatch::{Operation, Stopwatch};
use super::watch::Watch;
use crate::rng::Rng;
use lull_core::sched::unit::Phase;
use lull_core::sched::{
    Cap, CpuTable, Decision, DumpRow, Prev, Removal, RtParams, SchedError, Scheduler, UnitParams,
    UnitTable, WakeBy, Weight,
};
use lull_core::units::{CpuId, CpuSet, DomId, Ticks, VcpuId};
use std::sync::{Arc, Mutex, PoisonError};

/// A scheduler that is watched.
pub struct Observed<S> {
    inner: S,
    watch: Arc<Watch>,
    broken: Option<Broken>,
    rng: Mutex<Rng>,
    stopwatch: Arc<Stopwatch>,
}

impl<S: Scheduler> Observed<S> {
    /// Watches `inner`.
    pub fn new(
        inner: S,
        watch: Arc<Watch>,
        stopwatch: Arc<Stopwatch>,
        broken: Option<Broken>,
        seed: u64,
    ) -> Self {
        Self {
            inner,
            stopwatch,
            watch,
            broken,
            rng: Mutex::new(Rng::new(seed ^ 0x0b5e_77ed)),
        }
    }

    fn tickles(&self, targets: CpuSet) -> CpuSet {
        if targets.is_empty() {
            return targets;
        }
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        if self.broken == Some(Broken::ForgetTickle) && rng.one_in(8) {
            return CpuSet::EMPTY;
        }
        targets.iter().for_each(|cpu| self.watch.posted(cpu));
        targets
    }

    fn phase(&self, v: VcpuId) -> Phase {
        self.units()
            .get(v)
            .map_or(Phase::Offline, |unit| unit.state.phase())
    }

    /// After anything that may have moved a unit that did not run.
    fn moved(&self, v: VcpuId) {
        match self.phase(v) {
            Phase::Queued => self.watch.waits(v),
            Phase::Blocked => self.watch.blocked(v),
            Phase::Offline => self.watch.left(v),
            Phase::Running(_) => {}
        }
    }
}

impl<S: Scheduler> Scheduler for Observed<S> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn units(&self) -> &UnitTable {
        self.inner.units()
    }

    fn cpus(&self) -> &CpuTable {
        self.inner.cpus()
    }

    fn add(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError> {
        let mut given = params;
        if self.broken == Some(Broken::IgnoreWeight) {
            given.weight = Weight::DEFAULT;
        }
        let before = self.units().get(v).map(|unit| unit.run_time(Ticks::ZERO));
        self.inner.add(v, given)?;
        self.watch
            .added(v, params.affinity, before.unwrap_or_default().get());
        Ok(())
    }

    fn remove(&self, v: VcpuId) -> Result<Removal, SchedError> {
        let removal = self.inner.remove(v)?;
        self.moved(v);
        if let Removal::RunsOn(cpu) = removal {
            self.watch.posted(cpu);
        }
        Ok(removal)
    }

    fn wake(&self, v: VcpuId, now: Ticks, by: WakeBy) -> CpuSet {
        let wake = || self.inner.wake(v, now, by);
        let tickle = self.stopwatch.time(Operation::Wake, wake);
        self.watch.woken();
        self.moved(v);
        self.tickles(tickle)
    }

    fn schedule(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision {
        let pick = || self.inner.schedule(cpu, now, prev);
        let mut decision = self.stopwatch.time(Operation::Pick, pick);
        self.watch
            .decided(cpu, prev.map(|prev| prev.unit), decision.run);
        decision.tickle = self.tickles(decision.tickle);
        decision
    }

    fn give_up(&self, cpu: CpuId, prev: Prev, now: Ticks) {
        self.inner.give_up(cpu, prev, now);
        self.watch.decided(cpu, Some(prev.unit), None);
    }

    fn context_saved(&self, cpu: CpuId, prev: Prev, now: Ticks) -> CpuSet {
        let tickle = self.inner.context_saved(cpu, prev, now);
        self.watch.gave_up(cpu, prev.unit);
        self.moved(prev.unit);
        self.tickles(tickle)
    }

    fn others_wait(&self, cpu: CpuId) -> bool {
        self.inner.others_wait(cpu)
    }

    fn set_weight(&self, v: VcpuId, weight: Weight, now: Ticks) -> Result<(), SchedError> {
        self.inner.set_weight(v, weight, now)
    }

    fn set_affinity(&self, v: VcpuId, affinity: CpuSet, now: Ticks) -> Result<CpuSet, SchedError> {
        let tickle = self.inner.set_affinity(v, affinity, now)?;
        self.watch.set_affinity(v, affinity);
        Ok(self.tickles(tickle))
    }

    fn set_soft_affinity(&self, v: VcpuId, soft: CpuSet, now: Ticks) -> Result<CpuSet, SchedError> {
        let tickle = self.inner.set_soft_affinity(v, soft, now)?;
        Ok(self.tickles(tickle))
    }

    fn set_cap(&self, domain: DomId, cap: Option<Cap>, now: Ticks) -> Result<CpuSet, SchedError> {
        let tickle = self.inner.set_cap(domain, cap, now)?;
        Ok(self.tickles(tickle))
    }

    fn set_rt(&self, v: VcpuId, params: RtParams, now: Ticks) -> Result<(), SchedError> {
        self.inner.set_rt(v, params, now)
    }

    fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError> {
        self.inner.cpu_online(cpu)
    }

    fn cpu_offline(&self, cpu: CpuId, now: Ticks) -> Result<CpuSet, SchedError> {
        let tickle = self.inner.cpu_offline(cpu, now)?;
        self.watch.parted(cpu, !tickle.is_empty());
        Ok(self.tickles(tickle))
    }

    fn dump(&self, now: Ticks, show: impl FnMut(DumpRow)) {
        self.inner.dump(now, show);
    }
}
