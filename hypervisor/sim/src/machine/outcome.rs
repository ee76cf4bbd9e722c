//! What a run came to, and the checks that need a whole run.

use super::board::{Board, Sim};
use super::energy::Share;
use super::faults::Fault;
use super::load::Kind;
use super::measure::{Measures, Times};
use super::plan::Plan;
use super::trace::Trace;
use super::traffic::Totals;
use super::violation::{Rule, Violation};
use super::watch::Watch;
use lull_core::sched::Scheduler;
use lull_core::units::{CpuId, Ticks, VcpuId};

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Virtual time, in ns.
    pub length: u64,
    /// Events that happened.
    pub events: u64,
    /// Platform calls of all CPUs.
    pub calls: u64,
    /// Blocked vCPUs that were woken.
    pub wakes: u64,
    /// Sleeps of all CPUs.
    pub sleeps: u64,
    /// Passes of the scheduler.
    pub passes: u64,
    /// vCPUs that were loaded.
    pub switches: u64,
    /// Time inside guests, of all CPUs, in ns.
    pub guest_time: u64,
    /// The most vCPUs that waited at one time.
    pub most_waiting: usize,
    /// How long, at most, the oldest waiting unit coexisted with the longest idle CPU that may run it, in ns.
    pub longest_overlap: u64,
    /// How long it may.
    pub bound: u64,
    /// Time and energy by what CPUs do.
    pub shares: Vec<Share>,
    /// What guests noticed.
    pub measures: Measures,
    /// What each vCPU does, and how long it was inside the guest, in ns.
    pub run_times: Vec<(Kind, u64)>,
    /// The names of the C-states, by index.
    pub state_names: Vec<&'static str>,
    /// By how much, at most, a vCPU's time differed from the ideal of its weight, as a part of that; none where that cannot
    /// be said.
    pub weight_error: Option<f64>,
    /// How long the core took on the host, if that was measured, by [`Operation::ALL`](super::stopwatch::Operation::ALL).
    pub host: Option<[Times; 3]>,
    /// A number that two runs share if all that happened is the same.
    pub digest: u64,
    /// What was kept of it.
    pub trace: Trace,
    /// What CPUs did to each other, if they did.
    pub traffic: Option<Totals>,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
}

impl Outcome {
    /// Energy of all cores, in seconds of a core that runs.
    pub fn energy(&self) -> f64 {
        self.shares.iter().map(|share| share.energy).sum()
    }
}

/// All times add up: each CPU's to what has passed, and guest time is the same for CPUs, vCPUs and hardware.
pub(super) fn check_books<S: Scheduler>(board: &Board<S>, machine: &Sim<S>, watch: &Watch) {
    let now = Ticks::new(board.now());
    let mut guest = Ticks::ZERO;
    // What the stamps around an entry may hold beside the guest itself.
    let around =
        8 * (super::board::cost::WORLD_SWITCH + super::board::cost::HANDLER + board.nature.jitter);
    for (cpu, pcpu) in machine.pcpus() {
        let row = pcpu.account.snapshot(machine.platform());
        if let Err(why) = row.check(Ticks::ZERO) {
            watch.violated(Rule::TimeConserved, format!("{cpu}: {why}"));
        }
        guest += row.guest;
        let (truth, entries) = truth(board, cpu);
        let got = row.guest.get();
        if got < truth || got - truth > (entries + 1) * around {
            watch.violated(
                Rule::TimeConserved,
                format!(
                    "{cpu} has {got} ns of guest time on its account, and ran guests for {truth} ns"
                ),
            );
        }
    }
    let units = machine.sched().units();
    let ran: Ticks = (0..units.capacity() as u32)
        .filter_map(|v| units.get(VcpuId::new(v)))
        .map(|unit| unit.run_time(now))
        .sum();
    let ran = ran + Ticks::new(watch.retired());
    if ran != guest {
        watch.violated(
            Rule::TimeConserved,
            format!("all vCPUs ran for {ran}, but all CPUs ran guests for {guest}"),
        );
    }
}

fn truth<S: Scheduler>(board: &Board<S>, cpu: CpuId) -> (u64, u64) {
    let state = board.state();
    state
        .cpus
        .get(cpu.index())
        .map_or((0, 0), |own| (own.guest_time, own.entries))
}

/// How long the windows are over which shares are judged, in ns.
pub const WINDOW: u64 = 20_000_000_000;

/// The share of a CPU that each vCPU should have, if that can be said: none of them ever halts, all may run everywhere, and
/// nothing slows the machine on purpose.
pub(super) fn ideal(plan: &Plan) -> Option<Vec<f64>> {
    let hogs = plan
        .load
        .0
        .iter()
        .all(|part| part.kind == Kind::Batch && part.cpus.is_none());
    let quiet = plan.jitter == 0 && !plan.changes && !plan.offline && !plan.faults.has(Fault::Ipi);
    let weights = plan
        .load
        .each()
        .map(|(_, part)| f64::from(part.weight.get()));
    (hogs && quiet).then(|| max_min(plan.topology.cpus, &weights.collect::<Vec<_>>()))
}

/// vCPUs that never halt get what their weights say in each window: within 5 % of it, or of a tenth of a CPU, whichever is
/// more.
pub(super) fn check_weights(ideal: &[f64], ran: impl Iterator<Item = u64>, watch: &Watch) {
    for (v, (ran, share)) in ran.zip(ideal).enumerate() {
        let got = ran as f64 / WINDOW as f64;
        if (got - share).abs() > 0.05 * share.max(0.1) {
            watch.violated(
                Rule::Weights,
                format!(
                    "v{v} got {got:.4} of a CPU for 20 s, and should have {share:.4} by its weight"
                ),
            );
        }
    }
}

/// The largest part by which a vCPU's time differs from its ideal.
pub(super) fn weight_error(ideal: &[f64], run_times: &[u64], length: u64) -> f64 {
    let errors = run_times
        .iter()
        .zip(ideal)
        .map(|(&ran, share)| (ran as f64 / length.max(1) as f64 / share - 1.0).abs());
    errors.fold(0.0, f64::max)
}

/// The share of a CPU that each gets if time goes by weight, and nobody has more than one CPU.
fn max_min(cpus: u32, weights: &[f64]) -> Vec<f64> {
    let mut shares = vec![0.0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).collect();
    let mut left = f64::from(cpus);
    while !open.is_empty() {
        let all: f64 = open.iter().map(|&unit| weights[unit]).sum();
        let full: Vec<usize> = open
            .iter()
            .copied()
            .filter(|&unit| left * weights[unit] / all >= 1.0)
            .collect();
        if full.is_empty() {
            open.iter()
                .for_each(|&unit| shares[unit] = left * weights[unit] / all);
            break;
        }
        for &unit in &full {
            shares[unit] = 1.0;
            left -= 1.0;
        }
        open.retain(|unit| !full.contains(unit));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_than_a_cpu_and_the_rest_goes_by_weight() {
        let shares = max_min(2, &[1.0, 2.0, 4.0]);
        for (share, expected) in shares.iter().zip([1.0 / 3.0, 2.0 / 3.0, 1.0]) {
            assert!((share - expected).abs() < 1e-9, "{shares:?}");
        }
        assert_eq!(max_min(4, &[1.0, 9.0]), [1.0, 1.0]);
        assert_eq!(max_min(1, &[1.0; 4]), [0.25; 4]);
    }
}
