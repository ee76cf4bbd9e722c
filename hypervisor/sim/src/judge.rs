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

/// How Lull's own governor stands at one price.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Mean regret by governor.
    pub mean: [f64; GOVERNORS.len()],
    /// Lull's mean regret as a share of that of the better of menu and TEO.
    pub ratio: f64,
    /// The case in which Lull is worst against the better of the two, and its two regrets.
    pub worst: Option<(String, f64, f64)>,
    /// How many cases are over 1.05 of it, by more than [`NOISE`].
    pub over: usize,
}

/// Differences below this share of the oracle's score are none.
pub const NOISE: f64 = 0.002;

/// Judges at one price.
pub fn verdict(cases: &[Case], price: usize) -> Verdict {
    let mut mean = [0.0; GOVERNORS.len()];
    for (governor, mean) in mean.iter_mut().enumerate() {
        let sum: f64 = cases.iter().map(|case| case.regret(governor, price)).sum();
        *mean = sum / cases.len().max(1) as f64;
    }
    let excess = |case: &&Case| case.regret(LULL, price) - 1.05 * case.peer(price);
    let worst = cases
        .iter()
        .max_by(|left, right| excess(left).total_cmp(&excess(right)));
    Verdict {
        mean,
        ratio: mean[LULL]
            / PEERS
                .map(|peer| mean[peer])
                .into_iter()
                .fold(f64::INFINITY, f64::min),
        worst: worst.map(|case| {
            let name = format!("{} on {}", case.trace, case.machine);
            (name, case.regret(LULL, price), case.peer(price))
        }),
        over: cases.iter().filter(|case| excess(case) > NOISE).count(),
    }
}
