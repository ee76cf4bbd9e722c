//! All mistakes, and what has to catch each of them.

use super::check::{Bound, Failure};
use super::scenarios;
use lull_core::mutant::{self, Mutant};
use std::cell::Cell;

/// A mistake of the machine's side: what the image does around the code under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineMutant {
    StiNotAdjacent,
    RipNotMoved,
    FenceMissing,
    KickTakenLate,
    NotifyForgotten,
    AnswerUnchecked,
    NotificationForgotten,
    NotificationTakenLate,
}

impl MachineMutant {
    const ALL: [(Self, &'static str); 8] = [
        (
            Self::StiNotAdjacent,
            "an instruction stands between STI and HLT",
        ),
        (
            Self::RipNotMoved,
            "an NMI between STI and HLT returns to the HLT",
        ),
        (
            Self::FenceMissing,
            "the ICR write overtakes the stores before it",
        ),
        (
            Self::KickTakenLate,
            "a vCPU's interrupts are looked at before its kick is taken",
        ),
        (
            Self::NotifyForgotten,
            "a kick does not notify the CPU that runs the vCPU",
        ),
        (
            Self::AnswerUnchecked,
            "a guest is entered again after an answer without a look at the word",
        ),
        (
            Self::NotificationForgotten,
            "a posted interrupt is not notified to the CPU that runs the guest",
        ),
        (
            Self::NotificationTakenLate,
            "posted interrupts are looked at before their notification is taken",
        ),
    ];
}

std::thread_local! {
    static WRONG: Cell<Option<MachineMutant>> = const { Cell::new(None) };
}

/// Is this mistake switched on?
pub fn is_wrong(mutant: MachineMutant) -> bool {
    WRONG.get() == Some(mutant)
}

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Core(Mutant),
    Machine(MachineMutant, &'static str),
}

/// How a mistake was found.
pub struct Caught {
    pub check: String,
    pub property: String,
    pub executions: u64,
}

impl Wrong {
    pub fn all() -> Vec<Self> {
        let core = Mutant::ALL.iter().copied().map(Self::Core);
        let machine = MachineMutant::ALL
            .into_iter()
            .map(|(mutant, mistake)| Self::Machine(mutant, mistake));
        core.chain(machine).collect()
    }

    pub fn name(&self) -> String {
        match self {
            Self::Core(mutant) => format!("{mutant:?}"),
            Self::Machine(mutant, _) => format!("{mutant:?}"),
        }
    }

    pub fn mistake(&self) -> &'static str {
        match self {
            Self::Core(mutant) => mutant.mistake().trim(),
            Self::Machine(_, mistake) => mistake,
        }
    }

    /// The check that has to find it, and the property that it breaks.
    fn expected(&self) -> (&'static str, &'static str) {
        use MachineMutant as Machine;
        const LOST: &str = "lost wakeup";
        match self {
            Self::Core(mutant) => match mutant {
                Mutant::IpiSkippedForHalt => ("wake/two-wakers-halt", LOST),
                Mutant::IpiSkippedForGuest => ("wake/two-wakers-guest", LOST),
                Mutant::LeaveGuestInTwoSteps => {
                    ("wake/two-wakers-guest", "no event is taken twice")
                }
                Mutant::SecondRaiserWaitsForBatch => ("wake/stalled-batch", LOST),
                Mutant::SkipIfSet => ("wake/same-event-halt", "no event is dropped"),
                Mutant::NmiPostWithoutIpi => ("nmi/halt", LOST),
                Mutant::NmiPostRidesAlong => ("nmi/poster-dies", LOST),
                Mutant::RelaxedPost | Mutant::RelaxedTake => {
                    ("wake/two-wakers-halt", "data with the event")
                }
                Mutant::PeekThenPost
                | Mutant::StateApart
                | Mutant::BlindPublish
                | Mutant::CheckThenPublish
                | Mutant::WatchingWhateverItDoes => ("wake/two-wakers-halt", LOST),
                Mutant::ClearAfterTaking => ("wake/two-wakers-halt", "no event is taken twice"),
                Mutant::NoCheckAfterArming => ("wake/two-wakers-masked", LOST),
                Mutant::CheckBeforeArming => ("wake/two-wakers-masked", LOST),
                Mutant::InterruptsOpenBeforeMonitor => ("wake/timer-open", LOST),
                Mutant::CallPeekThenPush => ("call/two-callers-halt", "no call is left"),
                Mutant::CallRelaxedPush | Mutant::CallRelaxedTake => {
                    ("call/two-callers-halt", "contents of the call")
                }
                Mutant::CallDoneBeforeRun => ("call/each-other", "done after it has run"),
                Mutant::CallFreedBeforeRead => ("call/slots", "contents of the call"),
                Mutant::CallServesOne => ("call/two-callers-halt", "no call is left"),
                Mutant::CallWaitsDeaf => ("call/each-other", "no deadlock"),
                Mutant::CallTakeInTwoSteps => ("call/two-callers-halt", "no call is left"),
                Mutant::CallCloseWithoutDrain => {
                    ("call/offline-and-go", "a call that was taken runs")
                }
                Mutant::CallIgnoresClosed => ("call/offline-and-go", "a call that was taken runs"),
                Mutant::BroadcastIgnoresClosed => ("call/offline-broadcast", "no deadlock"),
                Mutant::BroadcastRingsFirst => ("call/broadcast", "no deadlock"),
                Mutant::BroadcastClaimsLate => ("call/offline-broadcast", "a call runs once"),
                Mutant::BatchForgets => ("wake/batch-halt", LOST),
                Mutant::BlockOverKick => ("vcpu/block", "no kick is lost"),
                Mutant::KickSkipsIfSet => ("vcpu/block", "no kick is lost"),
                Mutant::QueuedLosesKick => ("vcpu/migrate", "no kick is lost"),
                Mutant::GuestSeenByALook => ("vcpu/posted-and-left", "no kick is lost"),
                Mutant::NotifiedWhereItWas => ("vcpu/posted-elsewhere", "no kick is lost"),
            },
            Self::Machine(mutant, _) => match mutant {
                Machine::StiNotAdjacent => ("wake/timer-halt", LOST),
                Machine::RipNotMoved => ("nmi/halt", LOST),
                Machine::FenceMissing => ("ipi/release", "stores before the interrupt"),
                Machine::KickTakenLate => ("vcpu/block", "no kick is lost"),
                Machine::NotifyForgotten => ("vcpu/guest", "no kick is lost"),
                Machine::AnswerUnchecked => ("vcpu/answered", LOST),
                Machine::NotificationForgotten => ("vcpu/posted", "no kick is lost"),
                Machine::NotificationTakenLate => ("vcpu/posted", "no kick is lost"),
            },
        }
    }

    /// Switches it on, and lets its check find it.
    ///
    /// # Errors
    /// Nothing was found, or something else than the property that it breaks.
    pub fn catch(&self) -> Result<Caught, String> {
        let (name, property) = self.expected();
        let check = scenarios::all()
            .into_iter()
            .find(|check| check.name == name)
            .ok_or_else(|| format!("there is no check {name}"))?;
        self.switch(true);
        let found = check.run(Bound::Preemptions(3));
        self.switch(false);
        match found {
            Ok(explored) => Err(format!(
                "{name} found nothing in {} executions",
                explored.executions
            )),
            Err(Failure {
                property: Some(found),
                executions,
                ..
            }) if found == property => Ok(Caught {
                check: check.name,
                property: found,
                executions,
            }),
            Err(other) => Err(format!("{name} failed, but not by {property:?}: {other}")),
        }
    }

    fn switch(&self, on: bool) {
        match self {
            Self::Core(core) => mutant::set(on.then_some(*core)),
            Self::Machine(machine, _) => WRONG.set(on.then_some(*machine)),
        }
    }
}
