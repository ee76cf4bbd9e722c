//! The APIC timer: one-shot, periodic, TSC-deadline (SDM 3A, 11.5.4).
//!
//! It counts at the rate of the TSC, so that there is nothing to convert and nothing to round: one tick at
//! divide 1 is one TSC tick. The rate is told to guests in CPUID leaf 4000_0010h.
//!
//! Times inside are those of the real TSC; only the deadline register is in the guest's TSC.

use lull_core::units::Ticks;

/// LVT timer mode (bits 18..17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerMode {
    /// Counts down once.
    OneShot,
    /// Counts down again and again.
    Periodic,
    /// Fires when the guest's TSC reaches a value.
    Deadline,
    /// Reserved: never fires.
    Reserved,
}

impl TimerMode {
    /// From an LVT timer entry.
    pub fn of(lvt: u32) -> Self {
        match lvt >> 17 & 3 {
            0 => Self::OneShot,
            1 => Self::Periodic,
            2 => Self::Deadline,
            _ => Self::Reserved,
        }
    }
}

/// The counter.
#[derive(Clone, Debug)]
pub struct Timer {
    mode: TimerMode,
    initial: u32,
    divide: u32,
    expiry: Option<Ticks>,
    guest_deadline: u64,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            mode: TimerMode::OneShot,
            initial: 0,
            divide: 0,
            expiry: None,
            guest_deadline: 0,
        }
    }
}

impl Timer {
    /// When it fires next, on the real TSC.
    pub fn expiry(&self) -> Option<Ticks> {
        self.expiry
    }

    /// Whether it has fired since the last call. Missed periods count as one: an interrupt that is
    /// pending already cannot be pending twice.
    pub fn poll(&mut self, now: Ticks) -> bool {
        let Some(expiry) = self.expiry.filter(|&e| e <= now) else {
            return false;
        };
        self.expiry = None;
        match self.mode {
            TimerMode::Periodic => {
                let period = self.period().max(1);
                let missed = (now - expiry).get() / period;
                self.expiry = Some(expiry + Ticks::new((missed + 1).saturating_mul(period)));
            }
            TimerMode::Deadline => self.guest_deadline = 0,
            TimerMode::OneShot | TimerMode::Reserved => {}
        }
        true
    }

    /// The LVT entry says this mode now. To and from deadline mode disarms.
    pub fn set_mode(&mut self, mode: TimerMode) {
        let deadline = |m| m == TimerMode::Deadline;
        if deadline(mode) != deadline(self.mode) {
            self.expiry = None;
            self.guest_deadline = 0;
            self.initial = 0;
        }
        self.mode = mode;
    }

    /// Initial-count register.
    pub fn initial(&self) -> u32 {
        self.initial
    }

    /// Starts counting; zero stops. Ignored in deadline mode.
    pub fn set_initial(&mut self, count: u32, now: Ticks) {
        if self.mode == TimerMode::Deadline {
            return;
        }
        self.initial = count;
        self.expiry = (count != 0).then(|| now + Ticks::new(self.period()));
    }

    /// Current-count register.
    pub fn current(&self, now: Ticks) -> u32 {
        if self.mode == TimerMode::Deadline {
            return 0;
        }
        let left = self.expiry.map_or(0, |e| (e - now).get());
        u32::try_from(left.div_ceil(u64::from(self.divisor()))).unwrap_or(u32::MAX)
    }

    /// Divide-configuration register.
    pub fn divide(&self) -> u32 {
        self.divide
    }

    /// Sets the divide configuration; a running count goes on at the new rate.
    pub fn set_divide(&mut self, value: u32, now: Ticks) {
        let left = self.current(now);
        self.divide = value & 0xb;
        if self.mode != TimerMode::Deadline && self.expiry.is_some() {
            self.expiry = Some(now + Ticks::new(u64::from(left) * u64::from(self.divisor())));
        }
    }

    /// `IA32_TSC_DEADLINE`: the guest's TSC at which it fires, zero if disarmed.
    pub fn deadline(&self) -> u64 {
        self.guest_deadline
    }

    /// Arms deadline mode for a value of the guest's TSC, which is the real one plus `offset`. Zero
    /// disarms. Ignored in other modes.
    pub fn set_deadline(&mut self, guest: u64, offset: u64, now: Ticks) {
        if self.mode != TimerMode::Deadline {
            return;
        }
        self.guest_deadline = guest;
        self.expiry = (guest != 0).then(|| {
            let left = guest.saturating_sub(now.get().wrapping_add(offset));
            now + Ticks::new(left)
        });
    }

    /// The guest's TSC was moved.
    pub fn offset_changed(&mut self, offset: u64, now: Ticks) {
        self.set_deadline(self.guest_deadline, offset, now);
    }

    /// Divides by 2, 4, ..., 128, 1: bits 0, 1 and 3 (SDM 3A, figure 11-10).
    fn divisor(&self) -> u32 {
        let code = (self.divide & 3) | (self.divide >> 1 & 4);
        1 << ((code + 1) & 7)
    }

    fn period(&self) -> u64 {
        u64::from(self.initial) * u64::from(self.divisor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn t(ticks: u64) -> Ticks {
        Ticks::new(ticks)
    }

    #[test]
    fn divisors_follow_the_manual() {
        let expected = [
            (0, 2),
            (1, 4),
            (2, 8),
            (3, 16),
            (8, 32),
            (9, 64),
            (10, 128),
            (11, 1),
        ];
        for (code, divisor) in expected {
            let mut timer = Timer::default();
            timer.set_divide(code, t(0));
            assert_eq!((timer.divisor(), timer.divide()), (divisor, code));
        }
    }

    #[test]
    fn one_shot_fires_once_at_its_time() {
        let mut timer = Timer::default();
        timer.set_divide(11, t(0));
        timer.set_initial(100, t(1000));
        assert_eq!(
            (timer.expiry(), timer.current(t(1040))),
            (Some(t(1100)), 60)
        );
        assert!(!timer.poll(t(1099)));
        assert!(timer.poll(t(1100)));
        assert!(!timer.poll(t(5000)));
        assert_eq!(
            (timer.expiry(), timer.current(t(1101)), timer.initial()),
            (None, 0, 100)
        );
        timer.set_initial(100, t(6000));
        timer.set_initial(0, t(6001));
        assert_eq!(timer.expiry(), None);
    }

    #[test]
    fn periodic_keeps_its_grid_over_missed_periods() {
        let mut timer = Timer::default();
        timer.set_mode(TimerMode::Periodic);
        timer.set_divide(0, t(0));
        timer.set_initial(50, t(0));
        assert_eq!(timer.expiry(), Some(t(100)));
        assert!(timer.poll(t(100)));
        assert_eq!(timer.expiry(), Some(t(200)));
        assert!(timer.poll(t(530)), "three more are missed");
        assert_eq!((timer.expiry(), timer.current(t(530))), (Some(t(600)), 35));
        assert!(!timer.poll(t(599)));
    }

    #[test]
    fn deadline_is_in_the_guests_tsc() {
        let mut timer = Timer::default();
        timer.set_deadline(10, 0, t(0));
        assert_eq!(
            (timer.expiry(), timer.deadline()),
            (None, 0),
            "not in that mode"
        );
        timer.set_mode(TimerMode::Deadline);
        timer.set_initial(5, t(0));
        assert_eq!(timer.expiry(), None, "no counting in deadline mode");
        let offset = 0u64.wrapping_sub(1000);
        timer.set_deadline(500, offset, t(1200));
        assert_eq!(
            (timer.expiry(), timer.deadline(), timer.current(t(1200))),
            (Some(t(1500)), 500, 0)
        );
        timer.offset_changed(offset.wrapping_add(100), t(1200));
        assert_eq!(timer.expiry(), Some(t(1400)));
        assert!(timer.poll(t(1400)));
        assert_eq!((timer.deadline(), timer.expiry()), (0, None));
        timer.set_deadline(1, offset, t(5000));
        assert_eq!(
            timer.expiry(),
            Some(t(5000)),
            "one in the past fires at once"
        );
        timer.set_deadline(0, offset, t(5000));
        assert_eq!(timer.expiry(), None);
        timer.set_deadline(9000, offset, t(5000));
        timer.set_mode(TimerMode::OneShot);
        assert_eq!(
            (timer.expiry(), timer.deadline()),
            (None, 0),
            "leaving the mode disarms"
        );
    }

    #[test]
    fn a_changed_divisor_keeps_the_count() {
        let mut timer = Timer::default();
        timer.set_divide(11, t(0));
        timer.set_initial(100, t(0));
        timer.set_divide(0, t(40));
        assert_eq!((timer.current(t(40)), timer.expiry()), (60, Some(t(160))));
    }

    #[test]
    fn the_largest_values_do_not_overflow() {
        let mut timer = Timer::default();
        timer.set_mode(TimerMode::Periodic);
        timer.set_divide(10, t(0));
        timer.set_initial(u32::MAX, t(u64::MAX - 5));
        assert_eq!(timer.expiry(), Some(Ticks::MAX));
        timer.poll(Ticks::MAX);
        timer.set_mode(TimerMode::Deadline);
        timer.set_deadline(u64::MAX, 0, t(1));
        assert_eq!(timer.expiry(), Some(Ticks::MAX));
    }
}
