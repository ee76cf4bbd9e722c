//! `deepest-fit`: the deepest state that the next deadline and the latency limit leave room for.

use super::{Governor, IdleContext, IdleOutcome, Selection};
use crate::cstate::CStateTable;

/// Trusts the next deadline, and learns nothing.
///
/// Right where wakes come from timers; too deep where interrupts end sleeps early. It is the yardstick that learning
/// governors must beat.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeepestFit;

impl Governor for DeepestFit {
    fn name(&self) -> &'static str {
        "deepest-fit"
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        let fits = |target| context.sleep_length.is_none_or(|length| target <= length);
        let state = context
            .table
            .iter()
            .rev()
            .find(|(id, state)| {
                // A state that takes longer to leave than the sleep lasts delays the very timer it waits for.
                fits(state.target_residency.to_nanos())
                    && fits(state.exit_latency.to_nanos())
                    && context.admits(*id)
            })
            .map_or_else(|| context.nearest(0), |(id, _)| id);
        Selection {
            state,
            limit: None,
            predicted: context.sleep_length,
        }
    }

    fn reflect(&mut self, _table: &CStateTable, _outcome: &IdleOutcome) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cstate::{CState, CStateFlags, EntryMethod, MwaitHint};
    use crate::governor::StateSet;
    use crate::platform::IrqGate;
    use crate::units::{Micros, Nanos};

    fn state(name: &'static str, exit_latency: u64, target_residency: u64) -> CState {
        CState {
            name,
            method: EntryMethod::Mwait {
                hint: MwaitHint::new(0x20),
                gate: IrqGate::Masked,
            },
            flags: CStateFlags::empty(),
            exit_latency: Micros::new(exit_latency),
            target_residency: Micros::new(target_residency),
        }
    }

    fn selected(sleep_us: Option<u64>, limit_us: Option<u64>) -> &'static str {
        let table = CStateTable::new(&[
            CState::POLL,
            CState::C1_HALT,
            state("C1E", 10, 20),
            state("C6", 300, 275),
        ])
        .unwrap();
        let nanos = |us: u64| Micros::new(us).to_nanos();
        let context = IdleContext {
            table: &table,
            sleep_length: sleep_us.map(nanos),
            latency_limit: limit_us.map(nanos),
            disabled: StateSet::NONE,
            now: Nanos::ZERO,
        };
        let selection = DeepestFit.select(&context);
        assert_eq!(
            selection.predicted,
            sleep_us.map(|us| Nanos::new(us * 1000))
        );
        table.state(selection.state).name
    }

    #[test]
    fn the_deepest_state_that_fits_both_limits() {
        assert_eq!(selected(None, None), "C6");
        assert_eq!(selected(Some(300), None), "C6");
        // C6 pays off from 275 us, but would be late for a deadline in 280 us.
        assert_eq!(selected(Some(280), None), "C1E");
        assert_eq!(selected(Some(19), None), "C1");
        assert_eq!(selected(Some(1), None), "POLL");
        assert_eq!(selected(None, Some(299)), "C1E");
        assert_eq!(selected(None, Some(0)), "POLL");
    }

    #[test]
    fn a_table_without_a_fitting_state_gives_its_shallowest() {
        let table = CStateTable::new(&[state("C6", 300, 600)]).unwrap();
        let context = IdleContext {
            table: &table,
            sleep_length: Some(Nanos::new(5)),
            latency_limit: Some(Nanos::ZERO),
            disabled: StateSet::NONE,
            now: Nanos::ZERO,
        };
        assert_eq!(DeepestFit.select(&context).state, table.shallowest());
    }
}
