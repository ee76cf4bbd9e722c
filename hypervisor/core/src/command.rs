//! Commands that are typed on the debug console at run time: what they are, and how they are read.
//!
//! A command is one line: its name, then words. Reading one is pure, and never panics, whatever was typed; a mistake is
//! named together with what would be right. What a command does is the image's business.
//!
//! To add one: a variant of [`Command`], how it is shown, and a row of [`COMMANDS`].

use crate::options::{MaxCState, Problem};
use crate::sched::{Cap, Weight};
use crate::units::{CpuSet, DomId, Micros};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

mod editor;
mod read;
mod table;

pub use editor::{Edit, LineEditor, MAX_LINE};
pub use table::{COMMANDS, CommandSpec};

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `help`: all commands, or one.
    Help(Option<&'static CommandSpec>),
    /// `show`: what is set, for these CPUs.
    Show(CpuSet),
    /// `cstate on`, `cstate off`: may the state be chosen?
    State {
        /// Which state.
        state: StateRef,
        /// On or off.
        on: bool,
        /// On which CPUs.
        cpus: CpuSet,
    },
    /// `cstate max`: the deepest that may be chosen, as the option `max_cstate=` counts; `None` for no limit.
    MaxCState {
        /// The limit.
        limit: Option<MaxCState>,
        /// On which CPUs.
        cpus: CpuSet,
    },
    /// `governor`: who chooses. One of [`AnyGovernor::NAMES`](crate::governor::AnyGovernor::NAMES).
    Governor {
        /// Its name.
        name: &'static str,
        /// On which CPUs.
        cpus: CpuSet,
    },
    /// `latency`: the longest exit latency that may be chosen; `None` for any.
    Latency {
        /// The limit.
        limit: Option<Micros>,
        /// Whose.
        of: LatencyOf,
    },
    /// `offline`, `online`: CPUs leave the scheduler and sleep, or come back.
    Online {
        /// Back, or away.
        on: bool,
        /// Which.
        cpus: CpuSet,
    },
    /// `weight`, `cap`, `pin`, `soft`, `halt-poll`: another parameter of a guest's vCPUs.
    Guest {
        /// Which parameter, and what it is from now on.
        change: GuestChange,
        /// Which guest.
        guest: GuestRef,
        /// Which vCPU of it; `None` for all.
        vcpu: Option<u32>,
    },
}

/// What a guest's vCPUs are given from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestChange {
    /// The share of each of them.
    Weight(Weight),
    /// The most that all of them have together; `None`: as much as there is.
    Cap(Option<Cap>),
    /// Where they may run.
    Pin(CpuSet),
    /// Where they prefer to run.
    Soft(CpuSet),
    /// For how long their pCPUs look for a kick before they block.
    HaltPoll(Micros),
}

/// As it is typed, without whom it is about.
impl fmt::Display for GuestChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight(weight) => write!(f, "weight {weight}"),
            Self::Cap(Some(cap)) => write!(f, "cap {cap}"),
            Self::Cap(None) => f.write_str("cap none"),
            Self::Pin(cpus) => write!(f, "pin {cpus}"),
            Self::Soft(cpus) => write!(f, "soft {cpus}"),
            Self::HaltPoll(limit) => write!(f, "halt-poll {}", limit.get()),
        }
    }
}

/// A state of a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateRef {
    /// By name: `C6`.
    Name(String),
    /// By its index: 0 is the shallowest.
    Index(u8),
}

/// Whose limit on exit latency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LatencyOf {
    /// Of pCPUs.
    Cpus(CpuSet),
    /// Of the vCPUs of a guest: each limits the pCPU that it last ran on.
    Guest {
        /// Which guest.
        guest: GuestRef,
        /// Which vCPU of it; `None` for all.
        vcpu: Option<u32>,
    },
}

/// A guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestRef {
    /// By name: the first of that name.
    Name(String),
    /// By number: `d1`.
    Id(DomId),
}

impl Command {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn parse(line: &str) -> Result<Self, Problem> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((name, words)) = words.split_first() else {
            return Err(Problem::new(line, "no command", table::known_names()));
        };
        match COMMANDS.iter().find(|command| command.name == *name) {
            Some(spec) => spec.read(words),
            None => Err(Problem::new(name, "no such command", table::known_names())),
        }
    }
}

/// As it is typed.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Help(None) => f.write_str("help"),
            Self::Help(Some(spec)) => write!(f, "help {}", spec.name),
            Self::Show(cpus) => write!(f, "show {}", On(cpus)),
            Self::State { state, on, cpus } => {
                let on = if *on { "on" } else { "off" };
                write!(f, "cstate {on} {state} {}", On(cpus))
            }
            Self::MaxCState { limit: None, cpus } => {
                write!(f, "cstate max unlimited {}", On(cpus))
            }
            Self::MaxCState {
                limit: Some(limit),
                cpus,
            } => {
                write!(f, "cstate max {}", limit.class)?;
                if let Some(sub) = limit.substate {
                    write!(f, ",{sub}")?;
                }
                write!(f, " {}", On(cpus))
            }
            Self::Governor { name, cpus } => write!(f, "governor {name} {}", On(cpus)),
            Self::Latency { limit, of } => {
                match limit {
                    Some(limit) => write!(f, "latency {} ", limit.get())?,
                    None => f.write_str("latency none ")?,
                }
                write!(f, "{of}")
            }
            Self::Online { on, cpus } => {
                let word = if *on { "online" } else { "offline" };
                write!(f, "{word} {cpus}")
            }
            Self::Guest {
                change,
                guest,
                vcpu,
            } => {
                write!(f, "{change} guest={guest}")?;
                vcpu.map_or(Ok(()), |vcpu| write!(f, " vcpu={vcpu}"))
            }
        }
    }
}

impl fmt::Display for StateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Index(index) => write!(f, "{index}"),
        }
    }
}

impl fmt::Display for GuestRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Id(id) => write!(f, "{id}"),
        }
    }
}

impl fmt::Display for LatencyOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(cpus) => On(cpus).fmt(f),
            Self::Guest { guest, vcpu: None } => write!(f, "guest={guest}"),
            Self::Guest {
                guest,
                vcpu: Some(vcpu),
            } => write!(f, "guest={guest} vcpu={vcpu}"),
        }
    }
}

/// `cpu=0-2,5`.
struct On<'a>(&'a CpuSet);

impl fmt::Display for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu={}", self.0)
    }
}

#[cfg(test)]
mod tests;
