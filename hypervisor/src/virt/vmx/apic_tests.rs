use lull_core::units::CpuId;

use super::*;

const OFFERED: u64 = 0xffff_ffff << 32;
const SHADOW: u32 = PrimaryControls::USE_TPR_SHADOW.bits();

fn set(vectors: &[u8]) -> VectorSet {
    let mut set = VectorSet::default();
    vectors.iter().for_each(|&vector| set.insert(vector));
    set
}

fn vmcs() -> Vmcs {
    let vmcs = Vmcs::new(1);
    vmcs.make_current(CpuId::new(0));
    vmcs
}

#[test]
fn it_is_all_or_nothing() {
    let all = ApicControls::offered(SHADOW, OFFERED, OFFERED);
    assert_eq!(all.x2apic, 0x310);
    assert_eq!(
        (all.of(ApicMode::X2Apic), all.of(ApicMode::Disabled)),
        (0x310, 0)
    );
    assert!(
        !ApicControls::offered(0, OFFERED, OFFERED).any(),
        "no TPR shadow"
    );
    for bit in [4, 8, 9] {
        let offered = ApicControls::offered(SHADOW, OFFERED & !(1 << (32 + bit)), OFFERED);
        assert_eq!(
            (offered.x2apic, offered.posting),
            (0, 0),
            "without bit {bit}"
        );
        assert!(all.covers(&offered) && !offered.covers(&all));
    }
    let mut off = all;
    off.keep(ApicWanted {
        virtualized: false,
        ..ApicWanted::default()
    });
    assert!(!off.any());
}

#[test]
fn interrupts_are_posted_where_that_is_offered_and_works_or_is_insisted_on() {
    let all = ApicControls::offered(SHADOW, OFFERED, OFFERED);
    let none = ApicControls::offered(SHADOW, OFFERED, OFFERED & !(1 << (32 + 7)));
    assert_eq!((all.posting, none.posting), (0x80, 0));
    assert!(all.covers(&none) && !none.covers(&all));
    for (posting, sound, faulty) in [
        (Posting::Auto, 0x80, 0),
        (Posting::On, 0x80, 0x80),
        (Posting::Off, 0, 0),
    ] {
        let mut apic = all;
        apic.keep(ApicWanted {
            virtualized: true,
            posting,
        });
        assert_eq!(
            (apic.posting_where(false), apic.posting_where(true)),
            (sound, faulty),
            "{posting:?}"
        );
        assert_eq!(apic.x2apic, 0x310);
    }
}

#[test]
fn what_is_lent_comes_back_as_the_processor_left_it() {
    let (vmcs, mut apic) = (vmcs(), VirtualApic::new());
    let lent = ApicState {
        tpr: 0x2f,
        in_service: set(&[0x31]),
        requested: set(&[0x41, 0x80, 0xef]),
    };
    apic.lend(&vmcs, &lent);
    assert_eq!(vmcs.read(Field::INTERRUPT_STATUS), 0x31ef);
    assert_eq!(
        (apic.at(0x80), apic.at(0x110), apic.at(0x270)),
        (0x2f, 1 << 17, 1 << 15)
    );
    assert_eq!(apic.take_back(&vmcs), lent);
    assert_eq!(
        apic.at(0x270),
        0,
        "what is not lent cannot be requested twice"
    );

    // The guest took the highest, and wrote its task priority.
    apic.lend(&vmcs, &lent);
    apic.set_rows(IRR, &set(&[0x41, 0x80]));
    apic.set_rows(ISR, &set(&[0x31, 0xef]));
    apic.set_tpr(0x10);
    vmcs.write(Field::INTERRUPT_STATUS, 0xef80);
    let back = apic.take_back(&vmcs);
    let taken = ApicState {
        tpr: 0x10,
        in_service: set(&[0x31, 0xef]),
        requested: set(&[0x41, 0x80]),
    };
    assert_eq!(back, taken);

    // The model ended all of it: nothing of the old may stay behind.
    apic.lend(&vmcs, &ApicState::default());
    assert_eq!(vmcs.read(Field::INTERRUPT_STATUS), 0);
    assert_eq!((apic.at(0x110), apic.at(0x170), apic.at(0x270)), (0, 0, 0));
    assert_eq!(apic.take_back(&vmcs), ApicState::default());
}

#[test]
fn registers_are_shown_where_the_guest_reads_them() {
    let mut apic = VirtualApic::new();
    apic.show(0, &[(0x02, 5)]);
    assert_eq!((apic.controls(), apic.at(0x20)), (0, 0));
    apic.show(0x310, &[(0x02, 5), (0x3e, 0xb)]);
    assert_eq!(
        (apic.controls(), apic.at(0x20), apic.at(0x3e0)),
        (0x310, 5, 0xb)
    );
}
