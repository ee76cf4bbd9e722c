//! One timer a CPU: sleeping until a deadline, or a watchdog. TSC-deadline where offered, else the one-shot LAPIC timer.

use super::lapic::{self, Register};
use super::{cpu, percpu, tsc, verdict};
use crate::units::{LapicCount, Ticks};
use core::sync::atomic::{AtomicBool, Ordering};

/// Its interrupt vector.
pub const VECTOR: u8 = 0xe0;

static TSC_DEADLINE: AtomicBool = AtomicBool::new(false);

/// Chooses the kind, once, on the boot CPU.
pub(super) fn choose(force_one_shot: bool) {
    TSC_DEADLINE.store(
        cpu::features().tsc_deadline && !force_one_shot,
        Ordering::Relaxed,
    );
}

/// The kind that is used.
#[must_use]
pub fn kind() -> &'static str {
    if TSC_DEADLINE.load(Ordering::Relaxed) {
        "tsc-deadline"
    } else {
        "lapic"
    }
}

/// Lets the timer of this CPU fire at `deadline`, or at once if that is over. A one-shot LAPIC timer that does not reach so far
/// fires before: who waits looks at the clock.
#[expect(unsafe_code, reason = "one MSR")]
pub fn arm(deadline: Ticks) {
    if TSC_DEADLINE.load(Ordering::Relaxed) {
        const TSC_DEADLINE_MSR: u32 = 0x6e0;
        lapic::write(Register::LvtTimer, 0b10 << 17 | u32::from(VECTOR));
        cpu::fence();
        // SAFETY: arms a timer. Zero would disarm it.
        unsafe { cpu::wrmsr(TSC_DEADLINE_MSR, deadline.0.max(1)) };
        return;
    }
    let distance = deadline.since(cpu::now());
    let setting = LapicCount::for_distance(distance, tsc::rate(), tsc::lapic_rate());
    lapic::write(Register::LvtTimer, u32::from(VECTOR));
    lapic::write(Register::TimerDivide, setting.divide_register());
    lapic::write(Register::TimerInitial, setting.count);
}

/// Disarms the timer of this CPU. An interrupt that is already pending still comes.
pub fn cancel() {
    // In TSC-deadline mode masking the entry also keeps the timer from firing.
    lapic::write(Register::LvtTimer, 1 << 16);
    lapic::write(Register::TimerInitial, 0);
}

/// The timer interrupt.
pub(super) fn interrupt() {
    let now = cpu::now();
    let here = percpu::here();
    let watchdog = here.watchdog.load(Ordering::Relaxed);
    if watchdog != 0 {
        if now.0 >= watchdog {
            verdict::fail(format_args!(
                "watchdog: nothing more happened on CPU {}",
                percpu::CpuIndex::current()
            ));
        }
        arm(Ticks(watchdog));
        return;
    }
    here.timer_stamp.store(now.0, Ordering::Relaxed);
    here.timer_fired.fetch_add(1, Ordering::Relaxed);
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wake {
    /// TSC at the start of the handler of the timer interrupt that ended the sleep.
    pub handler: Ticks,
    /// Timer interrupts that came before the deadline.
    pub early: u32,
    /// Returns from HLT without a timer interrupt.
    pub spurious: u32,
    /// Executions of HLT.
    pub halts: u32,
}

/// Halts until `deadline` is over and the timer has said so.
pub fn sleep_until(deadline: Ticks) -> Wake {
    let fired = &percpu::here().timer_fired;
    let mut wake = Wake::default();
    loop {
        let before = fired.load(Ordering::Relaxed);
        arm(deadline);
        loop {
            cpu::halt_while(fired, before);
            wake.halts += 1;
            if fired.load(Ordering::Relaxed) != before {
                break;
            }
            wake.spurious += 1;
        }
        if cpu::now() >= deadline {
            wake.handler = Ticks(percpu::here().timer_stamp.load(Ordering::Relaxed));
            return wake;
        }
        wake.early += 1;
    }
}

/// Sleeps for `micros` microseconds.
pub fn sleep_micros(micros: u64) {
    let _ = sleep_until(cpu::now().after(tsc::rate().micros(micros)));
}

/// Fails the guest if [`watchdog_off`] does not come within `millis`. Uses the timer of this CPU. With the LAPIC timer it wakes
/// a halted CPU at most once in many seconds, so it does not stand in for a lost wake-up.
pub fn watchdog(millis: u64) {
    let deadline = cpu::now().after(tsc::rate().millis(millis));
    percpu::here().watchdog.store(deadline.0, Ordering::Relaxed);
    arm(deadline);
}

/// Calls the watchdog off.
pub fn watchdog_off() {
    cancel();
    cpu::open_window();
    percpu::here().watchdog.store(0, Ordering::Relaxed);
}

/// Waits, with PAUSE, until `condition` holds; fails the guest after `millis`, saying what did not happen.
pub fn spin_until(millis: u64, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = cpu::now().after(tsc::rate().millis(millis));
    while !condition() {
        if cpu::now() >= deadline {
            verdict::fail(format_args!("waited {millis} ms in vain for: {what}"));
        }
        cpu::pause();
    }
}
