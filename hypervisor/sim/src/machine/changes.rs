//! Somebody at the console, who changes weights and affinities, removes and adds vCPUs, and takes CPUs out of the scheduler and
//! brings them back.

use super::board::{Board, Sim};
use super::guests::Guests;
use super::plan::Plan;
use crate::rng::Rng;
use lull_core::dispatch::CpuChange;
use lull_core::sched::unit::Phase;
use lull_core::sched::{Scheduler, UnitParams, Weight};
use lull_core::units::{CpuId, CpuSet, VcpuId};

/// How long, on average, between two changes, in ns.
const INTERVAL: u64 = 1_000_000;

/// The one who does it.
pub struct Operator {
    rng: Rng,
    vcpus: u32,
    cpus: u32,
    /// vCPUs are changed.
    changes: bool,
    /// CPUs leave and come back.
    offline: bool,
}

impl Operator {
    /// For the machine of this plan.
    pub fn new(plan: &Plan) -> Self {
        Self {
            rng: Rng::new(plan.seed ^ 0x00c0_ffee),
            vcpus: plan.load.vcpus(),
            cpus: plan.topology.cpus,
            changes: plan.changes,
            offline: plan.offline,
        }
    }

    /// When the next change is made, after `now`.
    pub fn next(&mut self, now: u64) -> u64 {
        now + self.rng.exponential(INTERVAL)
    }

    /// Changes something. A refusal is one of the answers that a scheduler may give, and changes nothing.
    pub fn change<S: Scheduler>(&mut self, machine: &Sim<S>, guests: &Guests<S>, board: &Board<S>) {
        if self.offline && (!self.changes || self.rng.one_in(3)) {
            return self.switch(machine, board);
        }
        let v = self.rng.between(0, u64::from(self.vcpus.max(1)) - 1) as u32;
        let id = VcpuId::new(v);
        let phase = machine
            .sched()
            .units()
            .get(id)
            .map(|unit| unit.state.phase());
        if phase == Some(Phase::Offline) {
            let params = UnitParams {
                affinity: self.affinity(),
                weight: self.weight(),
                ..UnitParams::default()
            };
            // Refused if it was never started, and so has its slot still.
            if machine.add_vcpu(id, params).is_ok() {
                guests.restart(v);
                machine.online_vcpu(id);
            }
            return;
        }
        let refused = match self.rng.between(0, 3) {
            0 => machine.set_weight(id, self.weight()).is_err(),
            1 => machine.remove_vcpu(id).is_err(),
            _ => machine.set_affinity(id, self.affinity()).is_err(),
        };
        debug_assert!(
            !refused || self.offline,
            "{id} exists, and all CPUs are online at {} ns",
            board.now()
        );
    }

    /// A CPU leaves, or comes back. The first one stays: somebody must.
    fn switch<S: Scheduler>(&mut self, machine: &Sim<S>, board: &Board<S>) {
        if self.cpus > 1 {
            let cpu = CpuId::new(self.rng.between(1, u64::from(self.cpus) - 1) as u32);
            let change = if self.rng.one_in(2) {
                CpuChange::Offline
            } else {
                CpuChange::Online
            };
            machine.ask(cpu, change);
            board.watch.posted(cpu);
        }
    }

    fn weight(&mut self) -> Weight {
        Weight::new(self.rng.between(1, 4096) as u16).unwrap_or_default()
    }

    fn affinity(&mut self) -> CpuSet {
        if self.rng.one_in(2) {
            return CpuSet::ALL;
        }
        let low = self.rng.between(0, u64::from(self.cpus) - 1);
        let high = self.rng.between(low, u64::from(self.cpus) - 1);
        (low..=high).map(|cpu| CpuId::new(cpu as u32)).collect()
    }
}
