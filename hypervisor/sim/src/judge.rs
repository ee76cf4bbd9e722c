//! Governors against each other and against the future, at several prices of latency.

use crate::cost::{CostModel, Machine};
use crate::replay::{Bill, oracle, replay};
use crate::trace::Trace;
use lull_core::governor::{
    DeepestFit, HaltPoll, Ladder, LatencyPrice, Lull, Menu, MenuXen, Teo, Tick,
};

/// Prices of a microsecond of added wake latency, in uJ: nearly none, half of what a busy core uses, and twice that.
pub const PRICES: [f64; 3] = [0.1, 0.5, 2.0];
/// The governors, in the order of the table.
pub const GOVERNORS: [&str; 9] = [
    "lull",
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
const PEERS: [usize; 4] = [1, 2, 3, 4];

/// One trace on one machine.
#[derive(Clone, Debug)]
pub struct Case {
    /// The machine's name.
    pub machine: &'static str,
    /// The trace's name.
    pub trace: String,
    /// The oracle's score, by price.
    pub oracle: [f64; PRICES.len()],
    /// What each governor came to.
    pub bills: Vec<Bill>,
    /// What Lull's governor comes to if it is told the price, by price.
    pub told: Vec<Bill>,
}

impl Case {
    /// Replays the trace with every governor.
    pub fn run(machine: &Machine, trace: &Trace) -> Self {
        let model = CostModel::new(machine);
        let model = &model;
        let bills = vec![
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
        Self {
            machine: machine.name,
            trace: trace.name.clone(),
            oracle: PRICES.map(|price| oracle(model, trace, price)),
            bills,
            told: PRICES
                .iter()
                .map(|price| {
                    let told = LatencyPrice((price * 1024.0) as u32);
                    replay(&mut Lull::new(told), model, trace, None)
                })
                .collect(),
        }
    }

    /// The regret of Lull's governor at a price that it was told.
    pub fn told_regret(&self, price: usize) -> f64 {
        self.told[price].score(PRICES[price]) / self.oracle[price] - 1.0
    }

    /// By how much a governor's score is above the oracle's, as a share of that.
    pub fn regret(&self, governor: usize, price: usize) -> f64 {
        self.bills[governor].score(PRICES[price]) / self.oracle[price] - 1.0
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

/// How one way of running Lull's governor stands at one price, against the best of menu and TEO.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Its mean regret.
    pub mean: f64,
    /// The mean regret as a share of the best peer's mean regret.
    pub ratio: f64,
    /// How many cases are over 1.05 of the best peer's regret there, by more than [`NOISE`].
    pub over: usize,
    /// The case that is the worst in that, its regret, and the best peer's.
    pub worst: Option<(String, f64, f64)>,
}

/// Differences below this share of the oracle's score are none.
pub const NOISE: f64 = 0.002;

/// The mean regret of a governor at a price.
pub fn mean(cases: &[Case], regret: impl Fn(&Case) -> f64) -> f64 {
    cases.iter().map(regret).sum::<f64>() / cases.len().max(1) as f64
}

/// Judges Lull's governor at one price: with its built-in price of latency, or `told` the one that is judged by.
pub fn verdict(cases: &[Case], price: usize, told: bool) -> Verdict {
    let own = |case: &Case| {
        if told {
            case.told_regret(price)
        } else {
            case.regret(LULL, price)
        }
    };
    let excess = |case: &Case| own(case) - 1.05 * case.peer(price);
    let worst = cases
        .iter()
        .max_by(|left, right| excess(left).total_cmp(&excess(right)));
    let peer = PEERS
        .map(|peer| mean(cases, |case| case.regret(peer, price)))
        .into_iter()
        .fold(f64::INFINITY, f64::min);
    Verdict {
        mean: mean(cases, own),
        ratio: mean(cases, own) / peer,
        over: cases.iter().filter(|case| excess(case) > NOISE).count(),
        worst: worst.map(|case| {
            let name = format!("{} on {}", case.trace, case.machine);
            (name, own(case), case.peer(price))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostModel;
    use crate::machines::{SKX, SPR};
    use crate::sets::Set;
    use crate::synthetic::{Figures, Kind};
    use lull_core::units::Nanos;

    #[test]
    fn lull_has_at_most_four_fifths_of_the_regret_of_menu_and_teo_on_what_it_was_not_made_on() {
        // The beginning of each trace, so that it takes seconds without optimisation; the benchmark takes all.
        let traces = Set::HeldOut.traces(None).unwrap();
        let traces: Vec<_> = traces.iter().map(|trace| trace.part(0, 400)).collect();
        let cases = run(&[SKX, SPR], &traces);
        for (price, figure) in PRICES.iter().enumerate() {
            for told in [false, true] {
                let verdict = verdict(&cases, price, told);
                assert!(verdict.ratio <= 0.8, "{figure}: {verdict:?}");
                assert!(verdict.mean > 0.0, "{verdict:?}");
            }
        }
    }

    #[test]
    fn nobody_is_better_than_the_oracle_where_every_wake_is_a_timer() {
        let trace = Kind::Timers.trace(&Figures::FIRST, 5, 1000);
        let case = Case::run(&SKX, &trace);
        for price in 0..PRICES.len() {
            for (governor, name) in GOVERNORS.iter().enumerate() {
                assert!(case.regret(governor, price) >= 0.0, "{name}");
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
