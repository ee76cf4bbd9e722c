//! Readings of all CPUs' counters: for the key `c`, and for the `cstates` record of the machine channel.
//!
//! A reading wakes nobody and stops nobody: each row is copied under its CPU's sequence counter, with the interval that is
//! open at the moment. The rows of one reading are taken one after the other, each with its own time.
//!
//! Lock: `LAST` is a leaf, held only while the rows of the last reading are exchanged.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use arrayvec::{ArrayString, ArrayVec};
use lull_core::cstate::{CStateTable, MAX_STATES};
use lull_core::dispatch::{DispatchCounts, PassCause, WokenBy};
use lull_core::governor::StateSet;
use lull_core::idle::IdleControl;
use lull_core::residency::{Activity, HwSnapshot, Snapshot};
use lull_core::units::{CpuId, Nanos, Ticks};
use lull_core::wake::{Wake, WakeCounts};
use spin::mutex::SpinMutex;

use crate::console::machine_channel;
use crate::console::records::{CpuTotals, StateRow};

/// One CPU in a reading.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which CPU.
    pub cpu: CpuId,
    /// Its C-states.
    pub table: CStateTable,
    /// What was asked of its sleeps.
    pub asked: Asked,
    /// Where its time went.
    pub times: Snapshot,
    /// What its hardware has counted.
    pub hardware: HwSnapshot,
    /// What stood in for clocks that stop.
    pub stand_ins: StandIns,
    /// What its dispatch loop did.
    pub dispatch: DispatchCounts,
    /// The posts that it made to other CPUs' wake words.
    pub posts: WakeCounts,
}

/// What was done around a CPU's sleeps: for clocks that stop there, and for what must not be left there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StandIns {
    /// Sleeps in which another timer stood in for its own.
    pub handed_over: u64,
    /// Times that this timer woke it.
    pub timer_wakes: u64,
    /// Times that its TSC was restored.
    pub tsc_restored: u64,
    /// Sleeps before which AMX tiles were released.
    pub tiles_released: u64,
    /// Sleeps for which SPEC_CTRL was cleared.
    pub spec_ctrl_cleared: u64,
    /// Times that it was put back.
    pub spec_ctrl_restored: u64,
}

impl StandIns {
    fn since(self, earlier: Self) -> Self {
        Self {
            handed_over: self.handed_over.saturating_sub(earlier.handed_over),
            timer_wakes: self.timer_wakes.saturating_sub(earlier.timer_wakes),
            tsc_restored: self.tsc_restored.saturating_sub(earlier.tsc_restored),
            tiles_released: self.tiles_released.saturating_sub(earlier.tiles_released),
            spec_ctrl_cleared: self
                .spec_ctrl_cleared
                .saturating_sub(earlier.spec_ctrl_cleared),
            spec_ctrl_restored: self
                .spec_ctrl_restored
                .saturating_sub(earlier.spec_ctrl_restored),
        }
    }
}

/// What was asked of a CPU's sleeps: by options, by the console, by guests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Who chooses.
    pub governor: &'static str,
    /// The limit on exit latency that holds.
    pub latency_limit: Option<Nanos>,
    /// The states that must not be chosen.
    pub off: StateSet,
}

impl Asked {
    /// What was asked of this CPU.
    #[must_use]
    pub fn of(control: &IdleControl) -> Self {
        Self {
            governor: control.governor().unwrap_or(""),
            latency_limit: control.latency_limit(),
            off: control.disabled(),
        }
    }
}

impl Row {
    /// What came in addition since an earlier row of the same CPU.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            times: self.times.since(&earlier.times),
            hardware: self.hardware.since(&earlier.hardware),
            stand_ins: self.stand_ins.since(earlier.stand_ins),
            dispatch: self.dispatch.since(&earlier.dispatch),
            posts: self.posts.since(&earlier.posts),
            ..*self
        }
    }

    /// What the CPU does, in a word; in a C-state, its name.
    pub fn doing(&self) -> &'static str {
        match self.times.activity {
            Activity::NotStarted => "not started",
            Activity::Hypervisor => "hypervisor",
            Activity::Guest => "guest",
            Activity::Idle(state) => self
                .table
                .iter()
                .find(|(id, _)| *id == state)
                .map_or("idle", |(_, state)| state.name),
        }
    }

    /// Do the row's times agree with each other, to one part in a thousand?
    ///
    /// # Errors
    /// What does not agree.
    pub fn check(&self) -> Result<(), String> {
        self.times
            .check(self.times.per_mille())
            .map_err(|why| why.to_string())
    }
}

/// All CPUs at about one moment.
#[derive(Debug)]
pub struct Reading {
    /// The number of the reading, from 1.
    pub seq: u64,
    /// Since boot.
    pub total: Vec<Row>,
    /// Since the reading before. The first reading's is its total.
    pub change: Vec<Row>,
}

struct Last {
    seq: u64,
    rows: Vec<Row>,
}

static LAST: SpinMutex<Last> = SpinMutex::new(Last {
    seq: 0,
    rows: Vec::new(),
});

impl Reading {
    /// Takes one reading, which later ones are compared with.
    #[must_use]
    pub fn of(rows: Vec<Row>) -> Self {
        let mut last = LAST.lock();
        last.seq += 1;
        let earlier = core::mem::replace(&mut last.rows, rows.clone());
        let seq = last.seq;
        drop(last);
        let change = rows
            .iter()
            .map(|row| {
                earlier
                    .iter()
                    .find(|old| old.cpu == row.cpu)
                    .map_or(*row, |old| row.since(old))
            })
            .collect();
        Self {
            seq,
            total: rows,
            change,
        }
    }

    /// The first CPU whose figures do not agree, and why.
    #[must_use]
    pub fn imbalance(&self) -> Option<(CpuId, String)> {
        self.total
            .iter()
            .find_map(|row| row.check().err().map(|why| (row.cpu, why)))
    }

    /// Writes the `cstates` record.
    pub fn emit(&self, reason: &str, now: Ticks) {
        machine_channel::cstates_rows(self.seq, reason, now, |rows| {
            for (total, change) in self.total.iter().zip(&self.change) {
                with_totals(total, |total_record| {
                    with_totals(change, |change_record| {
                        rows.cpu(total.cpu, total_record, change_record);
                    });
                });
            }
        });
    }
}

/// Builds the record of one row: what it borrows lives on this stack frame.
fn with_totals(row: &Row, use_it: impl FnOnce(&CpuTotals<'_>)) {
    let methods: ArrayVec<ArrayString<24>, MAX_STATES> = row
        .table
        .states()
        .iter()
        .map(|state| text(format_args!("{}", state.method)))
        .collect();
    let states: ArrayVec<StateRow<'_>, MAX_STATES> = row
        .table
        .states()
        .iter()
        .zip(row.times.states(&row.table))
        .zip(&methods)
        .zip(row.table.iter())
        .map(|(((state, times), method), (id, _))| StateRow {
            name: state.name,
            method,
            off: row.asked.off.contains(id),
            latency: state.exit_latency,
            usage: times.usage,
            residency: times.residency,
            irq: times.irq,
            above: times.above,
            below: times.below,
            rejected: times.rejected,
            shortest: times.shortest,
            longest: times.longest,
        })
        .collect();
    let wakes = WokenBy::ALL.map(|reason| (reason.name(), row.dispatch.wakes_by(reason)));
    let passes = PassCause::ALL.map(|cause| (cause.name(), row.dispatch.passes_for(cause)));
    let posts = [
        ("ipi", row.posts.ipis()),
        ("store", row.posts.of(Wake::StoreWakes)),
        ("will_look", row.posts.of(Wake::WillLook)),
        ("rides_along", row.posts.of(Wake::RidesAlong)),
    ];
    use_it(&CpuTotals {
        activity: row.doing(),
        governor: row.asked.governor,
        latency_limit: row.asked.latency_limit,
        elapsed: row.times.elapsed,
        c0: row.times.c0,
        guest: row.times.guest,
        hypervisor: row.times.hypervisor,
        aborted: row.times.aborted,
        spurious: row.times.spurious,
        sched_passes: row.dispatch.all_passes(),
        passes_avoided: row.dispatch.avoided,
        wakes: &wakes,
        passes: &passes,
        posts: &posts,
        states: &states,
        hardware: &row.hardware,
        stand_ins: row.stand_ins,
    });
}

/// Formats into a short string; what does not fit is cut.
pub fn text<const N: usize>(args: fmt::Arguments<'_>) -> ArrayString<N> {
    struct Cut<const N: usize>(ArrayString<N>);
    impl<const N: usize> fmt::Write for Cut<N> {
        fn write_str(&mut self, s: &str) -> fmt::Result {
            for c in s.chars() {
                self.0.try_push(c).map_err(|_| fmt::Error)?;
            }
            Ok(())
        }
    }
    let mut out = Cut(ArrayString::new());
    // An error only says that it was cut.
    let _ = fmt::Write::write_fmt(&mut out, args);
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_core::cstate::{CState, Fit};
    use lull_core::platform::Clock;
    use lull_core::residency::CpuAccount;
    use lull_core::units::TickRate;

    struct At(u64);
    impl Clock for At {
        fn now(&self) -> Ticks {
            Ticks::new(self.0)
        }
        fn rate(&self) -> TickRate {
            TickRate::from_hz(1_000_000_000).unwrap()
        }
    }

    fn row(account: &CpuAccount, now: u64) -> Row {
        Row {
            cpu: CpuId::new(3),
            table: CStateTable::new(&[CState::POLL, CState::C1_HALT]).unwrap(),
            asked: Asked::default(),
            times: account.snapshot(&At(now)),
            hardware: HwSnapshot::default(),
            stand_ins: StandIns::default(),
            dispatch: DispatchCounts::default(),
            posts: WakeCounts::default(),
        }
    }

    #[test]
    fn a_change_is_counted_from_the_reading_before() {
        let account = CpuAccount::new();
        account.start(Ticks::new(100));
        let first = Reading::of(alloc::vec![row(&account, 200)]);
        assert_eq!(first.total[0].times.elapsed, Ticks::new(100));
        let c1 = first.total[0].table.id(1).unwrap();
        account.enter_idle(c1, Ticks::new(300));
        account.leave_idle(Ticks::new(700), Some(Ticks::new(650)), Fit::Right);
        let second = Reading::of(alloc::vec![row(&account, 800)]);
        assert_eq!(second.seq, first.seq + 1);
        let change = &second.change[0].times;
        assert_eq!(change.elapsed, Ticks::new(600));
        assert_eq!(change.residency(), Ticks::new(350));
        assert_eq!(change.irq(), Ticks::new(50));
        assert_eq!(change.c0, Ticks::new(200));
        assert!(second.imbalance().is_none());
    }

    #[test]
    fn text_that_does_not_fit_is_cut() {
        assert_eq!(
            text::<4>(format_args!("{}{}", "abc", "def")).as_str(),
            "abcd"
        );
    }
}
