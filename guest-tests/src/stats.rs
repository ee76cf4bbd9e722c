//! The few statistics that a guest prints: count, least, mean, greatest.

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
    fn permille_rounds() {
        assert_eq!(permille(1, 3), 333);
        assert_eq!(permille(2, 3), 667);
        assert_eq!(permille(5, 0), 0);
        assert_eq!(permille(u64::MAX, u64::MAX), 1000);
    }
}
