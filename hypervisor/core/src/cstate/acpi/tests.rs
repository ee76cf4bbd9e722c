//! `_CST` as firmware has it, and as it must not be.

use super::*;
use crate::cstate::MwaitHint;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn register(space: u8, width: u8, offset: u8, access: u8, address: u64) -> Value {
    let mut bytes = vec![0x82, 0x0C, 0x00, space, width, offset, access];
    bytes.extend_from_slice(&address.to_le_bytes());
    bytes.extend_from_slice(&[0x79, 0x00]);
    Value::Buffer(bytes)
}

fn state(register: Value, acpi_type: u64, latency: u64) -> Value {
    Value::Package(vec![
        register,
        Value::Integer(acpi_type),
        Value::Integer(latency),
        Value::Integer(1000),
    ])
}

fn mwait(hint: u64, acpi_type: u64, latency: u64) -> Value {
    state(register(0x7F, 1, 2, 1, hint), acpi_type, latency)
}

fn list(states: Vec<Value>) -> Value {
    let mut elements = vec![Value::Integer(states.len() as u64)];
    elements.extend(states);
    Value::Package(elements)
}

fn entries(cst: &Cst) -> Vec<(CstMethod, u8, u64)> {
    cst.entries
        .iter()
        .map(|entry| (entry.method, entry.acpi_type.number(), entry.latency.get()))
        .collect()
}

fn hint(eax: u32) -> CstMethod {
    CstMethod::Mwait {
        hint: MwaitHint::new(eax),
        check_bus_master: false,
    }
}

#[test]
fn intels_and_amds_firmware_are_both_understood() {
    // As Raptor Lake to Panther Lake have it.
    let intel = list(vec![
        mwait(0, 1, 1),
        mwait(0x21, 2, 127),
        mwait(0x60, 3, 1048),
    ]);
    let cst = Cst::parse(&intel).unwrap();
    assert_eq!(
        entries(&cst),
        [(hint(0), 1, 1), (hint(0x21), 2, 127), (hint(0x60), 3, 1048)]
    );
    assert!(cst.all_mwait(None) && cst.faults.is_empty());

    // As Genoa has it: vendor code 2, and a port.
    let amd = list(vec![
        state(register(0x7F, 2, 2, 0, 0), 1, 1),
        state(register(0x01, 8, 0, 1, 0x414), 2, 800),
    ]);
    let cst = Cst::parse(&amd).unwrap();
    assert_eq!(
        entries(&cst),
        [(hint(0), 1, 1), (CstMethod::Io(0x414), 2, 800)]
    );
    assert!(!cst.all_mwait(None));
}

#[test]
fn a_broken_frame_is_refused_whole() {
    let integer = Value::Integer(1);
    for (value, why) in [
        (Value::Other, CstFault::NotAList),
        (Value::Package(vec![]), CstFault::NotAList),
        (Value::Package(vec![integer.clone()]), CstFault::NotAList),
        (
            Value::Package(vec![Value::Other, mwait(0, 1, 1)]),
            CstFault::NotAnInteger,
        ),
        (
            Value::Package(vec![Value::Integer(2), mwait(0, 1, 1)]),
            CstFault::WrongCount { said: 2, found: 1 },
        ),
        (
            Value::Package(vec![Value::Integer(0), mwait(0, 1, 1)]),
            CstFault::WrongCount { said: 0, found: 1 },
        ),
    ] {
        assert_eq!(Cst::parse(&value), Err(why), "{value:?}");
    }
}

#[test]
fn a_broken_entry_is_skipped_and_named() {
    let too_few = Value::Package(vec![register(0x7F, 1, 2, 1, 0), Value::Integer(2)]);
    let no_buffer = Value::Package(vec![
        Value::Integer(1),
        Value::Integer(2),
        Value::Integer(3),
        Value::Integer(4),
    ]);
    let no_integer = Value::Package(vec![
        register(0x7F, 1, 2, 1, 0),
        Value::Other,
        Value::Integer(3),
        Value::Integer(4),
    ]);
    for (bad, why) in [
        (Value::Other, CstFault::NotFour),
        (too_few, CstFault::NotFour),
        (no_buffer, CstFault::BadRegister),
        (
            state(Value::Buffer(vec![0x82; 14]), 2, 9),
            CstFault::BadRegister,
        ),
        (no_integer, CstFault::NotAnInteger),
        (mwait(0x20, 0, 9), CstFault::BadType(0)),
        (mwait(0x20, 4, 9), CstFault::BadType(4)),
        (
            state(register(0, 8, 0, 0, 0x414), 2, 9),
            CstFault::BadSpace(0),
        ),
        (
            state(register(0x7F, 3, 2, 1, 0x20), 2, 9),
            CstFault::BadVendor(3),
        ),
        (
            state(register(0x7F, 1, 1, 1, 0x20), 2, 9),
            CstFault::BadClass(1),
        ),
        (state(register(1, 8, 0, 1, 0), 2, 9), CstFault::BadPort(0)),
        (
            state(register(1, 8, 0, 1, 0x1_0414), 2, 9),
            CstFault::BadPort(0x1_0414),
        ),
        (
            mwait(0x20, 2, 0xFFFF_FFFF),
            CstFault::BadLatency(0xFFFF_FFFF),
        ),
    ] {
        let cst = Cst::parse(&list(vec![mwait(0, 1, 1), bad, mwait(0x60, 3, 200)])).unwrap();
        assert_eq!(cst.faults, [(2, why)]);
        assert_eq!(entries(&cst), [(hint(0), 1, 1), (hint(0x60), 3, 200)]);
    }
}

#[test]
fn a_c1_that_is_no_mwait_is_halt() {
    for (width, class) in [(1, 0), (1, 1), (3, 2)] {
        let cst = Cst::parse(&list(vec![state(register(0x7F, width, class, 0, 0), 1, 1)])).unwrap();
        assert_eq!(entries(&cst), [(CstMethod::Halt, 1, 1)]);
    }
}

#[test]
fn entries_out_of_order_are_sorted_by_type_and_no_latency_goes_down() {
    let cst = Cst::parse(&list(vec![
        mwait(0, 1, 90),
        mwait(0x20, 2, 7),
        mwait(0x60, 3, 50),
    ]))
    .unwrap();
    assert_eq!(
        entries(&cst),
        [(hint(0), 1, 90), (hint(0x20), 2, 90), (hint(0x60), 3, 90)]
    );
    assert_eq!(cst.faults, [(0, CstFault::Unsorted)]);

    let cst = Cst::parse(&list(vec![mwait(0x60, 3, 90), mwait(0, 1, 1)])).unwrap();
    assert_eq!(entries(&cst), [(hint(0), 1, 1), (hint(0x60), 3, 90)]);

    let cst = Cst::parse(&list(vec![
        mwait(0, 1, 1),
        mwait(0x21, 2, 900),
        mwait(0x60, 3, 100),
    ]))
    .unwrap();
    assert_eq!(
        entries(&cst),
        [(hint(0), 1, 1), (hint(0x21), 2, 900), (hint(0x60), 3, 900)]
    );
}

#[test]
fn no_latency_is_less_than_a_microsecond_but_c1s() {
    let cst = Cst::parse(&list(vec![
        mwait(0, 1, 0),
        mwait(0x21, 2, 0),
        mwait(0x60, 3, 9),
    ]))
    .unwrap();
    assert_eq!(entries(&cst), [(hint(0), 1, 1), (hint(0x60), 3, 9)]);
    assert_eq!(cst.faults, [(2, CstFault::BadLatency(0))]);
    let fadt = Fadt::default();
    assert_eq!((fadt.lvl2(), fadt.lvl3()), (None, None));
}

#[test]
fn more_than_seven_entries_are_left_out() {
    let cst = Cst::parse(&list(vec![mwait(0x20, 2, 7); 9])).unwrap();
    assert_eq!(cst.entries.len(), MAX_ENTRIES);
    assert_eq!(cst.faults, [(8, CstFault::TooMany)]);
}

#[test]
fn the_bus_master_flag_is_kept() {
    let cst = Cst::parse(&list(vec![state(register(0x7F, 1, 2, 3, 0x60), 3, 50)])).unwrap();
    let checked = CstMethod::Mwait {
        hint: MwaitHint::new(0x60),
        check_bus_master: true,
    };
    assert_eq!(entries(&cst), [(checked, 3, 50)]);
}

#[test]
fn the_fadt_gives_latencies_within_the_limits() {
    let fadt = Fadt {
        flags: 1 | 1 << 3,
        lvl2_latency: 100,
        lvl3_latency: 1001,
        ..Fadt::default()
    };
    assert_eq!(fadt.lvl2(), Some(Micros::new(100)));
    assert_eq!(fadt.lvl3(), None);
    assert!(fadt.wbinvd() && fadt.lvl2_multiprocessor() && !fadt.hardware_reduced());
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(Value::Integer),
        (0u64..9).prop_map(Value::Integer),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::Buffer),
        (any::<[u8; 4]>(), any::<u64>())
            .prop_map(|([a, b, c, d], address)| register(a, b, c, d, address)),
        Just(Value::Other),
    ];
    leaf.prop_recursive(3, 60, 8, |inner| {
        proptest::collection::vec(inner, 0..8).prop_map(Value::Package)
    })
}

proptest! {
    #[test]
    fn whatever_aml_gives_back_is_survived(value in any_value(), states in proptest::collection::vec(any_value(), 0..9)) {
        for value in [value, list(states)] {
            if let Ok(cst) = Cst::parse(&value) {
                prop_assert!(cst.entries.len() <= MAX_ENTRIES);
                prop_assert!(cst.entries.iter().all(|entry| entry.latency <= MAX_LATENCY));
            }
        }
    }
}
