//! Why a state was kept or dropped: typed for tools and tests, and in words for people.

use super::facts::MwaitVerdict;
use crate::cstate::MwaitHint;
use crate::options::IdleMethod;
use crate::platform::IrqGate;
use core::fmt;

/// Why a state is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// The `idle=` option names it.
    AskedFor,
    /// For sleeps that are shorter than any other state is worth.
    ShortestSleeps,
    /// It works, and handlers may run inside it.
    HandlersInside,
    /// It works with interrupts masked, as the self-test proved.
    BreaksOnMasked,
    /// Every CPU can do it.
    AlwaysWorks,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kept::AskedFor => "asked for by idle=",
            Kept::ShortestSleeps => "for sleeps too short for any other state",
            Kept::HandlersInside => "works, and takes interrupts inside (nonstop TSC)",
            Kept::BreaksOnMasked => "works, and breaks on masked interrupts",
            Kept::AlwaysWorks => "every CPU has it",
        })
    }
}

/// Why a state is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// The `idle=` option says otherwise.
    NotAskedFor(IdleMethod),
    /// The same state has been kept with a better entry.
    BetterEntry,
    /// CPUID does not report MONITOR/MWAIT.
    NoMonitor,
    /// CPUID leaf 5 gives no size for the monitored line.
    NoLineSize,
    /// CPUID leaf 5 reports no sub-state of the hint's C-state.
    NotReported(MwaitHint),
    /// CPUID leaf 5 does not offer to break on masked interrupts.
    NoInterruptBreak,
    /// The state's table does not say that handlers may run inside.
    NotFlagged,
    /// Handlers inside the state would read a clock that may have stopped.
    HandlersNeedTsc,
    /// The TSC stops in it.
    TscStops,
    /// The local APIC timer stops in it, and nothing stands in.
    TimerStops,
    /// The self-test found that it does not work.
    SelfTest(IrqGate, MwaitVerdict),
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dropped::NotAskedFor(mode) => write!(f, "idle={}", option(*mode)),
            Dropped::BetterEntry => f.write_str("the same state has a better entry"),
            Dropped::NoMonitor => f.write_str("CPUID does not report MONITOR/MWAIT"),
            Dropped::NoLineSize => f.write_str("CPUID leaf 5 gives no monitor line size"),
            Dropped::NotReported(hint) => {
                write!(
                    f,
                    "CPUID leaf 5 reports no C{} for hint {hint}",
                    hint.class()
                )
            }
            Dropped::NoInterruptBreak => {
                f.write_str("CPUID leaf 5 does not offer a break on masked interrupts")
            }
            Dropped::NotFlagged => f.write_str("its table does not allow handlers inside"),
            Dropped::HandlersNeedTsc => {
                f.write_str("no nonstop TSC: a handler inside could read a stopped clock")
            }
            Dropped::TscStops => f.write_str("the TSC stops in it"),
            Dropped::TimerStops => f.write_str("the local APIC timer stops in it (no ARAT)"),
            Dropped::SelfTest(gate, verdict) => {
                let ecx = match gate {
                    IrqGate::Open => 0,
                    IrqGate::Masked => 1,
                };
                write!(f, "MWAIT with ECX={ecx} {verdict}")
            }
        }
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
