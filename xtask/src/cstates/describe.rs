//! The CPU that is asked about: described by options, or by the text of `cpuid -r`, and what is assumed of the rest.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Result, bail};
use lull_core::cstate::MwaitHint;
use lull_core::cstate::acpi::{CstEntry, CstMethod};
use lull_core::cstate::limits::PackageControl;
use lull_core::cstate::models::Identity;
use lull_core::cstate::select::{
    CpuFacts, MsrValues, MwaitLeaf, MwaitTest, MwaitVerdict, Registers, Topology,
};
use lull_core::options::{CpuidOverride, CpuidRegister, Options, Problem};

use super::{CStatesArgs, Listed, Maker, Mwait, Question, YesNo, dump};

/// A CPU that is described by options.
pub(super) fn of_words(args: &CStatesArgs, options: &Options) -> Result<Question> {
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
pub(super) fn of_dump(args: &CStatesArgs, text: &str, options: &Options) -> Result<Question> {
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

pub(super) fn hints(entries: &[CstEntry]) -> impl Iterator<Item = MwaitHint> {
    entries.iter().filter_map(|entry| match entry.method {
        CstMethod::Mwait { hint, .. } => Some(hint),
        _ => None,
    })
}

/// One sub-state of each class of the hints.
pub(super) fn classes(hints: impl Iterator<Item = MwaitHint>) -> u32 {
    hints
        .filter(|hint| hint.class() < 8)
        .fold(0, |edx, hint| edx | 1 << (hint.class() * 4))
}

/// One sub-state of each class that has any.
pub(super) fn present(edx: u32) -> u32 {
    (0..8)
        .filter(|class| edx >> (class * 4) & 0xF != 0)
        .fold(0, |all, class| all | 1 << (class * 4))
}
