//! `menu-xen`: the next timer, corrected by how far it was off lately, and two limits on what an exit may cost.
//!
//! As in Xen 4.23. A state's exit latency may be at most an eighth of the mean interval between interrupts, and at most
//! a tenth of the running average of sleeps: since that starts at zero, the first sleeps are spent in C1. It knows of
//! no latency limit; here it has one, as all governors have.

use super::{Governor, IdleContext, IdleOutcome, Selection, WakeReason};
use crate::cstate::{CStateTable, StateId};
use crate::units::Nanos;

const BUCKETS: usize = 6;
const RESOLUTION: u32 = 1024;
const DECAY: u32 = 4;
/// An exit latency may be at most this part of the average sleep.
const LATENCY_MULTIPLIER: u64 = 10;
/// An exit latency may be at most this part of the average time between interrupts.
const IO_MULTIPLIER: u64 = 8;
/// Interrupts are counted over windows of this length, in ns.
const SAMPLING_PERIOD: u64 = 5_000_000;
/// Longer sleeps are all alike, in us.
const MAX_INTERESTING: u32 = 50_000;
/// "No timer", in us: what the original makes of a deadline that is past, or too far to be represented.
const NO_TIMER: u32 = u32::MAX - 1999;

/// Counts interrupts over the last window, and a part of the ones before.
#[derive(Clone, Copy, Debug, Default)]
struct InterruptRate {
    window_start: u64,
    duration: u64,
    count_at_start: u64,
    interrupts: u64,
}

impl InterruptRate {
    /// The mean interval, in us.
    fn interval(&mut self, now: u64, count: u64) -> u64 {
        let decay = u64::from(DECAY);
        let since = now.wrapping_sub(self.window_start);
        let duration = (self.duration + (decay - 1) * since) / decay;
        let news = count.wrapping_sub(self.count_at_start);
        let interrupts = (self.interrupts + (decay - 1) * news) / decay;
        let interval = match duration.checked_div(interrupts) {
            Some(interval) => interval / 1000,
            None => 1_000_000,
        };
        if duration >= SAMPLING_PERIOD {
            *self = Self {
                window_start: now,
                duration,
                count_at_start: count,
                interrupts,
            };
        }
        interval
    }
}

/// The menu governor of Xen.
#[derive(Clone, Debug, Default)]
pub struct MenuXen {
    expected_us: u32,
    latency_factor: u32,
    measured_us: u32,
    exit_us: u32,
    bucket: usize,
    correction: [u32; BUCKETS],
    rate: InterruptRate,
    /// The interrupts that ended sleeps, all there are for a governor to see.
    interrupts: u64,
    last_residency_us: u32,
}

impl MenuXen {
    /// The index of the state, and the predicted sleep in us. `to_timer` in ns, `None` without one.
    pub(super) fn decide(
        &mut self,
        table: &CStateTable,
        allows: impl Fn(StateId) -> bool,
        to_timer: Option<i64>,
        now: u64,
    ) -> (usize, u32) {
        self.exit_us = 0;
        self.expected_us = to_timer
            .and_then(|timer| u32::try_from(timer / 1000).ok())
            .unwrap_or(NO_TIMER);
        self.bucket = bucket_of(self.expected_us);
        let interval = self.rate.interval(now, self.interrupts);
        self.latency_factor = round_div(
            u64::from(self.latency_factor) * u64::from(DECAY - 1) + u64::from(self.measured_us),
            u64::from(DECAY),
        );
        let factor = &mut self.correction[self.bucket];
        if *factor == 0 {
            *factor = RESOLUTION * DECAY;
        }
        let predicted = round_div(
            u64::from(self.expected_us) * u64::from(*factor),
            u64::from(RESOLUTION * DECAY),
        );

        let mut chosen = 1;
        for (id, state) in table.iter().skip(2) {
            let latency = state.exit_latency.get();
            if state.target_residency.get() > u64::from(predicted)
                || latency.saturating_mul(IO_MULTIPLIER) > interval
                || latency.saturating_mul(LATENCY_MULTIPLIER) > u64::from(self.latency_factor)
                || !allows(id)
            {
                break;
            }
            chosen = id.index();
            self.exit_us = u32::try_from(latency).unwrap_or(u32::MAX);
        }
        (chosen, predicted)
    }

    /// Some interrupts more have been handled.
    pub(super) fn count_interrupts(&mut self, interrupts: u64) {
        self.interrupts += interrupts;
    }

    pub(super) fn learn(&mut self, residency: Nanos) {
        if residency > Nanos::ZERO {
            self.last_residency_us = u32::try_from(residency.get() / 1000).unwrap_or(u32::MAX);
        }
        let last = self.last_residency_us;
        self.measured_us = last
            .checked_sub(self.exit_us)
            .filter(|&us| us > 0)
            .unwrap_or(last);

        let factor = &mut self.correction[self.bucket];
        *factor = *factor * (DECAY - 1) / DECAY;
        let share = if self.expected_us > 0 && self.measured_us < MAX_INTERESTING {
            RESOLUTION * self.measured_us / self.expected_us
        } else {
            RESOLUTION
        };
        // Zero would mean "not set yet".
        *factor = (*factor + share).max(1);
    }
}

fn round_div(value: u64, divisor: u64) -> u32 {
    ((value + divisor / 2) / divisor) as u32
}

fn bucket_of(microseconds: u32) -> usize {
    [10, 100, 1_000, 10_000, 100_000]
        .iter()
        .take_while(|&&bound| microseconds >= bound)
        .count()
}

impl Governor for MenuXen {
    fn name(&self) -> &'static str {
        "menu-xen"
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        let to_timer = context
            .sleep_length
            .map(|length| i64::try_from(length.get()).unwrap_or(i64::MAX));
        let allows = |id| context.allows(id);
        let (index, predicted) = self.decide(context.table, allows, to_timer, context.now.get());
        Selection {
            state: context.nearest(index),
            limit: None,
            predicted: (predicted < NO_TIMER).then(|| Nanos::new(u64::from(predicted) * 1000)),
        }
    }

    fn reflect(&mut self, _table: &CStateTable, outcome: &IdleOutcome) {
        if let IdleOutcome::Slept {
            residency, wake, ..
        } = *outcome
        {
            let interrupted = matches!(wake, WakeReason::Timer | WakeReason::Interrupt);
            self.count_interrupts(u64::from(interrupted));
            self.learn(residency);
        }
    }
}
