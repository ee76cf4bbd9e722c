//! C-states: what a CPU can sleep in, how each is entered, and what it costs.
//!
//! The types here are plain data. Which states a CPU has is decided once, at boot, by [`select::select`]; which of them
//! is entered is the governor's choice; how an entry is made is the platform's.
//!
//! States are kept in a [`CStateTable`], shallow to deep. A state is named everywhere by its index there ([`StateId`]).

use crate::platform::IrqGate;
use crate::units::{Micros, Nanos};
use core::fmt;

pub mod select;

/// The largest number of states that a CPU's table holds: POLL and nine more, as the largest published table has.
pub const MAX_STATES: usize = 10;

/// The EAX hint of MWAIT: which C-state, and which sub-state of it, the CPU is asked for.
///
/// Bits 7:4 are the C-state less one (so that 0 is C1, and 0xF is C0); bits 3:0 the sub-state. The names of the states
/// do not follow from the numbers, and sub-states need not be consecutive: both are taken from tables, never computed.
/// Source: Intel SDM, volume 2, MWAIT, "MWAIT hints register (EAX)".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MwaitHint(u32);

impl MwaitHint {
    /// C1, sub-state 0: what every CPU with MWAIT has.
    pub const C1: Self = Self(0x00);

    /// The hint with these bits. Bits above 7 are reserved, and kept: a CPU may give them a meaning.
    pub const fn new(eax: u32) -> Self {
        Self(eax)
    }

    /// What goes into EAX.
    pub const fn eax(self) -> u32 {
        self.0
    }

    /// The hardware's C-state number: 1 for C1, 0 for C0 (nibble 0xF).
    ///
    /// This is also the index of the nibble of CPUID leaf 5 EDX that counts the sub-states.
    pub const fn class(self) -> u32 {
        ((self.0 >> 4) + 1) & 0xF
    }

    /// The sub-state, from 0.
    pub const fn substate(self) -> u32 {
        self.0 & 0xF
    }

    /// Does CPUID leaf 5 EDX report any sub-state of this hint's class?
    ///
    /// The count is no bound on the sub-state's number: some CPUs number theirs sparsely. Zero means absent.
    pub const fn reported_by(self, leaf5_edx: u32) -> bool {
        let class = self.class();
        class < 8 && (leaf5_edx >> (class * 4)) & 0xF != 0
    }
}

impl fmt::Display for MwaitHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}

impl fmt::Debug for MwaitHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

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
            }
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
    /// Properties of a state, as its table states them.
    ///
    /// `IRQ_ENABLE` and `TLB_FLUSHED` have the values that Xen's mwait-idle tables use, so that tables can be compared.
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
        /// The exit is cheap, and handlers may run inside the state: enter with interrupts open.
        /// Honoured only with a nonstop TSC; a handler would otherwise see a clock that is not restored yet.
        const IRQ_ENABLE = 0x8000;
        /// The TLB is flushed by the hardware: the CPU needs no TLB shoot-down while it is inside.
        const TLB_FLUSHED = 0x1_0000;
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

/// The index of a state in its CPU's table: 0 is the shallowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(u8);

impl StateId {
    /// The index as a number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Out of an encoding that came from an id.
    pub(crate) const fn from_index(index: u8) -> Self {
        Self(index)
    }
}

/// How well an entered state fitted the sleep it was entered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fit {
    /// No other state of the table would have been better.
    Right,
    /// The sleep was shorter than the state's target residency, and there is a shallower state.
    TooDeep,
    /// The next deeper state's target residency, and the exit latency, would have fitted into the sleep.
    TooShallow,
}

/// The states of one CPU, shallow to deep. Never empty, at most [`MAX_STATES`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CStateTable {
    states: [CState; MAX_STATES],
    len: u8,
}

impl CStateTable {
    /// HLT and nothing else: what is left if nothing is known about a CPU.
    pub const HALT: Self = Self {
        states: [CState::C1_HALT; MAX_STATES],
        len: 1,
    };

    /// A table of these states.
    ///
    /// # Errors
    /// No state, or more than [`MAX_STATES`].
    pub fn new(states: &[CState]) -> Result<Self, TableError> {
        if states.is_empty() {
            return Err(TableError::Empty);
        }
        let mut table = Self {
            states: [CState::POLL; MAX_STATES],
            len: 0,
        };
        for &state in states {
            let Some(slot) = table.states.get_mut(usize::from(table.len)) else {
                return Err(TableError::TooMany(states.len()));
            };
            *slot = state;
            table.len += 1;
        }
        Ok(table)
    }

    /// All states, shallow to deep.
    pub fn states(&self) -> &[CState] {
        self.states.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// All states with their ids, shallow to deep.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (StateId, &CState)> + ExactSizeIterator {
        self.states()
            .iter()
            .enumerate()
            .map(|(index, state)| (StateId(index as u8), state))
    }

    /// The state with this index, if the table has it.
    pub fn id(&self, index: usize) -> Option<StateId> {
        (index < usize::from(self.len)).then_some(StateId(index as u8))
    }

    /// One state. An id of another, larger table names this one's deepest state.
    pub fn state(&self, id: StateId) -> &CState {
        let deepest = usize::from(self.len).saturating_sub(1);
        &self.states[id.index().min(deepest)]
    }

    /// The shallowest state.
    pub const fn shallowest(&self) -> StateId {
        StateId(0)
    }

    /// How well `entered` fitted a sleep that lasted `slept`, from entry to wake, its exit latency included.
    pub fn fit(&self, entered: StateId, slept: Nanos) -> Fit {
        let state = self.state(entered);
        if slept < state.target_residency.to_nanos() {
            return if entered == self.shallowest() {
                Fit::Right
            } else {
                Fit::TooDeep
            };
        }
        let deeper = self
            .id(entered.index() + 1)
            .map(|id| self.state(id).target_residency.to_nanos());
        match deeper {
            Some(target) if slept - state.exit_latency.to_nanos() >= target => Fit::TooShallow,
            _ => Fit::Right,
        }
    }

    /// How many states there are: at least one.
    pub fn count(&self) -> usize {
        usize::from(self.len)
    }
}

impl fmt::Debug for CStateTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.states()).finish()
    }
}

/// Why a list of states is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// It holds no state.
    Empty,
    /// It holds this many, more than [`MAX_STATES`].
    TooMany(usize),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::Empty => f.write_str("no C-state: expected at least one"),
            TableError::TooMany(count) => {
                write!(f, "{count} C-states: expected at most {MAX_STATES}")
            }
        }
    }
}

impl core::error::Error for TableError {}

#[cfg(test)]
mod tests;
