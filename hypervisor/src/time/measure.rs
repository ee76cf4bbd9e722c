//! Measuring one counter by another: how fast the TSC runs, from a clock of known rate.
//!
//! Pure. A counter's value is known best at the moment it changes, so a span is taken from one change to another,
//! and both ends are bracketed by TSC readings. The result is an interval that the true rate cannot leave,
//! however long an outer hypervisor held the CPU in between: being held widens it, and then we try again.

/// A counter that counts up at a steady rate.
pub trait Counter {
    /// Its value now, within [`mask`](Self::mask).
    fn read(&self) -> u64;
    /// The bits that it has; it wraps to zero behind them.
    fn mask(&self) -> u64;
}

/// A rate in Hz as a fraction, so that odd crystals stay exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Numerator, in Hz.
    pub numerator: u64,
    /// Denominator, not zero.
    pub denominator: u64,
}

impl Rate {
    /// Ticks in `micros` microseconds, at least one.
    pub fn ticks_in_micros(self, micros: u64) -> u64 {
        let ticks = u128::from(self.numerator) * u128::from(micros)
            / 1_000_000
            / u128::from(self.denominator.max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX).max(1)
    }
}

/// When a measurement has lasted long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// So many ticks of the counter.
    Counter(u64),
    /// So many ticks of the TSC.
    Tsc(u64),
}

/// A span between two changes of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Ticks of the counter, exact.
    pub counter: u64,
    /// The TSC ticks of the same span are not fewer than this.
    pub tsc_min: u64,
    /// And not more than this.
    pub tsc_max: u64,
}

/// A frequency in Hz, known to lie in a closed interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Lower bound.
    pub min: u64,
    /// Upper bound.
    pub max: u64,
}

/// Reads of a counter without a change after which it counts as dead. A PM timer read takes about 1 us on hardware,
/// and the slowest counter (PIT) ticks every 0.84 us.
const DEAD_AFTER: u32 = 20_000;
/// How many changes are looked at for the one with the narrowest bracket.
const CHANGES: u32 = 4;
/// Measurements are repeated until their uncertainty is below this, in parts per million ...
const GOOD_PPM: u64 = 100;
/// ... but not more often than this.
const REPEATS: u32 = 3;

struct Change {
    value: u64,
    not_before: u64,
    not_after: u64,
}

fn change(counter: &impl Counter, tsc: &impl Fn() -> u64) -> Option<Change> {
    let mut not_before = tsc();
    let old = counter.read();
    for _ in 0..DEAD_AFTER {
        let between = tsc();
        let value = counter.read();
        let not_after = tsc();
        if value != old {
            return Some(Change {
                value,
                not_before,
                not_after,
            });
        }
        not_before = between;
    }
    None
}

fn best_change(counter: &impl Counter, tsc: &impl Fn() -> u64) -> Option<Change> {
    let mut best: Option<Change> = None;
    for _ in 0..CHANGES {
        let next = change(counter, tsc)?;
        let width = |c: &Change| c.not_after.saturating_sub(c.not_before);
        if best.as_ref().is_none_or(|b| width(&next) < width(b)) {
            best = Some(next);
        }
    }
    best
}

fn span(counter: &impl Counter, tsc: &impl Fn() -> u64, until: Until) -> Option<Span> {
    let start = best_change(counter, tsc)?;
    let elapsed = |value: u64| value.wrapping_sub(start.value) & counter.mask();
    loop {
        let now = change(counter, tsc)?;
        let enough = match until {
            Until::Counter(ticks) => elapsed(now.value) >= ticks,
            Until::Tsc(ticks) => now.not_before.saturating_sub(start.not_after) >= ticks,
        };
        if enough {
            break;
        }
    }
    let end = best_change(counter, tsc)?;
    let span = Span {
        counter: elapsed(end.value),
        tsc_min: end.not_before.saturating_sub(start.not_after),
        tsc_max: end.not_after.saturating_sub(start.not_before),
    };
    (span.counter != 0 && span.tsc_min != 0).then_some(span)
}

/// Measures a span of `counter`, a few times over if an outer hypervisor disturbs. `None` if the counter stands still.
///
/// The counter must not wrap more than once within the span, so `until` stays below half its range.
pub fn measure(counter: &impl Counter, tsc: impl Fn() -> u64, until: Until) -> Option<Span> {
    let ppm = |s: &Span| (s.tsc_max - s.tsc_min).saturating_mul(1_000_000) / s.tsc_max.max(1);
    let mut best: Option<Span> = None;
    for _ in 0..REPEATS {
        let next = span(counter, &tsc, until)?;
        if best.as_ref().is_none_or(|b| ppm(&next) < ppm(b)) {
            best = Some(next);
        }
        if best.as_ref().is_some_and(|b| ppm(b) <= GOOD_PPM) {
            break;
        }
    }
    best
}

impl Span {
    /// The rate of the TSC, from the known rate of the counter.
    pub fn tsc_hz(&self, counter: Rate) -> Bounds {
        let scale = |tsc: u64| {
            u128::from(tsc) * u128::from(counter.numerator)
                / (u128::from(counter.denominator.max(1)) * u128::from(self.counter.max(1)))
        };
        bounds(scale(self.tsc_min), scale(self.tsc_max) + 1)
    }

    /// The rate of the counter, from the known rate of the TSC.
    pub fn counter_hz(&self, tsc_hz: u64) -> Bounds {
        let scale =
            |tsc: u64| u128::from(self.counter) * u128::from(tsc_hz) / u128::from(tsc.max(1));
        bounds(scale(self.tsc_max), scale(self.tsc_min) + 1)
    }
}

fn bounds(min: u128, max: u128) -> Bounds {
    let clamp = |v: u128| u64::try_from(v).unwrap_or(u64::MAX);
    Bounds {
        min: clamp(min).max(1),
        max: clamp(max).max(1),
    }
}

impl Bounds {
    /// The roundest frequency that the measurement cannot exclude: a whole number of the largest power of ten that
    /// has a multiple inside the bounds. Real clocks have round rates, and the answer never leaves what was measured.
    pub fn roundest(self) -> u64 {
        let middle = self.min / 2 + self.max / 2 + (self.min % 2 + self.max % 2) / 2;
        let mut step = 1_000_000_000;
        while step > 1 {
            // The multiple next to the middle, if it is inside.
            let below = middle - middle % step;
            let nearest = if middle % step >= step.div_ceil(2) {
                below.saturating_add(step)
            } else {
                below
            };
            if nearest >= self.min && nearest <= self.max {
                return nearest;
            }
            step /= 10;
        }
        middle
    }

    /// Whether `hz` differs from the bounds by more than `percent`.
    pub fn contradicts(self, hz: u64, percent: u64) -> bool {
        let slack = |v: u64| u128::from(v) * u128::from(percent) / 100;
        let hz = u128::from(hz);
        hz + slack(self.min) < u128::from(self.min) || hz > u128::from(self.max) + slack(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A machine with a TSC of `tsc_hz` and one counter; each access takes some TSC ticks.
    struct Machine {
        tsc: Cell<u64>,
        tsc_hz: u64,
        rate: Rate,
        mask: u64,
        start: u64,
        cost: u64,
        /// At these accesses the CPU is held for so many ticks.
        stalls: Vec<(u64, u64)>,
        accesses: Cell<u64>,
    }

    impl Machine {
        fn new(tsc_hz: u64, rate: Rate, mask: u64, start: u64, cost: u64) -> Self {
            Self {
                tsc: Cell::new(12_345),
                tsc_hz,
                rate,
                mask,
                start,
                cost,
                stalls: Vec::new(),
                accesses: Cell::new(0),
            }
        }
        fn step(&self) -> u64 {
            let n = self.accesses.get() + 1;
            self.accesses.set(n);
            let stall: u64 = self.stalls.iter().filter(|s| s.0 == n).map(|s| s.1).sum();
            self.tsc.set(self.tsc.get() + self.cost + stall);
            self.tsc.get()
        }
    }

    impl Counter for Machine {
        fn read(&self) -> u64 {
            let ticks = u128::from(self.step()) * u128::from(self.rate.numerator)
                / (u128::from(self.tsc_hz) * u128::from(self.rate.denominator));
            (self.start + ticks as u64) & self.mask
        }
        fn mask(&self) -> u64 {
            self.mask
        }
    }

    const PM: Rate = Rate {
        numerator: 3_579_545,
        denominator: 1,
    };
    const HPET: Rate = Rate {
        numerator: 1_000_000_000_000_000,
        denominator: 10_000_000,
    };

    fn rate_of(m: &Machine, micros: u64) -> Bounds {
        measure(
            m,
            || m.step(),
            Until::Counter(m.rate.ticks_in_micros(micros)),
        )
        .unwrap()
        .tsc_hz(m.rate)
    }

    #[test]
    fn one_gigahertz_by_hpet_is_exact() {
        let m = Machine::new(1_000_000_000, HPET, u64::MAX, 0, 5);
        let b = rate_of(&m, 5000);
        assert!(b.min <= 1_000_000_000 && 1_000_000_000 <= b.max, "{b:?}");
        assert!(b.max - b.min < 10_000, "{b:?}");
        assert_eq!(b.roundest(), 1_000_000_000);
    }

    #[test]
    fn pm_timer_wraps_at_24_bits() {
        let m = Machine::new(2_899_887_000, PM, 0xFF_FFFF, 0xFF_FF00, 400);
        let b = rate_of(&m, 5000);
        assert!(b.min <= 2_899_887_000 && 2_899_887_000 <= b.max, "{b:?}");
        assert!(b.roundest().abs_diff(2_899_887_000) < 1_000_000);
    }

    #[test]
    fn a_held_cpu_never_falsifies_the_bounds() {
        for at in (1..400).step_by(7) {
            let mut m = Machine::new(1_500_000_000, PM, 0xFF_FFFF, 77, 3000);
            m.stalls = vec![(at, 15_000_000), (at + 300, 3_000_000)];
            let b = rate_of(&m, 2000);
            assert!(
                b.min <= 1_500_000_000 && 1_500_000_000 <= b.max,
                "stall at {at}: {b:?}"
            );
        }
    }

    #[test]
    fn repeats_until_undisturbed() {
        let mut m = Machine::new(1_000_000_000, HPET, u64::MAX, 0, 5);
        m.stalls = (1..60).map(|i| (i, 500_000)).collect();
        let b = rate_of(&m, 1000);
        assert!(b.max - b.min < 100_000, "{b:?}");
    }

    #[test]
    fn a_dead_counter_is_noticed() {
        let m = Machine::new(
            1_000_000_000,
            Rate {
                numerator: 0,
                denominator: 1,
            },
            u64::MAX,
            5,
            1,
        );
        assert_eq!(measure(&m, || m.step(), Until::Counter(10)), None);
    }

    #[test]
    fn the_other_way_round_gives_the_counters_rate() {
        let m = Machine::new(
            2_000_000_000,
            Rate {
                numerator: 62_500_000,
                denominator: 1,
            },
            u64::MAX,
            0,
            60,
        );
        let b = measure(&m, || m.step(), Until::Tsc(4_000_000))
            .unwrap()
            .counter_hz(2_000_000_000);
        assert!(b.min <= 62_500_000 && 62_500_000 <= b.max, "{b:?}");
    }

    #[test]
    fn roundest_stays_inside() {
        assert_eq!(
            Bounds {
                min: 999_999_000,
                max: 1_000_000_400
            }
            .roundest(),
            1_000_000_000
        );
        assert_eq!(
            Bounds {
                min: 2_893_201_100,
                max: 2_893_202_900
            }
            .roundest(),
            2_893_202_000
        );
        assert_eq!(Bounds { min: 17, max: 17 }.roundest(), 17);
        assert_eq!(
            Bounds {
                min: u64::MAX,
                max: u64::MAX
            }
            .roundest(),
            u64::MAX
        );
    }

    #[test]
    fn contradiction_has_a_tolerance() {
        let b = Bounds {
            min: 990,
            max: 1010,
        };
        assert!(!b.contradicts(1000, 1));
        assert!(!b.contradicts(1020, 1));
        assert!(b.contradicts(1021, 1));
        assert!(b.contradicts(980, 1));
    }
}
