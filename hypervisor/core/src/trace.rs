//! Recordings of idle periods, for replay elsewhere.
//!
//! One recording per CPU, of bounded size: the first idle periods are kept, later ones are counted. The CPU writes to it
//! with interrupts off, and it is read when the CPU has stopped; so its lock is never contended.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::mutex::SpinMutex;

use crate::cstate::StateId;
use crate::governor::{IdleContext, IdleOutcome, WakeReason};
use crate::units::Nanos;

/// One idle period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePeriod {
    /// From the first attempt to sleep to what ended the last stay.
    pub length: Nanos,
    /// From the first attempt to the deadline that was known then; `None` if there was none.
    pub timer: Option<Nanos>,
    /// What ended it; `None` if an event came between two stays.
    pub wake: Option<WakeReason>,
    /// From there to the next attempt to sleep.
    pub busy: Nanos,
    /// The state that was chosen first.
    pub chosen: StateId,
    /// Stays: more than one, if limits or spurious wakes ended some.
    pub stays: u32,
}

/// The recording of one CPU.
#[derive(Debug)]
pub struct IdleTrace {
    periods: SpinMutex<Vec<IdlePeriod>>,
    dropped: AtomicU64,
}

impl IdleTrace {
    /// An empty recording with room for so many idle periods. `None` if there is no memory for it.
    pub fn with_room(periods: usize) -> Option<Self> {
        let mut rows = Vec::new();
        rows.try_reserve_exact(periods).ok()?;
        Some(Self {
            periods: SpinMutex::new(rows),
            dropped: AtomicU64::new(0),
        })
    }

    /// Idle periods that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Hands out what was kept, in order.
    pub fn read(&self, read: impl FnOnce(&[IdlePeriod])) {
        read(&self.periods.lock());
    }

    /// Never allocates.
    fn keep(&self, period: IdlePeriod) {
        let mut periods = self.periods.lock();
        if periods.len() < periods.capacity() {
            periods.push(period);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes idle periods of attempts to sleep. Belongs to the CPU.
#[derive(Debug)]
pub struct Recorder {
    into: &'static IdleTrace,
    open: Option<Open>,
    /// The last one, and when it ended: how long the CPU is busy after it is known at the next attempt.
    last: Option<(IdlePeriod, Nanos)>,
}

/// An idle period that goes on.
#[derive(Clone, Copy, Debug)]
struct Open {
    began: Nanos,
    /// The last attempt.
    asked: Nanos,
    /// The end of the last stay.
    until: Nanos,
    period: IdlePeriod,
}

impl Recorder {
    /// A recorder into this recording.
    pub const fn new(into: &'static IdleTrace) -> Self {
        Self {
            into,
            open: None,
            last: None,
        }
    }

    /// The governor was asked, and chose this state.
    pub fn selected(&mut self, context: &IdleContext<'_>, chosen: StateId) {
        if let Some((mut period, ended)) = self.last.take() {
            period.busy = context.now.saturating_sub(ended);
            self.into.keep(period);
        }
        let open = self.open.get_or_insert(Open {
            began: context.now,
            asked: context.now,
            until: context.now,
            period: IdlePeriod {
                length: Nanos::ZERO,
                timer: context.sleep_length,
                wake: None,
                busy: Nanos::ZERO,
                chosen,
                stays: 0,
            },
        });
        open.asked = context.now;
    }

    /// This came of the attempt.
    pub fn ended(&mut self, outcome: &IdleOutcome) {
        let Some(open) = &mut self.open else { return };
        let wake = match *outcome {
            IdleOutcome::Slept {
                residency, wake, ..
            } => {
                open.until = open.asked + residency;
                open.period.stays += 1;
                match wake {
                    WakeReason::Limit | WakeReason::Spurious => return,
                    _ => Some(wake),
                }
            }
            // The event came between two stays.
            IdleOutcome::Aborted if open.period.stays > 0 => None,
            IdleOutcome::Aborted => {
                self.open = None;
                return;
            }
            IdleOutcome::Rejected { .. } => return,
        };
        let period = IdlePeriod {
            length: open.until.saturating_sub(open.began),
            wake,
            ..open.period
        };
        self.last = Some((period, open.until));
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cstate::{CState, CStateTable};
    use crate::governor::StateSet;
    use alloc::boxed::Box;

    fn select(recorder: &mut Recorder, now: u64, timer: Option<u64>) {
        let table = CStateTable::new(&[CState::POLL]).unwrap();
        let context = IdleContext {
            table: &table,
            sleep_length: timer.map(Nanos::new),
            latency_limit: None,
            disabled: StateSet::NONE,
            now: Nanos::new(now),
        };
        recorder.selected(&context, table.shallowest());
    }

    fn slept(recorder: &mut Recorder, residency: u64, irq: u64, wake: WakeReason) {
        let state = CStateTable::new(&[CState::POLL]).unwrap().shallowest();
        recorder.ended(&IdleOutcome::Slept {
            requested: state,
            entered: state,
            residency: Nanos::new(residency),
            irq: Nanos::new(irq),
            wake,
        });
    }

    /// Length, timer, wake, busy, stays.
    type Row = (u64, Option<u64>, Option<WakeReason>, u64, u32);

    fn rows(trace: &IdleTrace) -> Vec<Row> {
        let mut rows = Vec::new();
        trace.read(|periods| {
            rows = periods
                .iter()
                .map(|period| {
                    let timer = period.timer.map(Nanos::get);
                    let (length, busy) = (period.length.get(), period.busy.get());
                    (length, timer, period.wake, busy, period.stays)
                })
                .collect();
        });
        rows
    }

    fn recorder(room: usize) -> (&'static IdleTrace, Recorder) {
        let trace = Box::leak(Box::new(IdleTrace::with_room(room).unwrap()));
        (trace, Recorder::new(trace))
    }

    #[test]
    fn stays_up_to_the_wake_are_one_period_and_handlers_are_busy_time() {
        let (trace, mut recorder) = recorder(8);
        select(&mut recorder, 1_000, Some(500));
        slept(&mut recorder, 100, 0, WakeReason::Limit);
        select(&mut recorder, 1_110, Some(390));
        slept(&mut recorder, 200, 7, WakeReason::Store);
        // A period counts once it is known how long the CPU was busy after it.
        assert_eq!(rows(trace), []);
        select(&mut recorder, 1_400, None);
        let store = (310, Some(500), Some(WakeReason::Store), 90, 2);
        assert_eq!(rows(trace), [store]);

        // Aborted before it slept: no period. Aborted between two stays: one that nothing in particular ended.
        recorder.ended(&IdleOutcome::Aborted);
        select(&mut recorder, 1_500, None);
        slept(&mut recorder, 50, 0, WakeReason::Spurious);
        select(&mut recorder, 1_560, None);
        recorder.ended(&IdleOutcome::Aborted);
        recorder.ended(&IdleOutcome::Aborted);
        select(&mut recorder, 1_600, None);
        assert_eq!(rows(trace), [store, (50, None, None, 50, 1)]);
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let (trace, mut recorder) = recorder(2);
        for now in 0..5 {
            select(&mut recorder, now * 100, Some(10));
            slept(&mut recorder, 10, 0, WakeReason::Timer);
        }
        // The fifth still waits for the next attempt.
        assert_eq!((rows(trace).len(), trace.dropped()), (2, 2));
        assert!(IdleTrace::with_room(usize::MAX).is_none());
    }
}
