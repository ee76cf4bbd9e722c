//! Why a state was kept, switched off, dropped or re-timed: typed for tools and tests, and in words for people.
//!
//! Each reason is one clause without a full stop, so that a line can be made of several.

use super::facts::MwaitVerdict;
use crate::cstate::MwaitHint;
use crate::cstate::errata::Errata;
use crate::options::IdleMethod;
use crate::platform::IrqGate;
use crate::units::Micros;
use core::fmt;

/// Why a state is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// The `idle=` option names it.
    AskedFor,
    /// For sleeps that are shorter than any other state is worth.
    ShortestSleeps,
    /// The model's table has it.
    Table(&'static str),
    /// The model's table has it, and `_CST` lists it.
    TableAndCst(&'static str),
    /// The model's table has it; `_CST` does not list it, which does not matter for this one.
    TableAlways(&'static str),
    /// `_CST` lists it.
    Cst,
    /// The FADT and P_BLK describe it.
    PBlk,
    /// Zen's own two states, without a `_CST`.
    Zen,
    /// MWAIT with hint 0 works, and nothing says more about this CPU.
    BareMwait,
    /// Every CPU can do it.
    AlwaysWorks,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kept::AskedFor => f.write_str("asked for by idle="),
            Kept::ShortestSleeps => f.write_str("for sleeps too short for any other state"),
            Kept::Table(table) => write!(f, "in table {table}"),
            Kept::TableAndCst(table) => write!(f, "in table {table}, and listed by _CST"),
            Kept::TableAlways(table) => {
                write!(f, "in table {table}, used whether _CST lists it or not")
            }
            Kept::Cst => f.write_str("listed by _CST"),
            Kept::PBlk => f.write_str("described by FADT and P_BLK"),
            Kept::Zen => f.write_str("Zen's own, without _CST"),
            Kept::BareMwait => f.write_str("MWAIT works, and nothing else gives a C1"),
            Kept::AlwaysWorks => f.write_str("every CPU has it"),
        }
    }
}

/// Why a usable state is off until somebody switches it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Off {
    /// The model leaves the choice to `_CST`, which does not list it.
    NotInCst,
    /// The `states_off=` option.
    ByOption,
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Off::NotInCst => "_CST does not list it",
            Off::ByOption => "states_off=",
        })
    }
}

/// Why a state is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// The `idle=` option says otherwise.
    NotAskedFor(IdleMethod),
    /// The `cpuidle=off` option.
    CpuidleOff,
    /// The `max_cstate=` option: its class is deeper.
    MaxCState(u8),
    /// The second number of `max_cstate=`: its sub-state is deeper.
    MaxSubstate(u8),
    /// The CPU has an erratum that forbids it.
    Erratum(Errata),
    /// Its table has it only to say that it must not be used.
    Unusable,
    /// Of C1 and C1E this CPU can have one, and it is the other one.
    OtherOfC1AndC1e,
    /// Beside C10 it can hang the machine, since PC10 is allowed and SGX is off.
    HangsWithPc10,
    /// The table has no room for it.
    TooMany,
    /// The same state has been kept with a better entry.
    BetterEntry,
    /// C1 is the same instruction.
    IsC1,
    /// CPUID does not report MONITOR/MWAIT.
    NoMonitor,
    /// CPUID leaf 5 gives no size for the monitored line.
    NoLineSize,
    /// CPUID leaf 5 says what no CPU says.
    Leaf5IsNonsense,
    /// It is no hint of a C-state: reserved bits are set, or it is C0.
    NoHint(MwaitHint),
    /// CPUID leaf 5 reports no sub-state of the hint's C-state.
    NotReported(MwaitHint),
    /// CPUID leaf 5 does not offer to break on masked interrupts.
    NoInterruptBreak,
    /// Handlers inside the state would read a clock that may have stopped.
    HandlersNeedTsc,
    /// The `irq-enable-early=off` option leaves no way to enter it.
    EarlyInterruptsOff,
    /// The TSC stops in it, and nothing puts it right afterwards.
    TscStops,
    /// The local APIC timer stops in it, and nothing stands in.
    TimerStops,
    /// The self-test found that it does not work.
    SelfTest(IrqGate, MwaitVerdict),
    /// ACPI C3 without a `_CST`, on a CPU where only `_CST` makes it legal.
    C3NeedsCst,
    /// ACPI C3 that loses caches, on a machine whose WBINVD does not work.
    C3NeedsWbinvd,
    /// P_BLK's states do not work with more than one CPU here.
    PBlkSingleCpu,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Dropped::NotAskedFor(mode) => return write!(f, "idle={}", option(*mode)),
            Dropped::MaxCState(limit) => return write!(f, "deeper than max_cstate={limit}"),
            Dropped::MaxSubstate(limit) => {
                return write!(f, "its sub-state is deeper than max_cstate=..,{limit}");
            }
            Dropped::Erratum(errata) => return write!(f, "erratum {errata}"),
            Dropped::NoHint(hint) => {
                return write!(f, "{hint} is no hint of a C-state (reserved bits, or C0)");
            }
            Dropped::NotReported(hint) => {
                return write!(
                    f,
                    "CPUID leaf 5 reports no sub-state of class {} (hint {hint})",
                    hint.class()
                );
            }
            Dropped::SelfTest(gate, verdict) => {
                let ecx = match gate {
                    IrqGate::Open => 0,
                    IrqGate::Masked => 1,
                };
                return write!(f, "MWAIT with ECX={ecx} {verdict}");
            }
            Dropped::CpuidleOff => "cpuidle=off",
            Dropped::Unusable => "its table says that it must not be used",
            Dropped::OtherOfC1AndC1e => "this CPU has either C1 or C1E, and the other is used",
            Dropped::HangsWithPc10 => {
                "beside C10 it can hang this CPU: PC10 is allowed and SGX is off"
            }
            Dropped::TooMany => "the table is full",
            Dropped::BetterEntry => "the same state has a better entry",
            Dropped::IsC1 => "C1 is the same instruction",
            Dropped::NoMonitor => "CPUID does not report MONITOR/MWAIT",
            Dropped::Leaf5IsNonsense => {
                "CPUID leaf 5 is nonsense (reserved bits, or line sizes that cross), and not believed"
            }
            Dropped::NoLineSize => "CPUID has no leaf 5, or it gives no monitor line size",
            Dropped::NoInterruptBreak => "CPUID leaf 5 does not offer a break on masked interrupts",
            Dropped::HandlersNeedTsc => {
                "no nonstop TSC: a handler inside could read a stopped clock"
            }
            Dropped::EarlyInterruptsOff => "irq-enable-early=off",
            Dropped::TscStops => "the TSC stops in it, and is not restored",
            Dropped::TimerStops => "the local APIC timer stops in it (no ARAT)",
            Dropped::C3NeedsCst => "ACPI C3 needs a _CST on this CPU",
            Dropped::C3NeedsWbinvd => "ACPI C3 loses the caches, and the FADT has no WBINVD",
            Dropped::PBlkSingleCpu => "P_BLK's states are for one CPU (FADT flag P_LVL2_UP)",
        };
        f.write_str(words)
    }
}

/// The option's value as it is typed.
const fn option(mode: IdleMethod) -> &'static str {
    match mode {
        IdleMethod::Auto => "auto",
        IdleMethod::Halt => "hlt",
        IdleMethod::Mwait => "mwait",
        IdleMethod::Poll => "poll",
    }
}

/// What was decided about a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is used.
    Used(Kept),
    /// It could be used, and is off until somebody switches it on.
    Off(Off),
    /// It cannot, or must not, be used.
    Dropped(Dropped),
}

impl Verdict {
    /// Is it in the table: used, or off for now?
    pub const fn is_usable(self) -> bool {
        !matches!(self, Verdict::Dropped(_))
    }

    /// Is it used?
    pub const fn is_used(self) -> bool {
        matches!(self, Verdict::Used(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Used(why) => write!(f, "used: {why}"),
            Verdict::Off(why) => write!(f, "off: {why}"),
            Verdict::Dropped(why) => write!(f, "dropped: {why}"),
        }
    }
}

/// Why a state's figures are not the ones of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retime {
    /// The package C-state limit is below PC6, whose cost the table's figures contain.
    NoPc6 {
        /// MSR 0xE2 bits 2:0.
        limit: u8,
    },
    /// The firmware's interrupt response time limit.
    Irtl {
        /// The MSR.
        msr: u32,
    },
    /// The `mwait-idle.table=` option.
    ByOption,
}

impl fmt::Display for Retime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Retime::NoPc6 { limit } => {
                write!(
                    f,
                    "the package limit (MSR 0xe2 bits 2:0) is {limit}, below PC6"
                )
            }
            Retime::Irtl { msr } => write!(f, "MSR {msr:#x} says so"),
            Retime::ByOption => f.write_str("mwait-idle.table="),
        }
    }
}

/// What else is to be said about a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateNote {
    /// Its figures were changed.
    Retimed {
        /// Exit latency and target residency, as they were.
        from: (Micros, Micros),
        /// Exit latency and target residency, as they are now.
        to: (Micros, Micros),
        /// Why.
        why: Retime,
    },
    /// The MSR that would have its figures holds a reserved unit: the table's stay.
    ReservedUnit {
        /// The MSR.
        msr: u32,
    },
    /// Handlers run inside, since its table says that this pays and the TSC is nonstop.
    Open,
    /// Handlers run inside, since `irq-enable-early=force` says so.
    OpenForced,
    /// Handlers run inside, since MWAIT works in no other way here.
    OpenOnlyWay,
    /// Handlers would run inside, but do not, for this reason.
    NotOpen(Dropped),
    /// The firmware's C1 is MWAIT, which this stands in for, for this reason.
    HaltInstead(Dropped),
    /// HLT may go deeper than C1 on this CPU.
    HaltMayBeDeep,
    /// The TSC stops in it, and is restored on the way out.
    TscRestored,
    /// The local APIC timer stops in it, and another one stands in.
    TimerStandsIn,
    /// With an interrupt in service, C1 is entered instead (an erratum).
    InService,
    /// The self-test did not see MWAIT work: `force-mwait` uses it all the same.
    Unproven,
    /// Caches are written back before it, since in it the CPU does not answer for them.
    CachesWrittenBack,
    /// It is not entered while a bus master is active: C1 is.
    LooksAtBusMasters,
    /// The last CPU in keeps bus masters off the memory.
    KeepsBusMastersOff,
    /// It becomes C1E while POWER_CTL bit 1 is set, as it is.
    Promoted,
}

impl fmt::Display for StateNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            StateNote::Retimed { from, to, why } => {
                return write!(
                    f,
                    "re-timed from {}/{} to {}/{} us: {why}",
                    from.0.get(),
                    from.1.get(),
                    to.0.get(),
                    to.1.get()
                );
            }
            StateNote::ReservedUnit { msr } => {
                return write!(f, "MSR {msr:#x} holds a reserved unit: not used");
            }
            StateNote::NotOpen(why) => {
                return write!(f, "interrupts stay masked inside: {why}");
            }
            StateNote::HaltInstead(why) => return write!(f, "by HLT instead of MWAIT: {why}"),
            StateNote::Open => "takes interrupts inside (nonstop TSC)",
            StateNote::OpenForced => "takes interrupts inside (irq-enable-early=force)",
            StateNote::OpenOnlyWay => "takes interrupts inside (the only way that works here)",
            StateNote::CachesWrittenBack => "the caches are written back before it",
            StateNote::LooksAtBusMasters => "with a bus master active C1 is entered instead",
            StateNote::KeepsBusMastersOff => "the last CPU in it keeps bus masters off the memory",
            StateNote::HaltMayBeDeep => "HLT may go as deep as CC6 on this CPU",
            StateNote::TscRestored => "the TSC stops in it, and is restored on the way out",
            StateNote::TimerStandsIn => {
                "the local APIC timer stops in it, and another timer stands in"
            }
            StateNote::InService => "with an interrupt in service C1 is entered instead",
            StateNote::Unproven => "force-mwait: the self-test did not see it work",
            StateNote::Promoted => "the hardware may make it C1E (POWER_CTL bit 1 is set)",
        };
        f.write_str(words)
    }
}
