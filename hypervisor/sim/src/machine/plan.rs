//! Everything that decides a run, as a value that a command line can hold.

use super::board::Nature;
use super::faults::{Broken, Fault, Faults, LATE_TIMER, SLOW_IPI};
use super::load::Load;
use super::states::{Entry, States, machine};
use super::topology::{SLOWEST_IPI, Topology};
use lull_core::governor::AnyGovernor;
use lull_core::sched::AnyScheduler;
use lull_core::sched::placement::Placement;
use lull_core::units::MAX_CPUS;
use std::fmt::Write as _;

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where the CPUs are.
    pub topology: Topology,
    /// What the guests do.
    pub load: Load,
    /// Virtual time, in ns.
    pub length: u64,
    /// What all randomness comes from.
    pub seed: u64,
    /// Which machine's C-states.
    pub machine: String,
    /// How they are entered.
    pub entry: Entry,
    /// Who chooses among them.
    pub governor: String,
    /// Who chooses among vCPUs.
    pub scheduler: String,
    /// How credit2 chooses among idle CPUs.
    pub placement: String,
    /// What the machine does within its contract.
    pub faults: Faults,
    /// One platform call in four takes up to so many ns longer, and events at one time come in any order; 0: neither.
    pub jitter: u64,
    /// What it does outside of its contract.
    pub broken: Option<Broken>,
    /// Weights and affinities change, and vCPUs are removed and added, about once a millisecond.
    pub changes: bool,
    /// CPUs leave the scheduler and come back, about once a millisecond.
    pub offline: bool,
    /// CPUs call each other, post to each other and go offline, and NMIs come, all the time.
    pub wakes: bool,
    /// For how long CPUs look for a kick before they block a vCPU, in µs.
    pub halt_poll: u64,
    /// Keep the trace up to this time, in ns after the start.
    pub keep: u64,
    /// Measure how long the scheduler and the timers take on the host.
    pub timed: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            topology: Topology {
                cpus: 8,
                sockets: 1,
                threads: 2,
            },
            load: Load::mixed(40),
            length: 1_000_000_000,
            seed: 1,
            machine: "skx".to_owned(),
            entry: Entry::Mwait,
            governor: AnyGovernor::NAMES[0].to_owned(),
            scheduler: AnyScheduler::NAMES[0].to_owned(),
            placement: Placement::NAMES[0].to_owned(),
            faults: Faults::NONE,
            jitter: 0,
            broken: None,
            changes: false,
            offline: false,
            wakes: false,
            halt_poll: 0,
            keep: 0,
            timed: false,
        }
    }
}

/// The longest run: ten thousand seconds.
pub const MAX_LENGTH: u64 = 10_000_000_000_000;
/// The most that a call may take longer.
pub const MAX_JITTER: u64 = 1_000_000;

impl Plan {
    /// Can it be run?
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub fn check(&self) -> Result<(), String> {
        let Topology {
            cpus,
            sockets,
            threads,
        } = self.topology;
        let limit = |what: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(format!("{value} {what}: expected {low} to {high}"))
            }
        };
        limit("CPUs", cpus.into(), 1, MAX_CPUS as u64)?;
        limit("sockets", sockets.into(), 1, cpus.into())?;
        limit("threads", threads.into(), 1, 8)?;
        limit("ns", self.length, 1, MAX_LENGTH)?;
        limit("us of looking", self.halt_poll, 0, 10_000)?;
        limit("ns of jitter", self.jitter, 0, MAX_JITTER)?;
        if self.broken == Some(Broken::SkipCall) && !self.wakes {
            return Err("`skip-call` breaks nothing where nobody calls".to_owned());
        }
        let outside = self
            .load
            .0
            .iter()
            .find_map(|part| part.cpus.filter(|&(low, _)| low >= cpus));
        if let Some((low, _)) = outside {
            return Err(format!(
                "a vCPU is pinned to CPU {low}, but there are {cpus}"
            ));
        }
        machine(&self.machine)?;
        let known = |what, name: &str, names: &[&str]| {
            if names.contains(&name) {
                Ok(())
            } else {
                Err(format!("{what} `{name}` is none of {}", names.join(", ")))
            }
        };
        known("governor", &self.governor, &AnyGovernor::NAMES)?;
        known("scheduler", &self.scheduler, &AnyScheduler::NAMES)?;
        known("placement", &self.placement, &Placement::NAMES)
    }

    /// The states of its CPUs.
    ///
    /// # Errors
    /// There is no such machine.
    pub fn states(&self) -> Result<States, String> {
        Ok(States::new(&machine(&self.machine)?, self.entry))
    }

    /// What its machine is like.
    pub fn nature(&self) -> Nature {
        Nature {
            topology: self.topology,
            faults: self.faults,
            broken: self.broken,
            jitter: self.jitter,
        }
    }

    /// How long a unit that may run and a CPU that is idle and may run it may coexist, in ns: the IPI, the way out of the
    /// deepest state, and one pass with what is around it.
    pub fn bound(&self, states: &States) -> u64 {
        /// Platform calls between a wake and the next decision, and what they take at most without jitter.
        const CALLS: u64 = 48;
        const CALL: u64 = 60;
        let ipi = if self.faults.has(Fault::Ipi) {
            SLOW_IPI
        } else {
            0
        };
        SLOWEST_IPI + ipi + states.longest_exit() + CALLS * (CALL + self.jitter)
    }

    /// How long a unit and a CPU may coexist that is held to it: for ever, if CPUs wait for calls of each other meanwhile.
    pub fn watched_bound(&self, states: &States) -> u64 {
        let bound = self.bound(states);
        if self.wakes {
            bound + 2 * self.length
        } else {
            bound
        }
    }

    /// How long after a deadline a sleeping CPU, or one in a guest, may still not have been told.
    pub fn timer_slack(&self) -> u64 {
        if self.faults.has(Fault::Timer) {
            LATE_TIMER
        } else {
            0
        }
    }

    /// The command that runs it.
    pub fn command(&self) -> String {
        let Topology {
            cpus,
            sockets,
            threads,
        } = self.topology;
        let mut text = format!(
            "cargo xtask sim --cpus {cpus} --sockets {sockets} --threads {threads} --load {} --ns {} --seed {} --machine {} \
             --entry {} --governor {} --scheduler {}",
            self.load,
            self.length,
            self.seed,
            self.machine,
            self.entry,
            self.governor,
            self.scheduler
        );
        if self.placement != Placement::NAMES[0] {
            let _ = write!(text, " --placement {}", self.placement);
        }
        if self.faults != Faults::NONE {
            let names: Vec<_> = self.faults.iter().map(Fault::name).collect();
            let _ = write!(text, " --faults {}", names.join(","));
        }
        if self.jitter > 0 {
            let _ = write!(text, " --jitter {}", self.jitter);
        }
        if self.halt_poll > 0 {
            let _ = write!(text, " --halt-poll {}", self.halt_poll);
        }
        if self.changes {
            text.push_str(" --changes");
        }
        if self.offline {
            text.push_str(" --offline");
        }
        if self.wakes {
            text.push_str(" --wakes");
        }
        if let Some(broken) = self.broken {
            let _ = write!(text, " --break {broken}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_is_named() {
        let bad = |change: fn(&mut Plan)| {
            let mut plan = Plan::default();
            change(&mut plan);
            plan.check().unwrap_err()
        };
        assert_eq!(Plan::default().check(), Ok(()));
        assert_eq!(
            bad(|plan| plan.topology.cpus = 4097),
            "4097 CPUs: expected 1 to 4096"
        );
        assert_eq!(
            bad(|plan| plan.topology.cpus = 0),
            "0 CPUs: expected 1 to 4096"
        );
        assert_eq!(
            bad(|plan| plan.topology.sockets = 9),
            "9 sockets: expected 1 to 8"
        );
        assert!(
            bad(|plan| plan.governor = "x".into()).starts_with("governor `x` is none of lull, ")
        );
        assert_eq!(
            bad(|plan| plan.load = "batch@8-9".parse().unwrap()),
            "a vCPU is pinned to CPU 8, but there are 8"
        );
    }
}
