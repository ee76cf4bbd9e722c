//! Menu and TEO, who are asked and told as if they were followed.

use super::costs::Costs;
use super::plan::{Plan, WayOut};
use crate::cstate::CStateTable;
use crate::governor::moment::{Moment, PollLimit, Stay, Tick};
use crate::governor::{IdleContext, Menu, Teo, WakeReason};
use crate::units::Nanos;

/// How many there are: TEO, which is trusted first, and menu.
pub(super) const SHADOWS: usize = 2;
/// A timer that is nearer than this, in ns, is believed even before anything is known.
const NEAR: u64 = 2_000_000;

/// The two of them.
#[derive(Clone, Debug)]
pub(super) struct Shadows {
    teo: Teo,
    menu: Menu,
    /// The states that they chose.
    states: [usize; SHADOWS],
    poll_limit: PollLimit,
    /// Has there been any idle period yet?
    begun: bool,
}

impl Shadows {
    pub const fn new() -> Self {
        Self {
            teo: Teo::new(Tick::Running),
            menu: Menu::new(Tick::Running),
            states: [0; SHADOWS],
            poll_limit: PollLimit(0),
            begun: false,
        }
    }

    /// Their plans. No state is without an end that is too shallow for as long as it may last, and they poll only where
    /// that is the cheapest to do.
    pub fn plans(
        &mut self,
        context: &IdleContext<'_>,
        costs: &Costs,
        way_out: &WayOut,
        to_timer: u64,
    ) -> [Plan; SHADOWS] {
        let moment = Moment::new(context, Tick::Running);
        let chosen = [
            self.teo.decide(&moment).state,
            self.menu.decide(&moment).0.state,
        ];
        self.states = chosen.map(|state| costs.nearest(context, state));
        let worth = costs.shallowest_worth(to_timer);
        if !self.begun {
            return [self.first_plan(context, worth, to_timer); SHADOWS];
        }
        self.states.map(|state| {
            let state = costs.nearest(context, state.max(worth));
            Plan::of(state).with_way_out(costs, way_out)
        })
    }

    /// An idle period begins in which they stay with what they chose.
    pub fn same_plans(&mut self, table: &CStateTable) {
        self.teo.settle(table);
        self.menu.settle(table);
    }

    /// Before anything is known: the deepest state for which there is time, but if the timer is far away not before the
    /// time for which the two may poll.
    fn first_plan(&mut self, context: &IdleContext<'_>, worth: usize, to_timer: u64) -> Plan {
        let first = context.nearest(worth).index();
        let fits = |residency: Nanos| residency.get() <= to_timer;
        let then = context
            .table
            .iter()
            .rev()
            .find(|(id, state)| fits(state.target_residency.to_nanos()) && context.admits(*id))
            .map_or(first, |(id, _)| id.index());
        if to_timer < NEAR || then <= first {
            return Plan::of(then);
        }
        let polls = self.poll_limit.get(context.table, context.disabled);
        Plan::change(first, polls.get(), then)
    }

    /// Is this the first idle period?
    pub fn is_first(&self) -> bool {
        !self.begun
    }

    /// An idle period has ended: each is told what it would have seen in the state that it chose.
    pub fn learn(&mut self, table: &CStateTable, slept: u64, wake: WakeReason) {
        self.begun = true;
        let stays = self.states.map(|state| {
            let id = table.id(state).unwrap_or(table.shallowest());
            let exit = table.state(id).exit_latency.to_nanos().get();
            Stay::new(table, id, Nanos::new(slept.saturating_add(exit)), wake)
        });
        self.teo.learn(stays[0]);
        self.menu.learn(stays[1]);
    }
}
