//! `lull`: the cheapest plan against how long sleeps really last before something other than the timer ends them.
//!
//! What it rests on:
//!
//! - **The wake reason is known.** A sleep that the own deadline ended says that nothing else came for *at least* that
//!   long; it is a censored observation, not a short one. So the governor learns when events come ([`arrivals`]), as a
//!   hazard by the time slept, and the next deadline is then a fact that cuts this off, not one more guess.
//! - **Costs are linear in the time slept**, so plans can be compared by their expected cost ([`plan`]), energy and
//!   wake latency in one currency ([`costs`]), and not only by whether a residency fits.
//! - **A stay can have a limit.** "C1 for 90 us, and C6 if nothing came by then" is a plan. A wrong guess that the sleep
//!   is short costs one early wake, not the rest of a long sleep in a shallow state.
//! - **Hindsight is complete.** After a sleep its length is known, hence also what any plan would have cost. There are
//!   several views of the past, and TEO ([`views`]); in each idle period the one that is followed is compared with
//!   another, and gives way to one whose plans would clearly have cost less. So a trace on which one state is right each
//!   time costs no more than with TEO, and elsewhere what TEO does is soon left behind.
//! - **There is always a way out.** A state that is too shallow for a long sleep has a limit, if behind all known wakes.
//!
//! A decision takes about 1 us, ten times as long as one of menu, and half of that where sleeps are short; plans do not
//! count it.
//!
//! Aborted and refused entries teach nothing, and time in interrupt handlers is not part of a sleep.

use super::moment::Stay;
use super::{Governor, IdleContext, IdleOutcome, Selection, WakeReason};
use crate::cstate::CStateTable;
use crate::units::Nanos;

mod arrivals;
mod costs;
mod plan;
mod views;

use arrivals::Ended;
pub use costs::LatencyPrice;
use views::Views;

/// Lull's own governor.
#[derive(Clone, Debug)]
pub struct Lull {
    price: LatencyPrice,
    views: Views,
    /// Slept so far in this idle period, over all stays that reached their limit.
    slept: u64,
    /// The time at which the last idle period ended.
    woken_at: u64,
    /// The time of the last selection.
    asked_at: u64,
    /// Has this idle period begun?
    sleeping: bool,
}

impl Lull {
    /// A governor that has seen nothing yet, and trades energy for latency at this price.
    pub const fn new(price: LatencyPrice) -> Self {
        Self {
            price,
            views: Views::new(),
            slept: 0,
            woken_at: 0,
            asked_at: 0,
            sleeping: false,
        }
    }
}

impl Default for Lull {
    fn default() -> Self {
        Self::new(LatencyPrice::DEFAULT)
    }
}

impl Governor for Lull {
    fn name(&self) -> &'static str {
        "lull"
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        let to_timer = context.sleep_length.map_or(u64::MAX, Nanos::get);
        self.asked_at = context.now.get();
        let plan = if self.sleeping {
            self.views.again(context, self.price, self.slept, to_timer)
        } else {
            self.sleeping = true;
            self.slept = 0;
            let busy = self.asked_at.saturating_sub(self.woken_at);
            self.views.plan(context, self.price, to_timer, busy)
        };
        Selection {
            state: context.nearest(plan.state),
            limit: plan.limit.map(Nanos::new),
            predicted: None,
        }
    }

    fn again(&mut self, context: &IdleContext<'_>) {
        self.asked_at = context.now.get();
        if !self.sleeping {
            self.sleeping = true;
            self.slept = 0;
            let busy = self.asked_at.saturating_sub(self.woken_at);
            self.views.same_plan(context, busy);
        }
    }

    fn reflect(&mut self, table: &CStateTable, outcome: &IdleOutcome) {
        let IdleOutcome::Slept {
            entered,
            residency,
            wake,
            ..
        } = *outcome
        else {
            return;
        };
        let exit = table.state(entered).exit_latency.to_nanos();
        let residency = residency.get();
        // The exit latency that was really spent is not known: it is at most this.
        let stayed = residency.saturating_sub(exit.get()).max(residency / 2);
        self.slept = self.slept.saturating_add(stayed);
        let ended = match wake {
            // Nothing has come: the idle period goes on.
            WakeReason::Limit | WakeReason::Spurious => return,
            WakeReason::Timer => Ended::Timer,
            WakeReason::Store | WakeReason::Interrupt => Ended::Event,
        };
        self.sleeping = false;
        self.woken_at = self.asked_at.saturating_add(residency);
        let whole = Nanos::new(self.slept.saturating_add(exit.get()));
        self.views
            .learn(self.slept, ended, Stay::new(table, entered, whole, wake));
    }
}

#[cfg(test)]
mod tests;
