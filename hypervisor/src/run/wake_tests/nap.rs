//! How the boot CPU waits while others are measured: asleep, so that it neither runs nor writes to anything they see.

use lull_core::platform::{OneShot, Sleeper};
use lull_core::units::Ticks;
use lull_core::wake::Events;

use crate::machine::BareMetal;
use crate::run::Running;
use crate::time;

/// Halts until this time. Nobody may call this CPU meanwhile: it does not say that it sleeps.
pub fn until(running: &Running, then: Ticks) {
    while time::now() < then {
        BareMetal.arm(then);
        BareMetal.halt();
        // Its timer may stand in for others'.
        time::broadcast::wake_due(|cpu| running.machine.post(cpu, Events::TIMER));
    }
    BareMetal.cancel();
}
