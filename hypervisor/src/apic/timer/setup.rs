//! Choosing and preparing the timer.
use super::{COUNTER_HZ, TimerKind, kind};
use crate::apic::local::{LVT_MASKED, LocalApic, Register};
use crate::apic::{msr, vector};
use crate::time::measure::{Counter, Until, measure};
use core::sync::atomic::Ordering;

const LVT_TSC_DEADLINE: u32 = 0b10 << 17;
/// Divide by 1: Intel SDM vol. 3, figure 13-10.
const DIVIDE_BY_1: u32 = 0b1011;

/// Prepares this CPU's timer, disarmed.
pub(in crate::apic) fn init_this_cpu(apic: &LocalApic) {
    match kind() {
        TimerKind::TscDeadline => {
            apic.write(
                Register::LvtTimer,
                LVT_TSC_DEADLINE | u32::from(vector::TIMER),
            );
            // In xAPIC mode the LVT write must have arrived before the MSR is written (Intel SDM vol. 3, 13.5.4.1).
            msr::order_stores();
            msr::write(msr::TSC_DEADLINE, 0);
        }
        TimerKind::Lapic => {
            apic.write(Register::DivideConfiguration, DIVIDE_BY_1);
            apic.write(Register::InitialCount, 0);
            apic.write(Register::LvtTimer, u32::from(vector::TIMER));
        }
    }
}

/// Chooses the timer. Called once, by the boot CPU, when the rate of the TSC is known.
///
/// # Errors
/// The counter stands still: then there is no timer.
pub(in crate::apic) fn choose(
    apic: &LocalApic,
    tsc_deadline: bool,
) -> Result<(), alloc::string::String> {
    if tsc_deadline {
        COUNTER_HZ.store(0, Ordering::Relaxed);
        return Ok(());
    }
    /// 2 ms are enough for a few parts per million, where the TSC is read in nanoseconds.
    const PARTS_OF_SECOND: u64 = 500;
    let tsc = crate::time::rate();
    apic.write(Register::LvtTimer, LVT_MASKED);
    apic.write(Register::DivideConfiguration, DIVIDE_BY_1);
    apic.write(Register::InitialCount, u32::MAX);
    let span = measure(
        &CountDown(apic),
        || crate::time::now().get(),
        Until::Tsc(tsc.hz() / PARTS_OF_SECOND),
    );
    apic.write(Register::InitialCount, 0);
    let hz = span
        .ok_or("the local APIC's counter stands still")?
        .counter_hz(tsc.hz())
        .roundest();
    COUNTER_HZ.store(hz, Ordering::Relaxed);
    Ok(())
}

/// The running counter, turned to count up.
struct CountDown<'a>(&'a LocalApic);

impl Counter for CountDown<'_> {
    fn read(&self) -> u64 {
        (u32::MAX - self.0.read(Register::CurrentCount)).into()
    }
    fn mask(&self) -> u64 {
        u32::MAX.into()
    }
}
