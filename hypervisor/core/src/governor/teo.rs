//! `teo`: how often lately the timer was right, and how often something else came before it.
//!
//! As in Linux 7.1. Every state has a bin, from its target residency to the next state's. A wake that fell into the bin
//! in which the timer was is a *hit* there; one that came earlier is an *intercept* of the bin it fell into. Hits and
//! intercepts age alike. If intercepts make up the majority, a shallower state is taken: the one that would have fitted
//! half of them.

use super::moment::{
    Decision, Moment, PollLimit, SAFE_TIMER_RANGE, SHORT_STAY, Stay, TICK, Tick, latency, signed,
};
use super::{Governor, IdleContext, IdleOutcome, Selection};
use crate::cstate::{CStateTable, MAX_STATES};

/// What an observation adds. With the decay of an eighth, one that comes every time settles at eight times this.
const PULSE: u32 = 1024;
/// A latency limit below this, in ns, makes TEO poll or use C1 without asking for timers.
const TIGHT_LATENCY: i64 = 7_500;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bin {
    pub hits: u32,
    pub intercepts: u32,
}

/// The timer-events-oriented governor of Linux.
#[derive(Clone, Debug)]
pub struct Teo {
    tick: Tick,
    pub(super) poll_limit: PollLimit,
    /// What has not been learned from yet.
    last: Option<Stay>,
    pub(super) sleep_length: i64,
    pub(super) bins: [Bin; MAX_STATES],
    pub(super) total: u32,
    pub(super) total_tick: u32,
    pub(super) tick_intercepts: u32,
    pub(super) short_idles: u32,
}

impl Teo {
    /// A governor that has seen nothing yet.
    pub const fn new(tick: Tick) -> Self {
        Self {
            tick,
            poll_limit: PollLimit(0),
            last: Some(Stay::none()),
            sleep_length: 0,
            bins: [Bin {
                hits: 0,
                intercepts: 0,
            }; MAX_STATES],
            total: 0,
            total_tick: 0,
            tick_intercepts: 0,
            short_idles: 0,
        }
    }

    pub(super) fn decide(&mut self, moment: &Moment<'_>) -> Decision {
        self.settle(moment.table);
        self.sleep_length = i64::MAX;

        let Some(candidates) = self.candidates(moment) else {
            return Decision::keep(0);
        };
        let shallowest = candidates.shallowest;
        if candidates.deepest == shallowest {
            let duration = moment.residency(shallowest);
            return finish(moment, shallowest, shallowest, duration);
        }
        let mut state = self
            .behind_intercepts(moment, &candidates)
            .min(candidates.constraint);

        let unlikely_to_pay = state == 0 || moment.residency(state) < SHORT_STAY;
        let hurried = 2 * self.short_idles >= self.total || moment.latency_limit < TIGHT_LATENCY;
        if !moment.tick_stopped() && unlikely_to_pay && hurried {
            return Decision::keep(state);
        }

        let mut duration = moment.sleep_length;
        self.sleep_length = duration;

        if moment.tick_stopped() && duration > SAFE_TIMER_RANGE && moment.residency(state) < TICK {
            let deeper = (state + 1..=candidates.constraint)
                .rev()
                .find(|&deeper| moment.enabled(deeper) && moment.residency(deeper) <= duration);
            return Decision::stop(deeper.unwrap_or(state));
        }
        if state == 0 {
            return Decision::keep(0);
        }
        if moment.residency(state) > duration {
            state = moment.shallower(state, duration);
        }
        if moment.residency(state) < TICK && 3 * self.tick_intercepts >= 2 * self.total {
            duration = TICK / 2;
        }
        finish(moment, state, shallowest, duration)
    }

    /// The range of states to choose from. `None` if no state is enabled.
    fn candidates(&self, moment: &Moment<'_>) -> Option<Candidates> {
        let mut found = moment.enabled(0).then_some(Candidates::only(0));
        let (mut hits, mut intercepts) = (0, 0);
        let (mut most, mut most_at) = (0, 0);
        for state in 1..moment.count() {
            let below = self.bins[state - 1];
            hits += below.hits;
            intercepts += below.intercepts;
            if below.intercepts >= most {
                (most, most_at) = (below.intercepts, state - 1);
            }
            if !moment.enabled(state) {
                continue;
            }
            let candidates = found.get_or_insert(Candidates::only(state));
            candidates.deepest = state;
            if moment.latency(state) <= moment.latency_limit {
                candidates.constraint = state;
            }
            candidates.hits = hits;
            candidates.intercepts = intercepts;
        }
        if let Some(candidates) = &mut found {
            candidates.most_intercepts = most_at;
        }
        found
    }

    /// The deepest candidate, or, if wakes before its residency are the majority, the one that fits most of those.
    fn behind_intercepts(&self, moment: &Moment<'_>, candidates: &Candidates) -> usize {
        if 2 * candidates.intercepts <= self.total.wrapping_sub(candidates.hits) {
            return candidates.deepest;
        }
        let mut chosen = candidates.deepest;
        let mut sum = 0;
        for state in (candidates.shallowest..candidates.deepest).rev() {
            sum += self.bins[state].intercepts;
            if !moment.enabled(state) {
                continue;
            }
            chosen = state;
            if 2 * sum > candidates.intercepts && state <= candidates.most_intercepts {
                break;
            }
        }
        chosen
    }

    /// Learns what has not been learned from yet.
    pub(super) fn settle(&mut self, table: &CStateTable) {
        if let Some(stay) = self.last.take() {
            self.update(table, stay);
        }
    }

    fn update(&mut self, table: &CStateTable, stay: Stay) {
        let exit_latency = latency(table, stay.state);
        decay(&mut self.short_idles);
        let measured = if stay.poll_timed_out {
            i64::MAX
        } else if stay.residency >= exit_latency {
            let measured = stay.residency - exit_latency / 2;
            if measured < SHORT_STAY {
                self.short_idles += PULSE;
            }
            measured
        } else {
            self.short_idles += PULSE;
            stay.residency / 2
        };

        let (mut timer_bin, mut wake_bin) = (0, 0);
        let mut total = 0;
        for (state, (bin, figures)) in self.bins.iter_mut().zip(table.states()).enumerate() {
            decay(&mut bin.hits);
            decay(&mut bin.intercepts);
            total += bin.hits + bin.intercepts;
            let residency = signed(figures.target_residency.to_nanos());
            if residency <= self.sleep_length {
                timer_bin = state;
                if residency <= measured {
                    wake_bin = state;
                }
            }
        }
        self.total = total + PULSE;
        decay(&mut self.tick_intercepts);
        decay(&mut self.total_tick);

        if stay.got_tick {
            self.total_tick += PULSE;
            // The tick was the only thing that came: nothing shorter is to be expected.
            if 3 * self.total_tick > 2 * self.total {
                self.bins[table.count() - 1].hits += PULSE;
                return;
            }
            if 3 * self.tick_intercepts < 2 * total {
                self.bins[timer_bin].hits += PULSE;
                return;
            }
        }

        // Wraps, as the original does, for an overdue timer and a poll that timed out: no hit then.
        let early = self.sleep_length.wrapping_sub(measured);
        if timer_bin == wake_bin && early < exit_latency / 2 {
            self.bins[timer_bin].hits += PULSE;
        } else {
            self.bins[wake_bin].intercepts += PULSE;
            if measured <= TICK {
                self.tick_intercepts += PULSE;
            }
        }
    }

    pub(super) fn learn(&mut self, stay: Stay) {
        self.last = Some(stay);
    }
}

/// The range of states to choose from, and what came below the deepest of them.
struct Candidates {
    shallowest: usize,
    deepest: usize,
    /// The deepest that the latency limit allows.
    constraint: usize,
    hits: u32,
    intercepts: u32,
    /// The bin with the most intercepts.
    most_intercepts: usize,
}

impl Candidates {
    const fn only(state: usize) -> Self {
        Self {
            shallowest: state,
            deepest: state,
            constraint: 0,
            hits: 0,
            intercepts: 0,
            most_intercepts: 0,
        }
    }
}

fn finish(moment: &Moment<'_>, state: usize, shallowest: usize, duration: i64) -> Decision {
    if moment.tick_stopped() || (!moment.polls(state) && duration >= TICK) {
        return Decision::stop(state);
    }
    // The tick stays on: no state that it would come too early for.
    if state > shallowest && moment.residency(state) > moment.next_event {
        return Decision::keep(moment.shallower(state, moment.next_event));
    }
    Decision::keep(state)
}

/// Takes an eighth away. What is too small for that has had its time.
fn decay(metric: &mut u32) {
    let eighth = *metric >> 3;
    *metric = if eighth == 0 { 0 } else { *metric - eighth };
}

impl Default for Teo {
    fn default() -> Self {
        Self::new(Tick::Running)
    }
}

impl Governor for Teo {
    fn name(&self) -> &'static str {
        if self.tick == Tick::OnDemand {
            "teo+tick"
        } else {
            "teo"
        }
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        let moment = Moment::new(context, self.tick);
        let decision = self.decide(&moment);
        let state = context.nearest(decision.state);
        let limit = moment.limit(state, decision, &mut self.poll_limit);
        Selection {
            state,
            limit,
            predicted: (self.sleep_length != i64::MAX)
                .then_some(context.sleep_length)
                .flatten(),
        }
    }

    fn reflect(&mut self, table: &CStateTable, outcome: &IdleOutcome) {
        // A refused or aborted entry says nothing about how long sleeps are.
        if let IdleOutcome::Slept {
            entered,
            residency,
            wake,
            ..
        } = *outcome
        {
            self.learn(Stay::new(table, entered, residency, wake));
        }
    }
}
