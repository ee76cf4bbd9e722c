//! How long the core takes on the host: for the curve of costs. What is measured changes no run.

use super::measure::Times;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`Scheduler::schedule`](lull_core::sched::Scheduler::schedule).
    Pick,
    /// [`Scheduler::wake`](lull_core::sched::Scheduler::wake).
    Wake,
    /// `Machine::set_vcpu_timer`.
    Timer,
}

impl Operation {
    /// All of them, in the order of [`Stopwatch::times`].
    pub const ALL: [Self; 3] = [Self::Pick, Self::Wake, Self::Timer];

    /// As reports name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pick => "pick",
            Self::Wake => "wake",
            Self::Timer => "timer",
        }
    }
}

/// The times of all operations so far; or nothing at all, if they are not measured.
#[derive(Debug, Default)]
pub struct Stopwatch {
    times: Option<Mutex<[Times; Operation::ALL.len()]>>,
}

impl Stopwatch {
    /// One that measures, or not.
    pub fn new(measures: bool) -> Self {
        Self {
            times: measures.then(Mutex::default),
        }
    }

    /// Does it, and measures how long that takes.
    pub fn time<T>(&self, operation: Operation, body: impl FnOnce() -> T) -> T {
        let Some(times) = &self.times else {
            return body();
        };
        let began = Instant::now();
        let result = body();
        let took = began.elapsed().as_nanos() as u64;
        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
        times[operation as usize].add(took);
        result
    }

    /// What was measured, in ns.
    pub fn times(&self) -> Option<[Times; Operation::ALL.len()]> {
        let times = self.times.as_ref()?;
        Some(times.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_is_measured() {
        let (on, off) = (Stopwatch::new(true), Stopwatch::new(false));
        assert_eq!(on.time(Operation::Wake, || 7), 7);
        assert_eq!(off.time(Operation::Wake, || 7), 7);
        let counts = on.times().unwrap().map(|times| times.count());
        assert_eq!(counts, [0, 1, 0]);
        assert!(off.times().is_none());
    }
}
