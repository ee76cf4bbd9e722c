use super::*;
use crate::units::{Ticks, VcpuId};
use std::sync::atomic::{AtomicBool, AtomicU64 as StdAtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const CPU: CpuId = CpuId::new(3);

fn running() -> RunState {
    let state = RunState::new();
    state.set_queued();
    state.set_running(CPU);
    state
}

#[test]
fn the_first_kick_says_what_is_owed_and_the_others_ride_along() {
    let state = running();
    assert_eq!(state.kick(), Kick::Running(CPU));
    assert_eq!(state.kick(), Kick::Pending);
    assert!(state.consume_kick());
    assert!(!state.consume_kick());
    assert_eq!(state.kick(), Kick::Running(CPU), "a new one is owed again");

    let state = running();
    assert_eq!(state.try_block(CPU), Ok(()));
    assert_eq!(state.kick(), Kick::WokeBlocked);
    assert!(state.is_woken());
    assert_eq!(state.kick(), Kick::Pending, "there is one waker");

    let state = RunState::new();
    state.set_queued();
    assert_eq!(state.kick(), Kick::Pending, "it looks when it runs");
    state.set_running(CPU);
    assert_eq!(state.phase(), Phase::Running(CPU));
    assert!(state.consume_kick(), "the token came along");
}

#[test]
fn nothing_blocks_over_a_token() {
    let state = running();
    assert_eq!(state.kick(), Kick::Running(CPU));
    assert_eq!(state.try_block(CPU), Err(Kicked));
    assert_eq!(state.phase(), Phase::Running(CPU));
    assert!(state.consume_kick());
    assert_eq!(state.try_block(CPU), Ok(()));
    assert_eq!(state.phase(), Phase::Blocked);
}

#[test]
fn a_vcpu_is_started_once() {
    let state = RunState::new();
    assert_eq!(state.kick(), Kick::Pending, "nobody wakes what is offline");
    assert!(state.online());
    assert!(state.is_woken());
    assert!(!state.online());
    state.set_queued();
    assert!(!state.online());
    state.offline();
    assert_eq!((state.phase(), state.is_kicked()), (Phase::Offline, false));
}

#[test]
fn run_time_counts_a_stay_that_has_not_ended() {
    let table = UnitTable::new(2);
    let unit = table.get(VcpuId::new(1)).unwrap();
    unit.guest_entering(Ticks::new(100));
    assert_eq!(unit.run_time(Ticks::new(130)), Ticks::new(30));
    assert_eq!(unit.guest_left(Ticks::new(150)), Ticks::new(50));
    assert_eq!(unit.run_time(Ticks::new(900)), Ticks::new(50));
    unit.guest_entering(Ticks::new(1000));
    assert_eq!(
        unit.run_time(Ticks::new(990)),
        Ticks::new(50),
        "a clock behind"
    );
    assert_eq!(unit.guest_left(Ticks::new(1010)), Ticks::new(10));
    assert_eq!(unit.run_time(Ticks::new(2000)), Ticks::new(60));
    assert_eq!(
        unit.guest_left(Ticks::new(3000)),
        Ticks::ZERO,
        "it was not inside"
    );
    unit.reset();
    assert_eq!(unit.run_time(Ticks::new(2000)), Ticks::ZERO);
    assert!(table.get(VcpuId::new(2)).is_none());
}

/// One vCPU that halts whenever it has nothing to do, and threads that give it work and kick it. A kick that is lost
/// leaves it blocked with work to do: the watchdog then says so instead of hanging.
#[test]
fn no_kick_is_lost_between_threads() {
    const KICKERS: u64 = 2;
    const ROUNDS: u64 = 30_000;
    let state = running();
    let (given, done) = (StdAtomicU64::new(0), StdAtomicU64::new(0));
    let (woken, lost) = (AtomicBool::new(false), AtomicBool::new(false));
    let deadline = Instant::now() + Duration::from_secs(60);
    let give_up = || {
        let late = Instant::now() > deadline;
        lost.fetch_or(late, SeqCst);
        lost.load(SeqCst)
    };

    std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(SeqCst) < KICKERS * ROUNDS && !give_up() {
                state.consume_kick();
                done.store(given.load(SeqCst), SeqCst);
                if state.try_block(CPU).is_ok() {
                    // Blocked: only its waker may bring it back.
                    while !woken.swap(false, SeqCst) {
                        if done.load(SeqCst) == KICKERS * ROUNDS || give_up() {
                            return;
                        }
                        std::thread::yield_now();
                    }
                    state.set_queued();
                    state.set_running(CPU);
                }
            }
        });
        for _ in 0..KICKERS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let mine = given.fetch_add(1, SeqCst) + 1;
                    if state.kick() == Kick::WokeBlocked {
                        assert!(!woken.swap(true, SeqCst), "two wakers at once");
                    }
                    // Wait for it now and then, so that it gets to block.
                    while mine % 16 == 0 && done.load(SeqCst) < mine && !give_up() {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert!(
        !lost.load(SeqCst),
        "{} of {} seen",
        done.load(SeqCst),
        given.load(SeqCst)
    );
    assert_eq!(done.load(SeqCst), KICKERS * ROUNDS);
}
