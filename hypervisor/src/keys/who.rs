//! Key `w`: who woke whom; key `W`: count anew.

use core::fmt;

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
        let heads = running.online.iter().map(|by| by.get());
        dumpln!("   woken \\ by{}", Columns(heads));
        for (whom, woken) in running
            .online
            .iter()
            .zip(wakes::matrix_since_reset(running))
        {
            dumpln!("   {:<9}{}", whom.get(), Columns(woken.into_iter()));
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

/// Numbers, a column each.
struct Columns<T>(T);

impl<T: Iterator<Item: fmt::Display> + Clone> fmt::Display for Columns<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.0.clone();
        numbers.try_for_each(|number| write!(f, " {number:>9}"))
    }
}

/// Counts anew.
pub fn reset(running: &'static Running) {
    wakes::reset(running);
    dumpln!("wakes are counted anew");
}
