//! Views of the past: what came lately, and what came just now. Each makes plans in its own way.

use super::arrivals::{Arrivals, Ended, bin_of};
use super::costs::Costs;
use super::outlook::Outlook;
use super::plan::{Plan, WayOut};

/// How many there are.
pub(super) const VIEWS: usize = 3;
/// The last few hundred sleeps.
pub(super) const SLOW: usize = 0;
/// Those behind a busy period of about this length.
const BY_BUSY: usize = 1;
/// The last few.
const LAST: usize = 2;
/// The bins of a busy period's length that are told apart, six octave halves in one.
const CLASSES: usize = 5;
const CLASS_BINS: usize = 6;
/// Sleeps behind such a busy period after which something is known of them.
const KNOWN_OF_CLASS: u32 = 16;
/// By view: how slowly the past fades (a sleep loses one part in two to the power of this with each later one).
const MEMORY: [u32; VIEWS] = [8, 7, 2];
/// By view: after so many sleeps more, what to expect is worked out anew.
const STALE: [u32; VIEWS] = [32, 16, 4];
/// By view: events that are fewer than one part in two to the power of this of all count in a later bin.
const FEW: [u32; VIEWS] = [10, 8, 4];
/// As long as a view knows fewer sleeps than it can remember, this part of them, in two to the power of it.
const STALE_PART: u32 = 2;

/// Nothing has been worked out yet.
const FORGOTTEN: u32 = u32::MAX;

/// After so many idle periods something is known of how long they last.
const KNOWN: u32 = 16;
/// Where nothing is known of so long a sleep, it is taken to go on for so many times what it has lasted.
const GOES_ON: u64 = 4;

/// One way to see the past.
#[derive(Clone, Debug)]
struct View {
    arrivals: Arrivals,
    /// What it says, when it was worked out last.
    outlook: Outlook,
    /// Sleeps since then.
    since: u32,
    /// Sleeps in all, up to what it remembers.
    seen: u32,
}

impl View {
    const fn new(arrivals: Arrivals) -> Self {
        Self {
            arrivals,
            outlook: Outlook::NONE,
            since: FORGOTTEN,
            seen: 0,
        }
    }

    /// Works out what to expect, if that is stale and it `may`, or if nothing has been worked out; was it?
    fn refresh(&mut self, may: bool, view: usize, costs: &Costs) -> bool {
        let stale = STALE[view].min(self.seen >> STALE_PART);
        let due = self.since == FORGOTTEN || may && self.since >= stale;
        if due {
            self.outlook.work_out(&self.arrivals, 0, FEW[view], costs);
            self.since = 0;
        }
        due
    }

    fn learn(&mut self, bin: usize, ended: Ended, memory: u32) {
        self.arrivals.add(bin, ended, memory);
        self.seen = (self.seen + 1).min(1 << memory);
        if self.since < FORGOTTEN - 1 {
            self.since += 1;
        }
    }
}

/// What is known of the past.
#[derive(Clone, Debug)]
pub(super) struct Views {
    slow: View,
    by_busy: [View; CLASSES],
    last: View,
    /// The class of the busy period before this sleep.
    busy: usize,
    /// Has a sleep ended since they looked at what is stale? An entry that was aborted teaches nothing.
    told: bool,
}

impl Views {
    pub const fn new() -> Self {
        Self {
            slow: View::new(Arrivals::UNKNOWN),
            by_busy: [const { View::new(Arrivals::NONE) }; CLASSES],
            last: View::new(Arrivals::NONE),
            busy: 0,
            told: false,
        }
    }

    /// A sleep begins, after so long a busy period.
    pub fn begin(&mut self, busy: u64) {
        self.busy = (bin_of(busy) / CLASS_BINS).min(CLASSES - 1);
    }

    /// The costs are others: what was worked out with them is stale.
    pub fn forget_plans(&mut self) {
        self.slow.since = FORGOTTEN;
        self.last.since = FORGOTTEN;
        for view in &mut self.by_busy {
            view.since = FORGOTTEN;
        }
    }

    /// Works out what has become stale, of one view at a time.
    pub fn refresh(&mut self, costs: &Costs) {
        let mut may = core::mem::take(&mut self.told);
        may &= !self.slow.refresh(may, SLOW, costs);
        may &= !self.by_busy[self.busy].refresh(may, BY_BUSY, costs);
        self.last.refresh(may, LAST, costs);
    }

    /// What hardly any sleep outlasts; `None` as long as that is not known.
    pub fn horizon(&self) -> Option<u64> {
        (self.slow.seen >= KNOWN).then(|| self.slow.outlook.horizon())
    }

    /// What a view goes by. Of a class of which little is known, the slow one says as much.
    fn view(&self, view: usize) -> &View {
        let by_busy = &self.by_busy[self.busy];
        match view {
            BY_BUSY if by_busy.seen >= KNOWN_OF_CLASS => by_busy,
            LAST => &self.last,
            _ => &self.slow,
        }
    }

    /// What each view makes of a sleep that begins.
    pub fn plans(&self, costs: &Costs, way_out: &WayOut, to_timer: u64) -> [Plan; VIEWS] {
        let plan = |view| {
            let view = self.view(view);
            view.outlook
                .plan(costs, to_timer)
                .with_way_out(costs, way_out)
        };
        let slow = plan(SLOW);
        let little = self.by_busy[self.busy].seen < KNOWN_OF_CLASS;
        let by_busy = if little { slow } else { plan(BY_BUSY) };
        [slow, by_busy, plan(LAST)]
    }

    /// What a view makes of the rest of a sleep that has lasted `slept`.
    pub fn rest(&self, view: usize, costs: &Costs, slept: u64, to_timer: u64) -> Plan {
        let mut outlook = Outlook::NONE;
        outlook.work_out(&self.view(view).arrivals, slept, FEW[view], costs);
        let expected = if outlook.is_empty() {
            to_timer.min(slept.saturating_mul(GOES_ON))
        } else {
            to_timer
        };
        let way_out = WayOut::new(costs, Some(outlook.horizon()), slept, expected);
        outlook.plan(costs, expected).with_way_out(costs, &way_out)
    }

    /// A sleep has ended.
    pub fn learn(&mut self, slept: u64, ended: Ended) {
        self.told = true;
        let bin = bin_of(slept);
        self.slow.learn(bin, ended, MEMORY[SLOW]);
        self.by_busy[self.busy].learn(bin, ended, MEMORY[BY_BUSY]);
        self.last.learn(bin, ended, MEMORY[LAST]);
    }
}
