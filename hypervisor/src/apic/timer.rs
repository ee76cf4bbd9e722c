//! The one-shot timer of each CPU: TSC-deadline where the CPU offers it, else the local APIC's counter.
//!
//! [`arm`], [`cancel`] and [`on_interrupt`] concern the CPU that calls them, and are called with interrupts off. A deadline
//! in the past interrupts at once. The counter has 32 bits and its rate is only measured: where it fires early,
//! [`on_interrupt`] arms it again, so nobody is woken before the deadline without being told.
use super::local::{self, LocalApic, Register};
use super::msr;
use core::sync::atomic::{AtomicU64, Ordering};
use lull_core::units::{CpuId, MAX_CPUS, TickRate, Ticks};

#[cfg(target_os = "none")]
mod setup;

#[cfg(target_os = "none")]
pub(super) use setup::{choose, init_this_cpu};

/// Which hardware the timer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// The local APIC's counter.
    Lapic,
    /// IA32_TSC_DEADLINE.
    TscDeadline,
}

impl TimerKind {
    /// The word for it on the machine channel.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Lapic => "lapic",
            Self::TscDeadline => "tsc-deadline",
        }
    }
}

/// What [`on_interrupt`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Fired {
    /// The deadline has come.
    Due,
    /// It has not; the timer has been armed again.
    Early,
    /// Nothing was armed: a cancelled timer's interrupt was on its way already.
    Stray,
}

/// No deadline.
const NONE: u64 = u64::MAX;

/// Rate of the local APIC's counter in Hz; 0 in TSC-deadline mode.
static COUNTER_HZ: AtomicU64 = AtomicU64::new(0);

#[repr(align(128))]
struct Deadline(AtomicU64);

/// The armed deadline of each CPU, written by that CPU only.
static DEADLINES: [Deadline; MAX_CPUS] = [const { Deadline(AtomicU64::new(NONE)) }; MAX_CPUS];

/// The counter value for `span`: rounded up, so as not to fire early, at least 1 (0 would stop the counter), and cut at
/// 32 bits.
pub fn counter_value(span: Ticks, counter_hz: u64, tsc: TickRate) -> u32 {
    let ticks = (u128::from(span.get()) * u128::from(counter_hz)).div_ceil(u128::from(tsc.hz()));
    u32::try_from(ticks).unwrap_or(u32::MAX).max(1)
}

/// Which timer the machine has.
pub fn kind() -> TimerKind {
    if COUNTER_HZ.load(Ordering::Relaxed) == 0 {
        TimerKind::TscDeadline
    } else {
        TimerKind::Lapic
    }
}

/// The rate of the local APIC's counter in Hz, where it is the timer.
pub fn counter_hz() -> Option<u64> {
    Some(COUNTER_HZ.load(Ordering::Relaxed)).filter(|hz| *hz != 0)
}

/// Interrupts this CPU at `deadline`, in place of whatever was armed.
pub fn arm(cpu: CpuId, deadline: Ticks) {
    let (Some(apic), Some(slot)) = (local::get(), DEADLINES.get(cpu.index())) else {
        return;
    };
    slot.0.store(deadline.get(), Ordering::Relaxed);
    program(apic, deadline);
}

fn program(apic: &LocalApic, deadline: Ticks) {
    match counter_hz() {
        None => {
            msr::order_stores();
            // 0 would disarm.
            msr::write(msr::TSC_DEADLINE, deadline.get().max(1));
        }
        Some(hz) => {
            let count = counter_value(deadline - crate::time::now(), hz, crate::time::rate());
            apic.write(Register::InitialCount, count);
        }
    }
}

/// No interrupt of this CPU's timer until it is armed again; one that is on its way may still come.
pub fn cancel(cpu: CpuId) {
    let (Some(apic), Some(slot)) = (local::get(), DEADLINES.get(cpu.index())) else {
        return;
    };
    slot.0.store(NONE, Ordering::Relaxed);
    match counter_hz() {
        None => msr::write(msr::TSC_DEADLINE, 0),
        Some(_) => apic.write(Register::InitialCount, 0),
    }
}

/// As [`cancel`]; gives the deadline that was armed, for another timer to take over.
pub fn suspend(cpu: CpuId) -> Option<Ticks> {
    let deadline = DEADLINES.get(cpu.index())?.0.load(Ordering::Relaxed);
    if deadline == NONE {
        return None;
    }
    cancel(cpu);
    Some(Ticks::new(deadline))
}

/// What the handler of [`vector::TIMER`](super::vector::TIMER) calls. It ends the interrupt itself.
pub fn on_interrupt(cpu: CpuId) -> Fired {
    let (Some(apic), Some(slot)) = (local::get(), DEADLINES.get(cpu.index())) else {
        return Fired::Stray;
    };
    let deadline = slot.0.load(Ordering::Relaxed);
    if deadline == NONE {
        return Fired::Stray;
    }
    if crate::time::now().get() < deadline {
        program(apic, Ticks::new(deadline));
        return Fired::Early;
    }
    slot.0.store(NONE, Ordering::Relaxed);
    Fired::Due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(hz: u64) -> TickRate {
        TickRate::from_hz(hz).unwrap()
    }

    #[test]
    fn conversion_is_exact_and_never_early() {
        assert_eq!(
            counter_value(Ticks::new(1_000_000), 1_000_000_000, rate(1_000_000_000)),
            1_000_000
        );
        // 24 MHz against 2.9 GHz: 2900 ticks are 24 counts, 2901 are 24.008.
        assert_eq!(
            counter_value(Ticks::new(2900), 24_000_000, rate(2_900_000_000)),
            24
        );
        assert_eq!(
            counter_value(Ticks::new(2901), 24_000_000, rate(2_900_000_000)),
            25
        );
    }

    #[test]
    fn past_fires_at_once_and_far_is_cut() {
        assert_eq!(
            counter_value(Ticks::ZERO, 1_000_000_000, rate(1_000_000_000)),
            1
        );
        assert_eq!(
            counter_value(Ticks::MAX, 1_000_000_000, rate(1_000_000_000)),
            u32::MAX
        );
        assert_eq!(
            counter_value(Ticks::new(1 << 32), 1_000_000_000, rate(1_000_000_000)),
            u32::MAX
        );
    }
}
