//! C-states: what a CPU can sleep in, how each is entered, and what it costs.
//!
//! The types here are plain data. Which states a CPU has is decided once, at boot, by [`select::select`]; which of them
//! is entered is the governor's choice; how an entry is made is the platform's.
//!
//! States are kept in a [`CStateTable`], shallow to deep. A state is named everywhere by its index there ([`StateId`]).

use crate::platform::IrqGate;
use crate::units::Micros;
use core::fmt;

pub mod acpi;
pub mod errata;
mod hint;
pub mod limits;
pub mod models;
pub mod select;
mod table;
pub mod tables;

pub use hint::MwaitHint;
pub use table::{CStateTable, Fit, MAX_STATES, StateId, TableError};

/// How a state is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryMethod {
    /// Spin on the wake word, with moments in which interrupts are taken.
    Poll,
    /// `sti; hlt; cli`.
    Halt,
    /// MONITOR on the wake word, then MWAIT.
    Mwait {
        /// Which state the CPU is asked for.
        hint: MwaitHint,
        /// Whether handlers run inside the state.
        gate: IrqGate,
    },
    /// A read from an ACPI `P_LVLx` port.
    IoRead(u16),
}

impl EntryMethod {
    /// Does a store to the wake word end the sleep? (Unless the CPU's monitor is known to miss stores.)
    pub const fn watches(self) -> bool {
        matches!(self, EntryMethod::Poll | EntryMethod::Mwait { .. })
    }

    /// Do interrupt handlers run inside the state, so that their time must be told apart from residency?
    pub const fn runs_handlers(self) -> bool {
        !matches!(
            self,
            EntryMethod::Mwait {
                gate: IrqGate::Masked,
                ..
            } | EntryMethod::IoRead(_)
        )
    }
}

/// As the console and the machine channel show it: `POLL`, `HLT`, `MWAIT 0x00`, `MWAIT+IRQ 0x00`, `IO 0x1814`.
impl fmt::Display for EntryMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryMethod::Poll => f.write_str("POLL"),
            EntryMethod::Halt => f.write_str("HLT"),
            EntryMethod::Mwait {
                hint,
                gate: IrqGate::Masked,
            } => write!(f, "MWAIT {hint}"),
            EntryMethod::Mwait {
                hint,
                gate: IrqGate::Open,
            } => write!(f, "MWAIT+IRQ {hint}"),
            EntryMethod::IoRead(port) => write!(f, "IO {port:#x}"),
        }
    }
}

bitflags::bitflags! {
    /// Properties of a state: as its table states them, and as the CPU and the firmware add to them.
    ///
    /// The values are Lull's own. Where Xen's mwait-idle has the same property, the value is Xen's (`IRQ_ENABLE` is its
    /// `CPUIDLE_FLAG_IRQ_ENABLE`, 0x8000). Linux gives 0x8000, 0x10000 and 0x20000 other meanings: never copy numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct CStateFlags: u32 {
        /// The TSC stops in this state: readings must be restored from another clock after it.
        const TSC_STOPS = 1 << 0;
        /// The local APIC timer stops in this state: another timer must stand in, unless CPUID says ARAT.
        const TIMER_STOPS = 1 << 1;
        /// Present, but not used unless asked for by name.
        const OFF_BY_DEFAULT = 1 << 2;
        /// Used even where the firmware does not list it.
        const ALWAYS_ENABLE = 1 << 3;
        /// Listed for completeness, and not to be used.
        const UNUSABLE = 1 << 4;
        /// The firmware's entry means this state whatever sub-state it names: only the class is compared.
        const PARTIAL_HINT_MATCH = 1 << 5;
        /// Live AMX tile state keeps the core out of the state: it must be released before.
        const INIT_XSTATE = 1 << 6;
        /// Not while an interrupt is in service (an erratum): C1 instead.
        const CHECK_IN_SERVICE = 1 << 7;
        /// Not while a bus master is active: look at BM_STS, clear it and use C1 instead if it is set (ACPI C3).
        const CHECK_BUS_MASTER = 1 << 8;
        /// The last CPU that enters disables bus arbitration (PM2_CNT bit 0), the first that leaves enables it (ACPI C3).
        const DISABLE_ARBITRATION = 1 << 9;
        /// WBINVD before: the caches are lost, or stale for bus masters (ACPI C3).
        const FLUSH_CACHES = 1 << 10;
        /// Read the PM timer once after the port: some chipsets stop the CPU late (Intel, bare metal).
        const READ_PM_TIMER = 1 << 11;
        /// The exit is cheap, and handlers may run inside the state: enter with interrupts open.
        /// Honoured only with a nonstop TSC; a handler would otherwise see a clock that is not restored yet.
        const IRQ_ENABLE = 0x8000;
        /// The TLB is flushed by the hardware: the CPU needs no TLB shoot-down while it is inside.
        const TLB_FLUSHED = 0x1_0000;
        /// Write 0 to IA32_SPEC_CTRL before, and restore it after: with SMT, a restricted sibling would slow the other.
        /// Never together with `IRQ_ENABLE`.
        const CLEAR_SPEC_CTRL = 0x2_0000;
    }
}

/// One C-state of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CState {
    /// What people call it: `POLL`, `C1`, `C1E`, `C6`.
    pub name: &'static str,
    /// How it is entered.
    pub method: EntryMethod,
    /// Its properties.
    pub flags: CStateFlags,
    /// The longest time from the wake to the first instruction.
    pub exit_latency: Micros,
    /// A stay shorter than this costs more energy than the shallower state would.
    pub target_residency: Micros,
}

impl CState {
    /// Spinning: no latency, no saving. State 0 of every table.
    pub const POLL: Self = Self {
        name: "POLL",
        method: EntryMethod::Poll,
        flags: CStateFlags::empty(),
        exit_latency: Micros::ZERO,
        target_residency: Micros::ZERO,
    };

    /// C1 by HLT: what every CPU has. The figures are the ones that Linux and Xen assume for it.
    pub const C1_HALT: Self = Self {
        name: "C1",
        method: EntryMethod::Halt,
        flags: CStateFlags::empty(),
        exit_latency: Micros::new(2),
        target_residency: Micros::new(2),
    };

    /// C1 by MWAIT, hint 0. The figures are the ones that Linux and Xen assume for it.
    pub const fn c1_mwait(gate: IrqGate) -> Self {
        Self {
            name: "C1",
            method: EntryMethod::Mwait {
                hint: MwaitHint::C1,
                gate,
            },
            flags: match gate {
                IrqGate::Open => CStateFlags::IRQ_ENABLE,
                IrqGate::Masked => CStateFlags::empty(),
            },
            exit_latency: Micros::new(2),
            target_residency: Micros::new(2),
        }
    }
}

#[cfg(test)]
mod tests;
