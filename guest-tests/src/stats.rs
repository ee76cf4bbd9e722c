//! The few statistics that a guest prints: count, least, mean, greatest.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A summary of many values; keeps no values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Summary {
    /// Of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }

    /// Takes one value in.
    pub fn add(&mut self, value: u64) {
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// How many values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The least value; 0 if there was none.
    #[must_use]
    pub const fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The greatest value; 0 if there was none.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The mean, rounded to the nearest; 0 if there was no value.
    #[must_use]
    pub fn mean(&self) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let count = u128::from(self.count);
        u64::try_from((self.sum + count / 2) / count).unwrap_or(u64::MAX)
    }
}

/// Up to `N` values, kept, for percentiles. In a `static`: a vCPU's stack is small. One vCPU adds and reads.
#[derive(Debug)]
pub struct Samples<const N: usize> {
    values: [AtomicU64; N],
    count: AtomicUsize,
}

impl<const N: usize> Samples<N> {
    /// None.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a `Default` cannot be const")]
    pub const fn new() -> Self {
        Self {
            values: [const { AtomicU64::new(0) }; N],
            count: AtomicUsize::new(0),
        }
    }

    /// Takes one value in; none above `N`.
    pub fn add(&self, value: u64) {
        let count = self.count.load(Ordering::Relaxed);
        if let Some(slot) = self.values.get(count) {
            slot.store(value, Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Relaxed);
        }
    }

    fn taken(&self) -> &[AtomicU64] {
        let count = self.count.load(Ordering::Relaxed);
        self.values.get(..count).unwrap_or_default()
    }

    /// Puts the values into order: before [`permille`](Self::permille). A Shell sort: in place, and short.
    pub fn sort(&self) {
        let values = self.taken();
        let mut gap = values.len() / 2;
        while gap > 0 {
            for end in gap..values.len() {
                let mut at = end;
                while at >= gap {
                    let (Some(low), Some(high)) = (values.get(at - gap), values.get(at)) else {
                        break;
                    };
                    let pair = (low.load(Ordering::Relaxed), high.load(Ordering::Relaxed));
                    if pair.0 <= pair.1 {
                        break;
                    }
                    low.store(pair.1, Ordering::Relaxed);
                    high.store(pair.0, Ordering::Relaxed);
                    at -= gap;
                }
            }
            gap /= 2;
        }
    }

    /// The least value that so many thousandths of all do not exceed; of 0 the least of all. 0 if there was none.
    #[must_use]
    pub fn permille(&self, permille: usize) -> u64 {
        let values = self.taken();
        let rank = (values.len() * permille).div_ceil(1000).max(1) - 1;
        let found = values.get(rank).or(values.last());
        found.map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// The mean, rounded to the nearest; 0 if there was no value.
    #[must_use]
    pub fn mean(&self) -> u64 {
        let mut summary = Summary::new();
        for value in self.taken() {
            summary.add(value.load(Ordering::Relaxed));
        }
        summary.mean()
    }
}

/// `part` of `whole` in thousandths, rounded to the nearest; 0 of nothing.
#[must_use]
pub fn permille(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    let whole = u128::from(whole);
    u64::try_from((u128::from(part) * 1000 + whole / 2) / whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_some_and_of_none() {
        let mut summary = Summary::new();
        assert_eq!((summary.min(), summary.mean(), summary.max()), (0, 0, 0));
        for value in [4, 9, 1] {
            summary.add(value);
        }
        assert_eq!(
            (
                summary.count(),
                summary.min(),
                summary.mean(),
                summary.max()
            ),
            (3, 1, 5, 9)
        );
        summary.add(u64::MAX);
        summary.add(u64::MAX);
        assert_eq!(summary.max(), u64::MAX);
    }

    #[test]
    fn samples_have_the_percentiles_of_what_came_in() {
        let samples = Samples::<100>::new();
        assert_eq!((samples.permille(500), samples.mean()), (0, 0));
        // 37 and 101 have no divisor in common: every number from 1 to 100 comes once, in no order.
        for number in 1..=100_u64 {
            samples.add(number * 37 % 101);
        }
        samples.sort();
        for (permille, value) in [
            (0, 1),
            (10, 1),
            (500, 50),
            (900, 90),
            (990, 99),
            (1000, 100),
        ] {
            assert_eq!(samples.permille(permille), value, "{permille}");
        }
        // (1 + 100) / 2, to the nearest; one too many is none.
        samples.add(1_000_000);
        assert_eq!(samples.mean(), 51);
    }

    #[test]
    fn permille_rounds() {
        assert_eq!(permille(1, 3), 333);
        assert_eq!(permille(2, 3), 667);
        assert_eq!(permille(5, 0), 0);
        assert_eq!(permille(u64::MAX, u64::MAX), 1000);
    }
}
