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
//! - **Hindsight is complete.** After a sleep its length is known, hence also what any plan would have cost. So menu and
//!   TEO are asked and told in every idle period as if they were followed ([`shadows`]), next to several views of the past
//!   ([`views`]), and all are compared ([`experts`]): the better of the two is the base, and a view is followed instead as
//!   long as it is better beyond chance ([`lead`]).
//! - **There is always a way out.** A state that is too shallow for a long sleep has a limit, if behind all known wakes.
//!
//! Aborted and refused entries teach nothing, and time in interrupt handlers is not part of a sleep.

use super::{Governor, IdleContext, IdleOutcome, Selection, WakeReason};
use crate::cstate::CStateTable;
use crate::units::Nanos;

mod arrivals;
mod costs;
mod experts;
mod lead;
mod outlook;
mod plan;
mod shadows;
mod views;

use arrivals::Ended;
pub use costs::LatencyPrice;
use experts::Experts;

/// Lull's own governor.
#[derive(Clone, Debug)]
pub struct Lull {
    price: LatencyPrice,
    experts: Experts,
    /// How long this idle period had lasted at the last selection.
    slept: u64,
    /// The time at which the last idle period ended.
    woken_at: u64,
    /// The time of the last selection.
    asked_at: u64,
    /// The time at which this idle period began.
    began_at: u64,
    /// Has this idle period begun?
    sleeping: bool,
}

impl Lull {
    /// A governor that has seen nothing yet, and trades energy for latency at this price.
    pub const fn new(price: LatencyPrice) -> Self {
        Self {
            price,
            experts: Experts::new(),
            slept: 0,
            woken_at: 0,
            asked_at: 0,
            began_at: 0,
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
            // The way out of a stay that a limit ended is part of it, too.
            let passed = self.asked_at.saturating_sub(self.began_at);
            self.slept = self.slept.max(passed);
            self.experts
                .again(context, self.price, self.slept, to_timer)
        } else {
            self.sleeping = true;
            self.slept = 0;
            self.began_at = self.asked_at;
            let busy = self.asked_at.saturating_sub(self.woken_at);
            self.experts.plan(context, self.price, to_timer, busy)
        };
        Selection {
            state: context.nearest(plan.state()),
            limit: plan.limit().map(Nanos::new),
            predicted: None,
        }
    }

    fn again(&mut self, context: &IdleContext<'_>) {
        self.asked_at = context.now.get();
        if !self.sleeping {
            self.sleeping = true;
            self.slept = 0;
            self.began_at = self.asked_at;
            let busy = self.asked_at.saturating_sub(self.woken_at);
            self.experts.same_plans(context.table, busy);
        }
    }

    fn reflect(&mut self, table: &CStateTable, outcome: &IdleOutcome) {
        let (entered, residency, wake) = match *outcome {
            IdleOutcome::Slept {
                entered,
                residency,
                wake,
                ..
            } => (entered, residency, wake),
            IdleOutcome::Aborted => {
                // What comes next is another idle period.
                self.sleeping = false;
                return;
            }
            IdleOutcome::Rejected { .. } => return,
        };
        let exit = table.state(entered).exit_latency.to_nanos();
        let residency = residency.get();
        // The exit latency that was really spent is not known: it is at most this. To take a sleep for too short is the
        // smaller mistake: where exits take as long as a state needs to pay, the other one would keep that state.
        let stayed = residency.saturating_sub(exit.get());
        self.slept = self.slept.saturating_add(stayed);
        let ended = match wake {
            // Nothing has come: the idle period goes on.
            WakeReason::Limit => return,
            WakeReason::Timer => Ended::Timer,
            // A wake for nothing costs what any other costs, and the next one may be as near.
            WakeReason::Store | WakeReason::Interrupt | WakeReason::Spurious => Ended::Event,
        };
        self.sleeping = false;
        self.woken_at = self.asked_at.saturating_add(residency);
        self.experts.learn(table, self.slept, ended, wake);
    }
}

#[cfg(test)]
mod tests;
