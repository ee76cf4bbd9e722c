//! `--acpi`: what the firmware's own code says about C-states, found out as Lull does at boot.
//!
//! The files are put into a memory of which [`lull::acpi::read`] believes that it is a machine's, and the code is run by
//! the very function that the image calls. A process of its own ([`cage`]) takes the place of the image's cage.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use lull::acpi::aml::{capabilities::Capabilities, rules::Rules};
use lull::acpi::cst::{
    self, FirmwareStates, State,
    evaluate::{evaluate_all, worthwhile},
};
use lull::acpi::{self, Problem};
use lull::console::records::AcpiCst;
use lull_core::cstate::acpi::Fadt;
use lull_core::cstate::select::{CpuFacts, Firmware};
use lull_core::options::Options;

use crate::workspace;

pub mod cage;
mod image;
mod lines;

/// What the files say.
pub struct Said {
    states: FirmwareStates,
    /// Only if a FADT is among the files.
    fadt: Option<Fadt>,
    /// What is wrong with the files themselves.
    damaged: Vec<Problem>,
    /// What the code wanted of registers that are not here.
    missed: Option<String>,
}

/// Reads the files, and runs their code as on this CPU with these options.
///
/// # Errors
/// A file is not readable or no ACPI table that counts here. What is wrong *in* a table is in the result.
pub fn ask(files: &[PathBuf], cpu: &CpuFacts, options: &Options) -> Result<Said> {
    let tables = files
        .iter()
        .map(|path| read(path))
        .collect::<Result<Vec<_>>>()?;
    let memory = image::Image::of(&tables)?;
    let info = acpi::read(&memory, Some(image::RSDP));
    let has = |signature: &[u8]| tables.iter().any(|table| table.starts_with(signature));
    let complete = has(b"DSDT");
    let given = |problem: &Problem| match problem.name.as_str() {
        "MADT" => has(b"APIC"),
        name => has(name.as_bytes()),
    };
    let mut said = Said {
        states: FirmwareStates::default(),
        fadt: has(b"FACP").then_some(info.c_states.fadt),
        damaged: info.problems.iter().filter(|p| given(p)).cloned().collect(),
        missed: (!complete)
            .then(|| "there is no DSDT among the tables: what it defines is not known".to_owned()),
    };
    if !options.cstates.acpi_cst {
        said.states.state = State::Off;
    } else if worthwhile(&info) {
        let enabled: Vec<u32> = info.cpus.iter().map(|cpu| cpu.processor).collect();
        let capabilities = Capabilities::of_lull(cst::offers_mwait(cpu, options));
        let mut missed: Option<String> = None;
        let mut failed = None;
        said.states = evaluate_all(
            &info.aml,
            &enabled,
            capabilities,
            &Rules::new([], [], []),
            |job, findings| match cage::run(job, findings) {
                Ok((outcome, untouched)) => {
                    missed = missed.take().or(untouched);
                    outcome
                }
                Err(why) => {
                    failed = Some(why);
                    Ok(())
                }
            },
        );
        if let Some(why) = failed {
            return Err(why);
        }
        said.missed = match (said.missed, missed) {
            (Some(one), Some(other)) => Some(format!("{one}; {other}")),
            (one, other) => one.or(other),
        };
    }
    Ok(said)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    const SOURCE: &str = "asl";
    ensure!(
        path.extension().is_none_or(|extension| extension != SOURCE),
        "{} is a source: compile it first, `iasl {0}`",
        path.display()
    );
    let bytes = workspace::read_file(path)?;
    match bytes.first_chunk() {
        Some(b"DSDT" | b"SSDT" | b"PSDT" | b"FACP" | b"APIC") => Ok(bytes),
        _ => bail!(
            "{} is no ACPI table that counts here: expected a DSDT, SSDT, PSDT, FACP or APIC, as `acpidump -b` writes them",
            path.display()
        ),
    }
}

impl Said {
    /// For the selection.
    pub fn firmware(&self) -> Firmware<'_> {
        Firmware {
            cst: self.states.cst.as_ref(),
            fadt: self.fadt,
            p_blk: self.states.p_blk,
        }
    }

    /// Why code had to be stopped, if any had.
    pub fn stopped(&self) -> Option<String> {
        let stopped = self.states.problems.iter();
        stopped
            .filter(|problem| problem.why.contains("had to be stopped"))
            .map(|problem| format!("{}: {}", problem.name, problem.why))
            .reduce(|all, one| format!("{all}; {one}"))
    }

    /// All that is wrong.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.damaged.iter().chain(&self.states.problems)
    }

    /// What could not be known here.
    pub fn missed(&self) -> Option<&str> {
        self.missed.as_deref()
    }

    /// What the firmware says: the record that Lull writes to the machine channel.
    ///
    /// # Errors
    /// Never, in practice: what the writer writes is JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        let mut line = Vec::new();
        AcpiCst(&self.states).write(&mut line);
        serde_json::from_slice(&line).context("the record is no JSON")
    }

    /// The same for people, a line each.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = cst::lines(&self.states);
        lines.extend(self.problems().map(|problem| {
            let Problem {
                name,
                why,
                expected,
            } = problem;
            format!("problem: {name}: {why} (expected {expected})")
        }));
        lines
    }
}
