//! Three views of the past: what came lately, after which time. Each makes plans in its own way.

use super::arrivals::{Arrivals, Ended, Survival, bin_of};
use super::costs::Costs;
use super::plan::{Plan, WayOut};

/// How many there are.
pub(super) const VIEWS: usize = 3;
/// By view: how slowly the past fades (a sleep loses one part in two to the power of this with each later one).
const MEMORY: [u32; VIEWS] = [8, 7, 2];
/// The last few hundred sleeps.
pub(super) const SLOW: usize = 0;
/// Those behind a busy period of about this length.
const BY_BUSY: usize = 1;

/// The bins of a time that a view distinguishes, four octave halves in one.
const CLASSES: usize = 9;
/// After so many idle periods something is known of how long they last.
const KNOWN: u32 = 16;
/// Where nothing is known of so long a sleep, it is taken to go on for so many times what it has lasted.
const GOES_ON: u64 = 4;

/// What is known of the past.
#[derive(Clone, Debug)]
pub(super) struct Views {
    slow: Arrivals,
    by_busy: [Arrivals; CLASSES],
    /// The last few sleeps.
    last: Arrivals,
    /// The class of the busy period before this sleep.
    busy: usize,
    /// Idle periods so far, up to [`KNOWN`].
    seen: u32,
}

impl Views {
    pub const fn new() -> Self {
        Self {
            slow: Arrivals::UNKNOWN,
            by_busy: [Arrivals::NONE; CLASSES],
            last: Arrivals::NONE,
            busy: 0,
            seen: 0,
        }
    }

    /// A sleep begins, after so long a busy period.
    pub fn begin(&mut self, busy: u64) {
        self.busy = (bin_of(busy) / 4).min(CLASSES - 1);
    }

    /// What a view goes by, if it is not the slow one and knows enough.
    fn special(&self, view: usize) -> Option<&Arrivals> {
        let cases = match view {
            SLOW => return None,
            BY_BUSY => &self.by_busy[self.busy],
            _ => &self.last,
        };
        cases.is_known(MEMORY[view]).then_some(cases)
    }

    /// What lately was.
    pub fn lately(&self) -> Survival {
        self.slow.survival(0)
    }

    /// What hardly any sleep outlasts; `None` as long as that is not known.
    pub fn horizon(&self, lately: &Survival) -> Option<u64> {
        (self.seen >= KNOWN).then(|| lately.horizon())
    }

    /// What each view makes of a sleep that begins.
    pub fn plans(
        &self,
        costs: &Costs,
        lately: &Survival,
        way_out: &WayOut,
        to_timer: u64,
    ) -> [Plan; VIEWS] {
        let plan = |survival: &Survival| {
            Plan::cheapest(costs, survival, to_timer).with_way_out(costs, way_out)
        };
        let mut plans = [plan(lately); VIEWS];
        for (view, own) in plans.iter_mut().enumerate() {
            if let Some(cases) = self.special(view) {
                *own = plan(&cases.survival(0));
            }
        }
        plans
    }

    /// What a view makes of the rest of a sleep that has lasted `slept`.
    pub fn rest(&self, view: usize, costs: &Costs, slept: u64, to_timer: u64) -> Plan {
        let survival = self.special(view).unwrap_or(&self.slow).survival(slept);
        let expected = if survival.drops().is_empty() {
            to_timer.min(slept.saturating_mul(GOES_ON))
        } else {
            to_timer
        };
        let way_out = WayOut::new(costs, Some(survival.horizon()), slept, expected);
        Plan::cheapest(costs, &survival, expected).with_way_out(costs, &way_out)
    }

    /// A sleep has ended.
    pub fn learn(&mut self, slept: u64, ended: Ended) {
        self.seen = (self.seen + 1).min(KNOWN);
        let bin = bin_of(slept);
        let views = [&mut self.slow, &mut self.by_busy[self.busy], &mut self.last];
        for (view, memory) in views.into_iter().zip(MEMORY) {
            view.add(bin, ended, memory);
        }
    }
}
