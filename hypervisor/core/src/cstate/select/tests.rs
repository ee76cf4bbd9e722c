//! The choice, on machines that exist, on machines that lie, and on whatever proptest makes up.

use super::*;
use crate::cstate::acpi::{AcpiType, Cst, CstEntry, CstMethod, Fadt};
use crate::cstate::models::{Identity, Vendor};
use crate::cstate::{CStateFlags, MwaitHint};
use crate::options::{CStateOptions, Options};
use crate::units::Micros;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

mod clocks;
mod conformance;
mod errata;
mod firmware;
mod mwait;
mod options;
mod properties;
mod quirks;

/// Leaf 5 with one sub-state of every class, C0's left out.
const ALL_CLASSES: u32 = 0x1111_1110;

fn identity(vendor: Vendor, family: u16, model: u8) -> Identity {
    Identity {
        vendor,
        family,
        model,
        stepping: 1,
    }
}

/// A CPU on which everything works, of this model.
fn cpu(vendor: Vendor, family: u16, model: u8) -> CpuFacts {
    CpuFacts {
        identity: identity(vendor, family, model),
        monitor: true,
        clflush: true,
        mwait: MwaitLeaf::from_registers(64, 64, 3, ALL_CLASSES),
        arat: true,
        nonstop_tsc: true,
        test: MwaitTest::PASSED,
        ..CpuFacts::default()
    }
}

/// The options of a command line.
fn parse(line: &str) -> CStateOptions {
    let (options, problems) = Options::parse(line);
    assert_eq!(problems, [], "{line}");
    options.cstates
}

/// Asks about an Intel family 6 CPU on which everything works, after `change`.
fn ask(model: u8, change: impl FnOnce(&mut Query<'_>)) -> Selected {
    ask_with(model, "", change)
}

/// The same with options.
fn ask_with(model: u8, line: &str, change: impl FnOnce(&mut Query<'_>)) -> Selected {
    let options = parse(line);
    let mut query = Query::new(cpu(Vendor::Intel, 6, model), IdleMethod::Auto, &options);
    query.msrs.package_control = Some(0x8);
    query.msrs.power_control = Some(0);
    change(&mut query);
    select(&query)
}

/// Asks about another vendor's CPU.
fn ask_amd(vendor: Vendor, family: u16, change: impl FnOnce(&mut Query<'_>)) -> Selected {
    let options = CStateOptions::default();
    let mut facts = cpu(vendor, family, 1);
    facts.mwait.substates = 0x11;
    let mut query = Query::new(facts, IdleMethod::Auto, &options);
    change(&mut query);
    select(&query)
}

/// Names of the states that are used, POLL left out.
fn used(selected: &Selected) -> Vec<&'static str> {
    let states = selected.table.states().iter();
    states
        .filter(|state| state.method != EntryMethod::Poll)
        .map(|state| state.name)
        .collect()
}

/// How the used states are entered, POLL included.
fn methods(selected: &Selected) -> Vec<String> {
    let states = selected.table.states().iter();
    states.map(|state| state.method.to_string()).collect()
}

/// The last state that was considered under this name: the source's, not its stand-in.
fn find<'s>(selected: &'s Selected, name: &str) -> &'s Considered {
    let mut all = selected.considered.iter().rev();
    all.find(|one| one.state.name == name)
        .unwrap_or_else(|| panic!("{name} was not considered"))
}

fn verdict(selected: &Selected, name: &str) -> Verdict {
    find(selected, name).verdict
}

fn figures(selected: &Selected, name: &str) -> (u64, u64) {
    let state = find(selected, name).state;
    (state.exit_latency.get(), state.target_residency.get())
}

fn flags(selected: &Selected, name: &str) -> CStateFlags {
    find(selected, name).state.flags
}

fn dropped(why: Dropped) -> Verdict {
    Verdict::Dropped(why)
}

/// The planned writes of one MSR: (clear, set, scope).
fn writes(selected: &Selected, msr: u32) -> Vec<(u64, u64, Scope)> {
    let all = selected.msr_writes.iter();
    all.filter(|write| write.msr == msr)
        .map(|write| (write.clear, write.set, write.scope))
        .collect()
}

fn mwait_entry(hint: u32, acpi_type: AcpiType, latency: u64) -> CstEntry {
    CstEntry {
        method: CstMethod::Mwait {
            hint: MwaitHint::new(hint),
            check_bus_master: false,
        },
        acpi_type,
        latency: Micros::new(latency),
    }
}

fn io_entry(port: u16, acpi_type: AcpiType, latency: u64) -> CstEntry {
    CstEntry {
        method: CstMethod::Io(port),
        acpi_type,
        latency: Micros::new(latency),
    }
}

fn cst(entries: &[CstEntry]) -> Cst {
    Cst {
        entries: entries.to_vec(),
        faults: vec![],
    }
}
