//! Hints, tables and fit.

use super::*;
use crate::governor::StateSet;

#[test]
fn hints_are_taken_apart_as_the_manual_says() {
    for (eax, class, substate) in [
        (0x00, 1, 0),
        (0x01, 1, 1),
        (0x10, 2, 0),
        (0x32, 4, 2),
        (0x60, 7, 0),
        (0xF0, 0, 0),
    ] {
        let hint = MwaitHint::new(eax);
        assert_eq!((hint.class(), hint.substate()), (class, substate), "{hint}");
    }
}

#[test]
fn a_substate_count_is_no_bound_on_substate_numbers() {
    // Bay Trail: one sub-state of C6 (nibble 6), which has number 8 or 2.
    assert!(MwaitHint::new(0x58).reported_by(0x0100_0000));
    assert!(!MwaitHint::new(0x58).reported_by(0x0010_0000));
    // Hints whose class has no nibble in EDX.
    assert!(!MwaitHint::new(0x70).reported_by(u32::MAX));
}

#[test]
fn the_flags_that_other_tables_share_have_their_values() {
    assert_eq!(CStateFlags::IRQ_ENABLE.bits(), 0x8000);
    assert_eq!(CStateFlags::TLB_FLUSHED.bits(), 0x1_0000);
}

#[test]
fn a_table_is_never_empty_nor_too_long() {
    assert_eq!(CStateTable::new(&[]).unwrap_err(), TableError::Empty);
    assert_eq!(
        CStateTable::new(&[CState::POLL; 11]).unwrap_err(),
        TableError::TooMany(11)
    );
    let table = CStateTable::new(&[CState::POLL; 10]).unwrap();
    assert_eq!(table.count(), 10);
    assert_eq!(table.id(10), None);
    // An id of a larger table is not out of bounds in a smaller one.
    assert_eq!(CStateTable::HALT.state(table.id(9).unwrap()).name, "C1");
}

#[test]
fn fit_tells_too_deep_from_too_shallow() {
    let c6 = CState {
        name: "C6",
        exit_latency: Micros::new(100),
        target_residency: Micros::new(600),
        ..CState::C1_HALT
    };
    let table = CStateTable::new(&[CState::POLL, CState::C1_HALT, c6]).unwrap();
    let among = |off: StateSet, index, us: u64| {
        table.fit(table.id(index).unwrap(), Micros::new(us).to_nanos(), off)
    };
    let fit = |index, us| among(StateSet::NONE, index, us);
    assert_eq!(
        fit(0, 0),
        Fit::Right,
        "there is nothing shallower than the shallowest"
    );
    assert_eq!(fit(0, 2), Fit::TooShallow);
    assert_eq!(fit(1, 1), Fit::TooDeep);
    assert_eq!(
        fit(1, 601),
        Fit::Right,
        "C1's own 2 us of exit latency do not count as sleep"
    );
    assert_eq!(fit(1, 602), Fit::TooShallow);
    assert_eq!(fit(2, 599), Fit::TooDeep);
    // What must not be chosen is no better choice.
    let off = |indices: &[usize]| {
        indices.iter().fold(StateSet::NONE, |set, &index| {
            set.with(table.id(index).unwrap(), true)
        })
    };
    assert_eq!(among(off(&[2]), 1, 602), Fit::Right);
    assert_eq!(among(off(&[0, 1]), 2, 599), Fit::Right);
    assert_eq!(among(off(&[0]), 2, 599), Fit::TooDeep);
    assert_eq!(among(off(&[1]), 0, 599), Fit::Right);
    assert_eq!(
        fit(2, 100_000),
        Fit::Right,
        "there is nothing deeper than the deepest"
    );
}
