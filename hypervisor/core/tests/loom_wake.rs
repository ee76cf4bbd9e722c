//! The wake protocol, model-checked: no interleaving of one sleeper and two wakers loses a wakeup.
//!
//! Run by `RUSTFLAGS="--cfg loom" cargo test -p lull-core --test loom_wake --release`.
//!
//! The machine of the model (`model/machine.rs`) adds **no memory ordering of its own**: its interrupt line and its
//! monitor are relaxed accesses, so that only the protocol's own atomics order anything. Whoever sleeps and is never
//! woken spins until loom gives up, which fails the test. Each waker also writes plain data before it posts, and the
//! sleeper must see it once it has taken the event.
//!
//! A model that no mistake can break proves nothing: so each known mistake is built in, one at a time
//! (`model/mutants.rs`), and must be caught.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "model/machine.rs"]
mod machine;
#[path = "model/mutants.rs"]
mod mutants;
#[path = "model/protocol.rs"]
mod protocol;

use loom::sync::Arc;
use loom::thread;
use lull_core::wake::{Events, WakeWord};
use machine::{Machine, Method};
use protocol::Protocol;

const WAKERS: [Events; 2] = [Events::RESCHED, Events::CALL];

/// One sleeper that sleeps until it has taken both events, and one waker for each.
fn no_wakeup_is_lost<P: Protocol>(method: Method) {
    loom::model(move || {
        let machine = Arc::new(Machine::<P>::new());
        let wakers = WAKERS.map(|event| {
            let machine = Arc::clone(&machine);
            thread::spawn(move || machine.wake(event))
        });
        machine.sleep_until(method, Events::RESCHED | Events::CALL);
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

/// Does the model find the mistake?
fn caught<P: Protocol>(method: Method) -> bool {
    std::panic::catch_unwind(|| no_wakeup_is_lost::<P>(method)).is_err()
}

#[test]
fn halted_cpu_is_woken_by_interrupt() {
    no_wakeup_is_lost::<WakeWord>(Method::Halt);
}

#[test]
fn watching_cpu_is_woken_by_the_store() {
    no_wakeup_is_lost::<WakeWord>(Method::Mwait);
}

#[test]
fn a_guest_is_left_by_interrupt() {
    no_wakeup_is_lost::<WakeWord>(Method::Guest);
}

#[test]
fn a_cpu_may_change_from_mwait_to_hlt_between_two_sleeps() {
    no_wakeup_is_lost::<WakeWord>(Method::MwaitThenHalt);
}

#[test]
fn the_copy_that_the_mutants_are_made_from_is_right() {
    no_wakeup_is_lost::<mutants::NoMistake>(Method::MwaitThenHalt);
}

/// Each mistake, with the sleep that it is fatal for.
#[test]
fn every_known_mistake_is_caught() {
    assert!(
        caught::<mutants::BlindPublish>(Method::Halt),
        "publishing without looking at the events"
    );
    assert!(
        caught::<mutants::CheckThenPublish>(Method::Halt),
        "looking first, publishing after"
    );
    assert!(
        caught::<mutants::SeparateState>(Method::Halt),
        "state and events in two words"
    );
    assert!(
        caught::<mutants::SeparateState>(Method::MwaitThenHalt),
        "state and events in two words"
    );
    assert!(
        caught::<mutants::NoCheckAfterArming>(Method::Mwait),
        "sleeping without a look after arming"
    );
    assert!(
        caught::<mutants::ClearAfterTaking>(Method::Halt),
        "reading the events, then clearing the word"
    );
    assert!(
        caught::<mutants::WatchingWhileHalted>(Method::Halt),
        "saying WATCHING, then sleeping in HLT"
    );
    assert!(
        caught::<mutants::PeekThenPost>(Method::Halt),
        "reading the state, then posting"
    );
    assert!(
        caught::<mutants::RelaxedPost>(Method::Halt),
        "posting without release"
    );
}
