//! What each waker owes, and what a CPU that is asked for something may not do.

use super::*;
use crate::units::{CpuId, VcpuId};

#[test]
fn leaving_a_guest_leaves_its_events_and_who_posted_them() {
    let word = WakeWord::new();
    let kicker = Origin::new(CpuId::new(3), Cause::Vcpu(VcpuId::new(7)));
    assert_eq!(word.publish(SleepState::Guest), Ok(()));
    assert_eq!(word.post_as(Events::NOTIFY, kicker), Wake::KickGuest);
    word.leave_guest();
    assert_eq!(word.state(), SleepState::Awake);
    let later = Origin::new(CpuId::new(4), Cause::Hypervisor);
    assert_eq!(word.post_as(Events::CALL, later), Wake::RidesAlong);
    assert_eq!(
        word.publish(SleepState::Guest),
        Err(Events::NOTIFY | Events::CALL)
    );
    let taken = word.take_all();
    assert_eq!(taken.events, Events::NOTIFY | Events::CALL);
    assert_eq!(taken.origin, kicker);
}

#[test]
fn the_first_poster_learns_what_it_owes() {
    for (state, owed) in [
        (SleepState::Watching, Wake::StoreWakes),
        (SleepState::Halted, Wake::SendIpi),
        (SleepState::Guest, Wake::KickGuest),
    ] {
        let word = WakeWord::new();
        assert_eq!(word.publish(state), Ok(()));
        assert_eq!(word.state(), state);
        assert_eq!(word.post(Events::CALL), owed, "{state:?}");
        // Another event, and the same event again: both ride along.
        assert_eq!(word.post(Events::RESCHED), Wake::RidesAlong);
        assert_eq!(word.post(Events::CALL), Wake::RidesAlong);
        assert_eq!(word.take(), Events::CALL | Events::RESCHED);
        assert_eq!(word.state(), SleepState::Awake);
        assert_eq!(word.post(Events::TIMER), Wake::WillLook);
    }
}

#[test]
fn a_cpu_with_events_cannot_leave_awake() {
    let word = WakeWord::new();
    assert_eq!(word.post(Events::NOTIFY), Wake::WillLook);
    assert_eq!(word.publish(SleepState::Halted), Err(Events::NOTIFY));
    assert_eq!(
        word.state(),
        SleepState::Awake,
        "a refused publish changes nothing"
    );
    assert!(word.is_pending());
    assert_eq!(word.take(), Events::NOTIFY);
    assert!(!word.is_pending());
    assert_eq!(word.publish(SleepState::Halted), Ok(()));
}

#[test]
fn a_post_from_nmi_context_never_relies_on_the_word() {
    let word = WakeWord::new();
    assert_eq!(
        word.post_from_nmi(Events::STOP, Origin::NOBODY),
        Wake::Insist
    );
    assert_eq!(
        word.post_from_nmi(Events::STOP, Origin::NOBODY),
        Wake::Insist
    );
    assert_eq!(word.take(), Events::STOP);
}

#[test]
fn a_software_monitor_sees_a_post() {
    let word = WakeWord::new();
    assert_eq!(word.publish(SleepState::Watching), Ok(()));
    let armed = word.value();
    assert_eq!(word.value(), armed);
    assert_eq!(word.post(Events::RESCHED), Wake::StoreWakes);
    assert_ne!(word.value(), armed);
    assert_eq!(word.address() as usize % 128, 0);
}
