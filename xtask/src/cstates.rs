//! `cargo xtask cstates`: what Lull would do on a CPU, and why, without owning it.
//!
//! The very function that the image calls, on a CPU that is described on the command line or by the raw text of the
//! `cpuid` program. What is not said is assumed, and every assumption is printed.

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use lull_core::cstate::MwaitHint;
use lull_core::cstate::acpi::{Cst, CstEntry, CstFault, CstMethod, Value};
use lull_core::cstate::limits::PackageControl;
use lull_core::cstate::models::{Identity, Vendor};
use lull_core::cstate::select::{
    self, CpuFacts, MsrValues, MwaitLeaf, MwaitTest, MwaitVerdict, Query, Registers, Support,
    Topology,
};
use lull_core::options::{CpuidOverride, CpuidRegister, Options, Problem};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::iter::repeat;
use std::path::PathBuf;

use crate::workspace;

mod dump;
pub mod firmware;
mod print;

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

/// A CPU that is described by options.
fn of_words(args: &CStatesArgs, options: &Options) -> Result<Question> {
    let Some(model) = args.model else {
        bail!("--model is missing");
    };
    let maker = args.vendor.unwrap_or_default();
    let family = match maker {
        Maker::Intel | Maker::Other => 6,
        Maker::Amd => 0x19,
        Maker::Hygon => 0x18,
    };
    let identity = Identity {
        vendor: maker.vendor(),
        family: args.family.unwrap_or(family),
        model,
        stepping: args.stepping.unwrap_or(0),
    };
    let cpu = CpuFacts {
        identity,
        monitor: true,
        clflush: true,
        mwait: MwaitLeaf::from_registers(64, 64, 3, 0),
        arat: true,
        amx: true,
        nonstop_tsc: true,
        ..CpuFacts::default()
    };
    let topology = Topology {
        packages: 1,
        cpus: 2,
        smt: true,
    };
    let mut question = Question {
        cpu,
        msrs: MsrValues::default(),
        topology,
        asked: [0, 1, 5, 6, 7, 0x8000_0000, 0x8000_0007].into(),
        assumed: vec!["CPUID leaf 5 ECX is 3, SGX is not there".to_owned()],
        problems: vec![],
    };
    let edx = match args.leaf5_edx {
        Some(edx) => edx,
        None => {
            let edx = needed_classes(&identity, args.cst.as_ref());
            question
                .assumed
                .push(format!("CPUID leaf 5 EDX is {edx:#x}"));
            edx
        }
    };
    question.cpu.mwait.substates = edx;
    let facts = [
        (args.nonstop_tsc.is_none(), "the TSC is nonstop"),
        (args.arat.is_none(), "the APIC timer runs on (ARAT)"),
        (args.smt.is_none(), "cores have two threads"),
        (args.packages.is_none(), "there is one package"),
    ];
    for (_, what) in facts.iter().filter(|(assumed, _)| *assumed) {
        question.assumed.push((*what).to_owned());
    }
    if !options.cstates.cpuid.is_empty() {
        question.cpu = overridden(&question.cpu, options);
    }
    finish(args, &mut question)?;
    Ok(question)
}

/// What `cpuid=` makes of a CPU that was described by other words: they are put into leaves and read out of them again.
fn overridden(cpu: &CpuFacts, options: &Options) -> CpuFacts {
    let bit = |is: bool, at: u32| u32::from(is) << at;
    let id = cpu.identity.vendor.id();
    let word = |at: usize| {
        let bytes = id.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().map_or(0, u32::from_le_bytes)
    };
    let signature = cpu.identity.signature();
    let leaf = |leaf| match leaf {
        0 => Registers {
            eax: 0xB,
            ebx: word(0),
            edx: word(4),
            ecx: word(8),
        },
        1 => Registers {
            eax: signature.unwrap_or(0),
            ecx: bit(cpu.monitor, 3) | bit(cpu.hypervisor, 31),
            edx: bit(cpu.clflush, 19),
            ..Registers::default()
        },
        5 => Registers {
            eax: cpu.mwait.smallest_line.into(),
            ebx: cpu.mwait.largest_line.into(),
            ecx: bit(cpu.mwait.extensions, 0) | bit(cpu.mwait.interrupt_break, 1),
            edx: cpu.mwait.substates,
        },
        6 => Registers {
            eax: bit(cpu.arat, 2),
            ..Registers::default()
        },
        7 => Registers {
            ebx: bit(cpu.sgx, 2),
            edx: bit(cpu.amx, 24),
            ..Registers::default()
        },
        0x8000_0000 => Registers {
            eax: 0x8000_0007,
            ..Registers::default()
        },
        0x8000_0007 => Registers {
            edx: bit(cpu.nonstop_tsc, 8),
            ..Registers::default()
        },
        _ => Registers::default(),
    };
    let read = |number, _| options.cstates.override_leaf(number, leaf(number));
    let mut found = CpuFacts::from_cpuid(read, cpu.test);
    let named =
        |one: &CpuidOverride| one.leaf == 0 || one.leaf == 1 && one.register == CpuidRegister::Eax;
    if signature.is_none() && !options.cstates.cpuid.iter().any(named) {
        // No CPUID could say that; the words did.
        found.identity = cpu.identity;
    }
    found
}

/// A CPU that is described by the text of `cpuid -r`.
fn of_dump(args: &CStatesArgs, text: &str, options: &Options) -> Result<Question> {
    let dump = dump::Dump::parse(text)?;
    let asked = RefCell::new(BTreeSet::new());
    let read = |leaf, sub| -> Registers {
        asked.borrow_mut().insert(leaf);
        let said = dump.leaf(leaf, sub);
        options.cstates.override_leaf(leaf, said)
    };
    let mut question = Question {
        cpu: CpuFacts::from_cpuid(read, MwaitTest::default()),
        msrs: MsrValues::default(),
        topology: Topology::from_cpuid(read, &dump.apic_ids()),
        assumed: vec![],
        problems: dump.problems().to_vec(),
        asked: asked.take(),
    };
    if dump.apic_ids().len() == 1 {
        // One CPU of how many? What its siblings are can only be told from how wide its numbers are.
        let threads = dump.leaf(0xB, 0).ebx & 0xFFFF;
        let several = dump.leaf(1, 0).edx & 1 << 28 != 0;
        let listed = dump.leaf(0xB, 0).ecx >> 8 & 0xFF != 0;
        let smt = if listed { threads > 1 } else { several };
        question.topology.smt = smt;
        question.topology.cpus = question.topology.cpus.max(2);
        let packages = question.topology.packages;
        let threads = if smt { "two threads" } else { "one thread" };
        let mut assume = |said: bool, what: String| {
            if !said {
                question.assumed.push(what);
            }
        };
        assume(
            args.smt.is_some(),
            format!("cores have {threads}: the text is of one CPU"),
        );
        assume(
            args.packages.is_some(),
            format!("packages: {packages}, by the one CPU of the text"),
        );
    }
    for leaf in dump.missing() {
        let what = match leaf {
            5 if args.leaf5_edx.is_some() => continue,
            6 if args.arat.is_some() => continue,
            0x8000_0007 if args.nonstop_tsc.is_some() => continue,
            5 => "there are no sub-states of MWAIT",
            6 => "the APIC timer stops in deep states",
            7 => "there are neither SGX nor AMX",
            _ => "the TSC stops in deep states",
        };
        question
            .assumed
            .push(format!("{what}: the text has no CPUID leaf {leaf:#x}"));
    }
    let identity = &mut question.cpu.identity;
    if let Some(maker) = args.vendor {
        identity.vendor = maker.vendor();
    }
    identity.family = args.family.unwrap_or(identity.family);
    identity.model = args.model.unwrap_or(identity.model);
    identity.stepping = args.stepping.unwrap_or(identity.stepping);
    if let Some(edx) = args.leaf5_edx {
        question.cpu.mwait.substates = edx;
    }
    finish(args, &mut question)?;
    Ok(question)
}

/// What options say beside the description, and what is assumed of the rest.
///
/// # Errors
/// An MSR is described that Lull does not read on this CPU.
fn finish(args: &CStatesArgs, question: &mut Question) -> Result<()> {
    let cpu = &mut question.cpu;
    if let Some(tsc) = args.nonstop_tsc {
        cpu.nonstop_tsc = tsc == YesNo::Yes;
    }
    if let Some(arat) = args.arat {
        cpu.arat = arat == YesNo::Yes;
    }
    if let Some(smt) = args.smt {
        question.topology.smt = smt == YesNo::Yes;
    }
    if let Some(packages) = args.packages {
        question.topology.packages = packages;
    }
    let verdict = match args.mwait {
        Mwait::Works => MwaitVerdict::Works,
        Mwait::Hidden | Mwait::Untested => MwaitVerdict::Untested,
        Mwait::NeverSleeps => MwaitVerdict::NeverSleeps,
        Mwait::Faults => MwaitVerdict::GeneralProtection,
    };
    cpu.monitor &= args.mwait != Mwait::Hidden;
    cpu.test = MwaitTest {
        open: verdict,
        masked: verdict,
        store_wakes: Some(verdict == MwaitVerdict::Works),
    };
    question.assumed.push(match args.mwait {
        Mwait::Works => "MWAIT passes its self-test".to_owned(),
        Mwait::Hidden => "MWAIT is hidden".to_owned(),
        Mwait::Untested | Mwait::NeverSleeps | Mwait::Faults => {
            format!("MWAIT {verdict}")
        }
    });

    let wanted = MsrValues::wanted(&cpu.identity);
    if let Some((msr, _)) = args.msr.iter().find(|(msr, _)| !wanted.contains(msr)) {
        let read: Vec<String> = wanted.iter().map(|msr| format!("{msr:#x}")).collect();
        let read = if read.is_empty() {
            "none".to_owned()
        } else {
            read.join(", ")
        };
        bail!("--msr: on this CPU Lull does not read MSR {msr:#x} (it reads {read})");
    }
    let id = cpu.identity;
    if let (Some(limit), Some(control)) = (args.pkg_limit, PackageControl::of(&id))
        && control.limit(limit).is_none()
    {
        let codes = control.codes.iter();
        let codes: Vec<String> = codes.map(|(code, name)| format!("{code} {name}")).collect();
        question.problems.push(Problem::new(
            "--pkg-limit",
            format_args!("code {limit} means nothing on this model"),
            codes.join(", "),
        ));
    }
    for &msr in wanted {
        let given = args.msr.iter().rev().find(|(number, _)| *number == msr);
        let value = match (msr, given, args.pkg_limit) {
            (_, Some((_, value)), _) => *value,
            (0xE2, None, Some(limit)) => limit,
            (0xE2, None, None) => {
                let limit = no_limit(&cpu.identity);
                question
                    .assumed
                    .push(format!("MSR 0xe2 is {limit} (no package limit)"));
                limit
            }
            (0x1FC, None, _) => {
                question.assumed.push("MSR 0x1fc is 0".to_owned());
                0
            }
            (0x3A, None, _) if cpu.sgx => {
                let what = "MSR 0x3a cannot be read: SGX counts as off";
                question.assumed.push(what.to_owned());
                continue;
            }
            _ => continue,
        };
        question.msrs.set(msr, Some(value));
    }
    if args.cst.is_none() && args.acpi.is_empty() {
        question.assumed.push("there is no _CST".to_owned());
    }
    Ok(())
}

/// The code of "no package limit" on this model; that of the deepest state where there is none such.
fn no_limit(identity: &Identity) -> u64 {
    let codes = PackageControl::of(identity).map_or(&[][..], |control| control.codes);
    let unlimited = codes.iter().find(|(_, name)| *name == "unlimited");
    unlimited
        .or(codes.last())
        .map_or(8, |(code, _)| u64::from(*code))
}

/// Leaf 5 EDX with one sub-state of each class that the CPU's states need.
fn needed_classes(identity: &Identity, listed: Option<&Listed>) -> u32 {
    let table = identity.model_record().and_then(|model| model.table);
    let of_table = table.iter().flat_map(|table| table.states).map(|s| s.hint);
    let entries = listed.map_or(&[][..], |listed| &listed.0.entries);
    classes(of_table.chain(hints(entries)).chain([MwaitHint::C1]))
}

fn hints(entries: &[CstEntry]) -> impl Iterator<Item = MwaitHint> {
    entries.iter().filter_map(|entry| match entry.method {
        CstMethod::Mwait { hint, .. } => Some(hint),
        _ => None,
    })
}

/// One sub-state of each class of the hints.
fn classes(hints: impl Iterator<Item = MwaitHint>) -> u32 {
    hints
        .filter(|hint| hint.class() < 8)
        .fold(0, |edx, hint| edx | 1 << (hint.class() * 4))
}

/// One sub-state of each class that has any.
fn present(edx: u32) -> u32 {
    (0..8)
        .filter(|class| edx >> (class * 4) & 0xF != 0)
        .fold(0, |all, class| all | 1 << (class * 4))
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
