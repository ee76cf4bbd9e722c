//! Whom to follow: menu and TEO as they are, or a plan of one's own.
//!
//! After an idle period its length is known, and with it what each expert's plan would have cost. So all are compared in
//! every period, whoever was followed. Menu or TEO is the base, whichever did better lately; a view is followed instead
//! only as long as its savings against the base stand out from chance, and it has not been behind in the last few
//! periods. Where one state is right each time, nothing stands out, and the base is what is followed.

use super::arrivals::Ended;
use super::costs::{Change, Costs, LatencyPrice, Powers};
use super::lead::{Lead, in_units};
use super::plan::{Plan, WayOut};
use super::shadows::{SHADOWS, Shadows};
use super::views::{SLOW, VIEWS, Views};
use crate::cstate::CStateTable;
use crate::governor::{IdleContext, WakeReason};

/// How slowly leads fade: the one of the other base, and of each view over a long and over a short time.
const BASE_MEMORY: u32 = 5;
const LONG_MEMORY: u32 = 7;
const SHORT_MEMORY: u32 = 3;
/// The other base takes over when its lead is larger than one spread, and is never behind by more than this many.
const FORGIVEN: i64 = 2;
/// A view must be ahead by so many spreads to be followed. Once it is, by anything.
const CLEAR: i64 = 2;
/// What the last few periods weigh, against all that are remembered.
const LATELY: i64 = 4;
/// What might be lost where nothing has been lost yet: this part of the overhead of the deepest state that is at stake.
const RISK: i64 = 4;
/// The same for the view that is followed.
const RISK_TAKEN: i64 = 16;

/// All experts, and the plans that they made for the present idle period.
#[derive(Clone, Debug)]
pub(super) struct Experts {
    views: Views,
    shadows: Shadows,
    costs: Costs,
    /// With powers at the other end of what is plausible.
    steep: Costs,
    bases: [Plan; SHADOWS],
    /// The one of them that is better.
    base: usize,
    /// Of the other one.
    base_lead: Lead,
    own: [Plan; VIEWS],
    long: [Lead; VIEWS],
    short: [Lead; VIEWS],
    /// The view that is followed.
    followed: Option<usize>,
}

impl Experts {
    pub const fn new() -> Self {
        Self {
            views: Views::new(),
            shadows: Shadows::new(),
            costs: Costs::NONE,
            steep: Costs::NONE,
            bases: [Plan::NONE; SHADOWS],
            base: 0,
            base_lead: Lead::NONE,
            own: [Plan::NONE; VIEWS],
            long: [Lead::NONE; VIEWS],
            short: [Lead::NONE; VIEWS],
            followed: None,
        }
    }

    /// The plan for an idle period that begins, after a busy one of `busy` ns.
    pub fn plan(
        &mut self,
        context: &IdleContext<'_>,
        price: LatencyPrice,
        to_timer: u64,
        busy: u64,
    ) -> Plan {
        self.update_costs(context, price);
        self.views.begin(busy);
        self.views.refresh(&self.costs);
        let costs = &self.costs;
        let way_out = WayOut::new(costs, self.views.horizon(), 0, to_timer);
        self.bases = self.shadows.plans(context, costs, &way_out, to_timer);
        self.own = self.views.plans(costs, &way_out, to_timer);
        self.present()
    }

    fn update_costs(&mut self, context: &IdleContext<'_>, price: LatencyPrice) {
        match self.costs.update(context, price, Powers::Likely) {
            Change::None => return,
            Change::Admitted => {}
            Change::All => {
                self.steep.update(context, price, Powers::Steep);
            }
        }
        self.views.forget_plans();
    }

    /// An idle period begins, after a busy one of `busy` ns, in which everybody's last plan serves again.
    pub fn same_plans(&mut self, table: &CStateTable, busy: u64) {
        self.views.begin(busy);
        self.shadows.same_plans(table);
    }

    fn present(&self) -> Plan {
        self.followed
            .map_or(self.bases[self.base], |view| self.own[view])
    }

    /// The plan for the rest of an idle period that has lasted `slept` so far.
    pub fn again(
        &mut self,
        context: &IdleContext<'_>,
        price: LatencyPrice,
        slept: u64,
        to_timer: u64,
    ) -> Plan {
        self.update_costs(context, price);
        let present = self.present();
        // As planned, where nothing is known that could tell better.
        if self.shadows.is_first() && present.limit().is_some_and(|limit| limit <= slept) {
            return Plan::of(present.then());
        }
        let view = self.followed.unwrap_or(SLOW);
        self.views.rest(view, &self.costs, slept, to_timer)
    }

    /// An idle period has ended after `slept` ns.
    pub fn learn(&mut self, table: &CStateTable, slept: u64, ended: Ended, wake: WakeReason) {
        self.compare(slept);
        self.shadows.learn(table, slept, wake);
        self.views.learn(slept, ended);
    }

    fn compare(&mut self, slept: u64) {
        let base = self.bases[self.base];
        let paid = self.paid(&base, slept);
        let other = 1 - self.base;
        let paid_by_other = self.paid_unless(&self.bases[other], &base, paid, slept);
        let mut savings = [0; VIEWS];
        for view in 0..VIEWS {
            let plan = self.own[view];
            // Views that know nothing of their own plan as the first one does.
            savings[view] = if plan == self.own[SLOW] && view != SLOW {
                savings[SLOW]
            } else {
                paid.saved_by(&self.paid_unless(&plan, &base, paid, slept))
            };
            self.long[view].add(savings[view], LONG_MEMORY);
            self.short[view].add(savings[view], SHORT_MEMORY);
        }
        self.base_lead
            .add(paid.saved_by(&paid_by_other), BASE_MEMORY);
        self.base_lead.forgive(FORGIVEN);
        if self.base_lead.is_ahead(1) {
            self.base = other;
            self.base_lead = self.base_lead.turned();
        }
        let scores = (0..VIEWS).filter_map(|view| Some((self.score(view, &base)?, view)));
        let best = scores.max().filter(|(score, _)| *score > 0);
        self.followed = best.map(|(_, view)| view);
    }

    /// What a plan would have cost. Nobody knows the powers of the states, so it is with two assumptions of them.
    fn paid(&self, plan: &Plan, slept: u64) -> Paid {
        let with = |costs| i64::try_from(plan.cost(costs, slept)).unwrap_or(i64::MAX / 4);
        Paid {
            likely: with(&self.costs),
            steep: with(&self.steep),
        }
    }

    /// The same, where it is known already what another plan would have cost.
    fn paid_unless(&self, plan: &Plan, other: &Plan, paid: Paid, slept: u64) -> Paid {
        if plan == other {
            paid
        } else {
            self.paid(plan, slept)
        }
    }

    /// How much speaks for a view; `None` if nothing does, or it is behind lately.
    fn score(&self, view: usize, base: &Plan) -> Option<i64> {
        let (long, short) = (&self.long[view], &self.short[view]);
        let saved = long.saved() + LATELY * short.saved();
        if saved <= 0 || short.turned().is_ahead(1) {
            return None;
        }
        let (clear, risk) = if self.followed == Some(view) {
            (0, RISK_TAKEN)
        } else {
            (CLEAR, RISK)
        };
        let deepest = self.own[view].deepest().max(base.deepest());
        let overhead = in_units(self.costs.get(deepest).overhead());
        let sure = saved - overhead / risk;
        if sure <= 0 || clear == 0 {
            return Some(sure);
        }
        Some(sure - clear * long.spread())
    }
}

/// What a plan would have cost, with each assumption of the powers.
#[derive(Clone, Copy)]
struct Paid {
    likely: i64,
    steep: i64,
}

impl Paid {
    /// By how much less another plan would have cost: what is not saved with either assumption is not counted.
    fn saved_by(&self, other: &Self) -> i64 {
        (self.likely - other.likely).min(self.steep - other.steep)
    }
}
