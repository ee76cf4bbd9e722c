//! Energy by state: what cores draw, and where their time goes.
//!
//! The unit of power is a core that runs. A core sleeps as deep as the shallowest of its threads. The way into a state costs
//! what its target residency says ([`CostModel`]); the way out draws full power.

use super::topology::Topology;
use super::trace::Doing;
use crate::cost::CostModel;
use lull_core::cstate::MAX_STATES;

/// Where times are kept: busy, then states by index.
const RUNS: usize = MAX_STATES;

/// The energy account.
#[derive(Clone, Debug)]
pub struct Energy {
    topology: Topology,
    costs: CostModel,
    cpus: Vec<Level>,
    cores: Vec<Level>,
    cpu_time: [u64; MAX_STATES + 1],
    core_energy: [f64; MAX_STATES + 1],
}

#[derive(Clone, Copy, Debug)]
struct Level {
    at: usize,
    since: u64,
}

/// The time that CPUs spent in a state, and what their cores drew meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// `run` or the state's name.
    pub name: &'static str,
    /// Of all CPUs, in ns.
    pub time: u64,
    /// Of all cores whose shallowest thread was in it, in seconds of a core that runs.
    pub energy: f64,
}

impl Energy {
    /// All CPUs run, from `start` on.
    pub fn new(topology: Topology, costs: CostModel, start: u64) -> Self {
        let runs = Level {
            at: RUNS,
            since: start,
        };
        Self {
            topology,
            costs,
            cpus: vec![runs; topology.cpus as usize],
            cores: vec![runs; topology.cores() as usize],
            cpu_time: [0; MAX_STATES + 1],
            core_energy: [0.0; MAX_STATES + 1],
        }
    }

    /// A CPU does something else from now on.
    pub fn change(&mut self, now: u64, cpu: u32, doing: Doing) {
        let level = match doing {
            Doing::Sleep(state) => usize::from(state).min(MAX_STATES - 1),
            Doing::Hypervisor | Doing::Guest(_) | Doing::Waking(_) => RUNS,
        };
        self.to(now, cpu, level);
    }

    fn to(&mut self, now: u64, cpu: u32, level: usize) {
        let Some(own) = self.cpus.get_mut(cpu as usize) else {
            return;
        };
        if own.at == level {
            return;
        }
        self.cpu_time[own.at] += now - own.since;
        *own = Level {
            at: level,
            since: now,
        };
        let threads = self.topology.threads.max(1);
        let core = self.topology.core(cpu);
        let all = (core * threads..).take(threads as usize);
        let levels = all.filter_map(|cpu| self.cpus.get(cpu as usize).map(|cpu| cpu.at));
        // Running is shallower than any state.
        let shallowest = levels.min_by_key(|&at| if at == RUNS { 0 } else { at + 1 });
        let shallowest = shallowest.unwrap_or(RUNS);
        let Some(&before) = self.cores.get(core as usize) else {
            return;
        };
        if before.at == shallowest {
            return;
        }
        self.charge(before, now);
        // The way down from wherever it is; nothing on the way up.
        let paid = |at: usize| {
            if at == RUNS {
                0.0
            } else {
                self.costs.energy(at, 0)
            }
        };
        let way = (paid(shallowest) - paid(before.at)).max(0.0) / 1e6;
        if shallowest != RUNS {
            self.core_energy[shallowest] += way;
        }
        if let Some(core) = self.cores.get_mut(core as usize) {
            *core = Level {
                at: shallowest,
                since: now,
            };
        }
    }

    fn charge(&mut self, level: Level, now: u64) {
        let span = now - level.since;
        // `energy` is in us of a core that runs.
        self.core_energy[level.at] += if level.at == RUNS {
            span as f64 / 1e9
        } else {
            (self.costs.energy(level.at, span) - self.costs.energy(level.at, 0)) / 1e6
        };
    }

    /// The account up to now: running, then each state that was used.
    pub fn shares(&self, now: u64) -> Vec<Share> {
        let mut closed = self.clone();
        for cpu in 0..self.topology.cpus {
            let at = closed.cpus.get(cpu as usize).map_or(RUNS, |own| own.at);
            if let Some(own) = closed.cpus.get(cpu as usize) {
                closed.cpu_time[at] += now - own.since;
            }
        }
        for core in closed.cores.clone() {
            closed.charge(core, now);
        }
        let name = |index: usize| {
            let id = self.costs.table.id(index);
            id.map_or("run", |id| self.costs.table.state(id).name)
        };
        std::iter::once(RUNS)
            .chain(0..self.costs.table.count())
            .map(|index| Share {
                name: if index == RUNS { "run" } else { name(index) },
                time: closed.cpu_time[index],
                energy: closed.core_energy[index],
            })
            .filter(|share| share.time > 0 || share.energy > 0.0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::SKX;

    const MS: u64 = 1_000_000;

    fn topology() -> Topology {
        Topology {
            cpus: 2,
            sockets: 1,
            threads: 2,
        }
    }

    #[test]
    fn a_core_sleeps_only_when_both_threads_do() {
        let mut energy = Energy::new(topology(), CostModel::new(&SKX), 0);
        energy.change(0, 0, Doing::Sleep(3));
        energy.change(10 * MS, 1, Doing::Sleep(3));
        let shares = energy.shares(20 * MS);
        let (run, deep) = (&shares[0], &shares[1]);
        assert_eq!((run.name, run.time), ("run", 10 * MS));
        assert_eq!((deep.name, deep.time), ("C6", 30 * MS));
        assert!((run.energy - 0.010).abs() < 1e-9, "{run:?}");
        let expected = CostModel::new(&SKX).energy(3, 10 * MS) / 1e6;
        assert!((deep.energy - expected).abs() < 1e-9, "{deep:?}");
    }

    #[test]
    fn all_time_is_somewhere() {
        let mut energy = Energy::new(topology(), CostModel::new(&SKX), 5);
        energy.change(1_005, 0, Doing::Sleep(1));
        energy.change(2_005, 0, Doing::Waking(1));
        energy.change(2_105, 0, Doing::Guest(0));
        let times: u64 = energy.shares(10_005).iter().map(|share| share.time).sum();
        assert_eq!(times, 2 * 10_000);
    }
}
