//! The MWAIT self-test: CPUID is not believed, each CPU tries.
//!
//! Nothing here can hang. Every try ends by a count or by the TSC; an MWAIT whose wake is not sure is executed only
//! with a timer armed that was seen to work, and with interrupts open; an interrupt window stands between tries.
//! What cannot happen by itself is never waited for.
//!
//! The rules are pure ([`judge_open`], [`judge_masked`]); the trying is behind [`Trial`], which tests replace.

use lull_core::cstate::select::{MwaitTest, MwaitVerdict};

use super::safe::Fault;

pub mod stores;
#[cfg(target_os = "none")]
mod trial;

#[cfg(target_os = "none")]
pub use trial::self_test;

/// All that is known about MWAIT on the CPU that runs this: its own test, and what CPUs found about each other's stores.
#[cfg(target_os = "none")]
pub fn found() -> MwaitTest {
    MwaitTest {
        store_wakes: stores::store_wakes(),
        ..super::this().mwait_test()
    }
}

/// Tries of each way of using MWAIT.
const TRIES: u32 = 3;
/// So many returns within one try are no sleep.
const BUSY_RETURNS: u32 = 2_000;

/// How one try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Try {
    /// MWAITs that returned.
    pub returns: u32,
    /// The timer's interrupt was taken (open), or found pending (masked), in time.
    pub timer_seen: bool,
    /// It raised this.
    pub fault: Option<Fault>,
}

/// What the test asks of the CPU.
pub trait Trial {
    /// Arms the timer, and waits for its interrupt without MWAIT. Tells whether it came.
    fn timer_works(&mut self) -> bool;
    /// One try of `sti; mwait; cli` with ECX = 0.
    fn open(&mut self) -> Try;
    /// One MWAIT with ECX = 1, with interrupts open and the timer armed: does it fault?
    fn masked_faults(&mut self) -> Option<Fault>;
    /// One try of MWAIT with ECX = 1 and interrupts off.
    fn masked(&mut self) -> Try;
}

fn of_fault(fault: Fault) -> MwaitVerdict {
    match fault.vector {
        6 => MwaitVerdict::InvalidOpcode,
        _ => MwaitVerdict::GeneralProtection,
    }
}

fn of_try(found: Try) -> MwaitVerdict {
    if let Some(fault) = found.fault {
        of_fault(fault)
    } else if found.returns >= BUSY_RETURNS {
        MwaitVerdict::NeverSleeps
    } else if !found.timer_seen {
        MwaitVerdict::MissesTimer
    } else {
        MwaitVerdict::Works
    }
}

/// The verdict about a way of which every try must work: the first that did not decides.
fn all(mut one: impl FnMut() -> Try) -> MwaitVerdict {
    for _ in 0..TRIES {
        match of_try(one()) {
            MwaitVerdict::Works => {}
            other => return other,
        }
    }
    MwaitVerdict::Works
}

/// `sti; mwait; cli`.
pub fn judge_open(trial: &mut impl Trial) -> MwaitVerdict {
    all(|| trial.open())
}

/// MWAIT with interrupts off and ECX = 1. The CPU must have shown with interrupts open that it accepts that.
pub fn judge_masked(trial: &mut impl Trial) -> MwaitVerdict {
    match trial.masked_faults() {
        Some(fault) => of_fault(fault),
        None => all(|| trial.masked()),
    }
}

/// Runs the whole test.
///
/// `offers_masked`: leaf 5 enumerates "interrupts as break events" (ECX bits 0 and 1): without it ECX = 1 is not tried.
/// Without a timer that works nothing is tried: an MWAIT could sleep for ever.
pub fn judge(trial: &mut impl Trial, offers_masked: bool) -> MwaitTest {
    if !trial.timer_works() {
        return MwaitTest::default();
    }
    let open = judge_open(trial);
    // A CPU that knows no MWAIT at all needs no second answer.
    let masked = match open {
        MwaitVerdict::InvalidOpcode => MwaitVerdict::InvalidOpcode,
        _ if offers_masked => judge_masked(trial),
        _ => MwaitVerdict::Untested,
    };
    MwaitTest {
        open,
        masked,
        store_wakes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Answers as a machine that was measured.
    struct Machine {
        timer: bool,
        open: Try,
        masked_fault: Option<u8>,
        masked: Try,
        asked: Vec<&'static str>,
    }

    const SLEEPS: Try = Try {
        returns: 1,
        timer_seen: true,
        fault: None,
    };

    impl Machine {
        fn good() -> Self {
            Self {
                timer: true,
                open: SLEEPS,
                masked_fault: None,
                masked: SLEEPS,
                asked: Vec::new(),
            }
        }
    }

    impl Trial for Machine {
        fn timer_works(&mut self) -> bool {
            self.asked.push("timer");
            self.timer
        }
        fn open(&mut self) -> Try {
            self.asked.push("open");
            self.open
        }
        fn masked_faults(&mut self) -> Option<Fault> {
            self.asked.push("masked with interrupts open");
            self.masked_fault.map(|vector| Fault { vector })
        }
        fn masked(&mut self) -> Try {
            self.asked.push("masked");
            self.masked
        }
    }

    #[test]
    fn a_machine_that_sleeps_passes_after_several_tries() {
        let mut machine = Machine::good();
        let test = judge(&mut machine, true);
        assert_eq!(
            (test.open, test.masked, test.store_wakes),
            (MwaitVerdict::Works, MwaitVerdict::Works, None)
        );
        assert_eq!(machine.asked.iter().filter(|a| **a == "open").count(), 3);
    }

    #[test]
    fn without_a_timer_nothing_is_tried() {
        let mut machine = Machine {
            timer: false,
            ..Machine::good()
        };
        assert_eq!(judge(&mut machine, true), MwaitTest::default());
        assert_eq!(machine.asked, ["timer"]);
    }

    #[test]
    fn qemu_with_one_cpu_sleeps_open_and_faults_masked_and_is_never_tried_with_interrupts_off() {
        let mut machine = Machine {
            masked_fault: Some(13),
            ..Machine::good()
        };
        let test = judge(&mut machine, true);
        assert_eq!(
            (test.open, test.masked),
            (MwaitVerdict::Works, MwaitVerdict::GeneralProtection)
        );
        assert!(!machine.asked.contains(&"masked"));
    }

    #[test]
    fn qemu_with_two_cpus_never_sleeps() {
        let busy = Try {
            returns: BUSY_RETURNS,
            timer_seen: false,
            fault: None,
        };
        let mut machine = Machine {
            open: busy,
            masked_fault: Some(13),
            ..Machine::good()
        };
        assert_eq!(judge(&mut machine, true).open, MwaitVerdict::NeverSleeps);
        assert_eq!(
            machine.asked.iter().filter(|a| **a == "open").count(),
            1,
            "one bad try is enough"
        );
    }

    #[test]
    fn a_due_timer_that_is_not_taken_drops_the_state() {
        let deaf = Try {
            returns: 3,
            timer_seen: false,
            fault: None,
        };
        let mut machine = Machine {
            open: deaf,
            masked: deaf,
            ..Machine::good()
        };
        let test = judge(&mut machine, true);
        assert_eq!(
            (test.open, test.masked),
            (MwaitVerdict::MissesTimer, MwaitVerdict::MissesTimer)
        );
    }

    #[test]
    fn a_hidden_mwait_is_not_tried_a_second_way() {
        let undefined = Try {
            returns: 0,
            timer_seen: false,
            fault: Some(Fault { vector: 6 }),
        };
        let mut machine = Machine {
            open: undefined,
            ..Machine::good()
        };
        let test = judge(&mut machine, true);
        assert_eq!(
            (test.open, test.masked),
            (MwaitVerdict::InvalidOpcode, MwaitVerdict::InvalidOpcode)
        );
        assert_eq!(machine.asked, ["timer", "open"]);
    }

    #[test]
    fn what_leaf_5_does_not_offer_is_not_tried() {
        let mut machine = Machine::good();
        assert_eq!(judge(&mut machine, false).masked, MwaitVerdict::Untested);
    }
}
