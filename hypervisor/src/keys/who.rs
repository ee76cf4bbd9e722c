//! Key `w`: who woke whom; key `W`: count anew.

use lull_core::wake::WokenHow;

use crate::console::wake_records::PerSecond;
use crate::dumpln;
use crate::run::{Running, wakes};

/// Above so many CPUs there is no matrix.
const MATRIX: usize = 16;

/// Prints who ended whose sleeps, since the last reset.
pub fn print(running: &'static Running) {
    let (rows, window) = (wakes::rows_since_reset(running), wakes::window());
    dumpln!("wakes of the last {} ms", window.get() / 1_000_000);
    if rows.len() <= MATRIX {
        for row in &rows {
            let woken = running.online.iter().map(|&by| {
                let count = running.machine.pcpu(by).map_or(0, |by| by.woke(row.id()));
                (by, count)
            });
            for (by, count) in woken.filter(|&(_, count)| count > 0) {
                dumpln!("   {by} has woken {} {count} times since boot", row.id());
            }
        }
    }
    for row in &rows {
        let woken = &row.wakers;
        dumpln!(
            "{}: woken {} times ({}): by store {}, IPI {}, timer {}, device {}, NMI {}; for nothing {}",
            row.id(),
            woken.owned(),
            PerSecond(woken.owned(), window),
            woken.of(WokenHow::Store),
            woken.of(WokenHow::Ipi),
            woken.of(WokenHow::Timer),
            woken.of(WokenHow::Device),
            woken.of(WokenHow::Nmi),
            woken.of(WokenHow::Spurious)
        );
        for (origin, count) in woken.top() {
            dumpln!("   {count:>10}  {origin} ({})", PerSecond(count, window));
        }
        if woken.others > 0 {
            dumpln!(
                "   {:>10}  others ({})",
                woken.others,
                PerSecond(woken.others, window)
            );
        }
    }
    wakes::emit(running);
}

/// Counts anew.
pub fn reset(running: &'static Running) {
    wakes::reset(running);
    dumpln!("wakes are counted anew");
}
