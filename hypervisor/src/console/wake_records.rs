//! Records of the machine channel about wakes: `wakes`, one row for each CPU, and `measure`, one figure.
use super::json::{self, ByteSink};
use lull_core::units::{CpuId, Nanos};
use lull_core::wake::{Events, Wake, WakeCounts, WakerCounts, WokenHow};

const VERSION: u64 = 1;

/// Events, as the machine channel and the console name them.
pub const EVENT_NAMES: [(Events, &str); 6] = [
    (Events::RESCHED, "resched"),
    (Events::CALL, "call"),
    (Events::TIMER, "timer"),
    (Events::NOTIFY, "notify"),
    (Events::STOP, "stop"),
    (Events::CONSOLE, "console"),
];

/// How one CPU wakes and is woken.
#[derive(Clone, Copy, Debug, Default)]
pub struct WakeRow {
    /// Which.
    pub cpu: u32,
    /// Its posts to others.
    pub posts: WakeCounts,
    /// Who ended its sleeps.
    pub wakers: WakerCounts,
    /// How many of its sleeps all CPUs say that they have ended.
    pub woken_by_all: u64,
    /// Functions that it has run for others.
    pub served: u64,
}

impl WakeRow {
    /// Its number as a CPU.
    #[must_use]
    pub const fn id(&self) -> CpuId {
        CpuId::new(self.cpu)
    }

    /// What came in addition since an earlier row of the same CPU.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu: self.cpu,
            posts: self.posts.since(&earlier.posts),
            wakers: self.wakers.since(&earlier.wakers),
            woken_by_all: self.woken_by_all.saturating_sub(earlier.woken_by_all),
            served: self.served.saturating_sub(earlier.served),
        }
    }

    /// Do the wakers' books and the sleeper's agree? Only while all are quiet.
    ///
    /// # Errors
    /// The two sums.
    pub fn check(&self) -> Result<(), (u64, u64)> {
        let of_sleeper = self.wakers.owned() - self.wakers.of(WokenHow::Nmi);
        let attributed = self.wakers.attributed();
        if of_sleeper == self.woken_by_all && attributed == self.wakers.owned() {
            Ok(())
        } else {
            Err((of_sleeper, self.woken_by_all))
        }
    }
}

/// So many in this time, for each second; in thousandths.
#[must_use]
pub fn milli_per_second(count: u64, window: Nanos) -> u64 {
    let ns = u128::from(window.get().max(1));
    u64::try_from(u128::from(count) * 1_000_000_000_000 / ns).unwrap_or(u64::MAX)
}

/// A rate, for people.
#[derive(Clone, Copy, Debug)]
pub struct PerSecond(pub u64, pub Nanos);

impl core::fmt::Display for PerSecond {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let milli = milli_per_second(self.0, self.1);
        write!(f, "{}.{:03}/s", milli / 1000, milli % 1000)
    }
}

/// Writes the `wakes` record: the rows from the start of the machine, and those `since` the last reset, which was so long ago.
pub fn wakes<'a, S: ByteSink>(
    sink: &mut S,
    rows: impl Iterator<Item = &'a WakeRow>,
    since: &[WakeRow],
    window: Nanos,
) {
    json::line(sink, |o| {
        o.u64("v", VERSION).str("type", "wakes");
        o.array("cpus", |cpus| {
            for row in rows {
                cpus.object(|cpu| {
                    cpu.u64("cpu", row.cpu.into())
                        .u64("ipis", row.posts.ipis())
                        .u64("served", row.served)
                        .object("posts", |posts| {
                            for (event, name) in EVENT_NAMES {
                                let counts = row.posts.for_event(event);
                                posts.object(name, |kinds| {
                                    for (wake, count) in Wake::ALL.into_iter().zip(counts) {
                                        kinds.u64(wake.name(), count);
                                    }
                                });
                            }
                        })
                        .object("woken", |woken| {
                            for how in WokenHow::ALL {
                                woken.u64(how.name(), row.wakers.of(how));
                            }
                        })
                        .u64("woken_by_others", row.wakers.others)
                        .array("wakers", |wakers| {
                            for (origin, count) in row.wakers.top() {
                                wakers.object(|waker| {
                                    waker
                                        .u64("cpu", origin.cpu().get().into())
                                        .str("who", origin)
                                        .u64("count", count);
                                });
                            }
                        });
                });
            }
        });
        o.u64("window_ns", window.get());
        o.array("rates", |cpus| {
            for row in since {
                let rate = |count| milli_per_second(count, window);
                cpus.object(|cpu| {
                    cpu.u64("cpu", row.cpu.into())
                        .u64("posted", row.posts.posted())
                        .u64("posted_milli_per_s", rate(row.posts.posted()))
                        .u64("ipis_milli_per_s", rate(row.posts.ipis()))
                        .u64("woken", row.wakers.owned())
                        .u64("woken_milli_per_s", rate(row.wakers.owned()))
                        .u64("woken_by_others", row.wakers.others)
                        .array("wakers", |wakers| {
                            for (origin, count) in row.wakers.top() {
                                wakers.object(|waker| {
                                    waker
                                        .str("who", origin)
                                        .u64("count", count)
                                        .u64("milli_per_s", rate(count));
                                });
                            }
                        });
                });
            }
        });
    });
}

/// Writes a `measure` record.
pub fn measure<S: ByteSink>(sink: &mut S, name: &str, value: u64, unit: &str) {
    json::line(sink, |o| {
        o.u64("v", VERSION)
            .str("type", "measure")
            .str("name", name)
            .u64("value", value)
            .str("unit", unit);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_core::wake::{Cause, Origin, WakeStats, WakerLog};

    #[derive(Default)]
    struct Text(Vec<u8>);
    impl ByteSink for Text {
        fn put(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
    }

    #[test]
    fn a_row_says_who_woke_whom() {
        let (posts, wakers) = (WakeStats::default(), WakerLog::default());
        let _ = posts.count(Events::CALL, Wake::SendIpi);
        wakers.record(WokenHow::Ipi, Origin::new(CpuId::new(1), Cause::Hypervisor));
        let row = WakeRow {
            cpu: 2,
            posts: posts.counts(),
            wakers: wakers.counts(),
            woken_by_all: 1,
            served: 5,
        };
        assert_eq!(row.check(), Ok(()));
        assert_eq!(
            WakeRow {
                woken_by_all: 2,
                ..row
            }
            .check(),
            Err((1, 2))
        );
        let mut text = Text::default();
        wakes(&mut text, [row].iter(), &[row], Nanos::new(4_000_000_000));
        let text = String::from_utf8(text.0).unwrap();
        for part in [
            r#"{"v":1,"type":"wakes","cpus":[{"cpu":2,"ipis":1,"served":5,"posts":{"#,
            r#""call":{"ipi":1,"kick":0,"store":0,"will_look":0,"rides_along":0,"insisted":0}"#,
            r#""woken":{"store":0,"ipi":1,"timer":0,"device":0,"nmi":0,"spurious":0}"#,
            r#""wakers":[{"cpu":1,"who":"cpu1 hypervisor","count":1}]"#,
            r#""window_ns":4000000000,"rates":[{"cpu":2,"posted":1,"posted_milli_per_s":250,"ipis_milli_per_s":250,"woken":1,"woken_milli_per_s":250,"woken_by_others":0,"wakers":[{"who":"cpu1 hypervisor","count":1,"milli_per_s":250}]}]"#,
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
