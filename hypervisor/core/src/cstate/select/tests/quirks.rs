//! Fix-ups of tables, and the MSRs that models need.

use super::*;

#[test]
fn ivy_bridge_ep_has_a_table_for_its_number_of_packages() {
    for (packages, c1e, table) in [
        (0, (10, 80), "ivt"),
        (1, (10, 80), "ivt"),
        (2, (10, 80), "ivt"),
        (3, (10, 250), "ivt_4s"),
        (4, (10, 250), "ivt_4s"),
        (5, (10, 500), "ivt_8s"),
        (8, (10, 500), "ivt_8s"),
    ] {
        let selected = ask(0x3E, |query| query.topology.packages = packages);
        assert_eq!(figures(&selected, "C1E"), c1e, "{packages}");
        assert_eq!(verdict(&selected, "C1E"), Verdict::Used(Kept::Table(table)));
        assert!(selected.notes.contains(&Note::Sockets(packages)));
    }
}

#[test]
fn c6_costs_less_where_the_package_limit_is_below_pc6() {
    for (model, deep, shallow) in [
        (0x55, (133, 600), (92, 276)),
        (0x8F, (290, 800), (190, 600)),
        (0xCF, (290, 800), (190, 600)),
    ] {
        for limit in 0..16 {
            let selected = ask(model, |query| {
                query.msrs.package_control = Some(0x8400 | limit);
            });
            // Three bits count: 8 is 0 here.
            let expected = if limit & 7 < 2 { shallow } else { deep };
            assert_eq!(figures(&selected, "C6"), expected, "{model:#x} {limit}");
        }
        let selected = ask(model, |query| query.msrs.package_control = None);
        assert_eq!(figures(&selected, "C6"), deep, "the worst case stays");
        assert!(selected.notes.contains(&Note::PackageLimitUnknown));
    }
    // The preference of C1E does not hide it, as it once did.
    let selected = ask_with(0x8F, "preferred-c1e=on", |query| {
        query.msrs.package_control = Some(0);
    });
    assert_eq!(figures(&selected, "C6"), (190, 600));
    // No other model is adjusted.
    for (model, figures_of_c6) in [(0x6A, (170, 600)), (0xAD, (170, 650))] {
        let selected = ask(model, |query| query.msrs.package_control = Some(0));
        assert_eq!(figures(&selected, "C6"), figures_of_c6, "{model:#x}");
    }
    let line = ask(0x55, |query| query.msrs.package_control = Some(1));
    assert_eq!(
        find(&line, "C6").to_string(),
        "C6 by MWAIT 0x20, 92/276 us, used: in table skx; re-timed from 133/600 to 92/276 us: \
         the package limit (MSR 0xe2 bits 2:0) is 1, below PC6; with an interrupt in service C1 is entered instead"
    );
}

#[test]
fn the_irtl_msrs_give_broxtons_figures_with_a_unit_of_three_bits() {
    let names = ["C6", "C7s", "C8", "C9", "C10"];
    let built_in = [133, 155, 1000, 2000, 10_000];
    for model in [0x5C, 0x7A] {
        // 500 units of 1024 ns; 100 of 32768 ns; unit 5, which two bits would cut to 1; a reserved unit; zero.
        let irtl = [
            2 << 10 | 500,
            3 << 10 | 100,
            5 << 10 | 1,
            6 << 10 | 0x3FF,
            2 << 10,
        ];
        let selected = ask(model, |query| {
            query.msrs.irtl = irtl.map(|value| Some(value | 0x8000));
        });
        let expected = [512, 3276, 33_554, built_in[3], built_in[4]];
        for (name, time) in names.into_iter().zip(expected) {
            assert_eq!(figures(&selected, name), (time, time), "{name}");
        }
        assert_eq!(figures(&selected, "C1E"), (10, 20));
    }
    // Below a microsecond: 10 ns. And MSRs that fault.
    for irtl in [[Some(10); 5], [None; 5]] {
        let selected = ask(0x5C, |query| query.msrs.irtl = irtl);
        for (name, time) in names.into_iter().zip(built_in) {
            assert_eq!(figures(&selected, name), (time, time), "{name}");
        }
    }
    // Denverton has none.
    let selected = ask(0x5F, |query| query.msrs.irtl = [Some(0x8BFF); 5]);
    assert_eq!(figures(&selected, "C6"), (50, 500));
    assert!(MsrValues::wanted(&identity(Vendor::Intel, 6, 0x5C)).contains(&0x635));
    assert!(!MsrValues::wanted(&identity(Vendor::Intel, 6, 0x5F)).contains(&0x635));
}

#[test]
fn skylake_h_loses_c8_and_c9_and_keeps_c10_if_pc10_is_allowed_and_sgx_is_off() {
    let all = ["C1", "C1E", "C3", "C6", "C7s", "C8", "C9", "C10"];
    let safe = ["C1", "C1E", "C3", "C6", "C7s", "C10"];
    let sgx = |on: bool, enabled: Option<u64>| {
        move |query: &mut Query<'_>| {
            query.cpu.sgx = on;
            query.msrs.feature_control = enabled;
        }
    };
    for (cpuid, msr) in [
        (false, Some(1 << 18)),
        (true, Some(1)),
        (true, None),
        (false, None),
    ] {
        assert_eq!(used(&ask(0x5E, sgx(cpuid, msr))), safe);
    }
    let selected = ask(0x5E, |_| {});
    assert_eq!(verdict(&selected, "C8"), dropped(Dropped::HangsWithPc10));
    assert_eq!(used(&ask(0x5E, sgx(true, Some(1 << 18)))), all);
    // Each of the other conditions.
    let limit = |value| move |query: &mut Query<'_>| query.msrs.package_control = value;
    assert_eq!(used(&ask(0x5E, limit(Some(7)))), all);
    assert_eq!(used(&ask(0x5E, limit(None))), safe, "unknown is dangerous");
    let no_pc10 = ask(0x5E, |query| query.cpu.mwait.substates = 0x0111_1110);
    assert_eq!(used(&no_pc10), all[..7]);
    let no_c10 = ask_with(0x5E, "max_cstate=6", |_| {});
    assert_eq!(used(&no_c10), all[..7]);
    // Its siblings have the table, and not the fault.
    for model in [0x4E, 0x8E, 0x9E] {
        assert_eq!(used(&ask(model, |_| {})), all, "{model:#x}");
    }
}

#[test]
fn demotion_by_the_hardware_is_switched_off_on_every_cpu() {
    let nehalem = vec![(0x0600_0000, 0, Scope::EveryCpu)];
    for model in [0x1A, 0x1E, 0x1F, 0x2E, 0x25, 0x2C, 0x2F] {
        assert_eq!(writes(&ask(model, |_| {}), 0xE2), nehalem, "{model:#x}");
    }
    // Bit 25 means C3 there, and C6 on Lincroft, whose bit 26 is not touched.
    let selected = ask(0x26, |_| {});
    assert_eq!(writes(&selected, 0xE2), [(0x0200_0000, 0, Scope::EveryCpu)]);
    assert_eq!(selected.msr_writes[0].why, WriteReason::C6AutoDemotion);
    // The lock (bit 15) covers bits 15:0 alone: the write is planned, and keeps all else.
    let selected = ask(0x1A, |query| query.msrs.package_control = Some(0x0600_8403));
    assert_eq!(selected.msr_writes[0].apply(0x0600_8403), Some(0x8403));
    assert_eq!(selected.msr_writes[0].apply(0x8403), None);
    // An MSR that faults is not written; other models' is not either.
    let faults = ask(0x1A, |query| query.msrs.package_control = None);
    assert_eq!(writes(&faults, 0xE2), []);
    for model in [0x1C, 0x2A, 0x55, 0x8F] {
        assert_eq!(writes(&ask(model, |_| {}), 0xE2), [], "{model:#x}");
    }
}

#[test]
fn bay_trails_demotion_policy_is_written_once_in_the_package() {
    for model in [0x37, 0x4C] {
        let selected = ask(model, |_| {});
        for msr in [0x668, 0x669] {
            assert_eq!(writes(&selected, msr), [(u64::MAX, 0, Scope::BootCpu)]);
        }
        assert_eq!(
            selected.msr_writes[0].to_string(),
            "MSR 0x668: write 0 once, on the boot CPU: the governor decides, not the package's demotion policy"
        );
    }
    for model in [0x4A, 0x4D, 0x5C] {
        assert_eq!(writes(&ask(model, |_| {}), 0x668), []);
    }
}

#[test]
fn c1e_promotion_is_cleared_kept_or_set_by_model_and_on_every_cpu() {
    let mut cleared = 0;
    for model in &crate::cstate::models::MODELS {
        let selected = ask(model.model, |_| {});
        let expected: &[(u64, u64, Scope)] = match model.model {
            // C1E is all that these tables have: nobody else makes sure any more that it is one.
            0x97 | 0x9A | 0xAA | 0xBE => &[(0, 2, Scope::EveryCpu)],
            0x1C | 0x26 | 0x36 | 0x4A | 0x57 | 0x85 | 0xCC => &[],
            _ => {
                cleared += 1;
                &[(2, 0, Scope::EveryCpu)]
            }
        };
        assert_eq!(writes(&selected, 0x1FC), expected, "{:#x}", model.model);
    }
    assert_eq!(cleared, 42);
    // Without a table too: Tremont.
    for model in [0x96, 0x9C] {
        let selected = ask(model, |_| {});
        assert_eq!(writes(&selected, 0x1FC), [(2, 0, Scope::EveryCpu)]);
        assert_eq!(used(&selected), ["C1"], "its states come from _CST only");
    }
    let faults = ask(0x55, |query| query.msrs.power_control = None);
    assert_eq!(writes(&faults, 0x1FC), []);
    assert!(faults.notes.contains(&Note::PromotionUnknown));
}

#[test]
fn of_c1_and_c1e_alder_lake_gets_one() {
    for model in [0x97, 0x9A, 0xBE] {
        let selected = ask(model, |_| {});
        assert_eq!(used(&selected), ["C1E", "C6", "C8", "C10"]);
        assert_eq!(verdict(&selected, "C1"), dropped(Dropped::OtherOfC1AndC1e));
        assert_eq!(used(&ask_with(model, "preferred-c1e=on", |_| {}))[0], "C1E");

        let selected = ask_with(model, "preferred-c1e=off", |_| {});
        assert_eq!(used(&selected), ["C1", "C6", "C8", "C10"]);
        assert_eq!(verdict(&selected, "C1E"), dropped(Dropped::OtherOfC1AndC1e));
        assert_eq!(writes(&selected, 0x1FC), [(2, 0, Scope::EveryCpu)]);
    }
    // Meteor Lake's table has no C1 whose figures could be used; all others have both or no choice.
    for model in [0xAA, 0x55, 0xCC] {
        let selected = ask_with(model, "preferred-c1e=off", |_| {});
        assert!(selected.notes.contains(&Note::NoChoiceOfC1e), "{model:#x}");
        assert!(used(&selected).contains(&"C1E"), "{model:#x}");
    }
    // Sapphire Rapids was like that in its early days, and is not any more.
    assert_eq!(used(&ask(0x8F, |_| {})), ["C1", "C1E", "C6"]);
    // Panther Lake shows both, and says that the hardware may make one of the other.
    let selected = ask(0xCC, |query| query.msrs.power_control = Some(0x08E4_005F));
    assert!(find(&selected, "C1").notes.contains(&StateNote::Promoted));
    assert_eq!(used(&selected)[..2], ["C1", "C1E"]);
    assert!(
        !find(&ask(0xCC, |_| {}), "C1")
            .notes
            .contains(&StateNote::Promoted)
    );
}

#[test]
fn msrs_are_left_alone_where_mwait_is_not_used() {
    for line in ["max_cstate=0", "cpuidle=off", "mwait-idle=off max_cstate=0"] {
        assert_eq!(ask_with(0x1A, line, |_| {}).msr_writes, [], "{line}");
    }
    let halted = ask(0x1A, |query| query.idle = IdleMethod::Halt);
    assert_eq!(halted.msr_writes, []);
    let broken = ask(0x1A, |query| query.cpu.test = MwaitTest::default());
    assert_eq!(broken.msr_writes, []);
}

#[test]
fn borrowed_tables_are_borrowed_from_whom_they_should_be() {
    let table = |model| match ask(model, |_| {}).considered[1].verdict {
        Verdict::Used(Kept::Table(table)) => table,
        other => panic!("{other}"),
    };
    assert_eq!((table(0xCF), table(0xDD)), ("spr", "srf"));
    // One model number is Skylake-SP, Cascade Lake and Cooper Lake.
    for stepping in [4, 6, 7, 10, 11] {
        let selected = ask(0x55, |query| {
            query.cpu.identity.stepping = stepping;
            query.msrs.package_control = Some(0x8403);
        });
        assert_eq!(figures(&selected, "C6"), (133, 600));
    }
}

#[test]
fn flags_go_where_there_is_nothing_to_do_for_them() {
    let tiles = |amx| flags(&ask(0x8F, |query| query.cpu.amx = amx), "C6");
    assert!(tiles(true).contains(CStateFlags::INIT_XSTATE));
    assert!(!tiles(false).contains(CStateFlags::INIT_XSTATE));
    let spec = |smt| flags(&ask(0x55, |query| query.topology.smt = smt), "C6");
    assert!(spec(true).contains(CStateFlags::CLEAR_SPEC_CTRL));
    assert!(!spec(false).contains(CStateFlags::CLEAR_SPEC_CTRL));
}

#[test]
fn a_reserved_unit_of_an_irtl_msr_is_named_and_not_used() {
    let selected = ask(0x5C, |query| {
        query.msrs.irtl = [Some(6 << 10 | 100), Some(0), None, None, None]
    });
    let notes = |name| find(&selected, name).notes.clone();
    assert_eq!(notes("C6"), [StateNote::ReservedUnit { msr: 0x60B }]);
    assert_eq!(figures(&selected, "C6"), (133, 133));
    assert_eq!(notes("C7s"), []);
}

#[test]
fn an_offline_cpu_is_parked_in_the_deepest_state_of_the_table() {
    let park = |model| ask(model, |_| {}).parking.method.to_string();
    // Computed from CPUID it would be 0x20 (one sub-state, so number 0), which Sierra Forest does not have.
    assert_eq!(park(0xAF), "MWAIT 0x23");
    assert_eq!(park(0x37), "MWAIT 0x64");
    assert_eq!(park(0x55), "MWAIT 0x20");
    let halted = ask(0x55, |query| query.cpu.monitor = false);
    assert_eq!(halted.parking.method, EntryMethod::Halt);
    // Interrupts are masked in there, whatever C1 does.
    let c1_only = ask_with(0x55, "max_cstate=1,0", |_| {});
    assert_eq!(c1_only.parking.method.to_string(), "MWAIT 0x00");
    // Interrupts that are masked would never end it.
    let open_only = ask(0x8C, |query| query.cpu.mwait.interrupt_break = false);
    assert_eq!(methods(&open_only), ["POLL", "MWAIT+IRQ 0x00"]);
    assert_eq!(open_only.parking.method, EntryMethod::Halt);
}

#[test]
fn the_package_limit_is_said_in_the_models_words() {
    let said = |model, value| {
        let selected = ask(model, |query| query.msrs.package_control = Some(value));
        let notes = selected.notes.iter().map(ToString::to_string);
        notes
            .filter(|line| line.contains("0xe2"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        said(0x55, 0x1_8402),
        [
            "the package goes no deeper than PC6N (MSR 0xe2 has code 2)",
            "the hardware may turn requests for shallow states into deeper ones (MSR 0xe2 bit 16)"
        ]
    );
    assert_eq!(
        said(0x9A, 2),
        ["the package goes no deeper than PC3 (MSR 0xe2 has code 2)"]
    );
    assert_eq!(said(0x9A, 8), [""; 0]);
}
