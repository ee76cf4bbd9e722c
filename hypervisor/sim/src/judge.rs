//! Governors against each other and against the future, at several prices of latency.

use crate::cost::{CostModel, Machine};
use crate::machines::SKX;
use crate::replay::{Bill, oracle, replay};
use crate::synthetic::{Figures, Kind};
use crate::trace::Trace;
use lull_core::governor::{
    AnyGovernor, DeepestFit, HaltPoll, Ladder, LatencyPrice, Lull, Menu, MenuXen, Teo, Tick,
};
use std::collections::BTreeMap;
use std::time::Instant;

/// Prices of a microsecond of added wake latency, in uJ: nearly none, half of what a busy core uses, and twice that.
pub const PRICES: [f64; 3] = [0.1, 0.5, 2.0];
/// The governors, in the order of the table. `lull` is told the price by which it is judged, as its user would with
/// `governor.price=`; `lull-0.5` has the one that it has by default.
pub const GOVERNORS: [&str; 10] = [
    "lull",
    "lull-0.5",
    "menu",
    "teo",
    "menu+tick",
    "teo+tick",
    "menu-xen",
    "ladder",
    "haltpoll",
    "deepest-fit",
];
const LULL: usize = 0;
/// menu and TEO, told that a tick runs which never comes, and with a limit of one tick where they want it kept.
const PEERS: [usize; 4] = [2, 3, 4, 5];

/// One trace on one machine.
#[derive(Clone, Debug)]
pub struct Case {
    /// The machine's name.
    pub machine: &'static str,
    /// The trace's name.
    pub trace: String,
    /// The oracle's score, by price.
    oracle: [f64; PRICES.len()],
    /// What each governor came to, by price, in the order of [`GOVERNORS`].
    bills: [Vec<Bill>; PRICES.len()],
}

impl Case {
    /// Replays the trace with every governor.
    pub fn run(machine: &Machine, trace: &Trace) -> Self {
        let model = CostModel::new(machine);
        let model = &model;
        let others = [
            replay(&mut Lull::default(), model, trace, None),
            replay(&mut Menu::default(), model, trace, None),
            replay(&mut Teo::default(), model, trace, None),
            replay(&mut Menu::new(Tick::OnDemand), model, trace, None),
            replay(&mut Teo::new(Tick::OnDemand), model, trace, None),
            replay(&mut MenuXen::default(), model, trace, None),
            replay(&mut Ladder::default(), model, trace, None),
            replay(&mut HaltPoll::default(), model, trace, None),
            replay(&mut DeepestFit, model, trace, None),
        ];
        let told = |price: f64| {
            let price = LatencyPrice((price * 1024.0) as u32);
            replay(&mut Lull::new(price), model, trace, None)
        };
        Self {
            machine: machine.name,
            trace: trace.name.clone(),
            oracle: PRICES.map(|price| oracle(model, trace, price)),
            bills: PRICES.map(|price| [told(price)].into_iter().chain(others.clone()).collect()),
        }
    }

    /// What a governor came to.
    pub fn bill(&self, governor: usize, price: usize) -> &Bill {
        &self.bills[price][governor]
    }

    /// By how much a governor's score is above the oracle's, as a share of that. Never below 0.
    ///
    /// # Panics
    /// If the governor was better than the oracle by more than sums in another order differ: it would be none.
    pub fn regret(&self, governor: usize, price: usize) -> f64 {
        let regret = self.bill(governor, price).score(PRICES[price]) / self.oracle[price] - 1.0;
        assert!(
            regret > -1e-9,
            "{} beats the oracle on {}, {}: {regret}",
            GOVERNORS[governor],
            self.trace,
            self.machine
        );
        regret.max(0.0)
    }

    /// The regret of the best of menu and TEO here, with and without a limit that stands in for the tick.
    pub fn peer(&self, price: usize) -> f64 {
        PEERS
            .iter()
            .map(|&peer| self.regret(peer, price))
            .fold(f64::INFINITY, f64::min)
    }
}

/// All traces on all machines.
pub fn run(machines: &[Machine], traces: &[Trace]) -> Vec<Case> {
    let mut cases = Vec::new();
    for machine in machines {
        for trace in traces {
            cases.push(Case::run(machine, trace));
        }
    }
    cases
}

/// What a governor takes on this host for an idle period, all its decisions and what it learns from them: the least of
/// several replays, in ns. Traces of a training set, which says nothing of how good it is.
///
/// `None` for a name that no governor has.
pub fn host_time_ns(name: &str) -> Option<f64> {
    let model = CostModel::new(&SKX);
    let kinds = [Kind::Timers, Kind::Poisson(1), Kind::Bursty, Kind::Mixed];
    let traces = kinds.map(|kind| kind.trace(&Figures::FIRST, 1, 2_000));
    let once = || {
        let (mut ns, mut periods) = (0, 0);
        for trace in &traces {
            let mut governor = AnyGovernor::by_name(name)?;
            let start = Instant::now();
            periods += replay(&mut governor, &model, trace, None).periods;
            ns += start.elapsed().as_nanos();
        }
        Some(ns as f64 / periods as f64)
    };
    (0..9)
        .map(|_| once())
        .try_fold(f64::INFINITY, |least, ns| Some(least.min(ns?)))
}

/// How Lull's governor stands at one price, against the best of menu and TEO.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Its mean regret.
    pub mean: f64,
    /// The mean regret as a share of the best peer's mean regret.
    pub ratio: f64,
    /// The cases in which its regret is over [`MARGIN`] times the best peer's there, the worst first.
    pub over: Vec<Over>,
    /// The traces on which its regret, averaged over all machines, is over [`MARGIN`] times that of the best peer, the worst
    /// first; and how many traces there are.
    pub traces_over: Vec<Over>,
    /// See above.
    pub traces: usize,
    /// In how many cases its score is over [`MARGIN`] times the best peer's there.
    pub scores_over: usize,
}

impl Verdict {
    /// The cases in which the regret is over the margin by more than [`FLOOR`].
    pub fn clearly_over(&self) -> impl Iterator<Item = &Over> {
        self.over.iter().filter(|over| over.excess() > FLOOR)
    }
}

/// A case in which Lull's governor is behind.
#[derive(Clone, Debug)]
pub struct Over {
    /// Trace and machine.
    pub case: String,
    /// Its regret.
    pub own: f64,
    /// The best peer's.
    pub peer: f64,
}

impl Over {
    fn excess(&self) -> f64 {
        self.own - MARGIN * self.peer
    }
}

/// By what factor Lull's governor may be behind the best of menu and TEO on a single trace.
pub const MARGIN: f64 = 1.05;
/// Where both are nearly as good as the oracle, a ratio of regrets says little: an excess below this share of the
/// oracle's score is named, and not counted.
pub const FLOOR: f64 = 0.001;

/// The mean regret of a governor at a price.
pub fn mean(cases: &[Case], regret: impl Fn(&Case) -> f64) -> f64 {
    cases.iter().map(regret).sum::<f64>() / cases.len().max(1) as f64
}

/// Judges Lull's governor at one price.
pub fn verdict(cases: &[Case], price: usize) -> Verdict {
    let over: Vec<_> = cases
        .iter()
        .map(|case| Over {
            case: format!("{} on {}", case.trace, case.machine),
            own: case.regret(LULL, price),
            peer: case.peer(price),
        })
        .collect();
    let mean_own = mean(cases, |case| case.regret(LULL, price));
    let peer = PEERS
        .map(|peer| mean(cases, |case| case.regret(peer, price)))
        .into_iter()
        .fold(f64::INFINITY, f64::min);
    let scores_over = over
        .iter()
        .filter(|case| 1.0 + case.own > MARGIN * (1.0 + case.peer))
        .count();
    let by_trace = by_trace(cases, price);
    let traces = by_trace.len();
    Verdict {
        mean: mean_own,
        ratio: mean_own / peer,
        over: behind(over),
        traces_over: behind(by_trace),
        traces,
        scores_over,
    }
}

/// Those that are over the margin, the worst first.
fn behind(mut all: Vec<Over>) -> Vec<Over> {
    all.retain(|one| one.excess() > 0.0);
    all.sort_by(|left, right| right.excess().total_cmp(&left.excess()));
    all
}

/// Each trace, with the regrets averaged over its machines.
fn by_trace(cases: &[Case], price: usize) -> Vec<Over> {
    let mut groups: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in cases {
        groups.entry(&case.trace).or_default().push(case);
    }
    let one = |(trace, group): (&str, Vec<&Case>)| {
        let mean = |governor| {
            let sum: f64 = group.iter().map(|case| case.regret(governor, price)).sum();
            sum / group.len() as f64
        };
        Over {
            case: trace.to_owned(),
            own: mean(LULL),
            peer: PEERS.map(mean).into_iter().fold(f64::INFINITY, f64::min),
        }
    };
    groups.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::{self, ICX};
    use crate::rng::Rng;
    use crate::sets::Set;
    use crate::trace::{Cause, Idle};
    use lull_core::units::Nanos;

    #[test]
    fn lull_has_at_most_four_fifths_of_the_regret_of_menu_and_teo_on_what_it_was_not_made_on() {
        // The beginning of some traces, so that it takes seconds without optimisation; the benchmark takes all.
        let traces = Set::HeldOut.traces(None).unwrap();
        let traces: Vec<_> = traces.iter().map(|trace| trace.part(0, 400)).collect();
        let cases = run(&[SKX, ICX], &traces);
        for (price, figure) in PRICES.iter().enumerate() {
            let verdict = verdict(&cases, price);
            assert!(verdict.ratio <= 0.8, "{figure}: {verdict:?}");
            assert!(verdict.mean > 0.0, "{verdict:?}");
        }
    }

    fn nobody_beats_the_oracle(case: &Case) {
        for (price, figure) in PRICES.iter().enumerate() {
            for (governor, name) in GOVERNORS.iter().enumerate() {
                let regret = case.regret(governor, price);
                let Case { machine, trace, .. } = case;
                assert!(
                    regret >= -1e-9,
                    "{name} at {figure}: {regret} on {trace}, {machine}"
                );
            }
        }
    }

    /// Idle periods without rhyme or reason, from nothing to seconds: what no governor was made for.
    fn noise(seed: u64, rows: usize) -> Trace {
        let mut rng = Rng::new(seed);
        let row = |_| {
            let about = 500 << rng.between(0, 20);
            let (event, timer) = (rng.exponential(about), rng.exponential(2 * about));
            let (length, cause) = match rng.between(0, 3) {
                _ if timer <= event => (timer, Cause::Timer),
                0 => (event, Cause::Device),
                _ => (event, Cause::Remote),
            };
            Idle {
                length: length.max(1),
                timer: (cause == Cause::Timer || !rng.one_in(5)).then_some(timer.max(1)),
                cause,
                busy: rng.between(0, 100_000),
            }
        };
        Trace {
            name: format!("noise#{seed}"),
            rows: (0..rows).map(row).collect(),
        }
    }

    #[test]
    fn nobody_is_better_than_the_oracle_on_any_machine() {
        for machine in machines::ALL {
            for seed in 1..=12 {
                nobody_beats_the_oracle(&Case::run(&machine, &noise(seed, 300)));
            }
            for kind in Kind::ALL {
                let trace = kind.trace(&Figures::drawn(77), 5, 300);
                nobody_beats_the_oracle(&Case::run(&machine, &trace));
            }
        }
    }

    #[test]
    fn nobody_is_better_than_the_oracle_on_any_set() {
        // The beginning of each trace; the benchmark itself fails if one is on a whole one.
        for set in [Set::Training, Set::HeldOut] {
            for trace in set.traces(None).unwrap() {
                for machine in set.machines() {
                    nobody_beats_the_oracle(&Case::run(machine, &trace.part(0, 60)));
                }
            }
        }
    }

    #[test]
    fn a_latency_limit_bounds_the_latency_of_every_wake() {
        let trace = Kind::Poisson(2).trace(&Figures::FIRST, 5, 1000);
        let model = CostModel::new(&SKX);
        let limit = Some(Nanos::new(20_000));
        let bill = replay(&mut Lull::default(), &model, &trace, limit);
        assert_eq!(bill.stays[3], 0, "{bill:?}");
        assert!(
            bill.latency <= 1000.0 * 10.0 && bill.stays[2] > 900,
            "{bill:?}"
        );
    }
}
