//! What the TSC must be set to after a sleep in which it may have stopped.
//!
//! Right before the sleep and right after it, the TSC and a platform timer that runs on are read together, as one
//! [`ClockPair`]. How far the platform timer has come says how far the TSC should have.
//!
//! Reading two clocks takes time, and so does writing one: each restoring is off by a little, mostly to the same side, and a CPU may
//! sleep thousands of times a second. So the errors must not add up. Each CPU keeps an [`Anchor`], an old pair: the pair before the
//! next sleep shows how far the TSC has come off it since, and the restoring behind that sleep makes up for it. That makes good
//! what restoring did, and no more: where the TSC's rate is not quite what it is taken for, a CPU that was awake for long has come
//! off by more than [`MOST_MADE_GOOD`], and the anchor gives way.
//!
//! Pure. The image reads the clocks and writes the TSC, before it takes its exit stamp: so nothing sees the TSC stand still.

use crate::units::{Nanos, TickRate, Ticks};

/// Two clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPair {
    /// The TSC.
    pub tsc: Ticks,
    /// The platform timer.
    pub platform: u64,
}

/// By so much at most a restoring corrects what the ones before it did. More than writing a TSC takes anywhere; and the clock
/// of a CPU whose TSC is ahead stands still for no longer than that.
pub const MOST_MADE_GOOD: Nanos = Nanos::new(25_000);

/// What the TSC of one CPU is held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor(Option<ClockPair>);

impl Anchor {
    /// For a CPU that has not slept yet.
    pub const NONE: Self = Self(None);

    /// An anchor that was taken apart by [`pair`](Self::pair).
    pub const fn of(pair: Option<ClockPair>) -> Self {
        Self(pair)
    }

    /// The pair; `None` before the first sleep.
    pub const fn pair(&self) -> Option<ClockPair> {
        self.0
    }

    /// What to [restore](PlatformTimer::restored) from behind the sleep before which `now` was read: the pair with the TSC as it
    /// should be.
    pub fn before_sleep(&mut self, timer: &PlatformTimer, now: ClockPair) -> ClockPair {
        let Some(anchor) = self.0 else {
            self.0 = Some(now);
            return now;
        };
        let should = anchor.tsc + timer.elapsed(anchor, now);
        let most = timer.tsc.ticks(MOST_MADE_GOOD) + timer.to_tsc(2);
        let near = should.clamp(now.tsc - most, now.tsc + most);
        let pair = ClockPair { tsc: near, ..now };
        if near != should {
            self.0 = Some(pair);
        }
        pair
    }
}

/// A platform timer that counts on in every C-state that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlatformTimer {
    /// Ticks in `period` seconds: the rate as a fraction, since it is no whole number for some.
    ticks: u64,
    period: u64,
    /// All ones in as many bits as it has.
    mask: u64,
    tsc: TickRate,
}

impl PlatformTimer {
    /// A timer that makes `ticks` in `period` seconds, and wraps behind `mask`. `None` for a rate of zero, or a mask that is
    /// none.
    pub const fn new(ticks: u64, period: u64, mask: u64, tsc: TickRate) -> Option<Self> {
        if ticks == 0 || period == 0 || mask == 0 || mask & mask.wrapping_add(1) != 0 {
            return None;
        }
        Some(Self {
            ticks,
            period,
            mask,
            tsc,
        })
    }

    /// What the TSC must be set to; `None` if it has not stopped, as far as the platform timer can tell.
    ///
    /// What comes out is later than the TSC reads now: it never goes back.
    #[must_use]
    pub fn restored(&self, before: ClockPair, after: ClockPair) -> Option<Ticks> {
        let passed = after.platform.wrapping_sub(before.platform) & self.mask;
        let expected = before.tsc + self.to_tsc(passed);
        // Each reading is rounded down to the timer's grain.
        let grain = self.to_tsc(2);
        (expected > after.tsc + grain).then_some(expected)
    }

    /// The longest sleep after which the answer is still true: half of the timer's range.
    pub fn longest(&self) -> Nanos {
        let half = u128::from(self.mask / 2);
        let nanos = half * 1_000_000_000 * u128::from(self.period) / u128::from(self.ticks);
        Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Platform ticks in TSC ticks, rounded down.
    pub fn to_tsc(&self, ticks: u64) -> Ticks {
        Ticks::new(u64::try_from(self.in_tsc(ticks.into())).unwrap_or(u64::MAX))
    }

    /// How long it took from one pair to another in TSC ticks, by the platform timer, given that the TSC is not off by more than
    /// half of the timer's range.
    pub fn elapsed(&self, first: ClockPair, last: ClockPair) -> Ticks {
        let passed = last.platform.wrapping_sub(first.platform) & self.mask;
        let (by_tsc, short) = (last.tsc - first.tsc, self.to_tsc(passed));
        let range = u128::from(self.mask) + 1;
        let range_in_tsc = self.in_tsc(range).max(1);
        let wraps = (u128::from((by_tsc - short).get()) + range_in_tsc / 2) / range_in_tsc;
        let whole = wraps.saturating_mul(range).saturating_add(passed.into());
        Ticks::new(u64::try_from(self.in_tsc(whole)).unwrap_or(u64::MAX))
    }

    fn in_tsc(&self, ticks: u128) -> u128 {
        ticks.saturating_mul(u128::from(self.tsc.hz()) * u128::from(self.period))
            / u128::from(self.ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GHZ: TickRate = match TickRate::from_hz(3_000_000_000) {
        Some(rate) => rate,
        None => panic!(),
    };

    fn pair(tsc: u64, platform: u64) -> ClockPair {
        ClockPair {
            tsc: Ticks::new(tsc),
            platform,
        }
    }

    /// ACPI's PM timer, 24 bits.
    fn pm() -> PlatformTimer {
        PlatformTimer::new(3_579_545, 1, 0xFF_FFFF, GHZ).unwrap()
    }

    #[test]
    fn a_tsc_that_stopped_is_set_to_what_it_should_be() {
        // 3 579 545 ticks are a second.
        let restored = pm().restored(pair(1000, 5), pair(1200, 3_579_550));
        assert_eq!(restored, Some(Ticks::new(3_000_001_000)));
        // Over the end of the counter.
        let restored = pm().restored(pair(1000, 0xFF_FFFE), pair(1000, 3_579_543));
        assert_eq!(restored, Some(Ticks::new(3_000_001_000)));
    }

    #[test]
    fn a_tsc_that_ran_on_is_left_alone() {
        assert_eq!(
            pm().restored(pair(0, 0), pair(3_000_000_000, 3_579_545)),
            None
        );
        // The readings are rounded: a tick of the PM timer is 838 of the TSC.
        assert_eq!(pm().restored(pair(0, 0), pair(1000, 2)), None);
        assert_eq!(pm().restored(pair(5000, 7), pair(5010, 7)), None);
    }

    #[test]
    fn how_long_one_may_sleep() {
        assert_eq!(pm().longest().get() / 1_000_000, 2_343);
        let hpet = PlatformTimer::new(100_000_000, 1, 0xFFFF_FFFF, GHZ).unwrap();
        assert_eq!(hpet.longest().get() / 1_000_000_000, 21);
    }

    #[test]
    fn what_a_restoring_was_off_by_is_made_good_by_the_next() {
        let timer = PlatformTimer::new(100_000_000, 1, 0xFFFF_FFFF, GHZ).unwrap();
        let mut anchor = Anchor::NONE;
        let at = |micros: u64| micros * 100;
        assert_eq!(
            anchor.before_sleep(&timer, pair(3000, at(1))),
            pair(3000, at(1))
        );
        // 9 us later by the timer, 2 us less by the TSC.
        assert_eq!(
            anchor.before_sleep(&timer, pair(24_000, at(10))),
            pair(30_000, at(10))
        );
        // And ahead.
        assert_eq!(
            anchor.before_sleep(&timer, pair(63_000, at(20))),
            pair(60_000, at(20))
        );
        assert_eq!(anchor.pair(), Some(pair(3000, at(1))));
    }

    #[test]
    fn a_tsc_whose_rate_is_not_quite_known_is_followed() {
        // 100 parts in a million too fast; awake for a second between sleeps: it comes off by 100 us.
        let timer = PlatformTimer::new(100_000_000, 1, 0xFFFF_FFFF, GHZ).unwrap();
        let mut anchor = Anchor::NONE;
        for second in 1..100 {
            let tsc = second * 3_000_300_000;
            let before = anchor.before_sleep(&timer, pair(tsc, second * 100_000_000));
            // No more than 25 us are taken off, and the grain: it would stand still for so long.
            let behind = tsc - before.tsc.get();
            assert!((0..=75_060).contains(&behind), "{behind}");
            assert_eq!(behind > 0, second > 1);
        }
    }

    #[test]
    fn an_anchor_holds_over_many_wraps_of_the_timer() {
        let mut anchor = Anchor::NONE;
        // An hour, in steps in which the timer of 24 bits wraps unseen.
        for tens in 0..360_u64 {
            let now = pair(1 + tens * 30_000_000_000, (tens * 35_795_450) & 0xFF_FFFF);
            let before = anchor.before_sleep(&pm(), now);
            assert!(before.tsc.abs_diff(now.tsc) <= Ticks::new(1), "{before:?}");
        }
        assert_eq!(anchor.pair(), Some(pair(1, 0)));
    }

    #[test]
    fn what_is_no_timer_is_refused() {
        for (ticks, period, mask) in [(0, 1, 0xFF), (1, 0, 0xFF), (1, 1, 0), (1, 1, 0xF0)] {
            assert_eq!(PlatformTimer::new(ticks, period, mask, GHZ), None);
        }
        assert!(PlatformTimer::new(1, 1, u64::MAX, GHZ).is_some());
    }

    #[test]
    fn a_whole_run_is_checked_over_many_wraps() {
        // Ten seconds, twice around: the TSC is 3 us behind.
        let ticks = 35_795_450 & 0xFF_FFFF;
        let elapsed = pm().elapsed(pair(0, 0), pair(30_000_000_000 - 9_000, ticks));
        assert!(
            elapsed.abs_diff(Ticks::new(30_000_000_000)) < Ticks::new(2_000),
            "{elapsed}"
        );
    }

    proptest! {
        #[test]
        fn it_never_goes_back(
            before in (0..u64::MAX / 4, any::<u64>()),
            ran in 0..u64::MAX / 4,
            platform: u64,
            ticks in 1..5_000_000_000_u64,
            bits in 1..64_u32,
        ) {
            let timer = PlatformTimer::new(ticks, 3, (1 << bits) - 1, GHZ).unwrap();
            let (before, after) = (pair(before.0, before.1), pair(before.0 + ran, platform));
            if let Some(restored) = timer.restored(before, after) {
                prop_assert!(restored > after.tsc);
            }
        }

        /// However a TSC stops in each of many sleeps, and however late each restoring is written: it is never further from the
        /// truth than by one of them, and by the timer's grain.
        #[test]
        fn many_sleeps_stay_true(
            sleeps in proptest::collection::vec(
                (0..2_000_000_000_u64, 0..=100_u64, 0..50_000_u64, 0..10_000_u64), 1..200),
            start: u32,
        ) {
            let timer = pm();
            let mut anchor = Anchor::NONE;
            // Truth, in TSC ticks; the platform timer shows it rounded down.
            let platform = |truth: u64| {
                let ticks = u128::from(truth) * 3_579_545 / 3_000_000_000;
                (ticks as u64).wrapping_add(u64::from(start)) & 0xFF_FFFF
            };
            let (mut truth, mut tsc) = (0, 0);
            for (index, (slept, percent, awake, late)) in sleeps.into_iter().enumerate() {
                let before = anchor.before_sleep(&timer, pair(tsc, platform(truth)));
                truth += slept;
                // It ran for a part of the sleep only.
                tsc += slept * percent / 100;
                let after = pair(tsc, platform(truth));
                if let Some(restored) = timer.restored(before, after) {
                    prop_assert!(restored.get() > tsc);
                    tsc = restored.get();
                    // It is written a little after it was computed, as if for that moment.
                    truth += late;
                }
                let most = 10_000 + 840 * 6;
                prop_assert!(truth.abs_diff(tsc) <= most, "{} off after {index}", truth.abs_diff(tsc));
                truth += awake;
                tsc += awake;
            }
        }
    }
}
