//! `cargo xtask cstates`: what Lull would do on a CPU, and why, without owning it.
//!
//! The very function that the image calls, on a CPU that is described on the command line or by the raw text of the
//! `cpuid` program. What is not said is assumed, and every assumption is printed.

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use lull_core::cstate::acpi::{Cst, CstFault, Value};
use lull_core::cstate::models::Vendor;
use lull_core::cstate::select::{self, CpuFacts, MsrValues, Query, Support, Topology};
use lull_core::options::{Options, Problem};
use std::collections::BTreeSet;
use std::iter::repeat;
use std::path::PathBuf;

use crate::workspace;

mod describe;
mod dump;
pub mod firmware;
mod print;

use describe::{classes, hints, of_dump, of_words, present};

/// Options of `cstates`.
#[derive(Args, Default)]
pub struct CStatesArgs {
    /// List the models that have a record, and their tables (also without --model and --file)
    #[arg(long, conflicts_with_all = ["model", "file"])]
    list: bool,
    /// Who made the CPU (default intel, or as the file says)
    #[arg(long, value_enum)]
    vendor: Option<Maker>,
    /// Its family, the extended family added (default 6; AMD 0x19, Hygon 0x18)
    #[arg(long, value_parser = number::<u16>)]
    family: Option<u16>,
    /// Its model, the extended model in front
    #[arg(long, value_parser = number::<u8>)]
    model: Option<u8>,
    /// Its stepping
    #[arg(long, value_parser = |text: &str| within::<u8>(text, 0, 15))]
    stepping: Option<u8>,
    /// Raw text of `cpuid -r`: all that CPUID says, but for what other options say
    #[arg(long, value_name = "TEXT")]
    file: Option<PathBuf>,
    /// CPUID leaf 5 EDX: sub-states, four bits a class (default: what the model's table needs)
    #[arg(long, value_name = "EDX", value_parser = number::<u32>)]
    leaf5_edx: Option<u32>,
    /// The package C-state limit, MSR 0xe2 bits 3:0 (default: no limit)
    #[arg(long, value_name = "CODE", value_parser = |text: &str| within::<u64>(text, 0, 15), conflicts_with = "msr")]
    pkg_limit: Option<u64>,
    /// What an MSR holds: 0xe2, 0x1fc, 0x3a, the IRTL ones, 0xc0010055
    #[arg(long, value_name = "MSR=VALUE", value_parser = pair)]
    msr: Vec<(u32, u64)>,
    /// The TSC counts on in every C-state (default yes)
    #[arg(long, value_enum)]
    nonstop_tsc: Option<YesNo>,
    /// The local APIC timer runs on in every C-state (default yes)
    #[arg(long, value_enum)]
    arat: Option<YesNo>,
    /// There is an HPET: it wakes CPUs whose APIC timer stops, and the TSC is restored from it where that stops
    #[arg(long)]
    hpet: bool,
    /// Some core has two threads online (default yes)
    #[arg(long, value_enum)]
    smt: Option<YesNo>,
    /// How many packages there are
    #[arg(long, value_parser = |text: &str| within::<u32>(text, 1, 4096))]
    packages: Option<u32>,
    /// What the boot-time self-test finds about MWAIT
    #[arg(long, value_enum, default_value_t)]
    mwait: Mwait,
    /// The firmware's `_CST`: MWAIT hints or ioPORT with latencies in us, as 0x0:1,0x21:127 or 0x0:1,io0x414:800
    #[arg(long, value_name = "HINT:US,...", value_parser = listed)]
    cst: Option<Listed>,
    /// A table of the firmware, as `acpidump -b` writes it (DSDT, SSDT, PSDT, FACP, APIC); more than once: its code is run, and
    /// what `_CST` gives back counts
    #[arg(long, value_name = "TABLE", conflicts_with = "cst")]
    acpi: Vec<PathBuf>,
    /// Options as on Lull's command line
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    cmdline: String,
    /// JSON
    #[arg(long)]
    json: bool,
}

impl CStatesArgs {
    fn describes_nothing(&self) -> bool {
        self.vendor.is_none()
            && self.family.is_none()
            && self.stepping.is_none()
            && self.leaf5_edx.is_none()
            && self.pkg_limit.is_none()
            && self.msr.is_empty()
            && self.nonstop_tsc.is_none()
            && self.arat.is_none()
            && self.smt.is_none()
            && self.packages.is_none()
            && !self.hpet
            && self.mwait == Mwait::default()
            && self.cst.is_none()
            && self.acpi.is_empty()
            && self.cmdline.is_empty()
    }
}

#[derive(Clone, Copy, ValueEnum, Default, PartialEq, Eq)]
enum Maker {
    #[default]
    Intel,
    Amd,
    Hygon,
    Other,
}

impl Maker {
    const fn vendor(self) -> Vendor {
        match self {
            Self::Intel => Vendor::Intel,
            Self::Amd => Vendor::Amd,
            Self::Hygon => Vendor::Hygon,
            Self::Other => Vendor::Other,
        }
    }
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
enum YesNo {
    Yes,
    No,
}

#[derive(Clone, Copy, ValueEnum, Default, PartialEq, Eq)]
enum Mwait {
    /// It sleeps, and stores end it.
    #[default]
    Works,
    /// CPUID does not report it.
    Hidden,
    /// It was not tested.
    Untested,
    /// It returns at once.
    NeverSleeps,
    /// It raises #GP.
    Faults,
}

/// The address spaces of ACPI that C-states are in.
const SYSTEM_IO: u8 = 0x01;
const FIXED_HARDWARE: u8 = 0x7F;

/// A `_CST`.
#[derive(Clone)]
struct Listed(Cst);

/// A question, and what had to be assumed for it.
struct Question {
    cpu: CpuFacts,
    msrs: MsrValues,
    topology: Topology,
    assumed: Vec<String>,
    /// What is wrong with the question, and left out of it.
    problems: Vec<Problem>,
    /// CPUID leaves that were looked at.
    asked: BTreeSet<u32>,
}

/// `cargo xtask cstates`.
///
/// # Errors
/// An option of Lull's is malformed, or the file is not the text of `cpuid -r`.
pub fn command(args: &CStatesArgs) -> Result<()> {
    if args.list || (args.model.is_none() && args.file.is_none()) {
        ensure!(
            args.list || args.describes_nothing(),
            "these options describe a CPU or ask about one: say which, by --model or --file"
        );
        print!("{}", print::list(args.json)?);
        return Ok(());
    }
    let (answer, stopped) = answer(args)?;
    print!("{answer}");
    match stopped {
        Some(why) => bail!("--acpi: {why}"),
        None => Ok(()),
    }
}

/// The answer, and why the firmware's code had to be stopped, if it had.
fn answer(args: &CStatesArgs) -> Result<(String, Option<String>)> {
    let (options, problems) = Options::parse(&args.cmdline);
    let mut question = match &args.file {
        Some(path) => {
            let text = String::from_utf8(workspace::read_file(path)?)
                .with_context(|| format!("{} is no text", path.display()))?;
            of_dump(args, &text, &options)?
        }
        None => of_words(args, &options)?,
    };
    // As on the machine: what cannot be used is named, and the rest counts.
    question.problems.extend(problems);
    let asked: Vec<u32> = question.asked.iter().copied().collect();
    let leaves: Vec<String> = asked.iter().map(|leaf| format!("{leaf:#x}")).collect();
    for idle in options.cstates.idle_overrides(&asked) {
        question.problems.push(Problem::new(
            "cpuid",
            format_args!("nothing here looks at leaf {:#x}", idle.leaf),
            format_args!("one of the leaves {}", leaves.join(", ")),
        ));
    }
    let said = match args.acpi.as_slice() {
        [] => None,
        files => Some(firmware::ask(files, &question.cpu, &options)?),
    };
    if let Some(said) = &said {
        question.hear(said, args.leaf5_edx.is_none() && args.file.is_none());
    }
    let mut query = Query {
        msrs: question.msrs,
        topology: question.topology,
        support: Support {
            timer_broadcast: args.hpet,
            restores_tsc: args.hpet,
            directed_eoi: false,
        },
        ..Query::new(question.cpu, options.idle, &options.cstates)
    };
    match &said {
        Some(said) => query.firmware = said.firmware(),
        None => {
            query.firmware.cst = args.cst.as_ref().map(|listed| &listed.0);
            let faults = args.cst.iter().flat_map(|listed| &listed.0.faults);
            question
                .assumed
                .extend(faults.map(|(_, fault)| format!("of _CST, {fault}")));
        }
    }
    let selected = select::select(&query);
    let answer = if args.json {
        print::json(&question, said.as_ref(), &selected)?
    } else {
        print::text(&question, said.as_ref(), &selected)
    };
    Ok((answer, said.and_then(|said| said.stopped())))
}

impl Question {
    /// Assumes what follows from the firmware's answer: CPUID has the sub-states of its entries, if CPUID is assumed anyway.
    fn hear(&mut self, said: &firmware::Said, cpuid_is_assumed: bool) {
        let entries = said.firmware().cst.map_or(&[][..], |cst| &cst.entries);
        let missing = classes(hints(entries)) & !present(self.cpu.mwait.substates);
        if cpuid_is_assumed && missing != 0 {
            self.cpu.mwait.substates |= missing;
            let edx = self.cpu.mwait.substates;
            self.assumed
                .retain(|what| !what.starts_with("CPUID leaf 5 EDX"));
            self.assumed.push(format!("CPUID leaf 5 EDX is {edx:#x}"));
        }
        self.assumed.extend(said.missed().map(str::to_owned));
    }
}

/// A number, decimal or hexadecimal after `0x`.
fn number<T: TryFrom<u64>>(text: &str) -> Result<T> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let value = value.map_err(|why| anyhow!("`{text}`: {why}"))?;
    T::try_from(value).map_err(|_| anyhow!("`{text}` is too large"))
}

fn within<T: TryFrom<u64> + Into<u64> + Copy>(text: &str, least: u64, most: u64) -> Result<T> {
    let value: T = number(text)?;
    ensure!(
        (least..=most).contains(&value.into()),
        "expected {least} to {most}"
    );
    Ok(value)
}

fn pair(text: &str) -> Result<(u32, u64)> {
    let (msr, value) = text.split_once('=').context("expected MSR=VALUE")?;
    Ok((number(msr)?, number(value)?))
}

/// `0x0:1,0x21:127,io0x414:800`. Types are 1, 2, 3, 3, ... in order.
fn listed(text: &str) -> Result<Listed> {
    let mut values = Vec::new();
    for (item, acpi_type) in text.split(',').zip([1, 2].into_iter().chain(repeat(3))) {
        let (how, latency) = item
            .split_once(':')
            .context("expected HINT:LATENCY or ioPORT:LATENCY")?;
        // The address space, its first two fields, and the address, as a register descriptor has them.
        let (space, fields, address) = match how.strip_prefix("io") {
            Some(port) => (SYSTEM_IO, [8, 0], number::<u64>(port)?),
            None => (FIXED_HARDWARE, [1, 2], number::<u32>(how)?.into()),
        };
        let mut register = vec![0x82, 12, 0, space, fields[0], fields[1], 1];
        register.extend(address.to_le_bytes());
        values.push(Value::Package(vec![
            Value::Buffer(register),
            Value::Integer(acpi_type),
            Value::Integer(number(latency)?),
            Value::Integer(0),
        ]));
    }
    // From here on it is read as the firmware's is.
    values.insert(0, Value::Integer(values.len() as u64));
    let cst = Cst::parse(&Value::Package(values))?;
    let skipped = |(_, fault): &&(usize, CstFault)| *fault != CstFault::Unsorted;
    if let Some((at, fault)) = cst.faults.iter().find(skipped) {
        bail!("entry {at}: {fault}");
    }
    Ok(Listed(cst))
}

#[cfg(test)]
mod tests;
