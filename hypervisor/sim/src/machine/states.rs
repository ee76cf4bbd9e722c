//! The C-states of the simulated CPUs, and the ways into them.

use super::faults;
use crate::cost::{CostModel, Machine};
use crate::machines::{ACPI, SKL, SKX, SPR};
use lull_core::cstate::{CState, CStateFlags, CStateTable, EntryMethod, MAX_STATES, MwaitHint};
use lull_core::idle::MonitorTrust;
use lull_core::platform::IrqGate;
use lull_core::units::Micros;
use std::fmt;
use std::str::FromStr;

/// How C-states are entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// MWAIT: C1 with interrupts open, the others with interrupts masked. A store ends the sleep.
    Mwait,
    /// MWAIT on CPUs whose monitor misses stores: an interrupt is always sent.
    Blind,
    /// HLT for the first state, ACPI ports for the others.
    Port,
    /// HLT, and no other state.
    Halt,
}

impl Entry {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Mwait, Self::Blind, Self::Port, Self::Halt];

    /// As the command line names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mwait => "mwait",
            Self::Blind => "blind",
            Self::Port => "port",
            Self::Halt => "halt",
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|entry| entry.name() == text);
        let names = Self::ALL.map(Entry::name).join(", ");
        found.ok_or_else(|| format!("`{text}` is none of {names}"))
    }
}

/// A machine by its name.
///
/// # Errors
/// There is none of that name.
pub fn machine(name: &str) -> Result<Machine, String> {
    let all = [SKX, SKL, ACPI, SPR];
    let names = all.map(|machine| machine.name).join(", ");
    all.into_iter()
        .find(|machine| machine.name == name)
        .ok_or_else(|| format!("`{name}` is none of {names}"))
}

/// The states of each CPU.
#[derive(Clone, Debug)]
pub struct States {
    /// What the core is given.
    pub table: CStateTable,
    /// Whether stores end a sleep.
    pub trust: MonitorTrust,
    latencies: [u64; MAX_STATES],
    /// What they cost.
    pub costs: CostModel,
}

/// The ACPI port of the state with index 0; the others follow.
const PORT: u16 = 0x1800;

impl States {
    /// The states of a machine, entered in this way.
    ///
    /// # Panics
    /// If the machine has no states, or too many: machines are built in.
    #[expect(clippy::expect_used, reason = "machines are built in, and tested")]
    pub fn new(machine: &Machine, entry: Entry) -> Self {
        let count = if entry == Entry::Halt {
            1
        } else {
            machine.states.len()
        };
        let sleeps = machine
            .states
            .iter()
            .take(count)
            .enumerate()
            .map(|(index, state)| {
                let number = index as u32;
                let (method, flags) = match entry {
                    Entry::Mwait | Entry::Blind if index == 0 => (
                        EntryMethod::Mwait {
                            hint: MwaitHint::C1,
                            gate: IrqGate::Open,
                        },
                        CStateFlags::IRQ_ENABLE,
                    ),
                    Entry::Mwait | Entry::Blind => (
                        EntryMethod::Mwait {
                            hint: MwaitHint::new(number << 4),
                            gate: IrqGate::Masked,
                        },
                        CStateFlags::empty(),
                    ),
                    Entry::Port if index > 0 => (
                        EntryMethod::IoRead(PORT + index as u16 + 1),
                        CStateFlags::empty(),
                    ),
                    Entry::Port | Entry::Halt => (EntryMethod::Halt, CStateFlags::empty()),
                };
                CState {
                    name: state.name,
                    method,
                    flags,
                    exit_latency: Micros::new(state.exit_latency),
                    target_residency: Micros::new(state.target_residency),
                }
            });
        let all: Vec<_> = std::iter::once(CState::POLL).chain(sleeps).collect();
        let mut latencies = [0; MAX_STATES];
        for (latency, state) in latencies.iter_mut().zip(&all) {
            *latency = state.exit_latency.to_nanos().get();
        }
        Self {
            table: CStateTable::new(&all).expect("a machine's states fit into a table"),
            trust: if entry == Entry::Blind {
                MonitorTrust::MissesStores
            } else {
                MonitorTrust::SeesStores
            },
            latencies,
            costs: CostModel::new(machine),
        }
    }

    /// The longest way out of a state, in ns.
    pub fn exit_latency(&self, state: u8) -> u64 {
        self.latencies.get(usize::from(state)).copied().unwrap_or(0)
    }

    /// The longest of all.
    pub fn longest_exit(&self) -> u64 {
        self.latencies.iter().copied().max().unwrap_or(0)
    }

    /// The state that this hint asks for.
    pub fn of_hint(&self, hint: MwaitHint) -> u8 {
        (hint.eax() >> 4) as u8 + 1
    }

    /// The state that HLT enters.
    pub fn of_halt(&self) -> u8 {
        1
    }

    /// The state that a port enters.
    pub fn of_port(&self, port: u16) -> u8 {
        port.saturating_sub(PORT) as u8
    }

    /// How long after a deadline its interrupt may come.
    pub fn timer_slack(faults: faults::Faults) -> u64 {
        if faults.has(faults::Fault::Timer) {
            faults::LATE_TIMER
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_in_leads_to_the_state_that_the_core_asked_for() {
        for name in ["skx", "skl", "acpi", "spr"] {
            for entry in Entry::ALL {
                let states = States::new(&machine(name).unwrap(), entry);
                for (id, state) in states.table.iter() {
                    let index = match state.method {
                        EntryMethod::Poll => 0,
                        EntryMethod::Halt => states.of_halt(),
                        EntryMethod::Mwait { hint, .. } => states.of_hint(hint),
                        EntryMethod::IoRead(port) => states.of_port(port),
                    };
                    assert_eq!(
                        usize::from(index),
                        id.index(),
                        "{name} {entry} {}",
                        state.name
                    );
                    assert_eq!(
                        states.exit_latency(index),
                        state.exit_latency.to_nanos().get()
                    );
                }
            }
        }
        assert!(
            machine("z80")
                .unwrap_err()
                .contains("none of skx, skl, acpi, spr")
        );
    }
}
