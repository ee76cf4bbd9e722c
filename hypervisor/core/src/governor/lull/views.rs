//! Several experts, and which of them to follow.
//!
//! Four views of the past make plans each in its own way; the fifth expert is TEO. TEO knows no price and makes no plans,
//! but needs only a few sleeps to be right where one state is right each time, and so it is the one that is followed
//! first. Whoever would have cost clearly less is followed from there on.

use super::arrivals::{Arrivals, Ended, bin_of};
use super::costs::{Costs, LatencyPrice};
use super::plan::Plan;
use crate::governor::moment::{Moment, Stay, Tick};
use crate::governor::{IdleContext, Teo};

const VIEWS: usize = 4;
/// The bins of a time that a view distinguishes, four octave halves in one.
const CLASSES: usize = 9;
/// By view: how slowly the past fades (a sleep loses one part in two to the power of this with each later one).
const MEMORY: [u32; VIEWS] = [4, 8, 5, 7];
/// How slowly comparisons fade.
const LEAD_MEMORY: u32 = 7;
/// An expert must be ahead by this part, in two to the power of it, of all that the two differed by: less is chance.
const CLEAR: u32 = 3;
/// And by as much more as they differ in so many periods in the mean: where they have differed only a few times, that
/// one of them was the better each time may be chance.
const FEW: i64 = 2;

/// Sleeps up to this, in ns, are short against the time that a plan takes to make.
const SHORT: u64 = 100_000;
/// For so many of them in a row a plan serves again.
const REUSES: u32 = 7;

/// After so many idle periods something is known of how long they last.
const KNOWN: u32 = 16;
/// After so many plans may serve again.
const SETTLED: u32 = 64;

const FAST: usize = 0;
const SLOW: usize = 1;
const BY_LAST: usize = 2;
/// The only one that is no view.
const TEO: usize = VIEWS;
/// The views, and TEO.
const EXPERTS: usize = VIEWS + 1;

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
    teo: Teo,
    last: usize,
    busy: usize,
    /// The length of the last idle period.
    slept: u64,
    /// For how many idle periods the plan has served again.
    reused: u32,
    /// Idle periods so far, up to [`SETTLED`].
    seen: u32,
    /// What hardly any sleep outlasts; `None` as long as that is not known.
    horizon: Option<u64>,
    /// The costs that the plans of the present idle period were made with.
    costs: Costs,
    /// The expert that is followed, and what it does in the present idle period.
    followed: (usize, Plan),
    /// The one that it is compared with in this period, another one each time, and what that would do.
    challenger: (usize, Plan),
    /// How each expert compares with the one that is followed.
    leads: [Lead; EXPERTS],
}

/// How the plans of an expert compare with those of the one that is followed, fading.
#[derive(Clone, Copy, Debug)]
struct Lead {
    /// What they would have cost less.
    saved: i64,
    /// The sum of all differences.
    differed: i64,
    /// How often they differed, up to as often as is remembered.
    times: i64,
}

impl Lead {
    const NONE: Self = Self {
        saved: 0,
        differed: 0,
        times: 0,
    };

    fn add(&mut self, saved: i64) {
        self.saved += saved - (self.saved >> LEAD_MEMORY);
        self.differed += saved.saturating_abs() - (self.differed >> LEAD_MEMORY);
        self.times = (self.times + i64::from(saved != 0)).min(1 << LEAD_MEMORY);
    }

    fn is_clear(&self) -> bool {
        let chance = FEW.saturating_mul(self.differed) / self.times.max(1);
        self.saved > (self.differed >> CLEAR).saturating_add(chance)
    }
}

impl Views {
    pub const fn new() -> Self {
        Self {
            fast: Arrivals::UNKNOWN,
            slow: Arrivals::UNKNOWN,
            by_last: [Arrivals::NONE; CLASSES],
            by_busy: [Arrivals::NONE; CLASSES],
            teo: Teo::new(Tick::Running),
            last: 0,
            busy: 0,
            slept: u64::MAX,
            reused: 0,
            seen: 0,
            horizon: None,
            costs: Costs::NONE,
            followed: (TEO, Plan::NONE),
            challenger: (FAST, Plan::NONE),
            leads: [Lead::NONE; EXPERTS],
        }
    }

    /// What a view goes by now. TEO, where it needs to know how a sleep goes on, goes by the slow view.
    fn view(&self, index: usize) -> &Arrivals {
        let cases = match index {
            FAST => return &self.fast,
            SLOW | TEO => return &self.slow,
            BY_LAST => &self.by_last[self.last],
            _ => &self.by_busy[self.busy],
        };
        if cases.is_known(MEMORY[index]) {
            cases
        } else {
            &self.slow
        }
    }

    /// The plan for an idle period that begins.
    pub fn plan(
        &mut self,
        context: &IdleContext<'_>,
        price: LatencyPrice,
        to_timer: u64,
        busy: u64,
    ) -> Plan {
        self.costs.update(context, price);
        self.busy = class_of(busy);
        self.hurries(to_timer);
        let followed = self.followed.0;
        if self.reused > 0 {
            // TEO is quick.
            if followed == TEO {
                self.followed.1 = self.teo_plan(context, to_timer);
            }
            return self.followed.1;
        }

        if self.seen >= KNOWN {
            self.horizon = Some(self.slow.survival(0).horizon());
        }
        let teo = self.teo_plan(context, to_timer);
        let costs = &self.costs;
        let plan = |expert: usize| match expert {
            TEO => teo,
            _ => Plan::cheapest(costs, &self.view(expert).survival(0), to_timer).with_way_out(
                costs,
                self.horizon,
                0,
                to_timer,
            ),
        };
        let challenger = self.next_challenger();
        let (first, second) = (plan(followed), plan(challenger));
        self.followed = (followed, first);
        self.challenger = (challenger, second);
        first
    }

    /// An idle period begins in which the last plan serves again.
    pub fn same_plan(&mut self, context: &IdleContext<'_>, busy: u64) {
        self.busy = class_of(busy);
        self.reused = self.reused.max(1);
        self.teo.settle(context.table);
    }

    /// What TEO does; it never polls for long, since nothing would end that.
    fn teo_plan(&mut self, context: &IdleContext<'_>, to_timer: u64) -> Plan {
        let costs = &self.costs;
        let moment = Moment::new(context, Tick::Running);
        let state = self.teo.decide(&moment).state;
        let state = state.max(costs.shallowest_worth(to_timer));
        let state = context.nearest(state).index();
        let plan = Plan {
            state,
            limit: None,
            then: state,
        };
        plan.with_way_out(costs, self.horizon, 0, to_timer)
    }

    /// Short sleeps come often, and thinking costs as much as sleeping badly: the last plan serves some of them, if it
    /// cannot go far wrong should this one be long after all.
    fn hurries(&mut self, to_timer: u64) {
        let plan = &self.followed.1;
        let harmless = match plan.limit {
            Some(limit) => limit < to_timer,
            // There is nothing deeper, and it is not deep.
            None => to_timer > SHORT && self.costs.is_deepest(plan.state, SHORT),
        };
        let reuses = self.seen == SETTLED && harmless && self.slept < SHORT && self.reused < REUSES;
        self.reused = if reuses { self.reused + 1 } else { 0 };
    }

    fn next_challenger(&self) -> usize {
        let next = (self.challenger.0 + 1) % EXPERTS;
        if next == self.followed.0 {
            (next + 1) % EXPERTS
        } else {
            next
        }
    }

    /// The plan for the rest of an idle period that has lasted `slept` so far.
    pub fn again(
        &mut self,
        context: &IdleContext<'_>,
        price: LatencyPrice,
        slept: u64,
        to_timer: u64,
    ) -> Plan {
        self.costs.update(context, price);
        let costs = &self.costs;
        let survival = self.view(self.followed.0).survival(slept);
        Plan::cheapest(costs, &survival, to_timer).with_way_out(
            costs,
            Some(survival.horizon()),
            slept,
            to_timer,
        )
    }

    /// Compares the plans of the idle period, which lasted `slept`.
    fn compare(&mut self, slept: u64) {
        let costs = &self.costs;
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

    /// An idle period has ended; `stay` is what TEO is told of it.
    pub fn learn(&mut self, slept: u64, ended: Ended, stay: Stay) {
        self.slept = slept;
        self.seen = (self.seen + 1).min(SETTLED);
        self.teo.learn(stay);
        if self.reused == 0 {
            self.compare(slept);
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
        self.last = class_of_bin(bin);
    }
}

fn class_of(time: u64) -> usize {
    class_of_bin(bin_of(time))
}

fn class_of_bin(bin: usize) -> usize {
    (bin / 4).min(CLASSES - 1)
}
