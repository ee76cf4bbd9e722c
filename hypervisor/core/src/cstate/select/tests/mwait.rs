//! MWAIT is believed only as far as CPUID offers it and the self-test saw it work.

use super::*;

/// QEMU 7.2's TCG with several CPUs: leaf 5 claims what MWAIT refuses, without line sizes; HLT is what works.
fn tcg(query: &mut Query<'_>) {
    query.cpu.mwait = MwaitLeaf::from_registers(0, 0, 3, 0);
    query.cpu.nonstop_tsc = false;
    query.cpu.test = MwaitTest {
        open: MwaitVerdict::NeverSleeps,
        masked: MwaitVerdict::GeneralProtection,
        store_wakes: Some(false),
    };
}

#[test]
fn each_gate_of_the_tables_is_needed_and_named() {
    let unused = |change: fn(&mut Query<'_>)| {
        let selected = ask(0x55, change);
        assert_eq!(used(&selected), ["C1"]);
        let note = selected.notes.iter().find_map(|note| match note {
            Note::TableUnused(why) => Some(*why),
            _ => None,
        });
        note.unwrap()
    };
    use TableUnused::{Needs, NoSubstates};
    assert_eq!(unused(|q| q.cpu.monitor = false), Needs(Dropped::NoMonitor));
    assert_eq!(
        unused(|q| q.cpu.mwait = MwaitLeaf::default()),
        Needs(Dropped::NoLineSize)
    );
    // All ones; and line sizes that cross.
    assert_eq!(
        unused(|q| q.cpu.mwait = MwaitLeaf::from_registers(!0, !0, !0, !0)),
        Needs(Dropped::Leaf5IsNonsense)
    );
    assert_eq!(
        unused(|q| q.cpu.mwait = MwaitLeaf::from_registers(128, 64, 3, 0x1111_1111)),
        Needs(Dropped::Leaf5IsNonsense)
    );
    assert_eq!(
        unused(|q| q.cpu.mwait.extensions = false),
        Needs(Dropped::NoInterruptBreak)
    );
    assert_eq!(
        unused(|q| q.cpu.mwait.interrupt_break = false),
        Needs(Dropped::NoInterruptBreak)
    );
    assert_eq!(unused(|q| q.cpu.mwait.substates = 0), NoSubstates);
}

#[test]
fn a_state_needs_a_substate_of_its_class_and_no_particular_number() {
    // Haswell without C3 and C9: 0x10 is class 2, 0x50 class 6.
    let selected = ask(0x3C, |query| query.cpu.mwait.substates = 0x1011_1010);
    assert_eq!(used(&selected), ["C1", "C1E", "C6", "C7s", "C8", "C10"]);
    let why = Dropped::NotReported(MwaitHint::new(0x10));
    assert_eq!(verdict(&selected, "C3"), dropped(why));
    assert_eq!(
        why.to_string(),
        "CPUID leaf 5 reports no sub-state of class 2 (hint 0x10)"
    );

    // Bay Trail has one sub-state in each nibble, with numbers 8, 2, 0 and 4.
    let selected = ask(0x37, |query| query.cpu.mwait.substates = 0x1100_0010);
    assert_eq!(used(&selected), ["C1", "C6N", "C6S", "C7", "C7S"]);
    // Sierra Forest counts two, and numbers them 2 and 3.
    let selected = ask(0xAF, |query| query.cpu.mwait.substates = 0x2020);
    assert_eq!(used(&selected), ["C1", "C1E", "C6S", "C6SP"]);
}

#[test]
fn leaves_that_lie_leave_a_safe_state() {
    // All ones: every class is there, and the table's states are taken, nothing is computed from the counts.
    let selected = ask(0x8F, |query| query.cpu.mwait.substates = u32::MAX);
    assert_eq!(used(&selected), ["C1", "C1E", "C6"]);
    // Only C0 has sub-states.
    let selected = ask(0x8F, |query| query.cpu.mwait.substates = 0xF);
    assert_eq!(methods(&selected), ["POLL", "HLT"]);
    // A hint of nibble Fh is C0: no shift goes astray, and it is not used even if C0 has sub-states.
    let odd = cst(&[
        mwait_entry(0xF0, AcpiType::C1, 1),
        mwait_entry(0x80, AcpiType::C2, 9),
    ]);
    let options = CStateOptions::default();
    let mut query = Query::new(cpu(Vendor::Intel, 6, 0x7E), IdleMethod::Auto, &options);
    query.firmware.cst = Some(&odd);
    let selected = select(&query);
    assert_eq!(
        verdict(&selected, "C2_ACPI"),
        dropped(Dropped::NotReported(MwaitHint::new(0x80)))
    );
    query.cpu.mwait.substates = 0x1F;
    assert_eq!(methods(&select(&query)), ["POLL", "HLT"]);
}

#[test]
fn the_self_test_decides_and_asking_for_mwait_does_not_make_it_work() {
    let options = CStateOptions::default();
    for idle in [IdleMethod::Auto, IdleMethod::Mwait] {
        let mut query = Query::new(cpu(Vendor::Intel, 6, 0x55), idle, &options);
        tcg(&mut query);
        assert_eq!(methods(&select(&query)), ["POLL", "HLT"]);
        // The same with the line sizes that some machine types fill in.
        query.cpu.mwait = MwaitLeaf::from_registers(64, 64, 3, 0x2020);
        let selected = select(&query);
        assert_eq!(methods(&selected), ["POLL", "HLT"]);
        let why = Dropped::SelfTest(IrqGate::Masked, MwaitVerdict::GeneralProtection);
        assert_eq!(verdict(&selected, "C6"), dropped(why));
        assert_eq!(why.to_string(), "MWAIT with ECX=1 raises #GP");
    }
}

#[test]
fn force_mwait_believes_cpuid_but_for_exceptions() {
    let forced = |verdict| {
        let test = MwaitTest {
            open: verdict,
            masked: verdict,
            store_wakes: None,
        };
        ask_with(0x55, "force-mwait", |query| query.cpu.test = test)
    };
    for verdict in [
        MwaitVerdict::Untested,
        MwaitVerdict::NeverSleeps,
        MwaitVerdict::MissesTimer,
    ] {
        let selected = forced(verdict);
        assert_eq!(used(&selected), ["C1", "C1E", "C6"], "{verdict}");
        assert!(find(&selected, "C6").notes.contains(&StateNote::Unproven));
        assert_eq!(selected.monitor, MonitorTrust::MissesStores);
    }
    for verdict in [MwaitVerdict::InvalidOpcode, MwaitVerdict::GeneralProtection] {
        assert_eq!(methods(&forced(verdict)), ["POLL", "HLT"], "{verdict}");
    }
}

#[test]
fn early_interrupts_need_the_flag_the_tsc_and_a_test_that_passed() {
    // Skylake-SP and Ice Lake-SP have the flag, Sapphire Rapids has not.
    for (model, expected) in [
        (0x55, "MWAIT+IRQ 0x00"),
        (0x6A, "MWAIT+IRQ 0x00"),
        (0x8F, "MWAIT 0x00"),
    ] {
        assert_eq!(methods(&ask(model, |_| {}))[1], expected, "{model:#x}");
    }
    let masked = |why, line: &str, change: fn(&mut Query<'_>)| {
        let selected = ask_with(0x55, line, change);
        assert_eq!(methods(&selected)[1], "MWAIT 0x00", "{line}");
        assert!(
            find(&selected, "C1")
                .notes
                .contains(&StateNote::NotOpen(why))
        );
    };
    masked(Dropped::HandlersNeedTsc, "", |query| {
        query.cpu.nonstop_tsc = false;
    });
    masked(Dropped::HandlersNeedTsc, "tsc=unstable", |_| {});
    masked(Dropped::EarlyInterruptsOff, "irq-enable-early=off", |_| {});
    let failed = Dropped::SelfTest(IrqGate::Open, MwaitVerdict::MissesTimer);
    masked(failed, "", |query| {
        query.cpu.test.open = MwaitVerdict::MissesTimer
    });

    // Forced: whatever does not rule it out, and never without a nonstop TSC.
    let force = "irq-enable-early=force";
    let selected = ask_with(0x8F, force, |query| query.cpu.amx = true);
    assert_eq!(
        methods(&selected),
        ["POLL", "MWAIT+IRQ 0x00", "MWAIT+IRQ 0x01", "MWAIT 0x20"]
    );
    let selected = ask_with(0x5E, force, |query| query.topology.smt = true);
    assert_eq!(methods(&selected)[3..5], ["MWAIT+IRQ 0x10", "MWAIT 0x20"]);
    masked(Dropped::HandlersNeedTsc, force, |query| {
        query.cpu.nonstop_tsc = false;
    });
    // No errata list switches it off.
    let errata = ask(0x55, |_| {}).errata;
    assert!(errata.intersects(Errata::IN_SERVICE));
}

#[test]
fn where_masked_mwait_does_not_work_c1_may_still_be_had_open() {
    let only_open = |query: &mut Query<'_>| {
        query.cpu.test.masked = MwaitVerdict::GeneralProtection;
    };
    let selected = ask(0x7E, only_open);
    assert_eq!(methods(&selected), ["POLL", "MWAIT+IRQ 0x00"]);
    assert!(
        selected.considered[1]
            .notes
            .contains(&StateNote::OpenOnlyWay)
    );
    // The deeper states of a table cannot.
    assert_eq!(methods(&ask(0x8F, only_open)), ["POLL", "MWAIT+IRQ 0x00"]);
    let selected = ask_with(0x7E, "tsc=unstable", only_open);
    assert_eq!(methods(&selected), ["POLL", "HLT"]);
    // Without the extensions EDX says nothing, and plain MWAIT may still do.
    let selected = ask(0x7E, |query| {
        query.cpu.mwait.extensions = false;
        query.cpu.mwait.substates = 0;
    });
    assert_eq!(methods(&selected), ["POLL", "MWAIT+IRQ 0x00"]);
}

#[test]
fn an_interrupt_is_left_out_only_on_proof() {
    let test = MwaitTest::PASSED;
    assert_eq!(test.trust(false), MonitorTrust::SeesStores);
    assert_eq!(
        test.trust(true),
        MonitorTrust::MissesStores,
        "errata win over the test"
    );
    for store_wakes in [None, Some(false)] {
        let test = MwaitTest {
            store_wakes,
            ..test
        };
        assert_eq!(test.trust(false), MonitorTrust::MissesStores);
    }
}

#[test]
fn leaves_beyond_the_maximum_are_not_asked_for() {
    let read = |last| {
        move |leaf, _| match leaf {
            0 => Registers {
                eax: last,
                ebx: 0x756E_6547,
                edx: 0x4965_6E69,
                ecx: 0x6C65_746E,
            },
            0x8000_0000 => Registers {
                eax: 0x8000_0006 + last,
                ..Registers::default()
            },
            1 => Registers {
                eax: 0x0005_0654,
                ebx: 0,
                ecx: 1 << 3,
                edx: 1 << 19,
            },
            _ => Registers {
                eax: 0x44,
                ebx: 0x44,
                ecx: 3,
                edx: 0x2120,
            },
        }
    };
    let facts = CpuFacts::from_cpuid(read(7), MwaitTest::PASSED);
    assert_eq!(facts.identity.to_string(), "Intel 06_55 stepping 4");
    assert_eq!(
        facts.mwait,
        MwaitLeaf::from_registers(0x44, 0x44, 3, 0x2120)
    );
    assert!(facts.monitor && facts.clflush && facts.arat && facts.sgx && facts.nonstop_tsc);
    let facts = CpuFacts::from_cpuid(read(4), MwaitTest::PASSED);
    assert_eq!(facts.mwait, MwaitLeaf::default());
    assert!(!facts.arat && !facts.sgx);
    let facts = CpuFacts::from_cpuid(read(0), MwaitTest::PASSED);
    assert!(!facts.monitor && !facts.nonstop_tsc);
}
