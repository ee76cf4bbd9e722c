//! Errata: who has which, and what follows.

use super::*;

/// All models of family 6 that have an erratum.
fn with(erratum: Errata) -> Vec<u8> {
    (0..=0xFF)
        .filter(|&model| Errata::of(&identity(Vendor::Intel, 6, model)).contains(erratum))
        .collect()
}

#[test]
fn the_lists_are_the_published_ones() {
    assert_eq!(with(Errata::CLFLUSH_MONITOR), [0x1D, 0x2E, 0x2F]);
    // Ice Lake-SP is on Xen's list only.
    assert_eq!(with(Errata::MISSES_STORES), [0x5C, 0x6A, 0xBD]);
    assert_eq!(
        with(Errata::IN_SERVICE_EOI),
        [0x1A, 0x1E, 0x1F, 0x25, 0x2C, 0x2E, 0x2F]
    );
    assert_eq!(
        with(Errata::IN_SERVICE_PRIORITY),
        [
            0x3C, 0x3D, 0x3F, 0x45, 0x46, 0x47, 0x4E, 0x4F, 0x55, 0x56, 0x5E, 0x66, 0x8E, 0x9E
        ]
    );
    assert_eq!(
        with(Errata::RAPID_DEEP),
        [0x1A, 0x1E, 0x1F, 0x25, 0x2C, 0x2E]
    );
    // The same numbers of another family or vendor are other CPUs.
    assert!(Errata::of(&identity(Vendor::Intel, 18, 0x55)).is_empty());
    assert!(Errata::of(&identity(Vendor::Zhaoxin, 6, 0x55)).is_empty());
}

#[test]
fn a_monitor_that_misses_stores_is_used_but_not_trusted() {
    for model in [0x5C, 0x6A] {
        let selected = ask(model, |_| {});
        assert_eq!(selected.monitor, MonitorTrust::MissesStores, "{model:#x}");
        assert!(methods(&selected)[1].starts_with("MWAIT"), "{model:#x}");
    }
    assert_eq!(ask(0xBD, |_| {}).monitor, MonitorTrust::MissesStores);
    assert_eq!(ask(0x55, |_| {}).monitor, MonitorTrust::SeesStores);
    assert_eq!(ask(0x6C, |_| {}).monitor, MonitorTrust::SeesStores);
}

#[test]
fn the_line_is_flushed_where_the_monitor_needs_it_and_clflush_is_there() {
    for (model, expected) in [(0x1D, true), (0x2E, true), (0x2F, true), (0x2C, false)] {
        assert_eq!(
            ask(model, |_| {}).flush_before_monitor,
            expected,
            "{model:#x}"
        );
    }
    let selected = ask(0x2E, |query| query.cpu.clflush = false);
    assert!(!selected.flush_before_monitor);
}

#[test]
fn with_an_interrupt_in_service_states_of_class_3_and_deeper_are_checked() {
    let checked = |selected: &Selected| -> Vec<&'static str> {
        let states = selected.table.states().iter();
        states
            .filter(|state| state.flags.contains(CStateFlags::CHECK_IN_SERVICE))
            .map(|state| state.name)
            .collect()
    };
    // C3 is class 2.
    assert_eq!(checked(&ask(0x1A, |_| {})), ["C6"]);
    assert_eq!(
        checked(&ask(0x3C, |_| {})),
        ["C6", "C7s", "C8", "C9", "C10"]
    );
    // The older erratum does not strike with directed EOIs, the later one does.
    let directed = |query: &mut Query<'_>| query.support.directed_eoi = true;
    assert_eq!(checked(&ask(0x2F, directed)), [""; 0]);
    assert_eq!(checked(&ask(0x55, directed)), ["C6"]);
    assert_eq!(checked(&ask(0x6A, |_| {})), [""; 0]);
    // The check is no reason to leave interrupts closed in C1.
    assert_eq!(methods(&ask(0x55, |_| {}))[1], "MWAIT+IRQ 0x00");
    // What is entered instead is the CPU's own C1.
    assert_eq!(
        ask(0x55, |_| {}).safe().method.to_string(),
        "MWAIT+IRQ 0x00"
    );
    assert_eq!(ask(0x9A, |_| {}).safe().name, "C1E");
}

#[test]
fn fast_deep_transitions_limit_to_c1_with_hyper_threading() {
    for model in [0x1A, 0x1E, 0x1F, 0x25, 0x2C, 0x2E] {
        let selected = ask(model, |query| query.topology.smt = true);
        assert_eq!(used(&selected), ["C1", "C1E"], "{model:#x}");
        assert_eq!(
            verdict(&selected, "C6"),
            dropped(Dropped::Erratum(Errata::RAPID_DEEP))
        );
        // No option undoes it: the limit of errata and that of the user are two things.
        let selected = ask_with(model, "max_cstate=7", |query| query.topology.smt = true);
        assert_eq!(used(&selected), ["C1", "C1E"], "{model:#x}");
        assert_eq!(used(&ask(model, |_| {})), ["C1", "C1E", "C3", "C6"]);
    }
    let selected = ask(0x2F, |query| query.topology.smt = true);
    assert_eq!(used(&selected), ["C1", "C1E", "C3", "C6"]);
}

#[test]
fn amds_c1e_is_disarmed_or_limits_to_c1() {
    let of = |family, model, stepping| {
        Errata::of(&Identity {
            vendor: Vendor::Amd,
            family,
            model,
            stepping,
        })
    };
    for (family, model, stepping, expected) in [
        (0x0F, 0x41, 1, false),
        (0x0F, 0x41, 2, true),
        (0x0F, 0x42, 0, true),
        (0x10, 2, 0, false),
        (0x10, 2, 1, true),
        (0x10, 3, 0, true),
        (0x11, 3, 0, false),
    ] {
        let found = of(family, model, stepping).contains(Errata::AMD_C1E_TIMER);
        assert_eq!(found, expected, "{family:#x} {model:#x} {stepping}");
    }

    let listed = cst(&[io_entry(0x1014, AcpiType::C2, 50)]);
    let options = CStateOptions::default();
    let mut query = Query::new(cpu(Vendor::Amd, 0x0F, 0x6B), IdleMethod::Auto, &options);
    query.firmware.cst = Some(&listed);
    let selected = select(&query);
    assert_eq!(
        verdict(&selected, "C2"),
        dropped(Dropped::Erratum(Errata::AMD_C1E_TIMER))
    );
    // The MSR is there: it is written, again whenever the firmware may have armed C1E, and nothing is limited.
    query.msrs.interrupt_pending = Some(0x1800_0000);
    let selected = select(&query);
    assert_eq!(used(&selected), ["C1", "C2"]);
    let [write] = selected.msr_writes[..] else {
        panic!("{:?}", selected.msr_writes);
    };
    assert_eq!(
        (write.msr, write.scope, write.when),
        (0xC001_0055, Scope::EveryCpu, When::StartAndAcpiEnable)
    );
    assert_eq!(write.apply(0x1800_00FF), Some(0xFF));
    assert_eq!(MsrValues::wanted(&query.cpu.identity), [0xC001_0055]);
}

#[test]
fn old_amd_cpus_get_what_they_can() {
    let listed = cst(&[io_entry(0x1014, AcpiType::C2, 50)]);
    let options = CStateOptions::default();
    let mut query = Query::new(cpu(Vendor::Amd, 0x0F, 5), IdleMethod::Auto, &options);
    query.firmware.cst = Some(&listed);
    let limited = |query: &Query<'_>| select(query).table.count() == 2;
    query.cpu.identity.stepping = 9;
    assert!(limited(&query), "early Opteron");
    query.cpu.identity.stepping = 0xA;
    assert!(!limited(&query));

    // Family 10h: MWAIT is there, and worth nothing.
    let selected = ask_amd(Vendor::Amd, 0x10, |_| {});
    assert_eq!(methods(&selected), ["POLL", "HLT"]);
    assert_eq!(
        selected.considered[1].verdict,
        dropped(Dropped::Erratum(Errata::MWAIT_USELESS))
    );
}

#[test]
fn cc6_is_switched_off_in_time_on_the_bare_machine() {
    let late = |vendor, family, hypervisor| {
        let selected = ask_amd(vendor, family, |query| query.cpu.hypervisor = hypervisor);
        let all = selected.msr_writes.iter();
        all.map(|write| (write.msr, write.clear, write.when))
            .collect::<Vec<_>>()
    };
    let expected = [(0xC001_0296, 0x0040_4040, When::AfterDays(1000))];
    assert_eq!(late(Vendor::Amd, 0x17, false), expected);
    assert_eq!(late(Vendor::Hygon, 0x18, false), expected);
    assert_eq!(late(Vendor::Amd, 0x17, true), []);
    assert_eq!(late(Vendor::Amd, 0x19, false), []);
}

#[test]
fn errata_that_matter_here_are_said_and_no_others() {
    let said = |selected: &Selected| {
        let mut notes = selected.notes.iter();
        notes.find_map(|note| match note {
            Note::Errata(errata) => Some(*errata),
            _ => None,
        })
    };
    assert_eq!(said(&ask(0x8F, |_| {})), None);
    assert_eq!(
        said(&ask(0x2C, |query| query.support.directed_eoi = true)),
        None
    );
    let selected = ask(0x2C, |query| query.topology.smt = true);
    assert_eq!(
        said(&selected),
        Some(Errata::IN_SERVICE_EOI | Errata::RAPID_DEEP)
    );
}
