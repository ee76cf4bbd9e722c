//! Key `i`: how CPUs were woken, by what, and what it cost.

use lull_core::dispatch::{PassCause, WokenBy};
use lull_core::wake::Wake;

use crate::console::wake_records::{EVENT_NAMES, PerSecond};
use crate::cpu::percpu::PerCpu;
use crate::run::{Running, wakes};
use crate::{cpu, dumpln};

/// Prints the counters of posts, wakes and scheduling passes of every CPU.
pub fn print(running: &'static Running) {
    let (since, window) = (wakes::rows_since_reset(running), wakes::window());
    for row in running.rows() {
        let taken = cpu::get(row.cpu).map_or(0, PerCpu::interrupts);
        let (unexpected, vector) = cpu::get(row.cpu).map_or((0, 0), PerCpu::unexpected);
        let posts = row.posts;
        dumpln!(
            "CPU{:02}: interrupts taken {taken}, without a handler {unexpected} (last vector {vector:#x})",
            row.cpu.get()
        );
        dumpln!(
            "   posted to others {}: by IPI {}, by store alone {}, would look anyway {}, rode along {}",
            posts.posted(),
            posts.ipis(),
            posts.of(Wake::StoreWakes),
            posts.of(Wake::WillLook),
            posts.of(Wake::RidesAlong)
        );
        if let Some(since) = since.iter().find(|since| since.cpu == row.cpu.get()) {
            let (posts, woken) = (&since.posts, since.wakers.owned());
            dumpln!(
                "   in the last {} ms: posted {} ({}), by IPI {} ({}), woken {woken} ({})",
                window.get() / 1_000_000,
                posts.posted(),
                PerSecond(posts.posted(), window),
                posts.ipis(),
                PerSecond(posts.ipis(), window),
                PerSecond(woken, window)
            );
        }
        for (event, name) in EVENT_NAMES {
            let counts = posts.for_event(event);
            if counts.iter().any(|&count| count > 0) {
                dumpln!(
                    "      {name}: {}",
                    Counts(&Wake::ALL.map(|wake| (wake.name(), counts[wake as usize])))
                );
            }
        }
        dumpln!(
            "   woken {}: {}",
            row.dispatch.all_wakes(),
            Counts(&WokenBy::ALL.map(|by| (by.name(), row.dispatch.wakes_by(by))))
        );
        dumpln!(
            "   scheduling passes {}: {}; turns without one {}, vCPU switches {}, halts cancelled by a kick {}",
            row.dispatch.all_passes(),
            Counts(&PassCause::ALL.map(|cause| (cause.name(), row.dispatch.passes_for(cause)))),
            row.dispatch.avoided,
            row.dispatch.switches,
            row.dispatch.blocks_cancelled
        );
    }
}

/// Names and counts, without those that are zero.
struct Counts<'a>(&'a [(&'static str, u64)]);

impl core::fmt::Display for Counts<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut first = true;
        for (name, count) in self.0.iter().filter(|(_, count)| *count > 0) {
            let space = if first { "" } else { ", " };
            write!(f, "{space}{name} {count}")?;
            first = false;
        }
        Ok(())
    }
}
