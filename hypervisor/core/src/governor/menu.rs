//! `menu`: the next timer, corrected by how far it was off lately, or the interval that the last wakes agree on.
//!
//! As in Linux 7.1: two predictors, of which the shorter counts. One multiplies the time to the next timer with a
//! running average of "slept / timer", kept apart for six ranges of the timer. The other looks for a typical interval
//! in the last eight sleeps, extremes left out.

use super::moment::{
    Decision, Moment, PollLimit, SAFE_TIMER_RANGE, SHORT_STAY, Stay, TICK, Tick, latency, polls,
};
use super::{Governor, IdleContext, IdleOutcome, Selection};
use crate::cstate::CStateTable;
use crate::units::Nanos;

const INTERVALS: usize = 8;
const BUCKETS: usize = 6;
const RESOLUTION: u64 = 1024;
const DECAY: u64 = 8;
/// Longer sleeps are all alike, in ns.
const MAX_INTERESTING: i64 = 50_000_000;
/// What a refused state leaves among the intervals: a value that never counts.
const UNKNOWN: u32 = u32::MAX;

/// The menu governor of Linux.
#[derive(Clone, Debug)]
pub struct Menu {
    tick: Tick,
    pub(super) poll_limit: PollLimit,
    last: Stay,
    needs_update: bool,
    tick_wakeup: bool,
    next_timer: i64,
    bucket: usize,
    correction: [u32; BUCKETS],
    intervals: [u32; INTERVALS],
    oldest: usize,
}

impl Menu {
    /// A governor that has seen nothing yet.
    pub const fn new(tick: Tick) -> Self {
        Self {
            tick,
            poll_limit: PollLimit(0),
            last: Stay::none(),
            needs_update: false,
            tick_wakeup: false,
            next_timer: 0,
            bucket: 0,
            correction: [(RESOLUTION * DECAY) as u32; BUCKETS],
            intervals: [0; INTERVALS],
            oldest: 0,
        }
    }

    /// The decision, and the predicted length of the sleep if there is one.
    /// Learns what has not been learned from yet.
    pub(super) fn settle(&mut self, table: &CStateTable) {
        if self.needs_update {
            self.update(table);
            self.needs_update = false;
        } else if self.last.residency == 0 {
            self.push_interval(UNKNOWN);
        }
    }

    pub(super) fn decide(&mut self, moment: &Moment<'_>) -> (Decision, Option<Nanos>) {
        self.settle(moment.table);

        let (mut predicted, next_event) = self.predict(moment);
        let shown = (predicted < i64::from(UNKNOWN) * 1000).then(|| Nanos::new(predicted as u64));

        let too_soon = moment.count() > 1
            && (self.next_timer < moment.residency(1) || moment.latency_limit < moment.latency(1))
            && moment.enabled(0);
        if moment.latency_limit == 0 || too_soon {
            let decision = Decision {
                state: 0,
                stop_tick: !moment.polls(0),
            };
            return (decision, shown);
        }

        let mut chosen = None;
        for state in (0..moment.count()).filter(|&state| moment.enabled(state)) {
            let current = *chosen.get_or_insert(state);
            if moment.latency(state) > moment.latency_limit {
                break;
            }
            if moment.residency(state) <= predicted {
                chosen = Some(state);
                continue;
            }
            // Rather a real state than a poll, if it can be left before the predicted wake.
            if moment.polls(current)
                && moment.residency(state) < SHORT_STAY
                && moment.residency(state) <= self.next_timer
                && moment.latency(state) <= predicted
            {
                predicted = moment.residency(state);
                chosen = Some(state);
                break;
            }
            if predicted < TICK {
                break;
            }
            if !moment.tick_stopped() {
                // The tick will come, and the question be asked again.
                predicted = moment.residency(current);
                break;
            }
            // Without a tick, the state has to do for as long as it may take.
            if moment.residency(current) < TICK && moment.residency(state) <= next_event {
                chosen = Some(state);
            }
            return (Decision::stop(chosen.unwrap_or(0)), shown);
        }
        let state = chosen.unwrap_or(0);

        if (moment.polls(state) || predicted < TICK) && !moment.tick_stopped() {
            let fits = state == 0 || moment.residency(state) <= next_event;
            let state = if fits {
                state
            } else {
                moment.shallower(state, next_event)
            };
            return (Decision::keep(state), shown);
        }
        (Decision::stop(state), shown)
    }

    /// The predicted sleep, and the time to the next event. Sets what the next update compares with.
    fn predict(&mut self, moment: &Moment<'_>) -> (i64, i64) {
        let typical = i64::from(self.typical_interval()) * 1000;
        if typical <= SHORT_STAY && !moment.tick_stopped() {
            // So short that the next timer is not worth asking for.
            self.next_timer = i64::MAX;
            self.bucket = bucket_of(self.next_timer);
            return (typical, TICK / 2);
        }

        let overdue = moment.sleep_length < 0;
        self.next_timer = if overdue { 0 } else { moment.sleep_length };
        let next_event = if overdue { 0 } else { moment.next_event };
        self.bucket = bucket_of(self.next_timer);

        let unit = RESOLUTION * DECAY * 1000;
        let factor = u64::from(self.correction[self.bucket]);
        let corrected = (self.next_timer as u64).wrapping_mul(factor);
        let corrected = (corrected.wrapping_add(unit / 2) / unit) as u32;
        let predicted = typical.min(i64::from(corrected) * 1000);

        if moment.tick_stopped() && predicted < TICK && self.next_timer > SAFE_TIMER_RANGE {
            return (self.next_timer, next_event);
        }
        (predicted, next_event)
    }

    /// In us; [`UNKNOWN`] if the last sleeps have nothing in common.
    fn typical_interval(&self) -> u32 {
        // Bounds that are outside of every sample at first, both exclusive.
        let (mut low, mut high) = (-1_i64, i64::from(UNKNOWN));
        loop {
            // All in one pass: this is most of what a decision costs.
            let (mut count, mut sum, mut squares) = (0_u64, 0_u64, 0_u64);
            let (mut min, mut max) = (i64::MAX, 0);
            for sample in self.intervals.map(i64::from) {
                if low < sample && sample < high {
                    min = min.min(sample);
                    max = max.max(sample);
                    count += 1;
                    sum += sample as u64;
                    squares = squares.wrapping_add((sample as u64).pow(2));
                }
            }
            // No sample, or only zeros.
            if max == 0 {
                return UNKNOWN;
            }
            let average = sum / count;
            let variance = (squares / count).wrapping_sub(average * average);

            let close = average * average > variance.saturating_mul(36) && 4 * count >= 24;
            if variance <= u64::MAX / 36 && (close || variance <= 400) {
                return average as u32;
            }
            if count <= 6 {
                return UNKNOWN;
            }
            let average = average as i64;
            if average - min > max - average {
                low = min;
            } else {
                high = max;
            }
        }
    }

    fn update(&mut self, table: &CStateTable) {
        let last = self.last;
        let measured = if self.tick_wakeup && self.next_timer > TICK {
            // The tick ended it: it would have lasted, nobody knows how long.
            9 * MAX_INTERESTING / 10
        } else if polls(table, last.state) && last.poll_timed_out {
            self.next_timer
        } else {
            let latency = latency(table, last.state);
            if last.residency > 2 * latency {
                last.residency - latency
            } else {
                last.residency / 2
            }
        };
        let measured = measured.min(self.next_timer);

        let factor = &mut self.correction[self.bucket];
        *factor -= *factor / DECAY as u32;
        *factor += if self.next_timer > 0 && measured < MAX_INTERESTING {
            (RESOLUTION * measured as u64 / self.next_timer as u64) as u32
        } else {
            RESOLUTION as u32
        };
        // Kept in 32 bits, as the original does: even "forever" is a number of microseconds then.
        self.push_interval((measured / 1000) as u32);
    }

    fn push_interval(&mut self, microseconds: u32) {
        self.intervals[self.oldest] = microseconds;
        self.oldest = (self.oldest + 1) % INTERVALS;
    }

    pub(super) fn learn(&mut self, stay: Stay) {
        self.last = stay;
        self.needs_update = true;
        self.tick_wakeup = stay.got_tick;
    }

    /// The state was refused.
    pub(super) fn refused(&mut self) {
        self.last.residency = 0;
    }
}

impl Default for Menu {
    fn default() -> Self {
        Self::new(Tick::Running)
    }
}

fn bucket_of(next_timer: i64) -> usize {
    [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000]
        .iter()
        .take_while(|&&bound| next_timer >= bound)
        .count()
}

impl Governor for Menu {
    fn name(&self) -> &'static str {
        if self.tick == Tick::OnDemand {
            "menu+tick"
        } else {
            "menu"
        }
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        let moment = Moment::new(context, self.tick);
        let (decision, predicted) = self.decide(&moment);
        let state = context.nearest(decision.state);
        let limit = moment.limit(state, decision, &mut self.poll_limit);
        Selection {
            state,
            limit,
            predicted,
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
            IdleOutcome::Aborted => {}
        }
    }
}
