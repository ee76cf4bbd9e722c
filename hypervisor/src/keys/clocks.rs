//! Key `t`: the clocks of the machine.

use crate::apic::timer;
use crate::{cpu, dumpln, time};

/// Prints the clocks.
pub fn print() {
    let features = cpu::features();
    dumpln!(
        "TSC {} now, up {} ms; rate {}",
        time::now().get(),
        time::uptime().get() / 1_000_000,
        time::rate()
    );
    dumpln!(
        "   nonstop TSC {}, ARAT {}, TSC-deadline {}",
        yes(features.nonstop_tsc),
        yes(features.arat),
        yes(features.tsc_deadline)
    );
    match timer::counter_hz() {
        Some(hz) => dumpln!("one-shot: local APIC counter at {} kHz", hz / 1000),
        None => dumpln!("one-shot: TSC-deadline"),
    }
    match time::broadcast::ready() {
        Some(how) => dumpln!(
            "the HPET stands in for one-shots that stop in deep states ({how:?}), {} interrupts",
            time::broadcast::interrupts()
        ),
        None => dumpln!("nothing stands in for one-shots"),
    }
    match time::stopped::source() {
        Some(source) => {
            dumpln!("the TSC is restored from the {source} after states in which it may stop")
        }
        None => dumpln!("the TSC is not restored"),
    }
}

const fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}
