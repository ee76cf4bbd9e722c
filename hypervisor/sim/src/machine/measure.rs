//! What the guests notice: how late wakes are, and how long they wait for what they want.

use super::load::Kind;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Times, as a distribution.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    #[expect(
        clippy::expect_used,
        reason = "three digits are within the bounds of the library"
    )]
    fn default() -> Self {
        Self(Histogram::new(3).expect("a histogram of three digits"))
    }
}

impl Times {
    /// One more, in ns.
    pub fn add(&mut self, time: u64) {
        // It grows as needed: it cannot fail.
        let _: Result<(), hdrhistogram::RecordError> = self.0.record(time);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that this many percent do not exceed, in ns.
    pub fn percentile(&self, percent: f64) -> u64 {
        self.0.value_at_quantile(percent / 100.0)
    }

    /// The mean, in ns.
    pub fn mean(&self) -> f64 {
        self.0.mean()
    }

    /// The longest, in ns.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    fn all(&mut self, other: &Self) {
        // Both have the same digits, and grow: it cannot fail.
        let _: Result<(), hdrhistogram::AdditionError> = self.0.add(&other.0);
    }
}

/// All measurements of a run.
#[derive(Clone, Debug, Default)]
pub struct Measures {
    /// From the kick of a blocked vCPU to the door of the guest.
    pub wakes: BTreeMap<Kind, Times>,
    /// What each kind measures: how late ticks are, how long requests take, rounds of a pair, waits for a lock.
    pub responses: BTreeMap<Kind, Times>,
}

impl Measures {
    /// A wake took so long, in ns.
    pub fn wake(&mut self, kind: Kind, time: u64) {
        self.wakes.entry(kind).or_default().add(time);
    }

    /// A program measured this, in ns.
    pub fn response(&mut self, kind: Kind, time: u64) {
        self.responses.entry(kind).or_default().add(time);
    }

    /// The wakes of all kinds.
    pub fn all_wakes(&self) -> Times {
        self.wakes
            .values()
            .fold(Times::default(), |mut all, times| {
                all.all(times);
                all
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_kinds_together() {
        let mut measures = Measures::default();
        for time in 1..=100 {
            let kind = if time % 2 == 0 {
                Kind::Server
            } else {
                Kind::Lock
            };
            measures.wake(kind, time * 1000);
        }
        let all = measures.all_wakes();
        assert_eq!(all.count(), 100);
        assert!(all.percentile(50.0).abs_diff(50_000) <= 100);
        assert!(all.max().abs_diff(100_000) <= 100);
        assert_eq!(measures.wakes[&Kind::Lock].count(), 50);
    }
}
