//! The account against timelines whose figures are known.

use super::*;
use crate::cstate::{CState, CStateTable, Fit, StateId};
use crate::platform::Clock;
use crate::units::{TickRate, Ticks};
use proptest::prelude::*;

/// A clock that stands where it is put.
struct At(u64);

impl Clock for At {
    fn now(&self) -> Ticks {
        Ticks::new(self.0)
    }

    fn rate(&self) -> TickRate {
        TickRate::from_hz(1_000_000_000).unwrap()
    }
}

fn t(ticks: u64) -> Ticks {
    Ticks::new(ticks)
}

fn table() -> CStateTable {
    CStateTable::new(&[CState::POLL, CState::C1_HALT]).unwrap()
}

fn c1() -> StateId {
    table().id(1).unwrap()
}

fn times(row: &Snapshot, state: usize) -> StateTimes {
    *row.states(&table()).nth(state).unwrap()
}

/// Up at 100; guest 110..150; C1 160..300 with a handler from 290; guest 310..320; then hypervisor.
fn timeline(account: &CpuAccount) {
    account.start(t(100));
    account.enter_guest(t(110));
    account.leave_guest(t(150));
    account.enter_idle(c1(), t(160));
    account.leave_idle(t(300), Some(t(290)), Fit::TooShallow);
    account.enter_guest(t(310));
    account.leave_guest(t(320));
}

#[test]
fn a_known_timeline_gives_known_figures() {
    let account = CpuAccount::new();
    timeline(&account);
    let row = account.snapshot(&At(400));
    assert_eq!(row.elapsed, t(300));
    assert_eq!(row.c0, t(60 + 100));
    assert_eq!(row.guest, t(40 + 10));
    assert_eq!(row.hypervisor, t(10 + 10 + 10 + 80));
    let expected = StateTimes {
        usage: 1,
        residency: t(130),
        irq: t(10),
        below: 1,
        shortest: Some(t(130)),
        longest: t(130),
        ..StateTimes::default()
    };
    assert_eq!(times(&row, 1), expected);
    assert_eq!(times(&row, 0), StateTimes::default());
    assert_eq!(row.check(Ticks::ZERO), Ok(()));
}

#[test]
fn the_reader_adds_what_is_still_going_on() {
    let account = CpuAccount::new();
    assert_eq!(account.snapshot(&At(7)).activity, Activity::NotStarted);
    assert_eq!(account.snapshot(&At(7)).elapsed, Ticks::ZERO);

    account.start(t(10));
    assert_eq!(account.snapshot(&At(15)).hypervisor, t(5));
    account.enter_guest(t(20));
    assert_eq!(account.snapshot(&At(26)).guest, t(6));
    assert_eq!(account.snapshot(&At(26)).c0, t(16));
    account.leave_guest(t(30));
    account.enter_idle(c1(), t(40));
    let asleep = account.snapshot(&At(1_000_040));
    assert_eq!(asleep.activity, Activity::Idle(c1()));
    assert_eq!(times(&asleep, 1).residency, t(1_000_000));
    assert_eq!(times(&asleep, 1).usage, 1);
    assert_eq!(asleep.c0, t(30));
    assert_eq!(asleep.check(Ticks::ZERO), Ok(()));
}

#[test]
fn reading_changes_nothing() {
    let account = CpuAccount::new();
    timeline(&account);
    let first = account.snapshot(&At(400));
    assert_eq!(account.try_snapshot(&At(400)), Some(first));
}

#[test]
fn a_reader_whose_clock_is_behind_sees_no_negative_time() {
    let account = CpuAccount::new();
    account.start(t(100));
    account.enter_idle(c1(), t(200));
    let row = account.snapshot(&At(190));
    assert_eq!(row.elapsed, t(100));
    assert_eq!(row.check(Ticks::ZERO), Ok(()));
}

#[test]
fn the_change_between_two_rows_balances_too() {
    let account = CpuAccount::new();
    timeline(&account);
    let before = account.snapshot(&At(330));
    account.enter_idle(c1(), t(340));
    account.leave_idle(t(440), None, Fit::Right);
    account.count_spurious();
    account.count_aborted();
    let change = account.snapshot(&At(450)).since(&before);
    assert_eq!(change.elapsed, t(120));
    assert_eq!(change.c0, t(20));
    assert_eq!(
        times(&change, 1),
        StateTimes {
            usage: 1,
            residency: t(100),
            // Of all stays: an extreme has no change.
            shortest: Some(t(100)),
            longest: t(130),
            ..StateTimes::default()
        }
    );
    assert_eq!((change.aborted, change.spurious), (1, 1));
    assert_eq!(change.check(Ticks::ZERO), Ok(()));
}

#[test]
fn aborts_and_rejections_touch_no_other_figure() {
    let account = CpuAccount::new();
    account.start(t(0));
    account.count_aborted();
    account.count_rejected(c1());
    let row = account.snapshot(&At(10));
    assert_eq!(row.aborted, 1);
    assert_eq!(
        times(&row, 1),
        StateTimes {
            rejected: 1,
            ..StateTimes::default()
        }
    );
    assert_eq!(row.c0, t(10));
}

#[test]
fn one_interval_dropped_or_doubled_is_noticed() {
    use Interval::*;
    for fault in [Fault::Drop, Fault::Double] {
        for (interval, identity, amount) in [
            (C0, Identity::Elapsed, 60),
            (Residency, Identity::Elapsed, 130),
            (Irq, Identity::Elapsed, 10),
            (Guest, Identity::C0, 40),
            (Hypervisor, Identity::C0, 10),
        ] {
            let account = CpuAccount::new();
            account.inject(fault, interval, t(10));
            timeline(&account);
            let imbalance = account.snapshot(&At(400)).check(t(9)).unwrap_err();
            assert_eq!(imbalance.identity, identity, "{fault:?} {interval:?}");
            assert_eq!(
                imbalance.sum.abs_diff(imbalance.expected),
                t(amount),
                "{fault:?} {interval:?}"
            );
        }
    }
}

#[test]
fn a_fault_waits_for_an_interval_that_is_long_enough_and_strikes_once() {
    let account = CpuAccount::new();
    account.inject(Fault::Drop, Interval::Guest, t(41));
    timeline(&account);
    assert_eq!(account.snapshot(&At(400)).check(Ticks::ZERO), Ok(()));
    account.enter_guest(t(400));
    account.leave_guest(t(500));
    account.enter_guest(t(500));
    account.leave_guest(t(600));
    let imbalance = account.snapshot(&At(600)).check(Ticks::ZERO).unwrap_err();
    assert_eq!(imbalance.expected - imbalance.sum, t(100));
    assert_eq!(
        std::format!("{imbalance}"),
        "guest + hypervisor time is 260t, but C0 is 360t: 100t apart"
    );
}

proptest! {
    /// Whatever a CPU does, and whenever it is read, the row balances to the tick.
    #[test]
    fn every_row_of_every_timeline_balances(steps in prop::collection::vec((0_u8..3, 0_u64..1000, 0_u64..1200), 1..60)) {
        let account = CpuAccount::new();
        let mut now = 5;
        account.start(t(now));
        for (what, span, handler) in steps {
            now += span;
            match what {
                0 => {
                    account.enter_guest(t(now));
                    prop_assert_eq!(account.snapshot(&At(now + span / 2)).check(Ticks::ZERO), Ok(()));
                    now += span;
                    account.leave_guest(t(now));
                }
                1 => {
                    account.enter_idle(c1(), t(now));
                    prop_assert_eq!(account.snapshot(&At(now + span / 2)).check(Ticks::ZERO), Ok(()));
                    // Also stamps that lie before the entry or after the exit.
                    let first_irq = (handler % 3 != 0).then(|| t((now + handler).saturating_sub(100)));
                    now += span;
                    account.leave_idle(t(now), first_irq, Fit::Right);
                }
                _ => account.count_aborted(),
            }
            prop_assert_eq!(account.snapshot(&At(now + 3)).check(Ticks::ZERO), Ok(()));
        }
    }
}
