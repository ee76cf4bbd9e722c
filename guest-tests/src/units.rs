//! Time in the two units a guest meets: TSC ticks and nanoseconds.
//!
//! Conversions go through 128-bit integers, so they are exact up to the last tick and never overflow on the way.

use core::fmt;

/// A count of TSC ticks: a point on the TSC, or a distance between two points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticks(pub u64);

/// A distance in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Ticks {
    /// The distance from `earlier` to here; zero when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The point that lies `distance` later (the TSC does not wrap within the life of a machine).
    #[must_use]
    pub const fn after(self, distance: Self) -> Self {
        Self(self.0.saturating_add(distance.0))
    }
}

impl fmt::Display for Ticks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The speed of a counter, in ticks a second. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickRate {
    hz: u64,
}

impl TickRate {
    /// A rate of `hz`; `None` for zero.
    #[must_use]
    pub const fn new(hz: u64) -> Option<Self> {
        if hz == 0 { None } else { Some(Self { hz }) }
    }

    /// The rate that stands in when nothing tells the true one.
    pub const GIGAHERTZ: Self = Self { hz: 1_000_000_000 };

    /// Ticks a second.
    #[must_use]
    pub const fn hz(self) -> u64 {
        self.hz
    }

    /// How long `ticks` last, rounded down.
    #[must_use]
    pub fn nanos(self, ticks: Ticks) -> Nanos {
        Nanos(scale(ticks.0, 1_000_000_000, self.hz))
    }

    /// How many ticks `nanos` last, rounded down.
    #[must_use]
    pub fn ticks(self, nanos: Nanos) -> Ticks {
        Ticks(scale(nanos.0, self.hz, 1_000_000_000))
    }

    /// Ticks in `micros` microseconds.
    #[must_use]
    pub fn micros(self, micros: u64) -> Ticks {
        Ticks(scale(micros, self.hz, 1_000_000))
    }

    /// Ticks in `millis` milliseconds.
    #[must_use]
    pub fn millis(self, millis: u64) -> Ticks {
        Ticks(scale(millis, self.hz, 1_000))
    }

    /// The nearest whole megahertz if it is within 1000 ppm (a short measurement knows no better), else the rate itself.
    #[must_use]
    pub fn settled(self) -> Self {
        const MEGA: u64 = 1_000_000;
        let nearest = self.hz.saturating_add(MEGA / 2) / MEGA * MEGA;
        if nearest != 0 && nearest.abs_diff(self.hz) <= self.hz / 1000 {
            Self { hz: nearest }
        } else {
            self
        }
    }
}

/// `value * times / by`, saturating; `by` is not zero at any caller.
fn scale(value: u64, times: u64, by: u64) -> u64 {
    let wide = u128::from(value) * u128::from(times) / u128::from(by.max(1));
    u64::try_from(wide).unwrap_or(u64::MAX)
}

/// How a one-shot LAPIC timer is set for a distance: the divider (a power of two, as its exponent) and the initial count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LapicCount {
    /// The divider is `1 << shift`; 0 to 7.
    pub shift: u8,
    /// The initial count, at least 1 (0 would stop the timer).
    pub count: u32,
}

impl LapicCount {
    /// The setting that fires no earlier than `distance` TSC ticks from now, with the finest divider that reaches so far;
    /// a distance beyond the coarsest one gives the longest that it can do.
    #[must_use]
    pub fn for_distance(distance: Ticks, tsc: TickRate, lapic: TickRate) -> Self {
        let wide = (u128::from(distance.0) * u128::from(lapic.hz))
            .div_ceil(u128::from(tsc.hz))
            .max(1);
        for shift in 0..=7u8 {
            if let Ok(count) = u32::try_from(wide.div_ceil(1 << shift)) {
                return Self { shift, count };
            }
        }
        Self {
            shift: 7,
            count: u32::MAX,
        }
    }

    /// The value of the divide configuration register (Intel SDM vol. 3, "Divide Configuration Register": bits 0, 1 and 3).
    #[must_use]
    pub const fn divide_register(self) -> u32 {
        match self.shift {
            0 => 0b1011,
            1 => 0b0000,
            2 => 0b0001,
            3 => 0b0010,
            4 => 0b0011,
            5 => 0b1000,
            6 => 0b1001,
            _ => 0b1010,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGA: TickRate = TickRate::GIGAHERTZ;

    fn rate(hz: u64) -> TickRate {
        TickRate::new(hz).expect("not zero")
    }

    #[test]
    fn conversions_are_exact_where_floats_are_not() {
        assert_eq!(
            rate(2_419_200_000).nanos(Ticks(2_419_200_000 * 3600)),
            Nanos(3600 * 1_000_000_000)
        );
        assert_eq!(rate(3_000_000_000).ticks(Nanos(1)), Ticks(3));
        assert_eq!(rate(1_193_182).nanos(Ticks(1)), Nanos(838));
        assert_eq!(rate(u64::MAX).ticks(Nanos(u64::MAX)), Ticks(u64::MAX));
        assert_eq!(GIGA.micros(10), Ticks(10_000));
        assert_eq!(GIGA.millis(2), Ticks(2_000_000));
        assert_eq!(TickRate::new(0), None);
    }

    #[test]
    fn a_measured_rate_settles_on_the_megahertz_but_not_farther() {
        assert_eq!(rate(1_000_412_345).settled(), GIGA);
        assert_eq!(rate(999_700_000).settled(), GIGA);
        assert_eq!(rate(24_500_000).settled(), rate(24_500_000));
        assert_eq!(rate(300).settled(), rate(300));
    }

    #[test]
    fn a_lapic_count_never_fires_early() {
        let hundred = rate(100_000_000);
        assert_eq!(
            LapicCount::for_distance(Ticks(10), GIGA, hundred),
            LapicCount { shift: 0, count: 1 }
        );
        assert_eq!(
            LapicCount::for_distance(Ticks(11), GIGA, hundred),
            LapicCount { shift: 0, count: 2 }
        );
        assert_eq!(
            LapicCount::for_distance(Ticks(0), GIGA, GIGA),
            LapicCount { shift: 0, count: 1 }
        );
    }

    #[test]
    fn long_distances_take_a_coarser_divider() {
        assert_eq!(
            LapicCount::for_distance(Ticks(1 << 32), GIGA, GIGA),
            LapicCount {
                shift: 1,
                count: 1 << 31
            }
        );
        assert_eq!(
            LapicCount::for_distance(Ticks(u64::MAX), GIGA, GIGA),
            LapicCount {
                shift: 7,
                count: u32::MAX
            }
        );
        let ten_seconds = LapicCount::for_distance(GIGA.millis(10_000), GIGA, GIGA);
        assert_eq!(
            ten_seconds,
            LapicCount {
                shift: 2,
                count: 2_500_000_000
            }
        );
        assert_eq!(ten_seconds.divide_register(), 0b0001);
    }

    #[test]
    fn distances_do_not_go_below_zero() {
        assert_eq!(Ticks(3).since(Ticks(5)), Ticks(0));
        assert_eq!(Ticks(3).after(Ticks(5)), Ticks(8));
    }
}
