//! What the firmware says about C-states: `_CST` of every processor, the FADT, the P_BLK.
//!
//! [`read`] runs the firmware's code in the [`cage`](crate::cage), once, on the boot CPU. Each way in which that can go
//! wrong is a [`Problem`], and what was learnt before stays. After the work was thrown out it is tried once more, without
//! the table or processor that it was at; then it is left alone.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use lull_core::cstate::acpi::{Cst, CstEntry, CstFault, CstMethod, Fadt};
use lull_core::cstate::select::{CpuFacts, MwaitVerdict};
use lull_core::options::{IdleMethod, Options};

use super::Problem;
use super::aml::{Evaluated, Finding, Path, Told};
use super::tables::{u32_at, u64_at};
use crate::console::port::Ports;

pub mod evaluate;
#[cfg(target_os = "none")]
mod run;

/// Where bus masters show, and how they are kept from memory while the caches are off. ACPI specification 6.5, 4.8.3.
///
/// Only a C3 that is entered by a port needs them, and not on CPUs whose caches stay coherent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusMasters {
    /// Ports of PM1a_STS and PM1b_STS: bit 4 is BM_STS, cleared by writing it as 1.
    pub status: [Option<u16>; 2],
    /// Ports of PM1a_CNT and PM1b_CNT: bit 1 is BM_RLD, set once for all.
    pub control: [Option<u16>; 2],
    /// Port of PM2_CNT: bit 0 is ARB_DIS.
    pub arbiter: Option<u16>,
}

/// Of the FADT, what C-states need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FadtStates {
    /// Latencies and flags.
    pub fadt: Fadt,
    /// SMI_CMD, to which CST_CNT is written before `_CST` is used.
    pub smi_command: Option<u16>,
    /// What C3 needs.
    pub bus_masters: BusMasters,
}

impl FadtStates {
    /// Tells the firmware that its C-states are taken over, by `value` (CST_CNT); the port that it was written to. ACPI
    /// specification 6.5, 5.2.9.
    pub fn take_over(&self, value: Option<u8>, ports: &impl Ports) -> Option<u16> {
        let (value, port) = value.zip(self.smi_command)?;
        ports.write8(port, value);
        Some(port)
    }

    /// Takes a FADT apart that is at least as long as the first revision's. ACPI specification 6.5, table 5.9.
    pub fn from_bytes(fadt: &[u8]) -> Self {
        let byte = |at: usize| fadt.get(at).copied().unwrap_or(0);
        let word = |at: usize| u16::from_le_bytes([byte(at), byte(at + 1)]);
        let port = |at: usize| {
            u32_at(fadt, at)
                .and_then(|port| u16::try_from(port).ok())
                .filter(|port| *port != 0)
        };
        // The 64-bit twin of a 32-bit block, which may be the only one that is given: its space must be I/O.
        let block = |old: usize, new: usize| {
            port(old).or_else(|| {
                (fadt.get(new) == Some(&1)).then_some(())?;
                u16::try_from(u64_at(fadt, new + 4)?)
                    .ok()
                    .filter(|port| *port != 0)
            })
        };
        let arbiter = block(72, 196).filter(|_| byte(90) != 0);
        Self {
            fadt: Fadt {
                flags: u32_at(fadt, 112).unwrap_or(0),
                lvl2_latency: word(96),
                lvl3_latency: word(98),
                cst_control: byte(95),
                pm2_control: arbiter.is_some(),
            },
            smi_command: port(48),
            bus_masters: BusMasters {
                status: [block(56, 148), block(60, 160)],
                control: [block(64, 172), block(68, 184)],
                arbiter,
            },
        }
    }
}

/// What became of `_CST`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Switched off by `acpi_cst=off`.
    Off,
    /// No table has one.
    #[default]
    None,
    /// At least one processor has one that makes sense.
    Found,
    /// There are some, or seem to be, and none could be used.
    Failed,
}

impl State {
    /// The word for it on the machine channel.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::None => "none",
            Self::Found => "found",
            Self::Failed => "failed",
        }
    }
}

/// All that the firmware says about C-states.
#[derive(Clone, Debug, Default)]
pub struct FirmwareStates {
    /// What became of `_CST`.
    pub state: State,
    /// Each processor that has a `_CST`, in the order of the namespace.
    pub processors: Vec<Finding>,
    /// The first that makes sense, for the selection: it counts for all CPUs.
    pub cst: Option<Cst>,
    /// The P_BLK of the first processor that has one. Only known if the code was run.
    pub p_blk: Option<u16>,
    /// The capability dword that the processors were told.
    pub offered: u32,
    /// How often the cage was entered.
    pub runs: u32,
    /// What went wrong.
    pub problems: Vec<Problem>,
}

/// May and can Lull use MWAIT here, as far as the firmware should know?
///
/// CPUID must report it with its extensions, no option may forbid it, and no try of it may have raised an exception or
/// failed. `force-mwait` lets CPUID alone decide.
pub fn offers_mwait(facts: &CpuFacts, options: &Options) -> bool {
    let reported = facts.monitor && facts.mwait.extensions && facts.mwait.interrupt_break;
    let wanted =
        options.cstates.cpuidle && matches!(options.idle, IdleMethod::Auto | IdleMethod::Mwait);
    let works = [facts.test.open, facts.test.masked]
        .iter()
        .any(|verdict| matches!(verdict, MwaitVerdict::Works | MwaitVerdict::Untested));
    reported && wanted && (works || options.cstates.force_mwait)
}

/// The entries and faults of a finding, if its `_CST` has a sound frame.
type List<'a> = (&'a [CstEntry], &'a [(usize, CstFault)]);

/// Processors with an equal `_CST`, told in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// The first of them.
    pub first: Path,
    /// ACPI's numbers of them all.
    pub processors: Vec<u32>,
    /// How they were told.
    pub told: Told,
    /// What they have in common, or why there is nothing.
    pub list: Result<List<'a>, String>,
}

impl FirmwareStates {
    /// The processors, those with equal results taken together.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for finding in &self.processors {
            let list = match &finding.cst {
                Evaluated::List(entries, faults) => Ok((entries.as_slice(), faults.as_slice())),
                Evaluated::Refused(fault) => Err(fault.to_string()),
                Evaluated::Failed(why) | Evaluated::Stopped(why) => Err(why.to_string()),
            };
            match groups
                .iter_mut()
                .find(|group| group.list == list && group.told == finding.told)
            {
                Some(group) => group.processors.push(finding.processor),
                None => groups.push(Group {
                    first: finding.path,
                    processors: Vec::from([finding.processor]),
                    told: finding.told,
                    list,
                }),
            }
        }
        groups
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.osc, self.pdc) {
            (None, false) => f.write_str("told nothing"),
            (None, true) => f.write_str("told by _PDC"),
            (Some(answer), false) => write!(f, "told by _OSC: {answer}"),
            (Some(answer), true) => write!(f, "told by _OSC: {answer}, then by _PDC"),
        }
    }
}

/// What came out, for people: one line, and behind it one for each entry.
pub fn lines(states: &FirmwareStates) -> Vec<String> {
    let mut lines = Vec::from([match states.state {
        State::Off => "_CST: off (acpi_cst=off)".to_string(),
        State::None => "_CST: the firmware has none".to_string(),
        State::Failed => "_CST: the firmware has none that can be used".to_string(),
        State::Found => {
            let entries = states.cst.as_ref().map_or(0, |cst| cst.entries.len());
            format!(
                "_CST: {} processors have one, {entries} states, offered {:#x}",
                states.processors.len(),
                states.offered
            )
        }
    }]);
    for group in states.groups() {
        lines.push(format!(
            "_CST of {} ({} alike), {}",
            group.first,
            group.processors.len(),
            group.told
        ));
        match &group.list {
            Ok((entries, _)) => {
                lines.extend(entries.iter().map(|entry| format!("    {}", Shown(entry))))
            }
            Err(why) => lines.push(format!("    {why}")),
        }
    }
    lines
}

/// Says it on the console: the first line, and with `loglvl=debug` the others.
pub fn log(states: &FirmwareStates) {
    for (at, line) in lines(states).iter().enumerate() {
        match at {
            0 => log::info!("{line}"),
            _ => log::debug!("{line}"),
        }
    }
}

/// An entry for people: `C2 by MWAIT 0x21, 127 us`.
pub struct Shown<'a>(pub &'a CstEntry);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "C{} by ", self.0.acpi_type.number())?;
        match self.0.method {
            CstMethod::Mwait { hint, .. } => write!(f, "MWAIT {:#x}", hint.eax())?,
            CstMethod::Halt => f.write_str("HLT")?,
            CstMethod::Io(port) => write!(f, "port {port:#x}")?,
        }
        write!(f, ", {} us", self.0.latency.get())
    }
}

#[cfg(target_os = "none")]
pub use run::read;

#[cfg(test)]
mod tests;
