//! Several views of the past, and which of them to believe.

use super::arrivals::{Arrivals, Ended, bin_of};
use super::costs::Costs;
use super::plan::Plan;

const VIEWS: usize = 4;
/// The bins of a time that a view distinguishes, four octave halves in one.
const CLASSES: usize = 9;
/// By view: how slowly the past fades (a sleep loses one part in two to the power of this with each later one).
const MEMORY: [u32; VIEWS] = [4, 8, 5, 7];
/// How slowly comparisons fade.
const LEAD_MEMORY: u32 = 7;
/// A view must be ahead by this part, in two to the power of it, of all that the two differed by: less is chance.
const CLEAR: u32 = 3;
/// With less than this in it, about an eighth of what it can hold, a view that distinguishes cases knows nothing yet.
const ENOUGH: u32 = 4096;

/// Sleeps up to this, in ns, are short against the time that a plan takes to make.
const SHORT: u64 = 100_000;
/// For so many of them in a row a plan serves again.
const REUSES: u32 = 7;

const FAST: usize = 0;
const SLOW: usize = 1;
const BY_LAST: usize = 2;

/// What is known of the past.
#[derive(Clone, Debug)]
pub(super) struct Views {
    /// The last few sleeps.
    fast: Arrivals,
    /// The last few hundred.
    slow: Arrivals,
    /// By the length of the idle period before.
    by_last: [Arrivals; CLASSES],
    /// By the length of the busy period before.
    by_busy: [Arrivals; CLASSES],
    last: usize,
    busy: usize,
    /// The length of the last idle period.
    slept: u64,
    /// For how many idle periods the plan has served again.
    reused: u32,
    costs: Option<Costs>,
    /// The view that is followed, and what it does in the present idle period.
    followed: (usize, Plan),
    /// The view that it is compared with in this period, another one each time, and what that would do.
    challenger: (usize, Plan),
    /// How each view compares with the one that is followed.
    leads: [Lead; VIEWS],
}

/// How the plans of a view compare with those of the one that is followed, fading.
#[derive(Clone, Copy, Debug)]
struct Lead {
    /// What they would have cost less.
    saved: i64,
    /// The sum of all differences.
    differed: i64,
}

impl Lead {
    const NONE: Self = Self {
        saved: 0,
        differed: 0,
    };

    fn add(&mut self, saved: i64) {
        self.saved += saved - (self.saved >> LEAD_MEMORY);
        self.differed += saved.saturating_abs() - (self.differed >> LEAD_MEMORY);
    }

    fn is_clear(&self) -> bool {
        self.saved > self.differed >> CLEAR
    }
}

impl Views {
    pub const fn new() -> Self {
        Self {
            fast: Arrivals::unknown(MEMORY[FAST]),
            slow: Arrivals::unknown(MEMORY[SLOW]),
            by_last: [Arrivals::NONE; CLASSES],
            by_busy: [Arrivals::NONE; CLASSES],
            last: 0,
            busy: 0,
            slept: u64::MAX,
            reused: 0,
            costs: None,
            followed: (SLOW, Plan::NONE),
            challenger: (FAST, Plan::NONE),
            leads: [Lead::NONE; VIEWS],
        }
    }

    /// What a view goes by now.
    fn view(&self, index: usize) -> &Arrivals {
        let cases = match index {
            FAST => return &self.fast,
            SLOW => return &self.slow,
            BY_LAST => &self.by_last[self.last],
            _ => &self.by_busy[self.busy],
        };
        if cases.weight() < ENOUGH {
            &self.slow
        } else {
            cases
        }
    }

    /// The plan for an idle period that begins.
    pub fn plan(&mut self, costs: &Costs, to_timer: u64, busy: u64) -> Plan {
        self.busy = class_of(busy);
        if self.reuses(to_timer) {
            return self.followed.1;
        }
        self.costs = Some(*costs);
        let (followed, challenger) = (self.followed.0, self.next_challenger());
        let plan = |view: &Arrivals| Plan::cheapest(costs, &view.survival(0), to_timer);
        self.challenger = (challenger, plan(self.view(challenger)));
        self.followed = (followed, plan(self.view(followed)));
        self.followed.1
    }

    /// Short sleeps come often, and thinking costs as much as sleeping badly: the last plan serves some of them, if it has
    /// a limit in case that this one is long after all.
    fn reuses(&mut self, to_timer: u64) -> bool {
        let limited = self.followed.1.limit.is_some_and(|limit| limit < to_timer);
        let reuses = limited && self.slept < SHORT && self.reused < REUSES;
        self.reused = if reuses { self.reused + 1 } else { 0 };
        reuses
    }

    fn next_challenger(&self) -> usize {
        let next = (self.challenger.0 + 1) % VIEWS;
        if next == self.followed.0 {
            (next + 1) % VIEWS
        } else {
            next
        }
    }

    /// The plan for the rest of an idle period that has lasted `slept` so far.
    pub fn again(&self, costs: &Costs, slept: u64, to_timer: u64) -> Plan {
        Plan::cheapest(costs, &self.view(self.followed.0).survival(slept), to_timer)
    }

    /// Compares the plans of the idle period, which lasted `slept`.
    fn compare(&mut self, costs: &Costs, slept: u64) {
        let (challenger, plan) = self.challenger;
        let paid = |plan: &Plan| i64::try_from(plan.cost(costs, slept)).unwrap_or(i64::MAX / 4);
        let lead = &mut self.leads[challenger];
        lead.add(paid(&self.followed.1) - paid(&plan));
        if lead.is_clear() {
            let ahead = lead.saved;
            self.followed.0 = challenger;
            for lead in &mut self.leads {
                lead.saved -= ahead;
            }
        }
    }

    /// An idle period has ended.
    pub fn learn(&mut self, slept: u64, ended: Ended) {
        self.slept = slept;
        if let Some(costs) = self.costs.filter(|_| self.reused == 0) {
            self.compare(&costs, slept);
        }
        let bin = bin_of(slept);
        let views = [
            &mut self.fast,
            &mut self.slow,
            &mut self.by_last[self.last],
            &mut self.by_busy[self.busy],
        ];
        for (view, memory) in views.into_iter().zip(MEMORY) {
            view.add(bin, ended, memory);
        }
        self.last = class_of(slept);
    }
}

fn class_of(time: u64) -> usize {
    (bin_of(time) / 4).min(CLASSES - 1)
}
