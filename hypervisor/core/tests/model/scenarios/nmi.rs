//! NMIs at every point of a CPU, one after the other.

use super::wakes::{Waker, World};
use crate::model::check::{Check, nmi, property};
use crate::model::machine::{Cpu, How};
use crate::model::rt;
use lull_core::wake::Events;
use std::sync::Arc;

/// The sleeper is hit; the handler posts to its own CPU.
fn sleeper(plan: &'static [How], wakers: &'static [Waker]) {
    let world = World::new(Cpu::new(), wakers);
    let handler = Arc::clone(&world);
    nmi::goes_here(move || handler.cpu.wake_from_nmi(Events::STOP));
    let threads = world.spawn_wakers();
    world.sleep(plan, Events::empty());
    for thread in threads {
        thread.join();
    }
    // What follows is the judge's looking, not the CPU's doing.
    nmi::goes_nowhere();
    let also = if nmi::is_over() {
        Events::STOP
    } else {
        Events::empty()
    };
    world.judge(plan, also);
}

/// A waker is hit between its post and its interrupt; the handler wakes the same CPU, and never returns.
fn poster_dies() {
    let cpu = Arc::new(Cpu::new());
    let poster = {
        let cpu = Arc::clone(&cpu);
        rt::spawn(move || {
            let owed = cpu.word.post(Events::CALL);
            cpu.wake_from_nmi(Events::STOP);
            // The interrupt that is owed is never sent.
            let _ = owed;
        })
    };
    let taken = cpu.idle_once(How::Halt);
    poster.join();
    let mut all = taken.unwrap_or(Events::empty());
    while let Some(events) = cpu.settle() {
        all |= events;
        if events.is_empty() {
            break;
        }
    }
    property!(
        all.contains(Events::STOP),
        "no event is dropped",
        "taken: {all:?}"
    );
}

pub fn all() -> Vec<Check> {
    const WAKERS: &[Waker] = &[Waker::Timer, Waker::Posts(Events::CALL)];
    let check = |name: &str, plan: &'static [How]| {
        Check::new(name)
            .nmi_everywhere()
            .variant(move || sleeper(plan, WAKERS))
    };
    vec![
        check("nmi/masked", &[How::Masked]),
        check("nmi/open", &[How::Open]),
        check("nmi/halt", &[How::Halt]),
        check("nmi/guest", &[How::Guest]),
        check("nmi/mwait-then-hlt", &[How::Masked, How::Halt]),
        Check::new("nmi/poster-dies").variant(poster_dies),
    ]
}
