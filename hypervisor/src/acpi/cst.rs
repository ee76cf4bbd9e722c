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

use super::aml::capabilities::Capabilities;
use super::aml::{AmlTable, Evaluated, Finding, Findings, Job, Path, Stage, Told, stage_name};
use super::tables::{u32_at, u64_at};
use super::{FirmwareInfo, Problem};
use crate::cage::Escape;

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

/// Is there any reason to run the firmware's code? A name that is in no table is not defined; a P_BLK is of use only with
/// latencies that ACPI allows.
fn worthwhile(info: &FirmwareInfo) -> bool {
    let fadt = &info.c_states.fadt;
    let p_blk = !fadt.hardware_reduced() && (fadt.lvl2().is_some() || fadt.lvl3().is_some());
    p_blk || info.aml.iter().any(|table| table.mentions(b"_CST"))
}

/// Runs the firmware's code by `enter` (which runs one job in the cage), as often as is worth it, and sums up.
fn evaluate_all(
    tables: &[AmlTable],
    enabled: &[u32],
    capabilities: Capabilities,
    mut enter: impl FnMut(&Job<'_>, &mut Findings) -> Result<(), Escape>,
) -> FirmwareStates {
    const TRIES: u32 = 2;
    let mut states = FirmwareStates {
        offered: capabilities.bits(),
        ..FirmwareStates::default()
    };
    let mut findings = Findings::with_room(enabled.len().max(256));
    let mut without: Vec<usize> = Vec::new();
    while states.runs < TRIES {
        states.runs += 1;
        let job = Job {
            tables,
            without: &without,
            enabled,
            capabilities,
        };
        findings.remarks.clear();
        let Err(escape) = enter(&job, &mut findings) else {
            break;
        };
        let what = if states.runs < TRIES {
            "tried once more without it"
        } else {
            "left alone from here on"
        };
        states.problems.push(Problem::new(
            stage_name(&findings.stage, tables),
            format_args!("the firmware's code had to be stopped: {escape}; {what}"),
            "code that comes to an end",
        ));
        match findings.stage {
            Stage::Table(number) => without.push(number),
            Stage::Processor(path, processor, _) => findings.processors.push(Finding {
                path,
                processor,
                told: Told::default(),
                cst: Evaluated::Stopped(cut(&escape)),
            }),
            Stage::Search => break,
        }
    }
    states.p_blk = findings.p_blk;
    for (name, why) in &findings.remarks {
        states
            .problems
            .push(Problem::new(name, why, "AML that can be evaluated"));
    }
    sum_up(findings.processors, &mut states);
    states
}

fn cut(escape: &Escape) -> crate::cage::Text {
    let mut text = crate::cage::Text::new();
    for c in escape.to_string().chars() {
        if text.try_push(c).is_err() {
            break;
        }
    }
    text
}

fn sum_up(processors: Vec<Finding>, states: &mut FirmwareStates) {
    for finding in &processors {
        let name = format!("{}._CST", finding.path);
        let expected = "a _CST as ACPI 8.4.2.1 has it";
        let mut problem = |why: &dyn fmt::Display| {
            // Machines have many CPUs, and the same fault on each.
            if !states.problems.iter().any(|p| p.why == why.to_string()) {
                states.problems.push(Problem::new(&name, why, expected));
            }
        };
        match &finding.cst {
            Evaluated::List(entries, faults) => {
                for (at, fault) in faults {
                    match at {
                        0 => problem(fault),
                        at => problem(&format_args!("entry {at}: {fault}, skipped")),
                    }
                }
                if entries.is_empty() {
                    problem(&"no entry of it can be used");
                }
            }
            Evaluated::Refused(fault) => problem(&format_args!("{fault}: not used")),
            // It has been named already.
            Evaluated::Stopped(_) => {}
            Evaluated::Failed(why) => problem(why),
        }
    }
    states.cst = processors.iter().find_map(|finding| match &finding.cst {
        Evaluated::List(entries, faults) if !entries.is_empty() => Some(Cst {
            entries: entries.to_vec(),
            faults: faults.to_vec(),
        }),
        _ => None,
    });
    states.state = match (
        &states.cst,
        processors.is_empty() && states.problems.is_empty(),
    ) {
        (Some(_), _) => State::Found,
        (None, true) => State::None,
        (None, false) => State::Failed,
    };
    states.processors = processors;
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

/// Says on the console what came out: one line, and with `loglvl=debug` one for each entry.
pub fn log(states: &FirmwareStates) {
    match states.state {
        State::Off => log::info!("_CST: off (acpi_cst=off)"),
        State::None => log::info!("_CST: the firmware has none"),
        State::Failed => log::info!("_CST: the firmware has none that can be used"),
        State::Found => {
            let entries = states.cst.as_ref().map_or(0, |cst| cst.entries.len());
            log::info!(
                "_CST: {} processors have one, {entries} states, offered {:#x}",
                states.processors.len(),
                states.offered
            );
        }
    }
    for group in states.groups() {
        log::debug!(
            "_CST of {} ({} alike), {}",
            group.first,
            group.processors.len(),
            group.told
        );
        match &group.list {
            Ok((entries, _)) => entries
                .iter()
                .for_each(|entry| log::debug!("    {}", Shown(entry))),
            Err(why) => log::debug!("    {why}"),
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
mod bare {
    #![expect(
        unsafe_code,
        reason = "work that is thrown out must leave nothing behind"
    )]
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    use lull_core::options::ExitPort;
    use lull_core::platform::OneShot;
    use lull_core::units::Micros;

    use super::{
        Capabilities, FirmwareInfo, FirmwareStates, Problem, State, evaluate_all, worthwhile,
    };
    use crate::acpi::aml::evaluate;
    use crate::acpi::aml::handler::{Guarded, ThisMachine};
    use crate::acpi::aml::rules::{Refusals, Rules};
    use crate::boot::{BootInfo, MemoryKind};
    use crate::cage::{self, Limits};
    use crate::console::port::{MachinePorts, Ports};

    /// Large machines have some 500 KiB of AML, which becomes ten times as much. Its parsers nest deeply.
    const LIMITS: Limits = Limits {
        stack: 1 << 20,
        heap: 16 << 20,
        time: Micros::new(1_000_000),
    };

    static REFUSALS: Refusals = Refusals::none();

    fn rules(info: &FirmwareInfo, loader: &BootInfo, exit_port: Option<u16>) -> Rules {
        let ram = loader
            .memory
            .iter()
            .filter(|part| part.kind == MemoryKind::Usable)
            .map(|part| part.range);
        let registers = info
            .local_apic
            .into_iter()
            .chain([0xFEE0_0000])
            .chain(info.io_apics.iter().map(|io_apic| io_apic.address))
            .chain(info.hpet.map(|hpet| hpet.address));
        let power = info.power_off.iter().flat_map(|off| {
            [Some(off.control_a), off.control_b]
                .into_iter()
                .flatten()
                .flat_map(|port| [port, port.saturating_add(1)])
        });
        let reset = info.reset.and_then(|reset| match reset.register {
            crate::acpi::power::Register::Port(port) => Some(port),
            crate::acpi::power::Register::Memory(_) => None,
        });
        Rules::new(ram, registers, power.chain(reset).chain(exit_port))
    }

    /// Reads all that the firmware says about C-states, and takes the AML out of `info`: it is run here or never.
    ///
    /// On the boot CPU, before the others start, with its timer working and not armed. `mwait`: see
    /// [`offers_mwait`](super::offers_mwait).
    pub fn read(
        info: &mut FirmwareInfo,
        loader: &BootInfo,
        options: &lull_core::options::Options,
        mwait: bool,
        timer: &impl OneShot,
    ) -> FirmwareStates {
        let tables = core::mem::take(&mut info.aml);
        if !options.cstates.acpi_cst {
            return FirmwareStates {
                state: State::Off,
                ..FirmwareStates::default()
            };
        }
        info.aml = tables;
        let worthwhile = worthwhile(info);
        let tables = core::mem::take(&mut info.aml);
        if !worthwhile {
            return FirmwareStates::default();
        }
        // The firmware is told that `_CST` is used instead of the FADT. ACPI specification 6.5, 5.2.9, CST_CNT.
        if let (Some(port), value @ 1..) =
            (info.c_states.smi_command, info.c_states.fadt.cst_control)
        {
            MachinePorts.write8(port, value);
        }
        let enabled: Vec<u32> = info.cpus.iter().map(|cpu| cpu.processor).collect();
        let rules = rules(info, loader, options.exit_port.map(ExitPort::port));
        REFUSALS.clear();
        let capabilities = Capabilities::of_lull(mwait);
        let mut states = evaluate_all(&tables, &enabled, capabilities, |job, findings| {
            let mut work = || {
                let handler = Box::new(Guarded {
                    machine: ThisMachine,
                    rules: rules.clone(),
                    refusals: &REFUSALS,
                });
                evaluate(handler, job, findings);
            };
            // SAFETY: `work` writes to `findings` only, which is plain bytes but for a list that has its room already (it
            // is not pushed to when full); what it takes of locks it takes undisturbed; other CPUs have not started.
            unsafe { cage::run(&LIMITS, timer, &mut work) }
        });
        if REFUSALS.count() > 0 {
            states.problems.push(Problem::new(
                "AML",
                &REFUSALS,
                "firmware that leaves memory, interrupts and console to the hypervisor",
            ));
        }
        states
    }
}

#[cfg(target_os = "none")]
pub use bare::read;

#[cfg(test)]
mod tests;
