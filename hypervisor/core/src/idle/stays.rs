//! Stays that calls alone have ended: the CPU serves them, and goes back to the state it was in, without a new choice.
//!
//! Thinking about the next state takes longer than the call, and longer than the wake. So a choice serves again after a call, if
//! nothing that it was made of has changed, and if it was right in hindsight, or cannot have been far wrong ([`serves_again`]).
//! It does so a bounded number of times. The governor is told of each stay all the same, exactly and in order, only later:
//! before its next answer is asked for, or when the CPU leaves the idle path.

use crate::cstate::{CState, Fit};
use crate::units::{Nanos, Ticks};
use crate::wake::Taken;

/// What the idle path asks of its CPU's dispatch loop when calls alone have ended a sleep.
pub trait IdleHost {
    /// Serves what others have asked of this CPU. The first thing that happens after the sleep.
    fn serve_calls(&self);

    /// May the CPU go back to sleep by the same choice, which was made for a sleep until `deadline`: is that still its next deadline,
    /// and has nobody asked for anything else?
    fn may_stay(&self, deadline: Option<Ticks>) -> bool;

    /// It does. For the books: this is what ended the sleep.
    fn stays(&self, taken: &Taken);

    /// Calls alone came before a sleep, and were served. For the books.
    fn aborted(&self, taken: &Taken);
}

/// Nobody calls: every wake ends the idle entry.
#[derive(Clone, Copy, Debug)]
pub struct NoCalls;

impl IdleHost for NoCalls {
    fn serve_calls(&self) {}

    fn may_stay(&self, _: Option<Ticks>) -> bool {
        false
    }

    fn stays(&self, _: &Taken) {}

    fn aborted(&self, _: &Taken) {}
}

/// A choice serves at most so many times more.
pub(super) const MOST: usize = 31;

/// Where calls come faster than sleeps, how often a CPU looks for the next one: about as long as the shallowest sleep takes to
/// leave (1 to 3 µs with PAUSE). Interrupts are off meanwhile.
pub(super) const LOOKS: u32 = 64;
/// So many calls are served like that, one after the other, before the CPU tries to sleep again.
pub(super) const LINGERS: u32 = 31;

/// States that cost no more than this to leave are never far wrong: a decision takes about as long.
const CHEAP: Nanos = Nanos::new(2_000);

/// May a choice serve again after a stay in `state` that it fitted like this?
pub(super) fn serves_again(state: &CState, fit: Fit) -> bool {
    match fit {
        Fit::Right => true,
        Fit::TooDeep => state.exit_latency.to_nanos() <= CHEAP,
        Fit::TooShallow => false,
    }
}

/// A stay that the governor has not been told of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    /// Up to the first handler.
    pub residency: Nanos,
    /// In handlers.
    pub irq: Ticks,
    pub handler_ran: bool,
    /// When the next one began.
    pub again_at: Ticks,
}

/// Those stays, oldest first.
#[derive(Debug)]
pub(super) struct Stays {
    stays: [Stay; MOST],
    len: usize,
}

impl Stays {
    pub const fn new() -> Self {
        let none = Stay {
            residency: Nanos::ZERO,
            irq: Ticks::ZERO,
            handler_ran: false,
            again_at: Ticks::ZERO,
        };
        Self {
            stays: [none; MOST],
            len: 0,
        }
    }

    pub const fn is_full(&self) -> bool {
        self.len == MOST
    }

    /// Room for one more is there: the caller has looked.
    #[inline]
    pub fn add(&mut self, stay: Stay) {
        if let Some(place) = self.stays.get_mut(self.len) {
            *place = stay;
            self.len += 1;
        }
    }

    /// Hands them out, and forgets them.
    pub fn drain(&mut self) -> impl Iterator<Item = Stay> + use<> {
        let len = core::mem::take(&mut self.len);
        self.stays.into_iter().take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_serves_again_if_it_was_right_or_cheap() {
        let shallow = CState::C1_HALT;
        let deep = CState {
            exit_latency: crate::units::Micros::new(133),
            ..shallow
        };
        assert!(serves_again(&shallow, Fit::Right) && serves_again(&deep, Fit::Right));
        assert!(serves_again(&shallow, Fit::TooDeep) && !serves_again(&deep, Fit::TooDeep));
        assert!(!serves_again(&shallow, Fit::TooShallow) && !serves_again(&deep, Fit::TooShallow));
    }

    #[test]
    fn stays_are_handed_out_once_in_order() {
        let mut stays = Stays::new();
        for at in 0..MOST as u64 {
            assert!(!stays.is_full());
            stays.add(Stay {
                residency: Nanos::ZERO,
                irq: Ticks::ZERO,
                handler_ran: false,
                again_at: Ticks::new(at),
            });
        }
        assert!(stays.is_full());
        let times: std::vec::Vec<u64> = stays.drain().map(|stay| stay.again_at.get()).collect();
        assert_eq!(times, (0..MOST as u64).collect::<std::vec::Vec<_>>());
        assert_eq!(stays.drain().count(), 0);
    }
}
