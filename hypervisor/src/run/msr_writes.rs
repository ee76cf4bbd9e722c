//! Performs the MSR writes that the choice of the C-states asks for.
//!
//! Each is a read, a change of bits, a write and a second read, all with faults caught: a CPU or an outer hypervisor that
//! refuses one costs that write and nothing else. Called once on each CPU, before it idles for the first time.

use alloc::vec::Vec;
use core::fmt;

use lull_core::cstate::select::{MsrWrite, Scope, When};
use lull_core::units::{TickRate, Ticks};

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

/// The moment at which writes are performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the CPU idles for the first time. ACPI mode is not switched on after it, but to power off.
    Start,
    /// The machine has been up for so long. Those that were due at an earlier such moment are due again, and find nothing to change.
    Uptime(Days),
}

/// Days since the last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Days(pub u32);

impl Moment {
    const fn is(self, when: When) -> bool {
        match (self, when) {
            (Self::Start, When::Start | When::StartAndAcpiEnable) => true,
            (Self::Uptime(Days(up)), When::AfterDays(days)) => up >= days,
            _ => false,
        }
    }
}

/// After how many days the next of the `planned` writes is due, if any is that waits.
pub fn next_due(planned: &[MsrWrite], up: Days) -> Option<Days> {
    let days = planned.iter().filter_map(|write| match write.when {
        When::AfterDays(days) => Some(Days(days)),
        When::Start | When::StartAndAcpiEnable => None,
    });
    days.filter(|due| *due > up).min()
}

/// The reading of the TSC, which counts from the reset, at which the machine has been up for so long; `pretended`: testing, days
/// that it is taken to have been up before.
pub fn tsc_after(days: Days, pretended: Days, rate: TickRate) -> Ticks {
    const SECONDS: u64 = 24 * 60 * 60;
    let days = u64::from(days.0.saturating_sub(pretended.0));
    Ticks::new(days.saturating_mul(SECONDS).saturating_mul(rate.hz()))
}

/// Performs those of the `planned` writes that are due at this moment of this CPU.
pub fn perform(
    planned: &[MsrWrite],
    moment: Moment,
    is_boot_cpu: bool,
    msrs: &mut impl Msrs,
) -> Vec<(MsrWrite, Outcome)> {
    let one = |&write: &MsrWrite| {
        let here = write.scope == Scope::EveryCpu || is_boot_cpu;
        if here && moment.is(write.when) {
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
pub use machine::{catch_up, perform_here, time_has_come, wait_for_the_next};

#[cfg(target_os = "none")]
mod machine {
    #![expect(unsafe_code, reason = "writing an MSR")]

    use lull_core::cstate::select::MsrWrite;
    use lull_core::units::{CpuId, MAX_CPUS};

    use core::sync::atomic::{AtomicU32, Ordering};

    use lull_core::wake::Events;

    use super::{Days, Moment, Msrs, Outcome, next_due, perform, tsc_after};
    use crate::console::records::Where;
    use crate::cpu::safe::{self, Fault};
    use crate::init::tell;
    use crate::run::Running;
    use crate::time;

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
    pub fn perform_here(cpu: CpuId, planned: &[MsrWrite], moment: Moment) {
        let is_boot_cpu = cpu.index() == 0;
        for (write, outcome) in perform(planned, moment, is_boot_cpu, &mut OnThisCpu) {
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

    /// For how many days the machine is known to have been up: writes that waited for that are due on every CPU.
    static UP: AtomicU32 = AtomicU32::new(0);

    /// The same, as far as each CPU has done what is due. Written by that CPU only.
    static DONE: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

    fn pretended(running: &Running) -> Days {
        Days(running.options.test_uptime.unwrap_or(0))
    }

    /// Sets the timer for the next write that waits, if any does. On the boot CPU: one timer wakes the others when it is time.
    pub fn wait_for_the_next(running: &Running, planned: &[MsrWrite]) {
        let up = Days(UP.load(Ordering::Relaxed));
        if let Some(due) = next_due(planned, up) {
            let at = tsc_after(due, pretended(running), time::rate());
            log::debug!("MSR writes wait until {} days after the reset", due.0);
            running.machine.set_late_writes(at);
        }
    }

    /// The time has come: performs what is due on the boot CPU, which runs this, and has the others do so.
    pub fn time_has_come(running: &Running, cpu: CpuId) {
        let Some(choice) = running.choice(cpu) else {
            return;
        };
        let up = Days(UP.load(Ordering::Relaxed));
        if let Some(due) = next_due(&choice.msr_writes, up) {
            UP.store(due.0, Ordering::Release);
        }
        catch_up(running, cpu);
        for &other in running.online.iter().filter(|&&other| other != cpu) {
            running.machine.post(other, Events::CALL);
        }
        wait_for_the_next(running, &choice.msr_writes);
    }

    /// Performs what has become due on this CPU since it last looked. Cheap if nothing has.
    pub fn catch_up(running: &Running, cpu: CpuId) {
        let up = UP.load(Ordering::Acquire);
        let Some(done) = DONE.get(cpu.index()) else {
            return;
        };
        if up > done.load(Ordering::Relaxed) {
            done.store(up, Ordering::Relaxed);
            if let Some(choice) = running.choice(cpu) {
                perform_here(cpu, &choice.msr_writes, Moment::Uptime(Days(up)));
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
        let done = perform(&[write], Moment::Start, is_boot_cpu, msrs);
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
    fn what_waits_is_due_in_order() {
        let after = |days| MsrWrite {
            when: When::AfterDays(days),
            ..C1E
        };
        let plan = [after(1000), C1E, after(30)];
        assert_eq!(next_due(&plan, Days(0)), Some(Days(30)));
        assert_eq!(next_due(&plan, Days(30)), Some(Days(1000)));
        assert_eq!(next_due(&plan, Days(1000)), None);
        let rate = TickRate::from_hz(2_000_000_000).unwrap();
        let ticks = |days, pretended| tsc_after(Days(days), Days(pretended), rate).get();
        assert_eq!(ticks(1000, 0), 1000 * 86_400 * 2_000_000_000);
        assert_eq!(ticks(1000, 999), 86_400 * 2_000_000_000);
        assert_eq!(ticks(1000, 2000), 0);
        assert_eq!(ticks(u32::MAX, 0), u64::MAX);
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
        let at = |days| Moment::Uptime(Days(days));
        let done = perform(&[late, C1E], at(999), true, &mut msrs);
        assert!(done.iter().all(|(_, outcome)| *outcome == Outcome::NotHere));
        let done = perform(&[late, C1E], at(1000), false, &mut msrs);
        assert_eq!(done[0].1, Outcome::Written { old: 2, new: 0 });
        assert_eq!(done[1].1, Outcome::NotHere, "that was due at the start");
        let again = MsrWrite {
            when: When::StartAndAcpiEnable,
            ..C1E
        };
        let mut msrs = Mock::of(2);
        assert!(matches!(
            one(again, true, &mut msrs),
            Outcome::Written { .. }
        ));
    }
}
