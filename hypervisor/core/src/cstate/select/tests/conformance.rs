//! Machines that were looked at under Linux: the same states must come out, on and off alike.
//!
//! The file has names, hints or ports, latencies, residencies, on/off and MSRs 0xE2 and 0x1FC. **Inferred** is what it
//! does not have: leaf 5 reports exactly the classes that the machine shows; `_CST` of a table's machine lists what was on;
//! `_CST` of the others is their states, types in order; the TSC is nonstop and the APIC timer runs on; two packages, SMT.

use super::*;
use crate::cstate::tables::tests::{hex, rows};
use std::collections::BTreeMap;

const OBSERVED: &str = include_str!("../../vectors/observed.tsv");

/// One state of a machine, as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    name: String,
    method: EntryMethod,
    latency: u64,
    residency: u64,
    on: bool,
}

struct Machine {
    identity: Identity,
    from_acpi: bool,
    msrs: MsrValues,
    states: Vec<Seen>,
}

fn machines() -> BTreeMap<String, Machine> {
    let mut all: BTreeMap<String, Machine> = BTreeMap::new();
    for row in rows(OBSERVED) {
        let &[
            system,
            vendor,
            family,
            model,
            stepping,
            _,
            _,
            name,
            how,
            latency,
            residency,
            status,
            e2,
            c1e,
        ] = row.as_slice()
        else {
            panic!("{row:?}");
        };
        let machine = all.entry(system.to_string()).or_insert_with(|| Machine {
            identity: Identity {
                vendor: Vendor::from_id(vendor.as_bytes()),
                family: family.parse().unwrap(),
                model: hex(model) as u8,
                stepping: stepping.parse().unwrap(),
            },
            from_acpi: how.starts_with("ACPI"),
            msrs: MsrValues {
                package_control: (e2 != "-").then(|| hex(e2)),
                power_control: (c1e != "-").then(|| hex(c1e)),
                ..MsrValues::default()
            },
            states: vec![],
        });
        let number = hex(how.rsplit(' ').next().unwrap());
        let method = if how.contains("IOPORT") {
            EntryMethod::IoRead(number as u16)
        } else {
            EntryMethod::Mwait {
                hint: MwaitHint::new(number as u32),
                gate: IrqGate::Masked,
            }
        };
        machine.states.push(Seen {
            name: name.to_string(),
            method,
            latency: latency.parse().unwrap(),
            residency: residency.parse().unwrap(),
            on: status == "enabled",
        });
    }
    all
}

fn hint(seen: &Seen) -> Option<MwaitHint> {
    match seen.method {
        EntryMethod::Mwait { hint, .. } => Some(hint),
        _ => None,
    }
}

/// The `_CST` that the machine must have had.
fn inferred_cst(machine: &Machine) -> Cst {
    const TYPES: [AcpiType; 3] = [AcpiType::C1, AcpiType::C2, AcpiType::C3];
    let listed = machine.states.iter().filter(|seen| seen.on);
    let entries: Vec<CstEntry> = listed
        .enumerate()
        .map(|(at, seen)| match seen.method {
            EntryMethod::IoRead(port) => io_entry(port, TYPES[at.min(2)], seen.latency),
            _ => mwait_entry(hint(seen).unwrap().eax(), TYPES[at.min(2)], seen.latency),
        })
        .collect();
    cst(&entries)
}

fn selected(machine: &Machine, cst: Option<&Cst>) -> Selected {
    let options = CStateOptions::default();
    let classes = machine.states.iter().filter_map(hint).map(MwaitHint::class);
    let substates = classes.fold(0, |edx, class| edx | 1 << (class * 4));
    let facts = CpuFacts {
        identity: machine.identity,
        mwait: MwaitLeaf::from_registers(64, 64, 3, substates),
        ..cpu(Vendor::Intel, 6, 0)
    };
    let mut query = Query::new(facts, IdleMethod::Auto, &options);
    query.msrs = machine.msrs;
    query.topology = Topology {
        packages: 2,
        cpus: 8,
        smt: true,
    };
    query.firmware.cst = cst;
    select(&query)
}

/// What Lull has, in the file's words. Whether handlers run inside is not in the file.
fn shown(selected: &Selected) -> Vec<Seen> {
    let usable = selected
        .considered
        .iter()
        .filter(|one| one.verdict.is_usable());
    usable
        .filter(|one| one.state.method != EntryMethod::Poll)
        .map(|one| Seen {
            name: one.state.name.to_string(),
            method: match one.state.method {
                EntryMethod::Mwait { hint, .. } => EntryMethod::Mwait {
                    hint,
                    gate: IrqGate::Masked,
                },
                other => other,
            },
            latency: one.state.exit_latency.get(),
            residency: one.state.target_residency.get(),
            on: one.verdict.is_used(),
        })
        .collect()
}

#[test]
fn every_machine_that_was_looked_at_gets_the_states_that_it_showed() {
    let machines = machines();
    assert_eq!(machines.len(), 22);
    assert_eq!(machines.values().map(|m| m.states.len()).sum::<usize>(), 81);
    for (name, machine) in &machines {
        let cst = inferred_cst(machine);
        let selected = selected(machine, Some(&cst));
        assert_eq!(shown(&selected), machine.states, "{name}");
        // Where a table gave the states, it says so; else the firmware does.
        let from_cst = selected.notes.contains(&Note::CstStates);
        assert_eq!(from_cst, machine.from_acpi, "{name}");
    }
}

#[test]
fn without_a_cst_nothing_of_a_table_is_off() {
    for (name, machine) in machines().iter().filter(|(_, machine)| !machine.from_acpi) {
        let selected = selected(machine, None);
        let mut all = machine.states.clone();
        all.iter_mut().for_each(|seen| seen.on = true);
        assert_eq!(shown(&selected), all, "{name}");
    }
}

#[test]
fn the_file_itself_proves_the_rule_about_the_package_limit() {
    // Cascade Lake, two settings of one firmware switch: 0x8403 shows C6 133/600, 0x8400 shows 92/276.
    let machines = machines();
    let mut machine = Machine {
        states: machines["clx4s0"].states.clone(),
        ..machines["clxap1"].clone_head()
    };
    assert_eq!(figures(&selected(&machine, None), "C6"), (133, 600));
    machine.msrs.package_control = Some(0x8400);
    assert_eq!(figures(&selected(&machine, None), "C6"), (92, 276));
}

impl Machine {
    fn clone_head(&self) -> Self {
        Self {
            identity: self.identity,
            from_acpi: self.from_acpi,
            msrs: self.msrs,
            states: vec![],
        }
    }
}

#[test]
fn a_model_with_neither_table_nor_cst_gets_c1_only_and_says_why() {
    // Ice Lake and Tiger Lake clients, with what Bochs reports in leaf 5.
    for (model, substates) in [(0x7E, 0x1112_1020), (0x8C, 0x1112_1020)] {
        let selected = ask(model, |query| query.cpu.mwait.substates = substates);
        assert_eq!(methods(&selected), ["POLL", "MWAIT 0x00"]);
        assert_eq!(used(&selected), ["C1"]);
        assert_eq!(verdict(&selected, "C1"), dropped(Dropped::BetterEntry));
        let id = identity(Vendor::Intel, 6, model);
        for note in [
            Note::UnknownModel(id),
            Note::NoCst(NoCst::Absent),
            Note::OnlyC1,
        ] {
            assert!(selected.notes.contains(&note), "{note}");
        }

        let selected = ask(model, |query| query.cpu.test = MwaitTest::default());
        assert_eq!(methods(&selected), ["POLL", "HLT"]);
        let by_mwait = &selected.considered[1];
        assert_eq!(
            by_mwait.to_string(),
            "C1 by MWAIT 0x00, 2/2 us, dropped: MWAIT with ECX=1 was not tested"
        );
    }
}
