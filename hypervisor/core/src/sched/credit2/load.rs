//! How much of the last second there was something to run: an exponential average over a window of 2^20 µs.
//!
//! ```text
//! average += (load - average) × passed / window
//! ```
//!
//! Loads are in fixed point: one runnable unit is 2^18.

use crate::units::Ticks;

/// log2 of the window.
const WINDOW: u32 = 20;
/// log2 of one unit of load.
pub(super) const PRECISION: u32 = 18;

/// An average of a load that changes in steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// What there is now: runnable units.
    pub now: i64,
    /// What there was on average, in units of 2^-18.
    pub average: i64,
    /// Up to when that is true, in about microseconds.
    at: u64,
}

impl Load {
    pub const fn new(average: i64, at: u64) -> Self {
        Self {
            now: 0,
            average,
            at,
        }
    }

    /// When it was last brought up to date.
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// Brings it up to `at`; then the load changes.
    ///
    /// A time that goes back counts as no time.
    pub fn update(&mut self, at: u64, change: i64) {
        let passed = at.saturating_sub(self.at);
        self.at = self.at.max(at);
        let full = self.now << PRECISION;
        if passed > 1 << WINDOW {
            self.average = full;
        } else {
            // At most 2^20 × (65 536 units in 2^18): fits.
            let passed = passed as i64;
            self.average += ((passed * full) >> WINDOW) - ((passed * self.average) >> WINDOW);
        }
        self.now = (self.now + change).max(0);
    }

    /// In percent of one unit.
    pub fn percent(average: i64) -> u32 {
        u32::try_from((average * 100) >> PRECISION).unwrap_or(0)
    }
}

/// A stamp in about microseconds.
pub(super) const fn stamp(now: Ticks, shift: u32) -> u64 {
    now.get() >> shift
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: i64 = 1 << PRECISION;

    #[test]
    fn half_of_the_time_is_half_of_the_load() {
        let mut load = Load::default();
        for period in 0..4000_u64 {
            load.update(period * 2000, 1);
            load.update(period * 2000 + 1000, -1);
        }
        assert!(
            (load.average - ONE / 2).abs() < ONE / 50,
            "{}",
            load.average
        );
        assert_eq!(Load::percent(ONE), 100);
    }

    #[test]
    fn after_a_whole_window_only_now_counts() {
        let mut load = Load::new(7 * ONE, 0);
        load.update(0, 3);
        load.update(2_000_000, 0);
        assert_eq!(load.average, 3 * ONE);
        load.update(1_000_000, 0);
        assert_eq!(load.average, 3 * ONE, "time does not go back");
    }

    proptest! {
        #[test]
        fn a_load_is_never_negative_nor_more_than_there_was(steps in prop::collection::vec((0_u64..3_000_000, any::<bool>()), 0..200)) {
            let (mut load, mut at) = (Load::default(), 0);
            for (passed, up) in steps {
                at += passed;
                load.update(at, if up && load.now < 50 { 1 } else { -1 });
                prop_assert!(load.now >= 0 && load.average >= 0 && load.average <= 50 * ONE, "{load:?}");
            }
        }
    }
}
