//! `ladder`: one state deeper after some sleeps that were long enough, one shallower after one that was not.
//!
//! As in Linux 7.1, but for an entry that was aborted, which is not counted here: there it leaves a residency of 0, which, compared
//! without a sign, leads deeper. It never asks for the timer.

use super::moment::{Decision, Moment, PollLimit, Stay, Tick};
use super::{Governor, IdleContext, IdleOutcome, Selection};
use crate::cstate::{CStateTable, MAX_STATES};

/// So many sleeps in a row that were longer than the state's exit latency lead a state deeper.
const PROMOTIONS: u32 = 4;
/// So many that were shorter lead a state shallower.
const DEMOTIONS: u32 = 1;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    promotions: u32,
    demotions: u32,
}

/// The ladder governor of Linux.
#[derive(Clone, Debug, Default)]
pub struct Ladder {
    pub(super) poll_limit: PollLimit,
    /// The state it stands on; `None` before the first question.
    standing: Option<usize>,
    last_residency: i64,
    /// No sleep has come of the last answer.
    aborted: bool,
    counts: [Counts; MAX_STATES],
}

impl Ladder {
    pub(super) fn decide(&mut self, moment: &Moment<'_>) -> Decision {
        let first = usize::from(moment.polls(0)).min(moment.count() - 1);
        let last = self.standing.unwrap_or(first).min(moment.count() - 1);
        if moment.latency_limit == 0 {
            return self.step(last, 0);
        }

        // What has been counted once says nothing more.
        let counts_now = !core::mem::take(&mut self.aborted);
        let residency = self.last_residency - moment.latency(last);
        let is_poll = last < first;
        // The original compares without a sign: a sleep shorter than the exit latency counts as a very long one.
        let longer_than_exit = counts_now && residency as u64 > moment.latency(last) as u64;
        let shorter_than_exit = counts_now && (residency as u64) < moment.latency(last) as u64;

        let deeper = last + 1;
        if deeper < moment.count()
            && moment.enabled(deeper)
            && longer_than_exit
            && moment.latency(deeper) <= moment.latency_limit
        {
            let counts = &mut self.counts[last];
            counts.promotions += 1;
            counts.demotions = 0;
            if counts.promotions >= if is_poll { 0 } else { PROMOTIONS } {
                return self.step(last, deeper);
            }
        }

        let forbidden = !moment.enabled(last) || moment.latency(last) > moment.latency_limit;
        if last > first && forbidden {
            let fits = (first + 1..last)
                .rev()
                .find(|&state| moment.latency(state) <= moment.latency_limit);
            return self.step(last, fits.unwrap_or(first));
        }

        if last > first && shorter_than_exit {
            let counts = &mut self.counts[last];
            counts.demotions += 1;
            counts.promotions = 0;
            if counts.demotions >= DEMOTIONS {
                return self.step(last, last - 1);
            }
        }
        Decision::stop(last)
    }

    fn step(&mut self, from: usize, to: usize) -> Decision {
        self.counts[from] = Counts::default();
        self.standing = Some(to);
        Decision::stop(to)
    }

    pub(super) fn learn(&mut self, stay: Stay) {
        self.last_residency = stay.residency;
        if stay.state > 0 {
            self.standing = Some(stay.state);
        }
    }

    pub(super) fn refused(&mut self) {
        self.last_residency = 0;
    }
}

impl Governor for Ladder {
    fn name(&self) -> &'static str {
        "ladder"
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        let moment = Moment::new(context, Tick::Running);
        let decision = self.decide(&moment);
        let state = context.nearest(decision.state);
        let limit = moment.limit(state, decision, &mut self.poll_limit);
        Selection {
            state,
            limit,
            predicted: None,
        }
    }

    fn reflect(&mut self, table: &CStateTable, outcome: &IdleOutcome) {
        match *outcome {
            IdleOutcome::Slept {
                entered,
                residency,
                wake,
                ..
            } => self.learn(Stay::new(table, entered, residency, wake)),
            IdleOutcome::Rejected { .. } => self.refused(),
            IdleOutcome::Aborted => self.aborted = true,
        }
    }
}
