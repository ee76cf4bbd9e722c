//! The APIC as a guest sees it.
use super::*;
use proptest::prelude::*;

fn at(tsc: u64) -> Now {
    Now {
        tsc: Ticks::new(tsc),
        offset: 0,
    }
}

fn xapic() -> Lapic {
    Lapic::new(Arc::new(LapicShared::new(5)))
}

fn x2apic() -> Lapic {
    let mut lapic = xapic();
    lapic
        .set_base(LAPIC_PAGE | BASE_ENABLE | BASE_X2)
        .expect("xAPIC to x2APIC");
    lapic.write_msr(0xf, 0x1ff, at(0)).expect("SVR");
    lapic
}

#[test]
fn after_power_up_it_is_an_xapic_that_is_software_disabled() {
    let mut lapic = xapic();
    assert_eq!(lapic.base(), 0xfee0_0800);
    assert_eq!(
        Lapic::new(Arc::new(LapicShared::new(0))).base(),
        0xfee0_0900,
        "the first one is the BSP"
    );
    assert_eq!(lapic.read_page(0x20, at(0)), 5 << 24);
    assert_eq!(lapic.read_page(0x30, at(0)), 0x5_0014);
    assert_eq!(lapic.read_page(0xe0, at(0)), u32::MAX);
    assert_eq!(lapic.read_page(0xf0, at(0)), 0xff);
    assert_eq!(lapic.read_page(0x320, at(0)), LVT_MASKED);
    assert_eq!(lapic.shared().identity(), Identity::RESET);
    assert!(lapic.read_msr(2, at(0)).is_err(), "no MSRs in xAPIC mode");
}

#[test]
fn the_mode_changes_only_as_the_manual_draws_it() {
    let mut lapic = xapic();
    assert!(
        lapic.set_base(LAPIC_PAGE | BASE_X2).is_err(),
        "x2 without enable"
    );
    assert!(
        lapic.set_base(LAPIC_PAGE | BASE_ENABLE | 1).is_err(),
        "reserved bit"
    );
    assert!(
        lapic.set_base(0xfed0_0000 | BASE_ENABLE).is_err(),
        "the page does not move"
    );
    assert!(lapic.set_base(LAPIC_PAGE).is_ok());
    assert_eq!(
        (lapic.mode(), lapic.read_page(0x30, at(0))),
        (Mode::Disabled, u32::MAX)
    );
    assert!(
        lapic.set_base(LAPIC_PAGE | BASE_ENABLE | BASE_X2).is_err(),
        "disabled to x2APIC"
    );
    assert!(lapic.set_base(LAPIC_PAGE | BASE_ENABLE).is_ok());
    assert!(lapic.set_base(LAPIC_PAGE | BASE_ENABLE | BASE_X2).is_ok());
    assert_eq!(lapic.shared().identity().mode, Mode::X2Apic);
    assert!(
        lapic.set_base(LAPIC_PAGE | BASE_ENABLE).is_err(),
        "x2APIC to xAPIC"
    );
    assert_eq!(
        lapic.read_page(0x30, at(0)),
        u32::MAX,
        "no page in x2APIC mode"
    );
    assert!(lapic.set_base(LAPIC_PAGE | BASE_BSP).is_ok());
    assert_eq!(lapic.base(), LAPIC_PAGE, "the BSP flag cannot be taken");
}

#[test]
fn x2apic_registers_refuse_what_hardware_refuses() {
    let mut lapic = x2apic();
    assert_eq!(lapic.read_msr(2, at(0)), Ok(5));
    assert_eq!(lapic.read_msr(0xd, at(0)), Ok(0x20));
    for absent in [0x00, 0x09, 0x0e, 0x2f, 0x31, 0x3a, 0x40] {
        assert_eq!(lapic.read_msr(absent, at(0)), Err(Gp), "read {absent:#x}");
        assert!(
            lapic.write_msr(absent, 0, at(0)).is_err(),
            "write {absent:#x}"
        );
    }
    for write_only in [0x0b, 0x3f] {
        assert_eq!(lapic.read_msr(write_only, at(0)), Err(Gp));
    }
    for read_only in [0x02, 0x03, 0x0a, 0x0d, 0x10, 0x1f, 0x27, 0x39] {
        assert!(
            lapic.write_msr(read_only, 0, at(0)).is_err(),
            "{read_only:#x}"
        );
    }
    let reserved = [
        (0x08, 0x100),
        (0x0b, 1),
        (0x0f, 0x200),
        (0x28, 1),
        (0x32, 0x100),
        (0x30, 1 << 12),
        (0x38, 1 << 32),
        (0x3e, 4),
    ];
    for (number, value) in reserved {
        assert!(
            lapic.write_msr(number, value, at(0)).is_err(),
            "{number:#x} = {value:#x}"
        );
    }
}

#[test]
fn priorities_decide_what_is_delivered() {
    let mut lapic = x2apic();
    let shared = lapic.shared().clone();
    assert_eq!(lapic.deliverable(), None);
    for vector in [0x31, 0x52, 0x5f] {
        shared.irr().insert(vector);
    }
    assert_eq!(lapic.deliverable(), Some(0x5f));
    assert!(lapic.accept(0x5f));
    assert!(!lapic.accept(0x5f));
    assert_eq!(lapic.read_msr(0x0a, at(0)), Ok(0x50));
    assert_eq!(lapic.deliverable(), None, "52h is of the class in service");
    shared.irr().insert(0x60);
    assert_eq!(lapic.deliverable(), Some(0x60));
    assert!(lapic.accept(0x60));
    assert_eq!(lapic.read_msr(0x12, at(0)), Ok(1 << 31));
    assert_eq!(lapic.read_msr(0x13, at(0)), Ok(1));
    assert!(lapic.write_msr(0x0b, 0, at(0)).is_ok());
    assert_eq!(lapic.deliverable(), None, "5fh is still in service");
    assert!(lapic.write_msr(0x0b, 0, at(0)).is_ok());
    assert_eq!(lapic.deliverable(), Some(0x52));
    assert!(lapic.write_msr(0x08, 0x5a, at(0)).is_ok());
    assert_eq!(
        (
            lapic.deliverable(),
            lapic.read_msr(0x0a, at(0)),
            lapic.cr8()
        ),
        (None, Ok(0x5a), 5)
    );
    lapic.set_cr8(4);
    assert_eq!(
        (lapic.deliverable(), lapic.read_msr(0x08, at(0))),
        (Some(0x52), Ok(0x40))
    );
    assert_eq!(
        lapic.read_msr(0x22, at(0)),
        Ok(1 << 0x12),
        "still requested"
    );
}

#[test]
fn eoi_with_nothing_in_service_does_nothing() {
    let mut lapic = xapic();
    assert_eq!(lapic.write_page(0xb0, 7, at(0)), None);
    assert_eq!(lapic.read_page(0xa0, at(0)), 0);
}

#[test]
fn cr8_keeps_the_low_bits_of_a_priority_it_does_not_change() {
    let mut lapic = x2apic();
    assert!(lapic.write_msr(8, 0x5a, at(0)).is_ok());
    lapic.set_cr8(5);
    assert_eq!(lapic.read_msr(8, at(0)), Ok(0x5a));
    lapic.set_cr8(6);
    assert_eq!(lapic.read_msr(8, at(0)), Ok(0x60));
}

#[test]
fn the_icr_makes_an_ipi() {
    let mut lapic = x2apic();
    let icr = lapic
        .write_msr(0x30, 3 << 32 | 0x41, at(0))
        .expect("legal")
        .expect("an IPI");
    assert_eq!(
        icr,
        Icr {
            vector: 0x41,
            delivery: Delivery::Fixed,
            to: Destination::Physical(3)
        }
    );
    assert_eq!(lapic.read_msr(0x30, at(0)), Ok(3 << 32 | 0x41));
    let icr = lapic
        .write_msr(0x3f, 0x42, at(0))
        .expect("legal")
        .expect("an IPI");
    assert_eq!(icr, Icr::self_ipi(0x42));

    let mut lapic = xapic();
    assert_eq!(lapic.write_page(0x310, 0x0700_0000, at(0)), None);
    let icr = lapic.write_page(0x300, 0x4500, at(0)).expect("an IPI");
    assert_eq!(
        icr,
        Icr {
            vector: 0,
            delivery: Delivery::Init(true),
            to: Destination::Physical(7)
        }
    );
    assert_eq!(
        (lapic.read_page(0x300, at(0)), lapic.read_page(0x310, at(0))),
        (0x4500, 0x0700_0000)
    );
}

#[test]
fn errors_are_latched_by_a_write_and_raise_their_interrupt_once() {
    let mut lapic = x2apic();
    assert!(lapic.write_msr(0x37, 0xe1, at(0)).is_ok());
    assert_eq!(
        lapic.write_msr(0x30, 5 << 32 | 3, at(0)),
        Ok(None),
        "illegal vector: nothing is sent"
    );
    assert_eq!(lapic.read_msr(0x28, at(0)), Ok(0), "not latched yet");
    assert!(lapic.accept(0xe1));
    assert_eq!(lapic.write_msr(0x3f, 2, at(0)), Ok(None));
    assert_eq!(lapic.deliverable(), None, "the same error again");
    assert!(lapic.write_msr(0x28, 0, at(0)).is_ok());
    assert_eq!(
        lapic.read_msr(0x28, at(0)),
        Ok(ESR_SEND_ILLEGAL_VECTOR.into())
    );
    assert!(lapic.write_msr(0x28, 0, at(0)).is_ok());
    assert_eq!(lapic.read_msr(0x28, at(0)), Ok(0));
    let mut lapic = xapic();
    assert_eq!(lapic.read_page(0x3f0, at(0)), 0);
    assert_eq!(
        lapic.write_page(0x24, 1, at(0)),
        None,
        "not at a multiple of 16"
    );
    assert_eq!(lapic.write_page(0x280, 0, at(0)), None);
    assert_eq!(lapic.read_page(0x280, at(0)), ESR_ILLEGAL_REGISTER);
}

#[test]
fn the_timer_raises_its_vector() {
    let mut lapic = x2apic();
    for (number, value) in [(0x32, 0x2_0040), (0x3e, 0xb), (0x38, 1000)] {
        assert!(lapic.write_msr(number, value, at(500)).is_ok());
    }
    assert_eq!(lapic.timer_deadline(), Some(Ticks::new(1500)));
    assert_eq!(lapic.read_msr(0x39, at(900)), Ok(600));
    lapic.poll_timer(Ticks::new(1499));
    assert_eq!(lapic.deliverable(), None);
    lapic.poll_timer(Ticks::new(1500));
    assert!(lapic.accept(0x40));
    assert_eq!(lapic.timer_deadline(), Some(Ticks::new(2500)), "periodic");
    assert!(lapic.write_msr(0x32, 0x3_0040, at(2000)).is_ok());
    assert_eq!(lapic.timer_deadline(), None, "masked");
    lapic.poll_timer(Ticks::new(2600));
    assert_eq!(lapic.shared().irr().highest(), None);
    assert_eq!(
        lapic.read_msr(0x39, at(2700)),
        Ok(800),
        "but it goes on counting"
    );
}

#[test]
fn a_deadline_in_the_past_fires_at_once() {
    let mut lapic = x2apic();
    assert!(lapic.write_msr(0x32, 0x4_0041, at(0)).is_ok());
    lapic.set_tsc_deadline(
        10,
        Now {
            tsc: Ticks::new(1000),
            offset: 5,
        },
    );
    assert_eq!((lapic.deliverable(), lapic.tsc_deadline()), (Some(0x41), 0));
    lapic.set_tsc_deadline(
        3000,
        Now {
            tsc: Ticks::new(1000),
            offset: 1000,
        },
    );
    assert_eq!(
        (lapic.timer_deadline(), lapic.tsc_deadline()),
        (Some(Ticks::new(2000)), 3000)
    );
    lapic.tsc_offset_changed(Now {
        tsc: Ticks::new(1000),
        offset: 0,
    });
    assert_eq!(lapic.timer_deadline(), Some(Ticks::new(3000)));
}

#[test]
fn software_disable_masks_every_entry_and_refuses_to_unmask() {
    let mut lapic = x2apic();
    assert!(lapic.write_msr(0x35, 0x700, at(0)).is_ok());
    assert_eq!(lapic.read_msr(0x35, at(0)), Ok(0x700));
    assert!(lapic.shared().identity().enabled);
    assert!(lapic.write_msr(0x0f, 0xff, at(0)).is_ok());
    assert_eq!(lapic.read_msr(0x35, at(0)), Ok(0x1_0700));
    assert!(lapic.write_msr(0x35, 0x700, at(0)).is_ok());
    assert_eq!(lapic.read_msr(0x35, at(0)), Ok(0x1_0700));
    assert!(!lapic.shared().identity().enabled);
}

#[test]
fn init_resets_all_but_the_mode() {
    let mut lapic = x2apic();
    lapic.shared().irr().insert(0x77);
    assert!(lapic.write_msr(8, 0x20, at(0)).is_ok());
    lapic.init();
    assert_eq!(
        (lapic.mode(), lapic.cr8(), lapic.shared().irr().highest()),
        (Mode::X2Apic, 0, None)
    );
    assert_eq!(lapic.read_msr(0x0f, at(0)), Ok(0xff));
    assert_eq!(
        lapic.read_msr(0x0d, at(0)),
        Ok(0x20),
        "an x2APIC's LDR is its id"
    );
    assert_eq!(
        lapic.shared().identity(),
        Identity {
            mode: Mode::X2Apic,
            enabled: false,
            cluster: false,
            logical: 0
        }
    );
}

#[test]
fn logical_addressing_is_published() {
    let mut lapic = xapic();
    lapic.write_page(0xf0, 0x1ff, at(0));
    lapic.write_page(0xd0, 0xff12_3456, at(0));
    assert_eq!(lapic.read_page(0xd0, at(0)), 0xff00_0000);
    lapic.write_page(0xe0, 0, at(0));
    assert_eq!(lapic.read_page(0xe0, at(0)), 0x0fff_ffff);
    assert_eq!(
        lapic.shared().identity(),
        Identity {
            mode: Mode::XApic,
            enabled: true,
            cluster: true,
            logical: 0xff
        }
    );
}

proptest! {
    #[test]
    fn no_access_panics(accesses in proptest::collection::vec(any::<(bool, bool, u16, u64, u32)>(), 0..200)) {
        let mut lapic = xapic();
        let mut tsc = 0u64;
        for (msr, write, number, value, step) in accesses {
            tsc += u64::from(step);
            let now = Now { tsc: Ticks::new(tsc), offset: value };
            let number = u32::from(number);
            match (msr, write) {
                (true, false) => { let _ = lapic.read_msr(number & 0x3f, now); }
                (true, true) => { let _ = lapic.write_msr(number & 0x3f, value, now); }
                (false, false) => { lapic.read_page(number & 0xfff, now); }
                (false, true) => { lapic.write_page(number & 0xfff, value as u32, now); }
            }
            if value % 7 == 0 {
                let _ = lapic.set_base(LAPIC_PAGE | value & (BASE_ENABLE | BASE_X2));
            }
            lapic.poll_timer(now.tsc);
            if let Some(vector) = lapic.deliverable() {
                prop_assert!(lapic.accept(vector));
            }
        }
    }
}
