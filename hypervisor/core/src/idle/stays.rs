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

/// So many calls are served without a try to sleep in between.
pub(super) const LINGERS: u32 = 31;

/// How fast calls come, compared with the way to sleep: what a CPU that has served one goes by, to sleep at once or to look for
/// the next one first.
///
/// By its own measure, and by no time of the clock: looking for as long as the way to sleep takes costs at most twice of what
/// would have been right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    ways: [Ticks; 2],
    pass_over: u32,
}

impl Pace {
    /// After a look in vain, so many calls that came fast are no reason to look again: somebody may wait until the CPU sleeps.
    const VAIN: u32 = 31;

    pub const fn new() -> Self {
        Self {
            ways: [Ticks::ZERO; 2],
            pass_over: 0,
        }
    }

    /// From one sleep to the next, call included, it took so long.
    pub fn took(&mut self, way: Ticks) {
        self.ways = [self.ways[1], way];
    }

    /// How long the way to sleep takes. One that was disturbed does not count.
    pub fn way(&self) -> Ticks {
        self.ways[0].min(self.ways[1])
    }

    /// A call came on the way to sleep, or sooner after it than that took: is it worth it to look for the next one?
    pub fn is_fast(&mut self) -> bool {
        if self.way() == Ticks::ZERO {
            return false;
        }
        let passed_over = self.pass_over > 0;
        self.pass_over = self.pass_over.saturating_sub(1);
        !passed_over
    }

    /// None came.
    pub fn in_vain(&mut self) {
        self.pass_over = Self::VAIN;
    }
}

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
    fn a_look_in_vain_is_not_repeated_for_a_while_and_lasts_as_long_as_the_way() {
        let mut pace = Pace::new();
        assert!(!pace.is_fast(), "nothing is known");
        for way in [70, 50, 9_000] {
            pace.took(Ticks::new(way));
        }
        assert_eq!(pace.way(), Ticks::new(50), "not the disturbed one");
        assert!(pace.is_fast() && pace.is_fast());
        pace.in_vain();
        let passed_over = (0..100).take_while(|_| !pace.is_fast()).count();
        assert_eq!(passed_over, Pace::VAIN as usize);
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
