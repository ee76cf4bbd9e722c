//! Wake protocols with one mistake each. Every one of them has been somebody's bug.

use super::protocol::Protocol;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use lull_core::wake::{Events, SleepState, Wake};

const EVENTS: u64 = u32::MAX as u64;

fn bits(state: SleepState) -> u64 {
    (state as u64) << 32
}

fn events(word: u64) -> Events {
    Events::from_bits_retain((word & EVENTS) as u32)
}

/// What the poster of `word`'s successor owes.
fn owed(word: u64) -> Wake {
    match word >> 32 {
        _ if word & EVENTS != 0 => Wake::RidesAlong,
        0 => Wake::WillLook,
        1 => Wake::StoreWakes,
        _ => Wake::SendIpi,
    }
}

/// The right protocol, spelled out here so that each mutant differs from it in one place.
pub struct Word(AtomicU64);

impl Word {
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn post(&self, posted: Events) -> Wake {
        owed(self.0.fetch_or(u64::from(posted.bits()), AcqRel))
    }

    fn publish(&self, state: SleepState) -> bool {
        self.0
            .compare_exchange(0, bits(state), AcqRel, Acquire)
            .is_ok()
    }

    fn is_pending(&self) -> bool {
        self.0.load(Acquire) & EVENTS != 0
    }

    fn take(&self) -> Events {
        events(self.0.swap(0, AcqRel))
    }
}

/// A mutant: the right protocol, but for the methods that are given.
macro_rules! mutant {
    ($(#[$doc:meta])* $name:ident { $($wrong:item)* } else { $($right:ident),* }) => {
        $(#[$doc])*
        pub struct $name(Word);

        impl Protocol for $name {
            fn new() -> Self {
                Self(Word::new())
            }

            fn value(&self) -> u64 {
                self.0.0.load(Relaxed)
            }

            $($wrong)*
            $(mutant!(@ $right);)*
        }
    };
    (@ post) => { fn post(&self, posted: Events) -> Wake { self.0.post(posted) } };
    (@ publish) => { fn publish(&self, state: SleepState) -> bool { self.0.publish(state) } };
    (@ is_pending) => { fn is_pending(&self) -> bool { self.0.is_pending() } };
    (@ take) => { fn take(&self) -> Events { self.0.take() } };
}

mutant! {
    /// No mistake at all: shows that it is the mistake, and not this copy, that fails.
    NoMistake {} else { post, publish, is_pending, take }
}

mutant! {
    /// Publishes by a store that looks at nothing.
    BlindPublish {
        fn publish(&self, state: SleepState) -> bool {
            self.0.0.store(bits(state), Release);
            true
        }
    } else { post, is_pending, take }
}

mutant! {
    /// Looks for events, and publishes in a second step.
    CheckThenPublish {
        fn publish(&self, state: SleepState) -> bool {
            let idle = !self.0.is_pending();
            if idle {
                self.0.0.fetch_or(bits(state), AcqRel);
            }
            idle
        }
    } else { post, is_pending, take }
}

mutant! {
    /// Does not look again after the monitor was armed.
    NoCheckAfterArming {
        fn is_pending(&self) -> bool {
            false
        }
    } else { post, publish, take }
}

mutant! {
    /// Reads the events, and clears the word in a second step.
    ClearAfterTaking {
        fn take(&self) -> Events {
            let taken = events(self.0.0.load(Acquire));
            self.0.0.store(0, Release);
            taken
        }
    } else { post, publish, is_pending }
}

mutant! {
    /// Says that it watches, whatever it does.
    WatchingWhileHalted {
        fn publish(&self, _state: SleepState) -> bool {
            self.0.publish(SleepState::Watching)
        }
    } else { post, is_pending, take }
}

mutant! {
    /// The waker reads what is owed, and posts in a second step.
    PeekThenPost {
        fn post(&self, posted: Events) -> Wake {
            let before = self.0.0.load(Acquire);
            self.0.0.fetch_or(u64::from(posted.bits()), AcqRel);
            owed(before)
        }
    } else { publish, is_pending, take }
}

mutant! {
    /// The post does not publish what was written before it.
    RelaxedPost {
        fn post(&self, posted: Events) -> Wake {
            owed(self.0.0.fetch_or(u64::from(posted.bits()), Relaxed))
        }
    } else { publish, is_pending, take }
}

/// The state lives beside the word that is posted to, and is monitored.
pub struct SeparateState {
    events: AtomicU64,
    state: AtomicU64,
}

impl Protocol for SeparateState {
    fn new() -> Self {
        Self {
            events: AtomicU64::new(0),
            state: AtomicU64::new(0),
        }
    }

    fn post(&self, posted: Events) -> Wake {
        let before = self.events.fetch_or(u64::from(posted.bits()), AcqRel);
        owed(self.state.load(Acquire) | before)
    }

    fn publish(&self, state: SleepState) -> bool {
        self.state.store(bits(state), Release);
        self.events.load(Acquire) == 0
    }

    fn is_pending(&self) -> bool {
        self.events.load(Acquire) != 0
    }

    fn take(&self) -> Events {
        self.state.store(0, Release);
        events(self.events.swap(0, AcqRel))
    }

    fn value(&self) -> u64 {
        self.events.load(Relaxed)
    }
}
