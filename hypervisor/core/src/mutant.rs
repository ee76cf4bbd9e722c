//! Mistakes that can be switched on, one at a time, to see whether the model finds them.
//!
//! Only the build for the model checker (`--cfg loom`) has them. In every other build [`mutant!`] is `false`, and what hangs on
//! it is not compiled in. `cargo xtask model --mutants` runs them all.

/// Is this mistake, or one of these, switched on?
macro_rules! mutant {
    ($($name:ident)|+) => {{
        #[cfg(loom)]
        {
            false $(|| $crate::mutant::is($crate::mutant::Mutant::$name))+
        }
        #[cfg(not(loom))]
        {
            false
        }
    }};
}
pub(crate) use mutant;

#[cfg(loom)]
pub use list::{Mutant, is, set};

#[cfg(loom)]
mod list {
    use std::cell::Cell;

    macro_rules! mutants {
        ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
            /// A mistake in this crate.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Mutant {
                $($(#[doc = $doc])+ $name,)+
            }

            impl Mutant {
                /// All of them.
                pub const ALL: &'static [Self] = &[$(Self::$name),+];

                /// What is wrong.
                pub const fn mistake(self) -> &'static str {
                    match self {
                        $(Self::$name => concat!($($doc),+),)+
                    }
                }
            }
        };
    }

    mutants! {
        /// the waker does not interrupt a CPU in HLT
        IpiSkippedForHalt,
        /// the waker does not interrupt a CPU in a guest
        IpiSkippedForGuest,
        /// whoever finds the event of a batch rides along with it
        SecondRaiserWaitsForBatch,
        /// a post is left out if its event is pending already
        SkipIfSet,
        /// an NMI handler posts to its own CPU without an interrupt
        NmiPostWithoutIpi,
        /// an NMI handler posts as anybody else does, and rides along with whom it has interrupted
        NmiPostRidesAlong,
        /// the post does not release what was written before it
        RelaxedPost,
        /// the waker reads the word, and posts in a second step: a free ride on an event that is taken already
        PeekThenPost,
        /// the state lives beside the word that is posted to
        StateApart,
        /// the state is published by a store that looks at nothing
        BlindPublish,
        /// the sleeper looks for events, and publishes in a second step
        CheckThenPublish,
        /// taking the events does not acquire what was written before them
        RelaxedTake,
        /// the events are read, and cleared in a second step
        ClearAfterTaking,
        /// a CPU that leaves its guest reads the word, and writes it back without the state in a second step
        LeaveGuestInTwoSteps,
        /// WATCHING is published also for HLT
        WatchingWhateverItDoes,
        /// no look after the monitor was armed
        NoCheckAfterArming,
        /// the look comes before the monitor is armed
        CheckBeforeArming,
        /// interrupts are opened between the last look and the arming of the monitor
        InterruptsOpenBeforeMonitor,
        /// whether the queue was empty is read before the call is added
        CallPeekThenPush,
        /// adding a call does not release its contents
        CallRelaxedPush,
        /// taking the queue does not acquire its contents
        CallRelaxedTake,
        /// a waiting caller is told before its function has run
        CallDoneBeforeRun,
        /// the slot of an asynchronous call is given back before its contents were read
        CallFreedBeforeRead,
        /// only the newest call of the queue is served
        CallServesOne,
        /// a waiting caller does not serve its own queue
        CallWaitsDeaf,
        /// the queue is read, and emptied in a second step
        CallTakeInTwoSteps,
        /// a CPU that goes offline closes its queue without a last look
        CallCloseWithoutDrain,
        /// a call to a queue that is closed is added all the same
        CallIgnoresClosed,
        /// a broadcast does not look whether a target went offline
        BroadcastIgnoresClosed,
        /// a broadcast rings before it has set the targets' bits
        BroadcastRingsFirst,
        /// a target runs a broadcast without claiming its bit
        BroadcastClaimsLate,
        /// a batch leaves out its last CPU
        BatchForgets,
        /// a vCPU blocks although it was kicked
        BlockOverKick,
        /// a kick is left out if the vCPU is kicked already
        KickSkipsIfSet,
        /// a vCPU that is queued loses its kick
        QueuedLosesKick,
        /// whether a CPU runs a guest is looked up without passing its word
        GuestSeenByALook,
        /// a CPU that runs a guest is notified without a look whether it is still this vCPU's
        NotifiedWhereItWas,
    }

    std::thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Switches a mistake on, for this thread of the host, in place of any other.
    pub fn set(mutant: Option<Mutant>) {
        ACTIVE.set(mutant);
    }

    /// Is this mistake switched on?
    pub fn is(mutant: Mutant) -> bool {
        ACTIVE.get() == Some(mutant)
    }
}
