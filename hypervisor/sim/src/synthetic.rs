//! Idle traces made from a seed.

use crate::rng::Rng;
use crate::trace::{Cause, Idle, Trace};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The figures that traces are made with. Times in ns; a pair is a range, both ends in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Periods of timers.
    timers: [u64; 5],
    /// Mean distances of events that come at random, shortest first.
    poisson: [u64; 4],
    /// The timer behind those.
    poisson_timer: u64,
    /// How many short idle periods a train has.
    train: (u64, u64),
    /// Their mean.
    short: u64,
    /// From one train to the next.
    pause: (u64, u64),
    /// One in so many is long, where they are short or long at random.
    long_one_in: u64,
    /// Long, and short.
    bimodal: [(u64, u64); 2],
    /// Mean distances of events with some jitter.
    steady: [u64; 4],
    /// The range of the mixed trace's timers.
    mixed: (u64, u64),
    /// The mean distance of its events.
    mixed_events: u64,
}

impl Figures {
    /// The ones that the first traces were made with.
    pub const FIRST: Self = Self {
        timers: [100 * US, 250 * US, MS, 4 * MS, 10 * MS],
        poisson: [20 * US, 200 * US, 2 * MS, 20 * MS],
        poisson_timer: 10 * MS,
        train: (5, 60),
        short: 30 * US,
        pause: (2 * MS, 30 * MS),
        long_one_in: 3,
        bimodal: [(3 * MS, 8 * MS), (40 * US, 80 * US)],
        steady: [60 * US, 300 * US, 900 * US, 3 * MS],
        mixed: (200 * US, 4 * MS),
        mixed_events: 5 * MS,
    };

    /// Others: each of the first ones times something between a third and three, drawn from `seed`.
    pub fn drawn(seed: u64) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0xD134_2543_DE82_EF95));
        let mut drawn = |figure: u64| {
            let factor = rng.between(0, 2_000);
            let stretched = figure * (1_000 + factor) / 1_000;
            if rng.one_in(2) {
                stretched
            } else {
                figure * 1_000 / (1_000 + factor)
            }
        };
        let first = Self::FIRST;
        let mut range = |(low, high): (u64, u64)| {
            let (a, b) = (drawn(low).max(1), drawn(high).max(1));
            (a.min(b), a.max(b))
        };
        let (train, pause, mixed) = (range(first.train), range(first.pause), range(first.mixed));
        let bimodal = first.bimodal.map(range);
        Self {
            timers: first.timers.map(&mut drawn),
            poisson: first.poisson.map(&mut drawn),
            poisson_timer: drawn(first.poisson_timer),
            train,
            short: drawn(first.short),
            pause,
            long_one_in: drawn(2 * first.long_one_in).max(2),
            bimodal,
            steady: first.steady.map(&mut drawn),
            mixed,
            mixed_events: drawn(first.mixed_events),
        }
    }
}

/// The kinds of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing but timers, of several periods.
    Timers,
    /// Events at random, with the mean distance of this index, and a timer behind them.
    Poisson(usize),
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
        Self::Poisson(0),
        Self::Poisson(1),
        Self::Poisson(2),
        Self::Poisson(3),
        Self::Bursty,
        Self::Bimodal,
        Self::Phases,
        Self::Steady,
        Self::Mixed,
    ];

    /// As the table shows it.
    fn name(self, figures: &Figures) -> String {
        match self {
            Kind::Timers => "timers".to_owned(),
            Kind::Poisson(index) => format!("poisson-{}us", figures.poisson[index] / US),
            Kind::Bursty => "bursty".to_owned(),
            Kind::Bimodal => "bimodal".to_owned(),
            Kind::Phases => "phases".to_owned(),
            Kind::Steady => "steady".to_owned(),
            Kind::Mixed => "mixed".to_owned(),
        }
    }

    /// A trace of this kind with so many rows.
    pub fn trace(self, figures: &Figures, seed: u64, rows: usize) -> Trace {
        let mut maker = Maker {
            figures,
            rng: Rng::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            rows: Vec::with_capacity(rows),
            now: 0,
        };
        while maker.rows.len() < rows {
            maker.some(self);
        }
        maker.rows.truncate(rows);
        Trace {
            name: self.name(figures),
            rows: maker.rows,
        }
    }
}

struct Maker<'a> {
    figures: &'a Figures,
    rng: Rng,
    rows: Vec<Idle>,
    now: u64,
}

impl Maker<'_> {
    fn some(&mut self, kind: Kind) {
        let figures = self.figures;
        match kind {
            Kind::Timers => {
                let period = figures.timers[self.pick(5)];
                for _ in 0..self.rng.between(50, 200) {
                    let timer = self.rng.between(period / 2, period);
                    self.push(u64::MAX, Some(timer));
                }
            }
            Kind::Poisson(index) => self.random(figures.poisson[index]),
            Kind::Bursty => {
                for _ in 0..self.rng.between(figures.train.0, figures.train.1) {
                    let event = self.rng.exponential(figures.short);
                    self.push(event, self.periodic(100 * MS));
                }
                let pause = self.rng.between(figures.pause.0, figures.pause.1);
                self.push(pause, self.periodic(100 * MS));
            }
            Kind::Bimodal => {
                let long = self.rng.one_in(figures.long_one_in);
                let (low, high) = figures.bimodal[usize::from(!long)];
                let event = self.rng.between(low, high);
                self.push(event, self.periodic(50 * MS));
            }
            Kind::Phases => {
                let phase = self.pick(5);
                let until = self.rows.len() + self.rng.between(100, 400) as usize;
                while self.rows.len() < until {
                    match phase {
                        0 => self.some(Kind::Timers),
                        1 => self.random(figures.poisson[0] * 5 / 2),
                        2 => self.random(figures.poisson[2] * 3 / 2),
                        3 => self.some(Kind::Bimodal),
                        _ => self.some(Kind::Steady),
                    }
                }
            }
            Kind::Steady => {
                let distance = figures.steady[self.pick(4)];
                for _ in 0..self.rng.between(200, 600) {
                    let jitter = self.rng.between(0, distance / 5);
                    self.push(distance - distance / 10 + jitter, self.periodic(1_000 * MS));
                }
            }
            Kind::Mixed => {
                let timer = self.rng.between(figures.mixed.0, figures.mixed.1);
                let event = self.rng.exponential(figures.mixed_events);
                self.push(event, Some(timer));
            }
        }
    }

    /// An event that comes when it likes, or the timer behind it.
    fn random(&mut self, mean: u64) {
        let event = self.rng.exponential(mean);
        self.push(event, self.periodic(self.figures.poisson_timer));
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
            let first = &Figures::FIRST;
            let trace = kind.trace(first, 7, 500);
            assert_eq!(trace.rows.len(), 500, "{kind:?}");
            assert_eq!(trace.rows, kind.trace(first, 7, 500).rows);
            assert_ne!(trace.rows, kind.trace(first, 8, 500).rows);
            assert_ne!(trace.rows, kind.trace(&Figures::drawn(8), 7, 500).rows);
            for row in &trace.rows {
                assert!(row.length > 0 && row.timer.is_none_or(|timer| row.length <= timer));
                assert_eq!(row.timer == Some(row.length), row.cause == Cause::Timer);
            }
        }
    }

    #[test]
    fn drawn_figures_are_within_three_times_the_first_ones() {
        for seed in 1..200 {
            let drawn = Figures::drawn(seed);
            for (drawn, first) in drawn.timers.iter().zip(Figures::FIRST.timers) {
                assert!((first / 3..=first * 3).contains(drawn), "{seed}");
            }
            assert!(drawn.pause.0 <= drawn.pause.1 && drawn.long_one_in >= 2);
        }
        assert_eq!(Figures::drawn(3), Figures::drawn(3));
    }
}
