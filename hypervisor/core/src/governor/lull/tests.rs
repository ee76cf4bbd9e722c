//! What Lull's governor learns, and what it makes of that.

use super::arrivals::{Arrivals, BINS, Drop, EDGES, Ended, ONE, Survival, bin_of};
use super::costs::{Costs, FULL, Powers, RECHECK};
use super::outlook::Outlook;
use super::plan::Plan;
use super::*;
use crate::cstate::{CState, CStateFlags, EntryMethod, StateId};
use crate::governor::StateSet;
use crate::units::Micros;

fn table() -> CStateTable {
    let state = |latency, residency| CState {
        name: "C",
        method: EntryMethod::Halt,
        flags: CStateFlags::empty(),
        exit_latency: Micros::new(latency),
        target_residency: Micros::new(residency),
    };
    CStateTable::new(&[CState::POLL, state(2, 2), state(10, 20), state(133, 600)]).unwrap()
}

fn context(table: &CStateTable, timer_us: Option<u64>) -> IdleContext<'_> {
    IdleContext {
        table,
        sleep_length: timer_us.map(|us| Nanos::new(us * 1000)),
        latency_limit: None,
        disabled: StateSet::NONE,
        now: Nanos::ZERO,
    }
}

fn slept(entered: StateId, us: u64, wake: WakeReason) -> IdleOutcome {
    IdleOutcome::Slept {
        requested: entered,
        entered,
        residency: Nanos::new(us * 1000),
        irq: Nanos::ZERO,
        wake,
    }
}

/// A governor after so many idle periods that lasted `us`, each until its wake.
fn taught(table: &CStateTable, timer_us: Option<u64>, us: u64, wake: WakeReason) -> Lull {
    let mut lull = Lull::default();
    for _ in 0..200 {
        let mut left = us;
        loop {
            let selection = lull.select(&context(table, timer_us));
            let limit = selection.limit.map_or(u64::MAX, |limit| limit.get() / 1000);
            let exit = table.state(selection.state).exit_latency.get();
            if limit >= left {
                lull.reflect(table, &slept(selection.state, left + exit, wake));
                break;
            }
            lull.reflect(
                table,
                &slept(selection.state, limit + exit, WakeReason::Limit),
            );
            left -= limit;
        }
    }
    lull
}

#[test]
fn a_timer_says_nothing_against_long_sleeps_and_a_store_does() {
    let table = table();
    let far = context(&table, Some(50_000));

    let mut lull = taught(&table, Some(300), 300, WakeReason::Timer);
    let selection = lull.select(&far);
    assert_eq!(selection.state.index(), 3, "{selection:?}");
    assert_eq!(selection.limit, None);

    let mut lull = taught(&table, Some(50_000), 300, WakeReason::Store);
    let selection = lull.select(&far);
    assert_eq!(selection.state.index(), 2, "{selection:?}");
    // Nothing came by then, so it is another kind of sleep.
    let limit = selection.limit.unwrap().get();
    assert!((300_000..2_000_000).contains(&limit), "{limit}");
    lull.reflect(
        &table,
        &slept(selection.state, limit / 1000 + 10, WakeReason::Limit),
    );
    assert_eq!(lull.select(&far).state.index(), 3);
}

#[test]
fn a_deadline_is_a_fact() {
    let table = table();
    let mut lull = taught(&table, Some(5_000), 5_000, WakeReason::Timer);
    for (timer_us, state) in [(5_000, 3), (200, 2), (10, 1)] {
        let selection = lull.select(&context(&table, Some(timer_us)));
        assert_eq!(selection.state.index(), state, "{timer_us}");
        lull.reflect(&table, &slept(selection.state, timer_us, WakeReason::Timer));
    }
}

#[test]
fn aborted_and_refused_entries_teach_nothing() {
    let table = table();
    let far = context(&table, Some(50_000));
    let mut lull = taught(&table, Some(50_000), 20_000, WakeReason::Store);
    let before = lull.select(&far);
    assert_eq!(before.state.index(), 3);
    for _ in 0..1000 {
        lull.reflect(&table, &IdleOutcome::Aborted);
        let requested = lull.select(&far).state;
        lull.reflect(&table, &IdleOutcome::Rejected { requested });
    }
    assert_eq!(lull.select(&far), before);
}

/// How likely a sleep is to outlast this time.
fn left(arrivals: &Arrivals, from: u64) -> u64 {
    let survival = arrivals.survival(from);
    survival.drops().last().map_or(ONE, Drop::left)
}

#[test]
fn survival_takes_timers_for_what_they_are() {
    let mut arrivals = Arrivals::NONE;
    for _ in 0..50 {
        arrivals.add(bin_of(100_000), Ended::Timer, 4);
    }
    assert_eq!(left(&arrivals, 0), ONE);
    for _ in 0..50 {
        arrivals.add(bin_of(3_000), Ended::Event, 4);
        arrivals.add(bin_of(100_000), Ended::Timer, 4);
    }
    let survival = arrivals.survival(0);
    let [drop] = *survival.drops() else {
        panic!("{survival:?}");
    };
    assert_eq!(usize::from(drop.bin), bin_of(3_000));
    assert!((28_000..38_000).contains(&drop.after), "{drop:?}");
    // Once past it, nothing is left that could come.
    assert_eq!(left(&arrivals, 10_000), ONE);
}

#[test]
fn what_is_old_counts_for_less_and_then_for_nothing() {
    let mut arrivals = Arrivals::NONE;
    arrivals.add(bin_of(3_000), Ended::Event, 4);
    arrivals.add(bin_of(3_000), Ended::Event, 4);
    arrivals.add(bin_of(3_000), Ended::Event, 4);
    let after = |arrivals: &Arrivals| arrivals.survival(0).drops()[0].left();
    for _ in 0..16 {
        arrivals.add(bin_of(100_000), Ended::Event, 4);
    }
    // Three sleeps that have lost 16 times a sixteenth, among those of the last 16 of which each has lost less.
    let early = ONE - after(&arrivals);
    assert!((5_000..8_000).contains(&early), "{early}");
    for _ in 0..1_000 {
        arrivals.add(bin_of(100_000), Ended::Event, 4);
    }
    let survival = arrivals.survival(0);
    assert_eq!(survival.drops().len(), 1, "{survival:?}");
    assert_eq!(usize::from(survival.drops()[0].bin), bin_of(100_000));
    // However many come, nothing runs over.
    for _ in 0..100_000 {
        arrivals.add(BINS - 1, Ended::Timer, 8);
    }
    assert_eq!(left(&arrivals, 0), ONE);
}

#[test]
fn bins_cover_all_times_in_order() {
    assert!(EDGES.is_sorted());
    for bin in 0..BINS {
        assert_eq!(bin_of(EDGES[bin]), bin);
        assert_eq!(bin_of(EDGES[bin + 1] - 1), bin);
    }
    assert_eq!(bin_of(u64::MAX), BINS - 1);
}

#[test]
fn neighbours_cost_the_same_at_the_target_residency() {
    let table = table();
    let mut costs = Costs::NONE;
    costs.update(&context(&table, None), LatencyPrice(0), Powers::Likely);
    for (index, residency) in [(1, 2_000), (2, 20_000), (3, 600_000)] {
        let at = |state: usize| Plan::of(state).cost(&costs, residency);
        assert!(at(index).abs_diff(at(index - 1)) <= 3, "{index}");
    }
}

/// Spurious wakes cut a long sleep in pieces. What counts is how long a piece is: here, long enough for the deepest state.
#[test]
fn a_sleep_of_many_long_pieces_does_not_end_in_a_shallow_state() {
    let table = table();
    let mut lull = Lull::default();
    let mut deepest = 0;
    for piece in 0..4_000 {
        let selection = lull.select(&context(&table, None));
        deepest = selection.state.index();
        let us = if piece < 200 { 3 } else { 1_000 };
        let wake = if piece < 200 {
            WakeReason::Store
        } else {
            WakeReason::Spurious
        };
        lull.reflect(&table, &slept(selection.state, us, wake));
    }
    assert_eq!(deepest, 3, "after 3.8 s without an event");
}

/// A machine whose sleeps end for nothing, as where every monitor that is armed ends those of all others.
#[test]
fn sleeps_that_end_for_nothing_are_short_all_the_same() {
    let table = table();
    let mut lull = Lull::default();
    let mut too_deep = 0;
    for _ in 0..1_000 {
        let selection = lull.select(&context(&table, None));
        too_deep += u32::from(selection.state.index() == 3);
        lull.reflect(&table, &slept(selection.state, 65, WakeReason::Spurious));
    }
    assert!(
        too_deep < 50,
        "{too_deep} of 1000 stays of 65 us in a state for 600"
    );
}

/// The last bin has no end, so a sleep may outlast it.
#[test]
fn a_sleep_longer_than_any_bin_goes_on_in_the_deepest_state() {
    let table = table();
    let mut costs = Costs::NONE;
    costs.update(
        &context(&table, None),
        LatencyPrice::DEFAULT,
        Powers::Likely,
    );
    for slept in [EDGES[BINS], 2 * EDGES[BINS], u64::MAX / 2] {
        let mut outlook = Outlook::NONE;
        outlook.work_out(&Arrivals::UNKNOWN, slept, 8, &costs);
        assert_eq!(outlook.plan(&costs, u64::MAX), Plan::of(3), "{slept}");
    }
}

/// Where each state's exit takes as long as it must stay to pay, the exit must not be taken for sleep.
#[test]
fn long_exits_from_short_sleeps_are_not_taken_for_long_sleeps() {
    let state = |us| CState {
        name: "C",
        method: EntryMethod::Halt,
        flags: CStateFlags::empty(),
        exit_latency: Micros::new(us),
        target_residency: Micros::new(us),
    };
    let states = [2, 155, 1_000, 10_000].map(state);
    let all: Vec<_> = [CState::POLL].into_iter().chain(states).collect();
    let table = CStateTable::new(&all).unwrap();
    let mut lull = Lull::default();
    for period in 0..40 {
        let selection = lull.select(&context(&table, None));
        let exit = table.state(selection.state).exit_latency.get();
        assert!(period < 12 || exit <= 2, "{period}: {selection:?}");
        lull.reflect(&table, &slept(selection.state, 5 + exit, WakeReason::Store));
    }
}

/// With nothing to be gained over them, the choice is that of menu and TEO, in each period.
#[test]
fn where_every_wake_is_a_near_timer_no_state_is_ever_too_shallow() {
    let table = table();
    let mut lull = Lull::default();
    for period in 0..500 {
        let timer = 1_400 + period % 7;
        let selection = lull.select(&context(&table, Some(timer)));
        assert_eq!(
            (selection.state.index(), selection.limit),
            (3, None),
            "{period}"
        );
        lull.reflect(
            &table,
            &slept(selection.state, timer + 133, WakeReason::Timer),
        );
    }
}

#[test]
fn an_aborted_entry_ends_the_idle_period() {
    let table = table();
    let at = |ms: u64| IdleContext {
        now: Nanos::new(ms * 1_000_000),
        ..context(&table, None)
    };
    let mut lull = taught(&table, None, 30, WakeReason::Store);
    let expected = lull.clone().select(&at(9_000));
    let _first = lull.select(&at(0));
    lull.reflect(&table, &IdleOutcome::Aborted);
    // What has passed since was no sleep: a continued one of 9 s would be in the deepest state.
    let second = lull.select(&at(9_000));
    assert_eq!(second, expected);
    assert_ne!(second.state.index(), 3);
}

/// What a plan is expected to cost, worked out without any short cut: first state, limit and second one.
fn expected_cost(
    costs: &Costs,
    survival: &Survival,
    end: u64,
    (first, change): (usize, Option<(&Drop, usize)>),
) -> f64 {
    let cost = |state: usize| {
        let cost = costs.get(state);
        let [transition, latency, power] = [cost.transition, cost.latency, cost.power];
        (
            transition as f64,
            latency as f64,
            power as f64 / FULL as f64,
        )
    };
    let expected = survival.until(end) as f64;
    let (transition, latency, power) = cost(first);
    let Some((drop, then)) = change else {
        return transition + latency + power * expected;
    };
    let (again, later, behind) = cost(then);
    let (left, until) = (drop.left() as f64 / ONE as f64, drop.slept as f64);
    let before = transition + latency * (1.0 - left) + power * until;
    before + left * (RECHECK as f64 + again + later) + behind * (expected - until)
}

#[test]
fn no_plan_that_a_search_of_all_finds_is_expected_to_cost_less() {
    let state = |method, latency, residency| CState {
        name: "C",
        method,
        flags: CStateFlags::empty(),
        exit_latency: Micros::new(latency),
        target_residency: Micros::new(residency),
    };
    let halt = |(latency, residency)| state(EntryMethod::Halt, latency, residency);
    let long = [(1, 1), (40, 100), (41, 100), (200, 800), (890, 5_000)];
    let tables = [
        table(),
        CStateTable::new(&[CState::POLL, halt((2, 2)), halt((133, 600))]).unwrap(),
        CStateTable::new(&long.map(halt)).unwrap(),
    ];
    let mut random = 1_u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (random >> 33) % limit
    };
    let (mut limits, mut searched) = (0, 0);
    for table in &tables {
        for price in [0, 102, 512, 2_048, 102_400] {
            let mut costs = Costs::NONE;
            costs.update(&context(table, None), LatencyPrice(price), Powers::Likely);
            for _ in 0..200 {
                let mut arrivals = [Arrivals::NONE, Arrivals::UNKNOWN][below(2) as usize];
                let (lowest, spread) = (below(20), below(14) + 1);
                for _ in 0..below(60) {
                    let ended = [Ended::Event, Ended::Event, Ended::Timer][below(3) as usize];
                    arrivals.add((lowest + below(spread)) as usize, ended, 7);
                }
                for from in [0, below(2_000_000)] {
                    let survival = arrivals.survival(from);
                    let mut outlook = Outlook::NONE;
                    outlook.work_out(&arrivals, from, 16, &costs);
                    let to_timer = [20_000_000_000, below(20_000_000)][below(2) as usize];
                    let end = from + to_timer;
                    let found = outlook.plan(&costs, to_timer);
                    let cost = |plan| expected_cost(&costs, &survival, end, plan);
                    let limit = found.limit().map(|limit| from + limit);
                    let at = limit.map(|limit| {
                        let mut drops = survival.drops().iter();
                        (
                            drops.find(|drop| drop.end() == limit).unwrap(),
                            found.then(),
                        )
                    });
                    assert!(limit.is_none_or(|limit| limit < end), "{found:?}");
                    let own = cost((found.state(), at));
                    let states = 0..table.count();
                    let drops = survival.drops().iter();
                    // With a deadline, the best limit may be behind it: then there is none to that state.
                    let all = drops
                        .filter(|drop| drop.end() >= from + 4_000 && to_timer == 20_000_000_000);
                    let changes = all.flat_map(|drop| {
                        let pairs = (1..table.count())
                            .flat_map(|then| (0..then).map(move |first| (first, then)));
                        pairs.map(move |(first, then)| (first, Some((drop, then))))
                    });
                    for plan in states.map(|state| (state, None)).chain(changes) {
                        // Within what counts as alike, and what is rounded off.
                        let least = cost(plan) * (1.0 + 1.0 / 60.0) + 20.0;
                        assert!(
                            own <= least,
                            "{own} {least} {found:?} {plan:?} {price} {to_timer}"
                        );
                    }
                    searched += 1;
                    limits += u64::from(found.limit().is_some());
                }
            }
        }
    }
    assert!(limits > searched / 20, "{limits} of {searched}");
}
