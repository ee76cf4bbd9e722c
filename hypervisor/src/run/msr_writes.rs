//! Performs the MSR writes that the choice of the C-states asks for.
//!
//! Each is a read, a change of bits, a write and a second read, all with faults caught: a CPU or an outer hypervisor that
//! refuses one costs that write and nothing else. Called once on each CPU, before it idles for the first time.

use alloc::vec::Vec;
use core::fmt;

use lull_core::cstate::select::{MsrWrite, Scope, When};

use crate::cpu::safe::Fault;

/// The MSRs of the CPU that runs this.
pub trait Msrs {
    /// Reads one.
    ///
    /// # Errors
    /// The CPU does not have it.
    fn read(&mut self, msr: u32) -> Result<u64, Fault>;

    /// Writes one that is in the plan, with the bits changed that the plan names.
    ///
    /// # Errors
    /// The CPU does not have it, or refuses the value.
    fn write(&mut self, write: &MsrWrite, value: u64) -> Result<(), Fault>;
}

/// What came of one planned write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was written, and reads as it was written.
    Written {
        /// Before.
        old: u64,
        /// After.
        new: u64,
    },
    /// Nothing had to be changed.
    AsWanted(u64),
    /// Reading it faults.
    CannotRead(Fault),
    /// Writing it faults.
    CannotWrite {
        /// What it still is.
        old: u64,
        /// What was to be written.
        new: u64,
        /// How the CPU refused.
        fault: Fault,
    },
    /// It was written without a fault, and does not read so.
    NotKept {
        /// Before.
        old: u64,
        /// What was written.
        new: u64,
        /// What it reads now.
        reads: u64,
    },
    /// Not now: its time is later, or its place another CPU.
    NotHere,
}

impl Outcome {
    /// Did it fail?
    #[must_use]
    pub const fn failed(self) -> bool {
        matches!(
            self,
            Self::CannotRead(_) | Self::CannotWrite { .. } | Self::NotKept { .. }
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Written { old, new } => write!(f, "{old:#x} -> {new:#x}"),
            Self::AsWanted(value) => write!(f, "is {value:#x} already"),
            Self::CannotRead(fault) => write!(f, "reading it raises {fault}"),
            Self::CannotWrite { old, new, fault } => {
                write!(f, "writing {new:#x} raises {fault}; it stays {old:#x}")
            }
            Self::NotKept { old, new, reads } => {
                write!(
                    f,
                    "{new:#x} was written over {old:#x}, and it reads {reads:#x}"
                )
            }
            Self::NotHere => f.write_str("not on this CPU, or not now"),
        }
    }
}

/// Performs those of the `planned` writes that are due at the start of this CPU.
pub fn perform(
    planned: &[MsrWrite],
    is_boot_cpu: bool,
    msrs: &mut impl Msrs,
) -> Vec<(MsrWrite, Outcome)> {
    let one = |&write: &MsrWrite| {
        let here = write.scope == Scope::EveryCpu || is_boot_cpu;
        let now = matches!(write.when, When::Start | When::StartAndAcpiEnable);
        if here && now {
            (write, change(&write, msrs))
        } else {
            (write, Outcome::NotHere)
        }
    };
    planned.iter().map(one).collect()
}

fn change(write: &MsrWrite, msrs: &mut impl Msrs) -> Outcome {
    let old = match msrs.read(write.msr) {
        Ok(old) => old,
        Err(fault) => return Outcome::CannotRead(fault),
    };
    let Some(new) = write.apply(old) else {
        return Outcome::AsWanted(old);
    };
    if let Err(fault) = msrs.write(write, new) {
        return Outcome::CannotWrite { old, new, fault };
    }
    match msrs.read(write.msr) {
        Ok(reads) if write.apply(reads).is_some() => Outcome::NotKept { old, new, reads },
        Ok(_) => Outcome::Written { old, new },
        Err(fault) => Outcome::CannotRead(fault),
    }
}

#[cfg(target_os = "none")]
pub use machine::perform_here;

#[cfg(target_os = "none")]
mod machine {
    #![expect(unsafe_code, reason = "writing an MSR")]

    use lull_core::cstate::select::MsrWrite;
    use lull_core::units::CpuId;

    use super::{Msrs, Outcome, perform};
    use crate::console::records::Where;
    use crate::cpu::safe::{self, Fault};
    use crate::init::tell;

    struct OnThisCpu;

    impl Msrs for OnThisCpu {
        fn read(&mut self, msr: u32) -> Result<u64, Fault> {
            safe::rdmsr(msr)
        }

        fn write(&mut self, write: &MsrWrite, value: u64) -> Result<(), Fault> {
            // SAFETY: the plan names power management MSRs only (demotion, C1E, CC6), none of which Lull's own code or memory
            // depends on, and `value` differs from what was read in the planned bits only.
            unsafe { safe::wrmsr(write.msr, value) }
        }
    }

    /// Performs what is due on `cpu`, which runs this, and says what came of it.
    pub fn perform_here(cpu: CpuId, planned: &[MsrWrite]) {
        let is_boot_cpu = cpu.index() == 0;
        for (write, outcome) in perform(planned, is_boot_cpu, &mut OnThisCpu) {
            let (msr, why) = (write.msr, write.why);
            if outcome.failed() {
                tell(
                    Where::Cpu,
                    format_args!("{cpu}: MSR {msr:#x}"),
                    outcome,
                    format_args!("an MSR that takes the change, so that {why}"),
                );
            } else if outcome == Outcome::NotHere || !is_boot_cpu {
                log::debug!("{cpu}: {write}: {outcome}");
            } else {
                log::info!("{cpu}: MSR {msr:#x}: {outcome}: {why}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_core::cstate::select::WriteReason;

    const GP: Fault = Fault { vector: 13 };

    /// MSRs with one value; some refuse, or forget.
    struct Mock {
        value: Result<u64, Fault>,
        takes: Result<(), Fault>,
        keeps: bool,
        written: Vec<(u32, u64)>,
    }

    impl Mock {
        fn of(value: u64) -> Self {
            Self {
                value: Ok(value),
                takes: Ok(()),
                keeps: true,
                written: Vec::new(),
            }
        }
    }

    impl Msrs for Mock {
        fn read(&mut self, _: u32) -> Result<u64, Fault> {
            self.value
        }

        fn write(&mut self, write: &MsrWrite, value: u64) -> Result<(), Fault> {
            self.takes?;
            self.written.push((write.msr, value));
            if self.keeps {
                self.value = Ok(value);
            }
            Ok(())
        }
    }

    const C1E: MsrWrite = MsrWrite {
        msr: 0x1FC,
        clear: 2,
        set: 0,
        scope: Scope::EveryCpu,
        when: When::Start,
        why: WriteReason::DisableC1ePromotion,
    };

    fn one(write: MsrWrite, is_boot_cpu: bool, msrs: &mut Mock) -> Outcome {
        let done = perform(&[write], is_boot_cpu, msrs);
        assert_eq!(done.len(), 1);
        done[0].1
    }

    #[test]
    fn only_the_planned_bits_change() {
        let mut msrs = Mock::of(0x8000_0000_0024_005B);
        let (old, new) = (0x8000_0000_0024_005B, 0x8000_0000_0024_0059);
        assert_eq!(one(C1E, false, &mut msrs), Outcome::Written { old, new });
        assert_eq!(msrs.written, [(0x1FC, new)]);
        // The second time there is nothing to do, and nothing is written.
        assert_eq!(one(C1E, false, &mut msrs), Outcome::AsWanted(new));
        assert_eq!(msrs.written.len(), 1);
    }

    #[test]
    fn refusals_are_outcomes() {
        let mut msrs = Mock::of(2);
        msrs.takes = Err(GP);
        let refused = one(C1E, true, &mut msrs);
        let expected = Outcome::CannotWrite {
            old: 2,
            new: 0,
            fault: GP,
        };
        assert_eq!(refused, expected);
        assert_eq!(
            alloc::format!("{refused}"),
            "writing 0x0 raises #GP; it stays 0x2"
        );
        let mut msrs = Mock::of(2);
        msrs.keeps = false;
        assert!(matches!(
            one(C1E, true, &mut msrs),
            Outcome::NotKept { reads: 2, .. }
        ));
        msrs.value = Err(GP);
        assert_eq!(one(C1E, true, &mut msrs), Outcome::CannotRead(GP));
    }

    #[test]
    fn scope_and_time_are_kept() {
        let package = MsrWrite {
            msr: 0x668,
            clear: u64::MAX,
            scope: Scope::BootCpu,
            ..C1E
        };
        let mut msrs = Mock::of(7);
        assert_eq!(one(package, false, &mut msrs), Outcome::NotHere);
        assert_eq!(
            one(package, true, &mut msrs),
            Outcome::Written { old: 7, new: 0 }
        );
        let late = MsrWrite {
            when: When::AfterDays(1000),
            ..C1E
        };
        let mut msrs = Mock::of(2);
        assert_eq!(one(late, true, &mut msrs), Outcome::NotHere);
        assert!(msrs.written.is_empty());
        let again = MsrWrite {
            when: When::StartAndAcpiEnable,
            ..C1E
        };
        assert!(matches!(
            one(again, true, &mut msrs),
            Outcome::Written { .. }
        ));
    }
}
