//! One word on which the boot CPU and a starting CPU agree whether it made it.
//!
//! Pure. Both move it by compare-and-swap from [`ApState::Starting`], so exactly one of them wins.
use core::sync::atomic::{AtomicU8, Ordering};

/// Where a CPU is on its way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ApState {
    /// Nobody tries to start it.
    Absent = 0,
    /// It has been asked to start.
    Starting = 1,
    /// It has answered.
    Online = 2,
    /// The boot CPU does not wait for it any more.
    GivenUp = 3,
}

/// The state of one CPU, on which boot CPU and AP agree.
#[derive(Debug)]
pub struct Rendezvous(AtomicU8);

impl Rendezvous {
    /// Nobody has asked yet.
    pub const fn new() -> Self {
        Self(AtomicU8::new(ApState::Absent as u8))
    }

    /// The boot CPU is about to start it.
    pub fn expect(&self) {
        self.0.store(ApState::Starting as u8, Ordering::Release);
    }

    /// Where it is now.
    pub fn state(&self) -> ApState {
        match self.0.load(Ordering::Acquire) {
            1 => ApState::Starting,
            2 => ApState::Online,
            3 => ApState::GivenUp,
            _ => ApState::Absent,
        }
    }

    fn leave_starting(&self, to: ApState) -> bool {
        self.0
            .compare_exchange(
                ApState::Starting as u8,
                to as u8,
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// The AP is here. `false`: too late, it must stop.
    #[must_use]
    pub fn answer(&self) -> bool {
        self.leave_starting(ApState::Online)
    }

    /// The boot CPU waits no longer. `false`: the AP has just answered after all.
    #[must_use]
    pub fn give_up(&self) -> bool {
        self.leave_starting(ApState::GivenUp)
    }
}

impl Default for Rendezvous {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_the_cpu_is_online_or_it_is_given_up() {
        let early = Rendezvous::new();
        early.expect();
        assert!(early.answer());
        assert!(!early.give_up());
        assert_eq!(early.state(), ApState::Online);

        let late = Rendezvous::new();
        late.expect();
        assert!(late.give_up());
        assert!(!late.answer(), "a late CPU must stop");
        assert_eq!(late.state(), ApState::GivenUp);
    }

    #[test]
    fn nobody_may_answer_unasked_or_twice() {
        let cpu = Rendezvous::new();
        assert!(!cpu.answer());
        cpu.expect();
        assert!(cpu.answer());
        assert!(!cpu.answer());
    }

    #[test]
    fn the_race_has_one_winner() {
        for _ in 0..500 {
            let cpu = Rendezvous::new();
            cpu.expect();
            let (a, b) = std::thread::scope(|s| {
                let ap = s.spawn(|| cpu.answer());
                let boot = s.spawn(|| cpu.give_up());
                (ap.join().unwrap(), boot.join().unwrap())
            });
            assert!(a != b);
        }
    }
}
