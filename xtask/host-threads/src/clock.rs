//! The clock of both threads: the time-stamp counter where it is one for all cores, else the system's.

use std::time::{Duration, Instant};

use super::instructions;

/// How long the rate is measured.
const CALIBRATION: Duration = Duration::from_millis(50);

/// A clock that both threads read.
pub struct Clock {
    since: Instant,
    /// Ticks of the time-stamp counter in a ns. None: the clock is the system's, and a tick is a ns.
    rate: Option<f64>,
}

/// The greatest.
fn common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 {
        one
    } else {
        common_divisor(other, one % other)
    }
}

impl Clock {
    /// Chooses, and measures the rate.
    pub fn choose() -> Self {
        let since = Instant::now();
        let rate = instructions::has_invariant_tsc().then(|| {
            let first = instructions::ticks();
            while since.elapsed() < CALIBRATION {
                std::hint::spin_loop();
            }
            let (last, took) = (instructions::ticks(), since.elapsed());
            last.wrapping_sub(first) as f64 / took.as_nanos() as f64
        });
        Self { since, rate }
    }

    /// The time, in ticks.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.rate.is_some() {
            instructions::ticks()
        } else {
            self.since.elapsed().as_nanos() as u64
        }
    }

    /// What reading it takes, in ticks: the median of many.
    pub fn overhead(&self) -> u64 {
        let mut empty: Vec<u64> = (0..1001)
            .map(|_| {
                let began = self.now();
                self.now().saturating_sub(began)
            })
            .collect();
        empty.sort_unstable();
        empty.get(empty.len() / 2).copied().unwrap_or(0)
    }

    /// By what it advances, in ticks: some counters are read in steps.
    pub fn step(&self) -> u64 {
        let mut last = self.now();
        let steps = (0..1001).map(|_| {
            let now = self.now();
            let step = now.saturating_sub(last);
            last = now;
            step
        });
        steps.fold(0, common_divisor)
    }

    /// So many ticks in ns.
    pub fn nanos(&self, ticks: f64) -> f64 {
        ticks / self.rate.unwrap_or(1.0)
    }

    /// Ticks of the time-stamp counter in a ns, if that is the clock.
    pub fn tsc_rate(&self) -> Option<f64> {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_divides_all_differences() {
        assert_eq!([52, 78, 104, 26].into_iter().fold(0, common_divisor), 26);
        assert_eq!([52, 79].into_iter().fold(0, common_divisor), 1);
        assert_eq!([0, 0].into_iter().fold(0, common_divisor), 0);
    }
}
