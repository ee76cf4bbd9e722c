//! The ranking, and what a waker sees.

use super::*;
use crate::cstate::{CState, CStateFlags, MwaitHint};
use crate::governor::StateSet;
use crate::platform::IrqGate;
use crate::units::{Micros, Ticks};
use proptest::prelude::*;

fn asleep(micros: u64, watching: bool) -> Doing {
    Doing::Asleep {
        exit_latency: Micros::new(micros).to_nanos(),
        watching,
    }
}

fn at(doing: Doing) -> Candidate {
    Candidate {
        doing,
        warm: true,
        sibling_busy: false,
        lasting: false,
        limit: None,
    }
}

#[test]
fn the_deeper_the_later() {
    let order = [
        Doing::Awake,
        asleep(1, true),
        asleep(2, false),
        asleep(10, true),
        asleep(85, true),
        asleep(890, false),
        Doing::Nothing,
    ];
    let delays = order.map(|doing| expected_delay(&at(doing)));
    assert!(delays.is_sorted_by(|a, b| a < b), "{delays:?}");
}

#[test]
fn a_shallow_stranger_goes_before_a_deep_acquaintance() {
    let stranger = |doing| Candidate {
        warm: false,
        ..at(doing)
    };
    assert!(expected_delay(&stranger(asleep(2, true))) < expected_delay(&at(asleep(85, true))));
    // But not before one that is nearly as shallow.
    assert!(expected_delay(&stranger(asleep(2, true))) > expected_delay(&at(asleep(10, true))));
}

#[test]
fn a_busy_sibling_is_worth_a_wake_from_a_shallow_state() {
    let beside = Candidate {
        sibling_busy: true,
        ..at(asleep(2, true))
    };
    assert!(expected_delay(&beside) > expected_delay(&at(asleep(6, true))));
    assert!(expected_delay(&beside) < expected_delay(&at(asleep(10, true))));
    let lasting = Candidate {
        lasting: true,
        ..beside
    };
    assert!(expected_delay(&lasting) > expected_delay(&at(asleep(40, true))));
}

#[test]
fn a_promise_of_latency_counts_more_than_anything_else() {
    let limit = Some(Micros::new(50).to_nanos());
    let worst_within = Candidate {
        warm: false,
        sibling_busy: true,
        limit,
        ..at(asleep(50, false))
    };
    let best_beyond = Candidate {
        limit,
        ..at(asleep(60, true))
    };
    assert!(expected_delay(&worst_within) < expected_delay(&best_beyond));
}

#[test]
fn a_waker_sees_what_the_cpu_wrote_last() {
    let cpus = CpuTable::new(2);
    let cpu = CpuId::new(1);
    let deep = CState {
        name: "C6",
        method: EntryMethod::Mwait {
            hint: MwaitHint::new(0x20),
            gate: IrqGate::Masked,
        },
        flags: CStateFlags::empty(),
        exit_latency: Micros::new(85),
        target_residency: Micros::new(200),
    };
    let table = CStateTable::new(&[CState::C1_HALT, deep]).unwrap();
    cpus.set_states(cpu, &table, true);
    assert_eq!(cpus.doing(cpu), Doing::Nothing);
    assert_eq!(cpus.doing(CpuId::new(2)), Doing::Nothing, "no such CPU");
    let account = cpus.account(cpu).unwrap();
    account.start(Ticks::new(1));
    assert_eq!(cpus.doing(cpu), Doing::Awake);
    let ids: std::vec::Vec<_> = table.iter().map(|(id, _)| id).collect();
    account.enter_idle(ids[1], Ticks::new(2));
    assert_eq!(cpus.doing(cpu), asleep(85, true));
    account.leave_idle(
        Ticks::new(3),
        None,
        table.fit(ids[1], Nanos::new(1), StateSet::NONE),
    );
    account.enter_idle(ids[0], Ticks::new(4));
    let Doing::Asleep { watching, .. } = cpus.doing(cpu) else {
        panic!("{:?}", cpus.doing(cpu))
    };
    assert!(!watching, "HLT is ended by an interrupt only");
}

proptest! {
    /// Nothing overflows, and each advantage is one.
    #[test]
    fn advantages_never_hurt(micros in any::<u64>(), watching: bool, warm: bool, sibling_busy: bool, lasting: bool, limit in proptest::option::of(any::<u64>())) {
        let candidate = Candidate {
            doing: asleep(micros, watching),
            warm,
            sibling_busy,
            lasting,
            limit: limit.map(Nanos::new),
        };
        let delay = expected_delay(&candidate);
        prop_assert!(expected_delay(&Candidate { warm: true, ..candidate }) <= delay, "warm");
        prop_assert!(expected_delay(&Candidate { sibling_busy: false, ..candidate }) <= delay, "alone");
        prop_assert!(expected_delay(&Candidate { limit: None, ..candidate }) <= delay, "no limit");
        prop_assert!(expected_delay(&Candidate { doing: Doing::Awake, ..candidate }) <= delay, "awake");
    }
}
