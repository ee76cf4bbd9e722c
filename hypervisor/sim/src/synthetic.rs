//! Idle traces made from a seed.

use crate::rng::Rng;
use crate::trace::{Cause, Idle, Trace};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The kinds of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing but timers, of several periods.
    Timers,
    /// Events at random, with this mean distance in us, and a timer every 10 ms.
    Poisson(u64),
    /// Trains of short idle periods, with long pauses between them.
    Bursty,
    /// Short or long, at random.
    Bimodal,
    /// Each of several behaviours for a while.
    Phases,
    /// Events at a fixed distance with some jitter, under a far timer.
    Steady,
    /// Timers, and now and then a device before them.
    Mixed,
}

impl Kind {
    /// One of each.
    pub const ALL: [Self; 10] = [
        Self::Timers,
        Self::Poisson(20),
        Self::Poisson(200),
        Self::Poisson(2_000),
        Self::Poisson(20_000),
        Self::Bursty,
        Self::Bimodal,
        Self::Phases,
        Self::Steady,
        Self::Mixed,
    ];

    /// As the table shows it.
    pub fn name(self) -> String {
        match self {
            Kind::Timers => "timers".to_owned(),
            Kind::Poisson(mean) => format!("poisson-{mean}us"),
            Kind::Bursty => "bursty".to_owned(),
            Kind::Bimodal => "bimodal".to_owned(),
            Kind::Phases => "phases".to_owned(),
            Kind::Steady => "steady".to_owned(),
            Kind::Mixed => "mixed".to_owned(),
        }
    }

    /// A trace of this kind with so many rows.
    pub fn trace(self, seed: u64, rows: usize) -> Trace {
        let mut maker = Maker {
            rng: Rng::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            rows: Vec::with_capacity(rows),
            now: 0,
        };
        while maker.rows.len() < rows {
            maker.some(self);
        }
        maker.rows.truncate(rows);
        Trace {
            name: self.name(),
            rows: maker.rows,
        }
    }
}

struct Maker {
    rng: Rng,
    rows: Vec<Idle>,
    now: u64,
}

impl Maker {
    fn some(&mut self, kind: Kind) {
        match kind {
            Kind::Timers => {
                let period = [100 * US, 250 * US, MS, 4 * MS, 10 * MS][self.pick(5)];
                for _ in 0..self.rng.between(50, 200) {
                    let timer = self.rng.between(period / 2, period);
                    self.push(u64::MAX, Some(timer));
                }
            }
            Kind::Poisson(mean) => {
                let event = self.rng.exponential(mean * US);
                self.push(event, self.periodic(10 * MS));
            }
            Kind::Bursty => {
                for _ in 0..self.rng.between(5, 60) {
                    let event = self.rng.exponential(30 * US);
                    self.push(event, self.periodic(100 * MS));
                }
                let pause = self.rng.between(2 * MS, 30 * MS);
                self.push(pause, self.periodic(100 * MS));
            }
            Kind::Bimodal => {
                let event = if self.rng.one_in(3) {
                    self.rng.between(3 * MS, 8 * MS)
                } else {
                    self.rng.between(40 * US, 80 * US)
                };
                self.push(event, self.periodic(50 * MS));
            }
            Kind::Phases => {
                let kinds = [
                    Kind::Timers,
                    Kind::Poisson(50),
                    Kind::Poisson(3_000),
                    Kind::Bimodal,
                    Kind::Steady,
                ];
                let kind = kinds[self.pick(kinds.len())];
                let until = self.rows.len() + self.rng.between(100, 400) as usize;
                while self.rows.len() < until {
                    self.some(kind);
                }
            }
            Kind::Steady => {
                let distance = [60 * US, 300 * US, 900 * US, 3 * MS][self.pick(4)];
                for _ in 0..self.rng.between(200, 600) {
                    let jitter = self.rng.between(0, distance / 5);
                    self.push(distance - distance / 10 + jitter, self.periodic(1_000 * MS));
                }
            }
            Kind::Mixed => {
                let timer = self.rng.between(200 * US, 4 * MS);
                let event = self.rng.exponential(5 * MS);
                self.push(event, Some(timer));
            }
        }
    }

    fn pick(&mut self, n: usize) -> usize {
        self.rng.between(0, n as u64 - 1) as usize
    }

    /// The distance to the next multiple of `period`.
    fn periodic(&self, period: u64) -> Option<u64> {
        Some(period - self.now % period)
    }

    fn push(&mut self, event: u64, timer: Option<u64>) {
        let busy = self.rng.between(5 * US, 60 * US);
        let (length, cause) = match timer {
            Some(timer) if timer <= event => (timer, Cause::Timer),
            _ if self.rng.one_in(2) => (event, Cause::Remote),
            _ => (event, Cause::Device),
        };
        self.now += length + busy;
        self.rows.push(Idle {
            length,
            timer,
            cause,
            busy,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_trace_and_no_period_outlasts_its_timer() {
        for kind in Kind::ALL {
            let trace = kind.trace(7, 500);
            assert_eq!(trace.rows.len(), 500, "{kind:?}");
            assert_eq!(trace.rows, kind.trace(7, 500).rows);
            assert_ne!(trace.rows, kind.trace(8, 500).rows);
            for row in &trace.rows {
                assert!(row.length > 0 && row.timer.is_none_or(|timer| row.length <= timer));
                assert_eq!(row.timer == Some(row.length), row.cause == Cause::Timer);
            }
        }
    }
}
