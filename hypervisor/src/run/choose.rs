//! Asks the core which C-states a CPU gets: what CPUID, MSRs and the self-test say, and the options.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;

use lull_core::cstate::select::{
    self, CpuFacts, Firmware, MsrValues, Query, Registers, Selected, Support, Topology,
};
use lull_core::options::Options;
use lull_core::units::CpuId;
use raw_cpuid::{CpuIdReader, CpuIdReaderNative};

use crate::console::records::Where;
use crate::cpu::around::Around;
use crate::init::tell;
use crate::{apic, cpu, time};

const ARCH_CAPABILITIES: u32 = 0x10A;

/// Chooses the states of the CPU that runs this, and says on the console what came out and why.
///
/// Called once on each CPU, before it idles for the first time. `online`: all CPUs that run. `firmware`: what its
/// tables and its code said, the same for all CPUs.
pub fn states(cpu: CpuId, online: &[CpuId], options: &Options, firmware: Firmware<'_>) -> Selected {
    let asked = RefCell::new(Vec::new());
    let leaves = |leaf, sub| {
        asked.borrow_mut().push(leaf);
        leaf_of(options, leaf, sub)
    };
    let (facts, msrs) = this_cpu(leaves);
    let apic_ids: Vec<u32> = online
        .iter()
        .filter_map(|&cpu| apic::ipi::apic_id(cpu))
        .collect();
    let query = Query {
        msrs,
        topology: Topology::from_cpuid(leaves, &apic_ids),
        firmware,
        support: Support {
            timer_broadcast: time::broadcast::ready().is_some(),
            restores_tsc: time::stopped::source().is_some(),
            directed_eoi: false,
        },
        ..Query::new(facts, options.idle, &options.cstates)
    };
    let selected = select::select(&query);
    let mut around = Around::of(leaves, || cpu::safe::rdmsr(ARCH_CAPABILITIES).ok());
    around.set(Around::FLUSH_LINE, selected.flush_before_monitor);
    around.require();
    if cpu.index() == 0 && around.contains(Around::TPAUSE) {
        log::info!("POLL waits by TPAUSE");
    }
    log::debug!("{cpu}: around each sleep: {around}");
    if cpu.index() == 0 {
        tell_of_idle_overrides(options, &asked.borrow());
    }
    log_choice(cpu, &selected);
    selected
}

fn tell_of_idle_overrides(options: &Options, asked: &[u32]) {
    for one in options.cstates.idle_overrides(asked) {
        let asked: BTreeSet<u32> = asked.iter().copied().collect();
        let leaves: Vec<String> = asked.iter().map(|leaf| format!("{leaf:#x}")).collect();
        tell(
            Where::Cmdline,
            "cpuid",
            format_args!("nothing here looks at leaf {:#x}", one.leaf),
            format_args!("one of the leaves {}", leaves.join(", ")),
        );
    }
}

/// What CPUID says, or is taken to say.
fn leaf_of(options: &Options, leaf: u32, sub: u32) -> Registers {
    let said = CpuIdReaderNative.cpuid2(leaf, sub);
    let said = Registers {
        eax: said.eax,
        ebx: said.ebx,
        ecx: said.ecx,
        edx: said.edx,
    };
    options.cstates.override_leaf(leaf, said)
}

/// What is known of the CPU that runs this.
fn this_cpu(leaves: impl Fn(u32, u32) -> Registers) -> (CpuFacts, MsrValues) {
    let facts = CpuFacts::from_cpuid(leaves, cpu::mwait::found());
    let mut msrs = MsrValues::default();
    for &msr in MsrValues::wanted(&facts.identity) {
        msrs.set(msr, cpu::safe::rdmsr(msr).ok());
    }
    (facts, msrs)
}

/// What deep states would stop on this machine.
pub struct Stops {
    /// The local APIC timer.
    pub timer: bool,
    /// The TSC.
    pub tsc: bool,
    /// The HPET, which could stand in for either.
    pub hpet: bool,
}

/// Asks the CPU that runs this, for all.
pub fn stops(options: &Options) -> Stops {
    let (facts, msrs) = this_cpu(|leaf, sub| leaf_of(options, leaf, sub));
    let query = Query {
        msrs,
        ..Query::new(facts, options.idle, &options.cstates)
    };
    Stops {
        timer: !query.arat(),
        tsc: !query.nonstop_tsc(),
        hpet: query.hpet_stops(),
    }
}

fn log_choice(cpu: CpuId, selected: &Selected) {
    // The CPUs of one machine nearly always agree: for the others this is for developers.
    let level = if cpu.index() == 0 {
        log::Level::Info
    } else {
        log::Level::Debug
    };
    for note in &selected.notes {
        match note.ignored_option() {
            // One command line holds for all CPUs.
            Some((option, expected)) if cpu.index() == 0 => {
                tell(Where::Cmdline, option, note, expected);
            }
            _ => log::debug!("{cpu}: {note}"),
        }
    }
    for one in &selected.considered {
        let level = if one.verdict.is_usable() {
            level
        } else {
            log::Level::Debug
        };
        log::log!(level, "{cpu}: {one}");
    }
    let used = selected
        .considered
        .iter()
        .filter(|one| one.verdict.is_used());
    log::log!(
        level,
        "{cpu}: {} C-states used of {} considered: key C says why",
        used.count(),
        selected.considered.len()
    );
}
