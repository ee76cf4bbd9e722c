//! One governor, one trace: what it asked for, and what that cost.
//!
//! The governor is asked as the idle path asks it, and is told what the idle path would tell: the residency with the
//! exit latency in it, the true reason of the wake, no interrupt time. Its own time is not charged, save for wakes that
//! it asked for ([`crate::cost::RECHECK_NS`]).

use crate::cost::CostModel;
use crate::trace::{Cause, Trace};
use lull_core::cstate::StateId;
use lull_core::governor::{Governor, IdleContext, IdleOutcome, StateSet, WakeReason};
use lull_core::units::Nanos;

/// What a replay came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bill {
    /// uJ, wakes by limit included.
    pub energy: f64,
    /// Added wake latency, in us.
    pub latency: f64,
    /// Idle periods.
    pub periods: u64,
    /// Selections: more than periods, where limits ended stays.
    pub selections: u64,
    /// Stays by state.
    pub stays: Vec<u64>,
}

impl Bill {
    /// Energy and latency in one figure; the price is in uJ a us.
    pub fn score(&self, price: f64) -> f64 {
        self.energy + price * self.latency
    }
}

/// Replays a trace. `limit` is the latency limit.
pub fn replay<G: Governor>(
    governor: &mut G,
    model: &CostModel,
    trace: &Trace,
    limit: Option<Nanos>,
) -> Bill {
    let mut bill = Bill {
        stays: vec![0; model.table.count()],
        ..Bill::default()
    };
    let mut now = 0;
    for row in &trace.rows {
        bill.periods += 1;
        let mut at = 0;
        loop {
            let context = IdleContext {
                table: &model.table,
                sleep_length: row.timer.map(|timer| Nanos::new(timer - at)),
                latency_limit: limit,
                disabled: StateSet::NONE,
                now: Nanos::new(now + at),
            };
            let selection = governor.select(&context);
            let state = selection.state.index();
            let latency = model.latency_ns(state);
            bill.selections += 1;
            bill.stays[state] += 1;

            let stay_limit = selection.limit.map_or(u64::MAX, Nanos::get);
            let stay = stay_limit.min(row.length - at);
            let done = at + stay == row.length;
            bill.energy += model.energy(state, stay);
            let resumed = at + stay + latency;
            let wake = match row.cause {
                // The CPU is back before anything has come.
                _ if resumed < row.length => WakeReason::Limit,
                Cause::Timer => WakeReason::Timer,
                Cause::Remote => WakeReason::Store,
                Cause::Device => WakeReason::Interrupt,
            };
            governor.reflect(&model.table, &slept(selection.state, stay + latency, wake));
            if !done {
                let early = resumed.min(row.length) - (at + stay);
                bill.energy += model.early_exit(early);
            }
            if resumed >= row.length {
                // Woken by the event, or by the limit just before it.
                bill.latency += (resumed - row.length) as f64 / 1000.0;
                now += resumed + row.busy;
                break;
            }
            at = resumed;
        }
    }
    bill
}

fn slept(state: StateId, residency: u64, wake: WakeReason) -> IdleOutcome {
    IdleOutcome::Slept {
        requested: state,
        entered: state,
        residency: Nanos::new(residency),
        irq: Nanos::ZERO,
        wake,
    }
}

/// What it would have cost with the future known: the best plan for each idle period, at this price.
pub fn oracle(model: &CostModel, trace: &Trace, price: f64) -> f64 {
    trace
        .rows
        .iter()
        .map(|row| model.least(row.length, price).0)
        .sum()
}
