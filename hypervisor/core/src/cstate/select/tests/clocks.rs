//! Clocks and timers that stop in C-states.

use super::*;

#[test]
fn a_tsc_that_stops_is_restored_or_the_state_is_not_used() {
    // From class 3 on: C3 is class 2 and does not stop it.
    let stops = |query: &mut Query<'_>| query.cpu.nonstop_tsc = false;
    let selected = ask(0x3C, stops);
    assert_eq!(used(&selected), ["C1", "C1E", "C3"]);
    assert_eq!(verdict(&selected, "C6"), dropped(Dropped::TscStops));
    assert!(!selected.tsc_unstable);

    let selected = ask(0x3C, |query| {
        stops(query);
        query.support.restores_tsc = true;
    });
    assert_eq!(used(&selected).len(), 8);
    assert!(flags(&selected, "C6").contains(CStateFlags::TSC_STOPS));
    assert!(!flags(&selected, "C3").contains(CStateFlags::TSC_STOPS));
    assert!(selected.tsc_unstable && selected.notes.contains(&Note::TscUnstable));

    let selected = ask(0x3C, |_| {});
    assert!(!flags(&selected, "C10").contains(CStateFlags::TSC_STOPS));
    assert!(!selected.tsc_unstable);
    assert_eq!(used(&ask_with(0x3C, "tsc=unstable", |_| {})).len(), 3);
}

#[test]
fn of_the_firmwares_states_all_but_c1_stop_the_tsc() {
    // Its C2 is MWAIT's class 2, which a table's would not mind: Core 2 stalled there.
    let listed = cst(&[
        mwait_entry(0, AcpiType::C1, 1),
        mwait_entry(0x10, AcpiType::C2, 9),
    ]);
    let options = CStateOptions::default();
    let mut query = Query::new(cpu(Vendor::Intel, 6, 0x17), IdleMethod::Auto, &options);
    query.firmware.cst = Some(&listed);
    query.cpu.nonstop_tsc = false;
    assert_eq!(
        verdict(&select(&query), "C2_ACPI"),
        dropped(Dropped::TscStops)
    );
    query.support.restores_tsc = true;
    assert!(select(&query).tsc_unstable);
}

#[test]
fn a_timer_that_stops_is_stood_in_for_or_the_state_is_not_used() {
    let stops = |query: &mut Query<'_>| query.cpu.arat = false;
    let selected = ask(0x2A, stops);
    assert_eq!(used(&selected), ["C1", "C1E"]);
    assert_eq!(verdict(&selected, "C3"), dropped(Dropped::TimerStops));

    let broadcast = |query: &mut Query<'_>| {
        query.cpu.arat = false;
        query.cpu.mwait.substates = 0x0111_1110;
        query.support.timer_broadcast = true;
    };
    let selected = ask(0x2A, broadcast);
    assert_eq!(used(&selected).len(), 5);
    for (name, expected) in [("C1E", false), ("C3", true), ("C7", true)] {
        let found = flags(&selected, name).contains(CStateFlags::TIMER_STOPS);
        assert_eq!(found, expected, "{name}");
    }
    // A stand-in that stops itself is none: Bay Trail's HPET.
    assert_eq!(used(&ask(0x37, broadcast)), ["C1"]);
}

#[test]
fn amds_later_families_need_not_say_that_their_timer_runs_on() {
    let listed = cst(&[io_entry(0x414, AcpiType::C2, 100)]);
    let options = CStateOptions::default();
    for (vendor, family, expected) in [
        (Vendor::Amd, 0x11, 1),
        (Vendor::Amd, 0x12, 2),
        (Vendor::Amd, 0x1A, 2),
        (Vendor::Hygon, 0x18, 2),
        (Vendor::Intel, 6, 1),
    ] {
        let mut query = Query::new(cpu(vendor, family, 1), IdleMethod::Auto, &options);
        query.cpu.arat = false;
        query.firmware.cst = Some(&listed);
        assert_eq!(
            used(&select(&query)).len(),
            expected,
            "{vendor} {family:#x}"
        );
    }
}

#[test]
fn the_hpet_stops_in_pc10_where_it_is_reported_and_allowed() {
    let stops = |model, limit, substates| {
        ask(model, |query| {
            query.msrs.package_control = limit;
            query.cpu.mwait.substates = substates;
        })
        .hpet_stops
    };
    assert!(stops(0x9E, Some(8), ALL_CLASSES));
    assert!(stops(0x9E, Some(0xA), ALL_CLASSES));
    assert!(stops(0x9E, None, ALL_CLASSES));
    assert!(!stops(0x9E, Some(7), ALL_CLASSES));
    assert!(!stops(0x9E, Some(8), 0x0111_1110));
    // Bay Trail's and Cherry Trail's in any deep state.
    assert!(stops(0x37, Some(0), 0x10) && stops(0x4C, Some(0), 0x10));
    let amd = ask_amd(Vendor::Amd, 0x17, |query| {
        query.cpu.mwait.substates = u32::MAX
    });
    assert!(!amd.hpet_stops);
}
