//! How often the firmware's code is run, and what is made of what it said: pure.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write};

use lull_core::cstate::acpi::{Cst, CstFault, CstMethod};

use super::{FirmwareStates, State};
use crate::acpi::aml::capabilities::Capabilities;
use crate::acpi::aml::rules::{Refusals, Rules};
use crate::acpi::aml::{
    AmlTable, Evaluated, Finding, Findings, Job, P_BLK_LENGTH, Remark, Stage, Told,
};
use crate::acpi::{FirmwareInfo, Problem};
use crate::cage::Escape;

/// Is there any reason to run the firmware's code? A name that is in no table is not defined, but by a table that `_PDC` or
/// `_OSC` loads; a P_BLK is of use only with latencies that ACPI allows.
pub fn worthwhile(info: &FirmwareInfo) -> bool {
    let fadt = &info.c_states.fadt;
    let p_blk = !fadt.hardware_reduced() && (fadt.lvl2().is_some() || fadt.lvl3().is_some());
    let listed = |table: &AmlTable| {
        let told = table.mentions(b"_PDC") || table.mentions(b"_OSC");
        table.mentions(b"_CST") || told && table.may_load()
    };
    p_blk || info.aml.iter().any(listed)
}

/// Runs the firmware's code by `enter` (which runs one job in the cage), as often as is worth it, and sums up.
pub fn evaluate_all(
    tables: &[AmlTable],
    enabled: &[u32],
    capabilities: Capabilities,
    ports: &Rules,
    mut enter: impl FnMut(&Job<'_>, &mut Findings) -> Result<(), Escape>,
) -> FirmwareStates {
    const TRIES: u32 = 2;
    let mut states = FirmwareStates {
        offered: capabilities.bits(),
        ..FirmwareStates::default()
    };
    let mut findings = Findings::with_room(enabled.len().max(256));
    let mut without: Vec<usize> = Vec::new();
    let mut unasked: Vec<&'static str> = Vec::new();
    while states.runs < TRIES {
        states.runs += 1;
        let job = Job {
            tables,
            without: &without,
            unasked: &unasked,
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
            // It has told nobody anything, but the list behind it is as good as before.
            Stage::Processor(_, _, method) if method != "_CST" && states.runs < TRIES => {
                unasked.push(method);
            }
            Stage::Processor(path, processor, _) => findings.processors.push(Finding {
                path,
                processor,
                told: Told::default(),
                cst: Evaluated::Stopped(cut(&escape)),
            }),
            Stage::Search => break,
        }
    }
    leave_out_ports(&mut findings, ports);
    states.p_blk = findings.p_blk;
    for (name, why) in &findings.remarks {
        states
            .problems
            .push(Problem::new(name, why, "AML that can be evaluated"));
    }
    sum_up(findings.processors, &mut states);
    states
}

/// A port that the firmware's code may not touch is no way to sleep either: reading it would do what it is for.
fn leave_out_ports(findings: &mut Findings, ports: &Rules) {
    let may = |port: u16| ports.port(port, 1);
    for finding in &mut findings.processors {
        let Evaluated::List(entries, faults) = &mut finding.cst else {
            continue;
        };
        entries.retain(|entry| match entry.method {
            CstMethod::Io(port) if !may(port) => {
                // A list so full of faults needs no more of them.
                let _full = faults.try_push((0, CstFault::PortTaken(port)));
                false
            }
            _ => true,
        });
    }
    if let Some(block) = findings.p_blk
        && !ports.port(block, P_BLK_LENGTH)
    {
        findings.p_blk = None;
        let (mut name, mut why) = (crate::acpi::aml::Path::new(), Remark::new());
        let _fits = (
            name.try_push_str("P_BLK"),
            write!(why, "{}", CstFault::PortTaken(block)),
        );
        let _full = findings.remarks.try_push((name, why));
    }
}

/// That the firmware's code reached for what is not its own.
pub fn refused(refusals: &Refusals) -> Problem {
    Problem::new(
        "AML",
        refusals,
        "firmware that leaves memory, interrupts and console to the hypervisor",
    )
}

/// What the stage is about, for the name of a problem.
fn stage_name(stage: &Stage, tables: &[AmlTable]) -> String {
    match stage {
        Stage::Table(number) => tables
            .get(*number)
            .map_or_else(|| stage.to_string(), |table| table.name.clone()),
        other => other.to_string(),
    }
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
