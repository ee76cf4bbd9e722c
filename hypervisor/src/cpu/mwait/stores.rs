//! Does a store by another CPU end MWAIT? CPUs try it with each other at boot, before any waker relies on it.
//!
//! One CPU sleeps on a word, with its timer as the way out; another arms a monitor of its own, which is what makes
//! some broken machines forget the first one, and then stores to the word. Who woke the sleeper is told by the clock:
//! had the store woken it, it would be up before its timer was due.
//!
//! One lost store is enough: what is broken is the machine, so then no CPU is trusted ([`verdict`]).
//! The rules are pure; the trying is in `exchange`.

use super::BUSY_RETURNS;

#[cfg(target_os = "none")]
mod exchange;

#[cfg(target_os = "none")]
pub use exchange::{Tested, store_wakes, take_part, test};

/// What one round showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The store ended the sleep.
    Woken,
    /// The store was made in time, but it was the timer that ended the sleep.
    Lost,
    /// The round shows nothing: no sleep, or the store came too late.
    Unclear,
}

/// Times of one round, in ticks of the TSC, which the two CPUs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When the sleeper's timer was due.
    pub due: u64,
    /// When the sleeper found the store.
    pub woke: u64,
    /// When the other CPU was about to store.
    pub stored: u64,
    /// MWAITs that returned.
    pub returns: u32,
    /// The store was found behind an MWAIT, not before one.
    pub slept: bool,
}

/// Judges one round. `margin`: so long before the timer is due the store must have been made, in ticks.
pub fn judge(seen: Seen, margin: u64) -> Round {
    if !seen.slept || seen.returns >= BUSY_RETURNS || seen.stored.saturating_add(margin) >= seen.due
    {
        Round::Unclear
    } else if seen.woke >= seen.due {
        Round::Lost
    } else {
        Round::Woken
    }
}

/// The verdict of all rounds: one lost store spoils all, and without one good round nothing is known.
pub fn verdict(rounds: &[Round]) -> Option<bool> {
    if rounds.contains(&Round::Lost) {
        Some(false)
    } else {
        rounds.contains(&Round::Woken).then_some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Seen = Seen {
        due: 10_000,
        woke: 2_010,
        stored: 2_000,
        returns: 2,
        slept: true,
    };

    #[test]
    fn a_round_is_judged_by_who_came_first() {
        for (seen, expected) in [
            (GOOD, Round::Woken),
            (
                Seen {
                    woke: 10_001,
                    ..GOOD
                },
                Round::Lost,
            ),
            (
                Seen {
                    slept: false,
                    ..GOOD
                },
                Round::Unclear,
            ),
            (
                Seen {
                    returns: BUSY_RETURNS,
                    ..GOOD
                },
                Round::Unclear,
            ),
            (
                Seen {
                    stored: 9_600,
                    woke: 10_001,
                    ..GOOD
                },
                Round::Unclear,
            ),
            (
                Seen {
                    stored: u64::MAX,
                    ..GOOD
                },
                Round::Unclear,
            ),
        ] {
            assert_eq!(judge(seen, 500), expected, "{seen:?}");
        }
    }

    #[test]
    fn one_lost_store_spoils_all() {
        use Round::{Lost, Unclear, Woken};
        assert_eq!(verdict(&[Woken, Woken, Lost, Woken]), Some(false));
        assert_eq!(verdict(&[Unclear, Woken]), Some(true));
        assert_eq!(verdict(&[Unclear, Unclear]), None);
        assert_eq!(verdict(&[]), None);
    }
}
