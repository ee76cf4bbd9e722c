//! What the options do to the choice.

use super::*;

/// With PC10 allowed where it exists, and PC6 where it does not.
fn with(model: u8, line: &str) -> Selected {
    ask_with(model, line, |query| {
        let limit = if model == 0x55 { 3 } else { 8 };
        query.msrs.package_control = Some(limit);
    })
}

fn refused(selected: &Selected) -> Vec<(String, EditFault)> {
    let notes = selected.notes.iter();
    notes
        .filter_map(|note| match note {
            Note::EditRefused { name, why } => Some((name.clone(), *why)),
            _ => None,
        })
        .collect()
}

#[test]
fn idle_is_obeyed() {
    let idle = |method| {
        move |query: &mut Query<'_>| {
            query.idle = method;
        }
    };
    let halt = ask(0x55, idle(IdleMethod::Halt));
    assert_eq!(methods(&halt), ["POLL", "HLT"]);
    assert_eq!(verdict(&halt, "C6").to_string(), "dropped: idle=hlt");
    assert_eq!(halt.considered[2].verdict, Verdict::Used(Kept::AskedFor));
    let poll = ask(0x55, idle(IdleMethod::Poll));
    assert_eq!(methods(&poll), ["POLL"]);
    assert_eq!(poll.considered[0].verdict, Verdict::Used(Kept::AskedFor));
    assert_eq!(verdict(&poll, "C6").to_string(), "dropped: idle=poll");
    assert_eq!(used(&ask(0x55, idle(IdleMethod::Mwait))).len(), 3);
    // The firmware's ports are no HLT either.
    let listed = cst(&[io_entry(0x414, AcpiType::C2, 30)]);
    let options = CStateOptions::default();
    let mut query = Query::new(cpu(Vendor::Amd, 0x19, 1), IdleMethod::Halt, &options);
    query.firmware.cst = Some(&listed);
    assert_eq!(methods(&select(&query)), ["POLL", "HLT"]);
}

#[test]
fn max_cstate_counts_as_the_hardware_does_and_not_as_a_list() {
    for (limit, expected) in [
        ("max_cstate=1", &["C1", "C1E"][..]),
        ("max_cstate=2", &["C1", "C1E", "C3"]),
        ("max_cstate=3", &["C1", "C1E", "C3", "C6"]),
        ("max_cstate=5", &["C1", "C1E", "C3", "C6", "C7s", "C8"]),
        (
            "max_cstate=15",
            &["C1", "C1E", "C3", "C6", "C7s", "C8", "C9", "C10"],
        ),
    ] {
        assert_eq!(used(&with(0x3C, limit)), expected, "{limit}");
    }
    // 0 leaves the default idle: HLT.
    let none = with(0x3C, "max_cstate=0");
    assert_eq!(methods(&none), ["POLL", "HLT"]);
    assert_eq!(verdict(&none, "C1E"), dropped(Dropped::MaxCState(0)));
    // The sub-state is limited for the deepest class alone.
    assert_eq!(used(&with(0x3C, "max_cstate=1,0")), ["C1"]);
    assert_eq!(used(&with(0x3C, "max_cstate=2,0")), ["C1", "C1E", "C3"]);
    let hsw = with(0x3C, "max_cstate=4,1");
    assert_eq!(used(&hsw), ["C1", "C1E", "C3", "C6"]);
    assert_eq!(verdict(&hsw, "C7s"), dropped(Dropped::MaxSubstate(1)));
    // Knights Landing's C6 is class 2, whatever its name.
    assert_eq!(used(&with(0x57, "max_cstate=2")), ["C1", "C6"]);
}

#[test]
fn cpuidle_and_mwait_idle_can_be_switched_off() {
    let off = with(0x55, "cpuidle=off");
    assert_eq!(methods(&off), ["POLL", "HLT"]);
    assert_eq!(verdict(&off, "C6"), dropped(Dropped::CpuidleOff));
    let zen = {
        let options = parse("cpuidle=off");
        select(&Query::new(
            cpu(Vendor::Amd, 0x17, 1),
            IdleMethod::Auto,
            &options,
        ))
    };
    assert_eq!(methods(&zen), ["POLL", "HLT"]);

    let off = with(0x55, "mwait-idle=off");
    assert_eq!(methods(&off), ["POLL", "MWAIT 0x00"]);
    assert!(
        off.notes
            .contains(&Note::TableUnused(TableUnused::ByOption))
    );
}

#[test]
fn states_are_switched_off_by_name_and_by_index_and_stay_usable() {
    for line in ["states_off=C1E", "states_off=4", "states_off=0x4,C1E"] {
        let selected = with(0x55, line);
        assert_eq!(used(&selected), ["C1", "C6"], "{line}");
        assert_eq!(verdict(&selected, "C1E"), Verdict::Off(Off::ByOption));
        assert_eq!(selected.usable.count(), 4);
        let off: Vec<usize> = selected.off.iter().map(|id| id.index()).collect();
        assert_eq!(off, [2]);
    }
    let selected = with(0x55, "states_off=C7,0x10");
    let said: Vec<String> = selected.notes.iter().map(ToString::to_string).collect();
    for name in ["C7", "4"] {
        let line = format!("states_off=: there is no state {name} here");
        assert!(said.contains(&line), "{said:?}");
    }
    // All of them: HLT stays.
    let nothing = with(0x55, "states_off=0xffffffff");
    assert_eq!(methods(&nothing), ["HLT"]);
    assert!(nothing.notes.contains(&Note::NothingLeft));
    let surplus: Vec<&Note> = nothing
        .notes
        .iter()
        .filter(|note| matches!(note, Note::NothingToSwitchOff(_)))
        .collect();
    assert_eq!(surplus, [&Note::NothingToSwitchOff("4 to 31".into())]);
    // POLL alone would be no idle state.
    let polls = with(0x55, "states_off=0xe");
    assert_eq!(methods(&polls), ["POLL", "HLT"]);
    assert_eq!(
        methods(&ask_with(0x55, "", |query| query.idle = IdleMethod::Poll)),
        ["POLL"]
    );
    // And all of them can be switched on again.
    let usable: Vec<String> = nothing
        .usable
        .states()
        .iter()
        .map(|state| format!("{} {}", state.name, state.method))
        .collect();
    assert_eq!(
        usable,
        [
            "POLL POLL",
            "C1 HLT",
            "C1 MWAIT+IRQ 0x00",
            "C1E MWAIT 0x01",
            "C6 MWAIT 0x20"
        ]
    );
    let off: Vec<usize> = nothing.off.iter().map(|id| id.index()).collect();
    assert_eq!(off, [0, 2, 3, 4]);
    assert_eq!(nothing.safe().method, EntryMethod::Halt);
    // Where HLT is C1 already, it is that.
    let halted = ask_with(0x55, "states_off=0xff", |query| query.cpu.monitor = false);
    assert_eq!(methods(&halted), ["HLT"]);
    assert_eq!(halted.usable.count(), 2);
}

#[test]
fn an_edit_is_not_refused_for_a_neighbours_oddity() {
    // Each of these tables breaks the rules somewhere else, so that any edit of it would be refused by others.
    for (model, edit, name, expected) in [
        (0x2A, "C1E:20:60", "C1E", (20, 60)),
        (0x37, "C6S:600:700", "C6S", (600, 700)),
        (0x37, "C1::9", "C1", (1, 9)),
        (0x5E, "C6:90:", "C6", (90, 200)),
        (0x4A, "C4:120:500", "C4", (120, 500)),
        (0x5C, "C1E:11:22", "C1E", (11, 22)),
        // Its own other figure is out of the limits, and was not edited.
        (0x37, "C7S::30000", "C7S", (10_000, 30_000)),
    ] {
        let selected = with(model, &format!("mwait-idle.table={edit}"));
        assert_eq!(refused(&selected), [], "{edit}");
        assert_eq!(figures(&selected, name), expected, "{edit}");
        let retimed = find(&selected, name).notes.iter().any(|note| {
            matches!(
                note,
                StateNote::Retimed {
                    why: Retime::ByOption,
                    ..
                }
            )
        });
        assert!(retimed, "{edit}");
    }
}

#[test]
fn a_latency_factor_is_for_states_of_the_firmware() {
    let table = with(0x55, "idle_latency_factor=5");
    assert!(table.notes.contains(&Note::NoFactor));
    assert!(!with(0x55, "").notes.contains(&Note::NoFactor));
}

#[test]
fn of_two_edits_of_a_state_the_last_good_one_counts() {
    for (edits, expected, refusals) in [
        ("C6:100:600,C6:140:650", (140, 650), 0),
        ("C6:100:600,C6:5:6", (100, 600), 1),
        ("C6:5:6,C6:100:600", (100, 600), 0),
        ("C6:5:6,C6:5:7", (133, 600), 2),
    ] {
        let selected = with(0x55, &format!("mwait-idle.table={edits}"));
        assert_eq!(figures(&selected, "C6"), expected, "{edits}");
        assert_eq!(refused(&selected).len(), refusals, "{edits}");
    }
}

#[test]
fn a_bad_edit_is_refused_alone() {
    for (model, edits, expected) in [
        (0x55, "C9:1:1", vec![("C9", EditFault::NoSuchState)]),
        // Tiger Lake has no table.
        (0x8C, "C6:1:1", vec![("C6", EditFault::NoTable)]),
        (
            0x55,
            "C6::9",
            vec![(
                "C6",
                EditFault::NotWorthIt {
                    latency: Micros::new(133),
                    residency: Micros::new(9),
                },
            )],
        ),
        (0x55, "C1E:2:20", vec![("C1E", EditFault::NotAbove("C1"))]),
        (
            0x55,
            "C1E:150:700",
            vec![("C1E", EditFault::NotBelow("C6"))],
        ),
        // Bay Trail's own oddity can be mended, but not moved.
        (
            0x37,
            "C6N:310:",
            vec![(
                "C6N",
                EditFault::NotWorthIt {
                    latency: Micros::new(310),
                    residency: Micros::new(275),
                },
            )],
        ),
    ] {
        let selected = with(model, &format!("mwait-idle.table={edits}"));
        let expected: Vec<(String, EditFault)> = expected
            .into_iter()
            .map(|(name, why)| (name.to_string(), why))
            .collect();
        assert_eq!(refused(&selected), expected, "{edits}");
    }
    // The good one beside it stands.
    let selected = with(0x55, "mwait-idle.table=C1E:150:700,C6:140:700");
    assert_eq!(refused(&selected).len(), 1);
    assert_eq!(figures(&selected, "C1E"), (10, 20));
    assert_eq!(figures(&selected, "C6"), (140, 700));
    // Two that only fit together, and two of which one leans on one that is refused.
    let selected = with(0x55, "mwait-idle.table=C1E:150:700,C6:200:900");
    assert_eq!(refused(&selected), []);
    assert_eq!(figures(&selected, "C1E"), (150, 700));
    let selected = with(0x55, "mwait-idle.table=C1E:150:700,C6:200:");
    assert_eq!(figures(&selected, "C6"), (200, 600));
    assert_eq!(figures(&selected, "C1E"), (10, 20));
    // What changes nothing is not checked.
    let selected = with(0x5E, "mwait-idle.table=C8:200:800");
    assert_eq!(refused(&selected), []);
}

#[test]
fn what_an_option_did_not_do_names_the_option() {
    for (model, line, options) in [
        (
            0x55,
            "mwait-idle.table=C9:1:1,C6:150:700",
            vec!["mwait-idle.table"],
        ),
        (0x55, "states_off=C7,C6", vec!["states_off"]),
        (0x55, "states_off=0xf", vec!["states_off"]),
        (0x55, "preferred-c1e=off", vec!["preferred-c1e"]),
        (0x9A, "preferred-c1e=off states_off=C6 max_cstate=3", vec![]),
    ] {
        let selected = with(model, line);
        let named = selected.notes.iter().filter_map(Note::ignored_option);
        let named: Vec<&str> = named.map(|(option, _)| option).collect();
        assert_eq!(named, options, "{line}");
    }
}

#[test]
fn edits_come_after_what_the_machine_says() {
    let selected = ask_with(0x55, "mwait-idle.table=C6::300", |query| {
        query.msrs.package_control = Some(0);
    });
    assert_eq!(figures(&selected, "C6"), (92, 300));
}

#[test]
fn cpuid_overrides_reach_the_facts() {
    let options = parse("cpuid=0x80000007:edx=0");
    let read = |leaf: u32, _: u32| {
        let said = Registers {
            eax: 0x8000_0008,
            edx: 1 << 8,
            ..Registers::default()
        };
        options.override_leaf(leaf, said)
    };
    assert!(!CpuFacts::from_cpuid(read, MwaitTest::PASSED).nonstop_tsc);
}
