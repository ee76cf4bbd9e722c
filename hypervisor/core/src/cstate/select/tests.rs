//! Machines that exist, and what must come out for them.

use super::*;
use crate::cstate::MwaitHint;
use crate::idle::MonitorTrust;
use crate::units::Micros;
use std::string::{String, ToString};

/// A CPU on which everything works.
fn good() -> CpuFacts {
    CpuFacts {
        monitor: true,
        mwait: MwaitLeaf::from_registers(64, 64, 3, 0x20),
        test: MwaitTest {
            open: MwaitVerdict::Works,
            masked: MwaitVerdict::Works,
            store_wakes: Some(true),
        },
        nonstop_tsc: true,
        arat: true,
    }
}

/// QEMU 7.2's TCG with several CPUs: leaf 5 claims what MWAIT refuses, without line sizes; HLT is what works.
fn tcg() -> CpuFacts {
    CpuFacts {
        mwait: MwaitLeaf::from_registers(0, 0, 3, 0),
        test: MwaitTest {
            open: MwaitVerdict::NeverSleeps,
            masked: MwaitVerdict::GeneralProtection,
            store_wakes: Some(false),
        },
        nonstop_tsc: false,
        ..good()
    }
}

fn methods(selected: &Selected) -> Vec<String> {
    selected
        .table
        .states()
        .iter()
        .map(|state| state.method.to_string())
        .collect()
}

fn why_not(selected: &Selected, method: EntryMethod) -> Dropped {
    selected
        .considered
        .iter()
        .find(|one| one.state.method == method)
        .unwrap()
        .verdict
        .unwrap_err()
}

const OPEN: EntryMethod = EntryMethod::Mwait {
    hint: MwaitHint::C1,
    gate: IrqGate::Open,
};
const MASKED: EntryMethod = EntryMethod::Mwait {
    hint: MwaitHint::C1,
    gate: IrqGate::Masked,
};

#[test]
fn c1_takes_interrupts_inside_only_with_a_nonstop_tsc() {
    let selected = select(&good(), IdleMethod::Auto);
    assert_eq!(methods(&selected), ["POLL", "MWAIT+IRQ 0x00"]);
    assert_eq!(why_not(&selected, MASKED), Dropped::BetterEntry);

    let selected = select(
        &CpuFacts {
            nonstop_tsc: false,
            ..good()
        },
        IdleMethod::Auto,
    );
    assert_eq!(methods(&selected), ["POLL", "MWAIT 0x00"]);
    assert_eq!(why_not(&selected, OPEN), Dropped::HandlersNeedTsc);
}

#[test]
fn mwait_is_believed_only_when_it_was_seen_to_work() {
    let selected = select(&tcg(), IdleMethod::Auto);
    assert_eq!(methods(&selected), ["POLL", "HLT"]);
    assert_eq!(why_not(&selected, MASKED), Dropped::NoLineSize);

    // The same with the line sizes that some machine types fill in: now the self-test decides.
    let facts = CpuFacts {
        mwait: MwaitLeaf::from_registers(64, 64, 3, 0x20),
        ..tcg()
    };
    let selected = select(&facts, IdleMethod::Mwait);
    assert_eq!(
        methods(&selected),
        ["POLL", "HLT"],
        "asking for MWAIT does not make it work"
    );
    let why = why_not(&selected, MASKED);
    assert_eq!(
        why,
        Dropped::SelfTest(IrqGate::Masked, MwaitVerdict::GeneralProtection)
    );
    assert_eq!(why.to_string(), "MWAIT with ECX=1 raises #GP");

    // What was not tested does not work.
    let selected = select(
        &CpuFacts {
            test: MwaitTest::default(),
            ..good()
        },
        IdleMethod::Auto,
    );
    assert_eq!(methods(&selected), ["POLL", "HLT"]);
}

#[test]
fn each_thing_that_stands_against_mwait_is_named() {
    let no_break = MwaitLeaf {
        interrupt_break: false,
        ..good().mwait
    };
    let no_c1 = MwaitLeaf {
        substates: 0x2200,
        ..good().mwait
    };
    let masked = CState::c1_mwait(IrqGate::Masked);
    let open = CState::c1_mwait(IrqGate::Open);
    let unflagged = CState {
        flags: CStateFlags::empty(),
        ..open
    };
    for (state, facts, why) in [
        (
            masked,
            CpuFacts {
                monitor: false,
                ..good()
            },
            Dropped::NoMonitor,
        ),
        (
            masked,
            CpuFacts {
                mwait: no_break,
                ..good()
            },
            Dropped::NoInterruptBreak,
        ),
        (
            masked,
            CpuFacts {
                mwait: no_c1,
                ..good()
            },
            Dropped::NotReported(MwaitHint::C1),
        ),
        (unflagged, good(), Dropped::NotFlagged),
    ] {
        assert_eq!(judge(&state, &facts), Err(why));
    }
    // Without the extensions EDX says nothing, and plain MWAIT may still do.
    let plain = MwaitLeaf {
        extensions: false,
        substates: 0,
        ..good().mwait
    };
    assert_eq!(
        judge(
            &open,
            &CpuFacts {
                mwait: plain,
                ..good()
            }
        ),
        Ok(())
    );
    assert_eq!(
        judge(
            &masked,
            &CpuFacts {
                mwait: plain,
                ..good()
            }
        ),
        Err(Dropped::NoInterruptBreak)
    );
}

#[test]
fn states_that_stop_a_clock_need_one_that_runs_on() {
    let c6 = CState {
        name: "C6",
        method: EntryMethod::IoRead(0x1815),
        flags: CStateFlags::TIMER_STOPS | CStateFlags::TSC_STOPS,
        exit_latency: Micros::new(133),
        target_residency: Micros::new(600),
    };
    assert_eq!(judge(&c6, &good()), Ok(()));
    assert_eq!(
        judge(
            &c6,
            &CpuFacts {
                arat: false,
                ..good()
            }
        ),
        Err(Dropped::TimerStops)
    );
    assert_eq!(
        judge(
            &c6,
            &CpuFacts {
                nonstop_tsc: false,
                ..good()
            }
        ),
        Err(Dropped::TscStops)
    );
}

#[test]
fn the_option_is_obeyed() {
    assert_eq!(methods(&select(&good(), IdleMethod::Halt)), ["POLL", "HLT"]);
    assert_eq!(methods(&select(&good(), IdleMethod::Poll)), ["POLL"]);
    assert_eq!(
        why_not(&select(&good(), IdleMethod::Halt), OPEN).to_string(),
        "idle=hlt"
    );
    assert_eq!(
        why_not(&select(&good(), IdleMethod::Poll), EntryMethod::Halt).to_string(),
        "idle=poll"
    );
}

#[test]
fn an_interrupt_is_left_out_only_on_proof() {
    let test = good().test;
    assert_eq!(test.trust(false), MonitorTrust::SeesStores);
    assert_eq!(
        test.trust(true),
        MonitorTrust::MissesStores,
        "errata win over the test"
    );
    assert_eq!(
        MwaitTest {
            store_wakes: None,
            ..test
        }
        .trust(false),
        MonitorTrust::MissesStores
    );
    assert_eq!(
        MwaitTest {
            store_wakes: Some(false),
            ..test
        }
        .trust(false),
        MonitorTrust::MissesStores
    );
}
