//! The trying itself, on the CPU that runs this.

use core::sync::atomic::AtomicU64;

use lull_core::cstate::select::MwaitTest;
use lull_core::platform::OneShot;
use lull_core::units::{TickRate, Ticks};

use super::{BUSY_RETURNS, Trial, Try, judge};
use crate::cpu::safe::{self, Fault};
use crate::cpu::{self, regs, sleep};

/// How far ahead the timer is armed for a try, in microseconds.
const AHEAD_US: u64 = 1_000;
/// How late a timer may be before it counts as missed, in microseconds. Emulators on loaded hosts are late.
const GRACE_US: u64 = 100_000;

/// The self-test of the CPU that runs this. Interrupts are off, and the handler of `timer` is registered.
///
/// Whether another CPU's store wakes is not tried here: see [`super::stores`].
pub fn self_test(timer: &impl OneShot, rate: TickRate) -> MwaitTest {
    let features = cpu::features();
    if !features.monitor {
        return MwaitTest::default();
    }
    let offers_masked = features.mwait.extensions && features.mwait.interrupt_break;
    judge(
        &mut OnThisCpu {
            timer,
            rate,
            word: Line::default(),
        },
        offers_masked,
    )
}

/// A word alone in its monitored lines.
#[derive(Default)]
#[repr(align(128))]
struct Line(#[expect(dead_code, reason = "only its address is used")] AtomicU64);

struct OnThisCpu<'a, T> {
    timer: &'a T,
    rate: TickRate,
    word: Line,
}

impl<T: OneShot> OnThisCpu<'_, T> {
    fn micros(&self, us: u64) -> u64 {
        (u128::from(us) * u128::from(self.rate.hz()) / 1_000_000) as u64
    }

    /// Arms the timer; gives the TSC at which it is certainly late.
    fn arm(&self) -> (u64, u64) {
        // Forget handlers of before.
        let _ = cpu::this().take_first_irq();
        let due = regs::rdtsc() + self.micros(AHEAD_US);
        self.timer.arm(Ticks::new(due));
        (due, due + self.micros(GRACE_US))
    }

    /// Lets in whatever is still pending, and disarms.
    fn settle(&self) {
        self.timer.cancel();
        sleep::open_window();
        let _ = cpu::this().take_first_irq();
    }
}

fn handled() -> bool {
    cpu::this().take_first_irq().is_some()
}

impl<T: OneShot> Trial for OnThisCpu<'_, T> {
    fn timer_works(&mut self) -> bool {
        let (_, late) = self.arm();
        let mut came = false;
        while !came && regs::rdtsc() < late {
            core::hint::spin_loop();
            sleep::open_window();
            came = handled();
        }
        self.settle();
        came
    }

    fn open(&mut self) -> Try {
        let (_, late) = self.arm();
        let mut found = Try {
            returns: 0,
            timer_seen: false,
            fault: None,
        };
        while found.returns < BUSY_RETURNS && regs::rdtsc() < late {
            // The timer is armed and has not been taken: with interrupts open it ends any sleep.
            if let Err(fault) =
                safe::monitor(&self.word).and_then(|()| safe::sti_mwait_cli_probe(false))
            {
                found.fault = Some(fault);
                break;
            }
            found.returns += 1;
            if handled() {
                found.timer_seen = true;
                break;
            }
        }
        self.settle();
        found
    }

    fn masked_faults(&mut self) -> Option<Fault> {
        let _ = self.arm();
        let fault = safe::monitor(&self.word)
            .and_then(|()| safe::sti_mwait_cli_probe(true))
            .err();
        self.settle();
        fault
    }

    fn masked(&mut self) -> Try {
        let (due, late) = self.arm();
        let mut found = Try {
            returns: 0,
            timer_seen: false,
            fault: None,
        };
        // The interrupt stays pending from `due` on and ends every further MWAIT at once: so the loop ends there,
        // and the window below takes it.
        while found.returns < BUSY_RETURNS && regs::rdtsc() < due {
            if let Err(fault) = safe::monitor(&self.word).and_then(|()| safe::mwait_probe(true)) {
                found.fault = Some(fault);
                break;
            }
            found.returns += 1;
        }
        while found.fault.is_none() && !found.timer_seen && regs::rdtsc() < late {
            sleep::open_window();
            found.timer_seen = handled();
        }
        self.settle();
        found
    }
}
