//! What is made of findings, and of a cage that throws out.

use super::evaluate::{evaluate_all, worthwhile};
use super::*;
use crate::acpi::FirmwareInfo;
use crate::acpi::aml::capabilities::Capabilities;
use crate::acpi::aml::rules::Rules;
use crate::acpi::aml::{AmlTable, Stage};
use crate::cage::Escape;
use crate::console::port::mock::MockPorts;
use lull_core::cstate::MwaitHint;
use lull_core::cstate::acpi::AcpiType;
use lull_core::cstate::select::{MwaitLeaf, MwaitTest};
use lull_core::units::Micros;

fn path(text: &str) -> Path {
    Path::from(text).unwrap()
}

fn entry(hint: u32) -> CstEntry {
    CstEntry {
        method: CstMethod::Mwait {
            hint: MwaitHint::new(hint),
            check_bus_master: false,
        },
        acpi_type: AcpiType::C1,
        latency: Micros::new(2),
    }
}

fn finding(
    at: &str,
    processor: u32,
    entries: &[CstEntry],
    faults: &[(usize, CstFault)],
) -> Finding {
    Finding {
        path: path(at),
        processor,
        told: Told::default(),
        cst: Evaluated::List(
            entries.iter().copied().collect(),
            faults.iter().copied().collect(),
        ),
    }
}

fn tables() -> [AmlTable; 2] {
    ["DSDT", "SSDT 1"].map(|name| AmlTable {
        name: name.into(),
        bytes: Vec::new(),
    })
}

#[test]
fn an_escape_costs_only_what_it_was_at() {
    let mut told = Vec::new();
    let states = evaluate_all(
        &tables(),
        &[0, 1],
        Capabilities::of_lull(true),
        &Rules::new([], [], []),
        |job, findings| {
            told.push((
                job.without.to_vec(),
                job.unasked.to_vec(),
                findings.processors.len(),
            ));
            if told.len() == 1 {
                findings
                    .processors
                    .push(finding("\\CPU0", 0, &[entry(0)], &[]));
                findings.stage = Stage::Processor(path("\\CPU1"), 1, "_CST");
                return Err(Escape::StackOverflow);
            }
            findings
                .processors
                .push(finding("\\CPU2", 2, &[entry(0)], &[]));
            Ok(())
        },
    );
    assert_eq!(told, [(vec![], vec![], 0), (vec![], vec![], 2)]);
    assert_eq!((states.state, states.runs), (State::Found, 2));
    assert_eq!(states.problems.len(), 1);
    assert_eq!(states.problems[0].name, "\\CPU1._CST");
    assert_eq!(
        states.problems[0].why,
        "the firmware's code had to be stopped: it overflowed its stack; tried once more without it"
    );
    let groups = states.groups();
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[0].processors, [0, 2]);
    assert_eq!(groups[1].processors, [1]);
    assert_eq!(groups[1].list, Err("it overflowed its stack".into()));
}

/// What cannot be told is not told: that costs no processor its list, this one's included.
#[test]
fn a_method_that_has_to_be_stopped_costs_no_list() {
    for method in ["_OSC", "_PDC"] {
        let states = evaluate_all(
            &tables(),
            &[0, 1],
            Capabilities::of_lull(true),
            &Rules::new([], [], []),
            |job, findings| {
                if job.unasked.is_empty() {
                    findings.stage = Stage::Processor(path("\\CPU0"), 0, method);
                    return Err(Escape::OutOfTime(Micros::new(1_000_000)));
                }
                assert_eq!(job.unasked, [method]);
                assert!(findings.processors.is_empty(), "so that it is looked at");
                for (at, name) in [(0, "\\CPU0"), (1, "\\CPU1")] {
                    findings
                        .processors
                        .push(finding(name, at, &[entry(0)], &[]));
                }
                Ok(())
            },
        );
        assert_eq!((states.state, states.runs), (State::Found, 2));
        assert_eq!(states.problems.len(), 1);
        assert_eq!(states.groups()[0].processors, [0, 1]);
    }
}

#[test]
fn after_the_second_escape_it_is_left_alone() {
    let states = evaluate_all(
        &tables(),
        &[],
        Capabilities::empty(),
        &Rules::new([], [], []),
        |job, findings| {
            findings.stage = Stage::Table(1 - job.without.len());
            Err(Escape::OutOfTime(Micros::new(1_000_000)))
        },
    );
    assert_eq!((states.state, states.runs), (State::Failed, 2));
    let named: Vec<&str> = states.problems.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(named, ["SSDT 1", "DSDT"]);
    assert!(states.cst.is_none());
}

#[test]
fn nothing_found_is_no_failure() {
    let states = evaluate_all(
        &tables(),
        &[],
        Capabilities::empty(),
        &Rules::new([], [], []),
        |_, _| Ok(()),
    );
    assert_eq!((states.state, states.runs), (State::None, 1));
    assert!(states.problems.is_empty());
}

#[test]
fn ports_with_another_owner_are_no_way_to_sleep() {
    let port = |port| CstEntry {
        method: CstMethod::Io(port),
        acpi_type: AcpiType::C2,
        latency: Micros::new(90),
    };
    let rules = Rules::new([], [], []);
    let states = evaluate_all(
        &tables(),
        &[],
        Capabilities::empty(),
        &rules,
        |_, findings| {
            let list = [entry(0), port(0x3F8), port(0x1814), port(0xCF9)];
            findings.processors.push(finding("\\CPU0", 0, &list, &[]));
            // Its C2 and C3 would read COM1.
            findings.p_blk = Some(0x3F4);
            Ok(())
        },
    );
    let cst = states.cst.unwrap();
    assert_eq!(cst.entries, [entry(0), port(0x1814)]);
    let taken = [0x3F8, 0xCF9].map(|port| (0, CstFault::PortTaken(port)));
    assert_eq!(cst.faults, taken);
    assert_eq!(states.p_blk, None);
    let named: Vec<&str> = states.problems.iter().map(|p| p.why.as_str()).collect();
    assert_eq!(named.len(), 3);
    assert!(
        named
            .iter()
            .all(|why| why.contains("is not the firmware's to give")),
        "{named:?}"
    );
}

#[test]
fn the_same_fault_on_every_cpu_is_named_once() {
    let faults = [(2, CstFault::BadType(9)), (0, CstFault::Unsorted)];
    let states = evaluate_all(
        &tables(),
        &[],
        Capabilities::empty(),
        &Rules::new([], [], []),
        |_, findings| {
            findings.processors.push(finding("\\CPU0", 0, &[], &faults));
            findings
                .processors
                .push(finding("\\CPU1", 1, &[entry(0x10)], &faults));
            Ok(())
        },
    );
    let why: Vec<&str> = states.problems.iter().map(|p| p.why.as_str()).collect();
    assert_eq!(
        why,
        [
            "entry 2: type 9, expected 1, 2 or 3, skipped",
            "the entries were out of order: they are sorted by type, and none has less latency than a shallower one",
            "no entry of it can be used",
        ]
    );
    assert_eq!(states.cst.unwrap().entries, [entry(0x10)]);
}

#[test]
fn the_fadt_gives_latencies_and_bus_master_ports() {
    let mut fadt = vec![0; 244];
    let mut put = |at: usize, bytes: &[u8]| fadt[at..at + bytes.len()].copy_from_slice(bytes);
    put(48, &0xB2u32.to_le_bytes());
    put(56, &0x600u32.to_le_bytes());
    put(64, &0x604u32.to_le_bytes());
    put(90, &[1, 4, 16, 0, 0, 0x85]);
    put(96, &[90, 0, 0xE9, 3]);
    put(112, &9u32.to_le_bytes());
    // The arbiter is given by its 64-bit block alone: space 1 (I/O), address 0x650.
    put(196, &[1, 8, 0, 1, 0x50, 0x06, 0, 0, 0, 0, 0, 0]);
    let found = FadtStates::from_bytes(&fadt);
    assert_eq!(found.smi_command, Some(0xB2));
    // One write, and none where there is nothing to say or nowhere to say it.
    let ports = MockPorts::default();
    assert_eq!(found.take_over(Some(0x85), &ports), Some(0xB2));
    assert_eq!(*ports.written.borrow(), [(0xB2, 0x85)]);
    assert_eq!(found.take_over(None, &ports), None);
    let no_port = FadtStates::default();
    assert_eq!(no_port.take_over(Some(0x85), &ports), None);
    assert_eq!(ports.written.borrow().len(), 1);
    assert_eq!(
        found.bus_masters,
        BusMasters {
            status: [Some(0x600), None],
            control: [Some(0x604), None],
            arbiter: Some(0x650),
        }
    );
    assert_eq!(
        found.fadt,
        Fadt {
            flags: 9,
            lvl2_latency: 90,
            lvl3_latency: 1001,
            cst_control: 0x85,
            pm2_control: true,
        }
    );
    // The first revision ends at 116.
    assert_eq!(
        FadtStates::from_bytes(&fadt[..116]).bus_masters.arbiter,
        None
    );
}

fn cpu(test: MwaitTest) -> CpuFacts {
    CpuFacts {
        monitor: true,
        mwait: MwaitLeaf::from_registers(64, 64, 3, 0x2020),
        test,
        ..CpuFacts::default()
    }
}

#[test]
fn mwait_is_offered_only_if_it_can_be_used_and_may() {
    let failed = MwaitTest {
        open: MwaitVerdict::NeverSleeps,
        masked: MwaitVerdict::GeneralProtection,
        store_wakes: None,
    };
    let offers = |facts: &CpuFacts, line: &str| offers_mwait(facts, &Options::parse(line).0);
    assert!(offers(&cpu(MwaitTest::PASSED), ""));
    assert!(!offers(&cpu(MwaitTest::PASSED), "idle=hlt"));
    assert!(!offers(&cpu(MwaitTest::PASSED), "cpuidle=off"));
    assert!(!offers(&cpu(failed), ""));
    assert!(offers(&cpu(failed), "force-mwait"));
    let mut none = cpu(MwaitTest::PASSED);
    none.mwait.interrupt_break = false;
    assert!(!offers(&none, "force-mwait"));
}

#[test]
fn code_is_run_only_where_it_can_tell_something() {
    let mut info = FirmwareInfo::default();
    info.c_states.fadt.lvl2_latency = 4095;
    info.c_states.fadt.lvl3_latency = 4095;
    assert!(!worthwhile(&info));
    info.c_states.fadt.lvl2_latency = 90;
    assert!(worthwhile(&info));
    info.c_states.fadt.flags = 1 << 20;
    assert!(!worthwhile(&info), "hardware-reduced: no P_BLK");
    for (bytes, expected) in [
        (&b"header ... _CST"[..], true),
        (b"header _PDC \x5B\x20NAME", true),
        (b"header _PDC", false),
        (b"header [ NAME", false),
    ] {
        info.aml = vec![AmlTable {
            name: "SSDT 1".into(),
            bytes: bytes.to_vec(),
        }];
        assert_eq!(worthwhile(&info), expected, "{bytes:?}");
    }
}

#[test]
fn entries_are_shown_with_their_method() {
    assert_eq!(Shown(&entry(0x10)).to_string(), "C1 by MWAIT 0x10, 2 us");
}
