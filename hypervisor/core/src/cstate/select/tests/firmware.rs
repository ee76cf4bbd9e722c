//! `_CST`, Zen's own states, P_BLK, and what ACPI's C3 asks for.

use super::*;

fn ask_acpi(
    facts: CpuFacts,
    listed: Option<&Cst>,
    line: &str,
    change: impl FnOnce(&mut Query<'_>),
) -> Selected {
    let options = parse(line);
    let mut query = Query::new(facts, IdleMethod::Auto, &options);
    query.firmware.cst = listed;
    change(&mut query);
    select(&query)
}

fn raptor_lake() -> Cst {
    cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        mwait_entry(0x21, AcpiType::C2, 127),
        mwait_entry(0x60, AcpiType::C3, 1048),
    ])
}

#[test]
fn intels_mwait_states_get_one_and_three_latencies_and_others_two() {
    let raptor = cpu(Vendor::Intel, 6, 0xBA);
    let selected = ask_acpi(raptor, Some(&raptor_lake()), "", |_| {});
    assert_eq!(used(&selected), ["C1_ACPI", "C2_ACPI", "C3_ACPI"]);
    assert_eq!(figures(&selected, "C1_ACPI"), (1, 1));
    assert_eq!(figures(&selected, "C2_ACPI"), (127, 381));
    assert_eq!(figures(&selected, "C3_ACPI"), (1048, 3144));
    // Above C2 the TLB is flushed; nobody has to look at bus masters.
    assert_eq!(flags(&selected, "C2_ACPI"), CStateFlags::empty());
    assert_eq!(flags(&selected, "C3_ACPI"), CStateFlags::TLB_FLUSHED);

    // AMD, whose firmware says how long it takes: 18 to 800 us were seen.
    let listed = cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        io_entry(0x414, AcpiType::C2, 800),
    ]);
    let mut facts = cpu(Vendor::Amd, 0x19, 0x11);
    facts.mwait.substates = 0x11;
    let selected = ask_acpi(facts, Some(&listed), "", |_| {});
    assert_eq!(methods(&selected), ["POLL", "MWAIT 0x00", "IO 0x414"]);
    assert_eq!(figures(&selected, "C1"), (1, 2));
    assert_eq!(figures(&selected, "C2"), (800, 1600));
    // The dummy read is for Intel's chipsets.
    assert!(!flags(&selected, "C2").contains(CStateFlags::READ_PM_TIMER));

    let selected = ask_acpi(facts, Some(&listed), "idle_latency_factor=5", |_| {});
    assert_eq!(figures(&selected, "C2"), (800, 4000));
    let selected = ask_acpi(
        raptor,
        Some(&raptor_lake()),
        "idle_latency_factor=2",
        |_| {},
    );
    assert_eq!(figures(&selected, "C3_ACPI"), (1048, 2096));
}

#[test]
fn a_hint_that_cpuid_does_not_have_is_dropped_and_not_fatal() {
    // Alder Lake's desktop firmware advertised C7 sub-states that were not there.
    let mut facts = cpu(Vendor::Intel, 6, 0xB7);
    facts.mwait.substates = 0x1010_1110;
    let listed = cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        mwait_entry(0x31, AcpiType::C2, 200),
        mwait_entry(0x60, AcpiType::C3, 1000),
    ]);
    let selected = ask_acpi(facts, Some(&listed), "", |_| {});
    assert_eq!(used(&selected), ["C1_ACPI", "C3_ACPI"]);
    assert_eq!(
        verdict(&selected, "C2_ACPI"),
        dropped(Dropped::NotReported(MwaitHint::new(0x31)))
    );
    // Reserved bits, and C0, whatever the first nibble says.
    let listed = cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        mwait_entry(0x100, AcpiType::C2, 200),
        mwait_entry(0xF0, AcpiType::C3, 300),
    ]);
    facts.mwait.substates = 0x1111_1111;
    let selected = ask_acpi(facts, Some(&listed), "", |_| {});
    assert_eq!(used(&selected), ["C1_ACPI"]);
    for (name, hint) in [("C2_ACPI", 0x100), ("C3_ACPI", 0xF0)] {
        let why = Dropped::NoHint(MwaitHint::new(hint));
        assert_eq!(verdict(&selected, name), dropped(why));
    }
    // Sparse sub-state numbers are not compared with the count here either.
    let listed = cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        mwait_entry(0x58, AcpiType::C3, 300),
    ]);
    let selected = ask_acpi(cpu(Vendor::Intel, 6, 0x8C), Some(&listed), "", |_| {});
    assert_eq!(used(&selected), ["C1_ACPI", "C2_ACPI"]);
}

#[test]
fn firmwares_c1_becomes_halt_where_mwait_does_not_do() {
    let mut facts = cpu(Vendor::Amd, 0x19, 1);
    facts.monitor = false;
    let listed = cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        mwait_entry(0x10, AcpiType::C2, 20),
        io_entry(0x414, AcpiType::C2, 30),
    ]);
    let selected = ask_acpi(facts, Some(&listed), "", |_| {});
    assert_eq!(methods(&selected), ["POLL", "HLT", "IO 0x414"]);
    let notes = &find(&selected, "C1").notes;
    assert!(notes.contains(&StateNote::HaltInstead(Dropped::NoMonitor)));
    assert!(notes.contains(&StateNote::HaltMayBeDeep));
    // A limit on latency must know what HLT may cost: what the firmware says of the state that it may be.
    assert_eq!(figures(&selected, "C1"), (30, 2));
    facts.hypervisor = true;
    let selected = ask_acpi(facts, Some(&listed), "", |_| {});
    assert_eq!(figures(&selected, "C1"), (1, 2));
}

#[test]
fn offline_cpus_are_parked_by_a_port_where_halt_leads_less_deep() {
    let listed = cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        io_entry(0x414, AcpiType::C2, 17),
        io_entry(0x415, AcpiType::C3, 57),
    ]);
    let parked = |facts, change: fn(&mut Query<'_>)| {
        let parking = ask_acpi(facts, Some(&listed), "", change).parking;
        (parking.method.to_string(), parking.flags)
    };
    let intel = cpu(Vendor::Intel, 6, 0x17);
    let (method, flags) = parked(intel, |_| {});
    assert_eq!(method, "IO 0x415");
    assert!(flags.contains(CStateFlags::FLUSH_CACHES | CStateFlags::READ_PM_TIMER));
    // On Zen, HLT leads where the port does.
    assert_eq!(parked(cpu(Vendor::Amd, 0x19, 1), |_| {}).0, "HLT");
    // Where the arbiter counts the CPUs in C3, one that is gone for good may not be among them.
    let (method, _) = parked(cpu(Vendor::Intel, 6, 0x0E), |query| {
        query.firmware.fadt = Some(Fadt {
            pm2_control: true,
            ..Fadt::default()
        });
    });
    assert_eq!(method, "IO 0x414");
}

#[test]
fn a_missing_c1_is_filled_in() {
    let listed = cst(&[io_entry(0x414, AcpiType::C2, 30)]);
    let mut facts = cpu(Vendor::Amd, 0x19, 1);
    facts.mwait.substates = 0x11;
    let selected = ask_acpi(facts, Some(&listed), "", |_| {});
    assert_eq!(methods(&selected), ["POLL", "MWAIT 0x00", "IO 0x414"]);
    assert_eq!(used(&selected), ["C1", "C2"]);
    facts.test = MwaitTest::default();
    let selected = ask_acpi(facts, Some(&listed), "", |_| {});
    assert_eq!(methods(&selected), ["POLL", "HLT", "IO 0x414"]);
}

#[test]
fn cst_switches_the_tables_states_only_where_the_model_says_so() {
    let only_c1 = cst(&[mwait_entry(0, AcpiType::C1, 1)]);
    // Haswell: a server does, a client does not.
    let server = ask_acpi(cpu(Vendor::Intel, 6, 0x3F), Some(&only_c1), "", |_| {});
    assert_eq!(used(&server), ["C1", "C1E"]);
    assert_eq!(verdict(&server, "C6"), Verdict::Off(Off::NotInCst));
    assert!(flags(&server, "C6").contains(CStateFlags::OFF_BY_DEFAULT));
    assert_eq!(
        verdict(&server, "C1E"),
        Verdict::Used(Kept::TableAlways("hsw"))
    );
    assert_eq!(
        verdict(&server, "C1"),
        Verdict::Used(Kept::TableAndCst("hsw"))
    );
    // Off states are in the table of what can be switched on.
    assert_eq!(server.usable.count(), 9);
    assert_eq!(server.off.len(), 6);
    assert_eq!(server.usable.state(server.off[0]).name, "C3");
    let client = ask_acpi(cpu(Vendor::Intel, 6, 0x3C), Some(&only_c1), "", |_| {});
    assert_eq!(used(&client).len(), 8);
    // Switched off, or not comparable: nothing is off.
    let off = ask_acpi(
        cpu(Vendor::Intel, 6, 0x3F),
        Some(&only_c1),
        "acpi_cst=off",
        |_| {},
    );
    assert_eq!(used(&off).len(), 8);
    let mixed = cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        io_entry(0x1814, AcpiType::C2, 50),
    ]);
    let mixed = ask_acpi(cpu(Vendor::Intel, 6, 0x3F), Some(&mixed), "", |_| {});
    assert_eq!(used(&mixed).len(), 8);
    assert!(mixed.notes.contains(&Note::CstNotComparable));
}

#[test]
fn what_max_cstate_leaves_out_of_cst_is_not_looked_at() {
    // C1E by MWAIT, and a C2 that is a port.
    let listed = cst(&[
        mwait_entry(1, AcpiType::C1, 1),
        io_entry(0x1814, AcpiType::C2, 50),
    ]);
    let dnv = |line| ask_acpi(cpu(Vendor::Intel, 6, 0x5F), Some(&listed), line, |_| {});
    assert!(dnv("").notes.contains(&Note::CstNotComparable));
    assert_eq!(used(&dnv("")), ["C1", "C1E", "C6"]);
    let limited = dnv("max_cstate=1");
    assert!(limited.notes.contains(&Note::CstSwitches));
    assert_eq!(used(&limited), ["C1E"]);
    assert_eq!(verdict(&limited, "C1"), Verdict::Off(Off::NotInCst));
    // Nothing is left of it: nothing is compared.
    let none = dnv("max_cstate=0");
    assert!(!none.notes.contains(&Note::CstSwitches));
    // Where it is the only source, the names follow: all of what is used is MWAIT.
    let raptor = |line| ask_acpi(cpu(Vendor::Intel, 6, 0xBA), Some(&listed), line, |_| {});
    assert_eq!(used(&raptor("")), ["C1", "C2"]);
    assert_eq!(used(&raptor("max_cstate=1")), ["C1_ACPI"]);
}

#[test]
fn denvertons_firmware_that_lists_c1e_alone_leaves_c1_off() {
    let listed = cst(&[mwait_entry(1, AcpiType::C1, 1)]);
    let dnv = ask_acpi(cpu(Vendor::Intel, 6, 0x5F), Some(&listed), "", |_| {});
    assert_eq!(used(&dnv), ["C1E"]);
    assert_eq!(verdict(&dnv, "C1"), Verdict::Off(Off::NotInCst));
    assert_eq!(verdict(&dnv, "C6"), Verdict::Off(Off::NotInCst));
    // Sierra Forest and Grand Ridge keep C1 all the same.
    for model in [0xAF, 0xB6] {
        let selected = ask_acpi(cpu(Vendor::Intel, 6, model), Some(&listed), "", |_| {});
        assert_eq!(used(&selected), ["C1", "C1E"], "{model:#x}");
    }
}

#[test]
fn either_flavour_of_c6_switches_both_on_where_the_table_says_so() {
    for hint in [0x20, 0x21] {
        let listed = cst(&[
            mwait_entry(0, AcpiType::C1, 1),
            mwait_entry(hint, AcpiType::C2, 170),
        ]);
        let gnr = ask_acpi(cpu(Vendor::Intel, 6, 0xAD), Some(&listed), "", |_| {});
        assert_eq!(used(&gnr), ["C1", "C1E", "C6", "C6P"], "{hint:#x}");
    }
    for hint in [0x22, 0x23] {
        let listed = cst(&[mwait_entry(hint, AcpiType::C2, 170)]);
        let srf = ask_acpi(cpu(Vendor::Intel, 6, 0xAF), Some(&listed), "", |_| {});
        assert_eq!(used(&srf), ["C1", "C1E", "C6S", "C6SP"], "{hint:#x}");
        // Grand Ridge has no such flag, and gets none by analogy.
        let grr = ask_acpi(cpu(Vendor::Intel, 6, 0xB6), Some(&listed), "", |_| {});
        assert_eq!(used(&grr).contains(&"C6S"), hint == 0x22, "{hint:#x}");
    }
}

#[test]
fn snow_ridge_has_c6_only_if_cpuid_says_so() {
    let snr = ask(0x86, |query| query.cpu.mwait.substates = 0x20);
    assert_eq!(used(&snr), ["C1", "C1E"]);
}

#[test]
fn the_firmware_is_told_only_where_cst_is_used() {
    let fadt = |query: &mut Query<'_>| {
        query.firmware.fadt = Some(Fadt {
            cst_control: 0x85,
            ..Fadt::default()
        });
    };
    let listed = raptor_lake();
    let told =
        |model, line| ask_acpi(cpu(Vendor::Intel, 6, model), Some(&listed), line, fadt).take_cst;
    assert_eq!(told(0xBA, ""), Some(0x85));
    assert_eq!(told(0x55, ""), Some(0x85));
    assert_eq!(told(0x3C, ""), None, "a table that _CST does not switch");
    assert_eq!(told(0xBA, "acpi_cst=off"), None);
    let none = ask_acpi(cpu(Vendor::Intel, 6, 0xBA), Some(&listed), "", |_| {});
    assert_eq!(none.take_cst, None);
}

#[test]
fn zen_without_cst_has_mwait_as_c1_and_halt_as_c2() {
    for (vendor, family) in [
        (Vendor::Amd, 0x17),
        (Vendor::Amd, 0x19),
        (Vendor::Amd, 0x1A),
        (Vendor::Hygon, 0x18),
    ] {
        let selected = ask_amd(vendor, family, |query| query.cpu.arat = false);
        assert_eq!(methods(&selected), ["POLL", "MWAIT 0x00", "HLT"]);
        assert_eq!(figures(&selected, "C1"), (1, 2));
        assert_eq!(figures(&selected, "C2"), (400, 800));
        // What is used instead of C2 is MWAIT: HLT may be CC6.
        assert_eq!(selected.safe().method.to_string(), "MWAIT 0x00");
        assert_eq!(selected.parking.method, EntryMethod::Halt);

        let selected = ask_amd(vendor, family, |query| query.cpu.monitor = false);
        assert_eq!(methods(&selected), ["POLL", "HLT"]);
        assert_eq!(figures(&selected, "C1"), (400, 2));
        assert!(
            find(&selected, "C1")
                .notes
                .contains(&StateNote::HaltMayBeDeep)
        );
        // One instruction is not two states.
        let selected = ask_amd(vendor, family, |query| {
            query.cpu.test = MwaitTest::default()
        });
        assert_eq!(methods(&selected), ["POLL", "HLT"]);
        assert_eq!(verdict(&selected, "C2"), dropped(Dropped::IsC1));
    }
    // All of them off: its HLT stays, and is there once.
    let all_off = "states_off=0xffffffff";
    let left = ask_acpi(cpu(Vendor::Amd, 0x17, 1), None, all_off, |query| {
        query.cpu.arat = true
    });
    assert_eq!(methods(&left), ["HLT"]);
    assert_eq!(left.usable.count(), 3);
    // Its firmware would call HLT's depth C2 or C3, in which a TSC that is not nonstop stops.
    let stopping = ask_amd(Vendor::Amd, 0x17, |query| query.cpu.nonstop_tsc = false);
    assert_eq!(verdict(&stopping, "C2"), dropped(Dropped::TscStops));
    assert_eq!(methods(&stopping), ["POLL", "MWAIT 0x00"]);
    for family in [0x15, 0x16, 0x1B] {
        let selected = ask_amd(Vendor::Amd, family, |_| {});
        assert_eq!(used(&selected), ["C1"], "{family:#x}");
    }
}

#[test]
fn p_blk_gives_states_only_without_cst_and_within_its_limits() {
    let block = |fadt: Fadt, cpus: u32| {
        move |query: &mut Query<'_>| {
            query.firmware.fadt = Some(fadt);
            query.firmware.p_blk = Some(0x1810);
            query.topology.cpus = cpus;
        }
    };
    let fadt = Fadt {
        flags: 1 | 1 << 3,
        lvl2_latency: 100,
        lvl3_latency: 1000,
        pm2_control: true,
        ..Fadt::default()
    };
    let old = cpu(Vendor::Intel, 6, 0x0D);
    let selected = ask_acpi(old, None, "", block(fadt, 2));
    assert_eq!(
        methods(&selected),
        ["POLL", "MWAIT 0x00", "IO 0x1814", "IO 0x1815"]
    );
    assert_eq!(figures(&selected, "C3"), (1000, 2000));
    let c3 = flags(&selected, "C3");
    assert!(c3.contains(
        CStateFlags::CHECK_BUS_MASTER
            | CStateFlags::DISABLE_ARBITRATION
            | CStateFlags::READ_PM_TIMER
    ));

    let count = |fadt, cpus| used(&ask_acpi(old, None, "", block(fadt, cpus))).len();
    let too_slow = Fadt {
        lvl2_latency: 101,
        lvl3_latency: 1001,
        ..fadt
    };
    assert_eq!(count(too_slow, 1), 1);
    let reduced = Fadt {
        flags: fadt.flags | 1 << 20,
        ..fadt
    };
    assert_eq!(count(reduced, 1), 1);
    // Without P_LVL2_UP they are for one CPU.
    let single = Fadt { flags: 1, ..fadt };
    assert_eq!((count(single, 1), count(single, 2)), (3, 1));
    // From Merom on nobody arbitrates, and then C3 needs a _CST.
    let newer = ask_acpi(cpu(Vendor::Intel, 6, 0x8C), None, "", block(fadt, 2));
    assert_eq!(verdict(&newer, "C3"), dropped(Dropped::C3NeedsCst));
    assert_eq!(used(&newer), ["C1", "C2"]);
    // With a _CST nobody looks there.
    let listed = ask_acpi(old, Some(&raptor_lake()), "", block(fadt, 1));
    assert_eq!(used(&listed), ["C1_ACPI", "C2_ACPI", "C3_ACPI"]);
}

#[test]
fn acpis_c3_flushes_caches_looks_at_bus_masters_or_is_dropped() {
    let listed = cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        io_entry(0x415, AcpiType::C3, 350),
    ]);
    let c3 = |vendor, family, flags: u32, cpus| {
        let mut facts = cpu(vendor, family, 1);
        facts.mwait.substates = 0x11;
        let fadt = Fadt {
            flags,
            ..Fadt::default()
        };
        let selected = ask_acpi(facts, Some(&listed), "", |query| {
            query.firmware.fadt = Some(fadt);
            query.topology.cpus = cpus;
        });
        find(&selected, "C2").clone()
    };
    // Family 12h is not coherent in C3 with several CPUs: write the caches back, if that works.
    let flushed = c3(Vendor::Amd, 0x12, 1, 4);
    assert!(flushed.state.flags.contains(CStateFlags::FLUSH_CACHES));
    let dropped_one = c3(Vendor::Amd, 0x12, 0, 4);
    assert_eq!(dropped_one.verdict, dropped(Dropped::C3NeedsWbinvd));
    // One CPU, Zen and family 15h are coherent; so are Intel's, which are never flushed.
    for (vendor, family, cpus) in [
        (Vendor::Amd, 0x12, 1),
        (Vendor::Amd, 0x15, 4),
        (Vendor::Amd, 0x19, 4),
        (Vendor::Intel, 6, 4),
        (Vendor::Zhaoxin, 7, 4),
    ] {
        let one = c3(vendor, family, 1, cpus);
        assert!(one.state.flags.contains(CStateFlags::CHECK_BUS_MASTER));
        assert!(!one.state.flags.contains(CStateFlags::FLUSH_CACHES));
    }
}

#[test]
fn what_is_wrong_with_a_cst_is_said() {
    use crate::cstate::acpi::CstFault;
    let mut listed = raptor_lake();
    listed.faults.push((2, CstFault::BadType(9)));
    listed.faults.push((0, CstFault::Unsorted));
    let selected = ask_acpi(cpu(Vendor::Intel, 6, 0xBA), Some(&listed), "", |_| {});
    let lines: Vec<String> = selected.notes.iter().map(ToString::to_string).collect();
    assert!(lines.contains(&"_CST entry 2 is skipped: type 9, expected 1, 2 or 3".to_string()));
    assert!(lines.contains(&format!("_CST: {}", CstFault::Unsorted)));
    let nothing = ask_acpi(
        cpu(Vendor::Intel, 6, 0xBA),
        Some(&Cst::default()),
        "",
        |_| {},
    );
    assert!(nothing.notes.contains(&Note::NoCst(NoCst::Empty)));
    assert_eq!(used(&nothing), ["C1"]);
}
