//! Clocks: how fast the TSC runs, and whether it can be trusted.
//!
//! [`now`] is the only clock of the hypervisor. Its rate comes from CPUID where CPUID is honest, else from a
//! measurement (see [`choose`]). [`calibrate`] is called once, by the boot CPU, before the other CPUs run.
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use lull_core::units::{Nanos, TickRate, Ticks};

#[cfg(target_os = "none")]
pub mod broadcast;
pub mod choose;
pub mod claims;
pub mod clocks;
pub mod hpet;
pub mod measure;
#[cfg(target_os = "none")]
pub mod stopped;
mod tsc;

pub use choose::TscSource;

/// TSC at the start of the console, the zero of [`uptime`].
static START: AtomicU64 = AtomicU64::new(0);
/// TSC ticks a second; 0 until [`calibrate`] has run.
static RATE_HZ: AtomicU64 = AtomicU64::new(0);

/// The HPET, once [`calibrate`] has seen it count.
#[cfg(target_os = "none")]
static HPET: spin::Once<hpet::Hpet> = spin::Once::new();

/// The HPET, if there is one and it counts.
#[cfg(target_os = "none")]
pub fn hpet() -> Option<hpet::Hpet> {
    HPET.get().copied()
}

/// The TSC now. Not earlier than any instruction before it in program order, on the same CPU.
#[inline]
pub fn now() -> Ticks {
    Ticks::new(tsc::read_ordered())
}

/// The rate of [`now`]; 1 GHz is assumed before [`calibrate`].
#[inline]
pub fn rate() -> TickRate {
    TickRate::from_hz(RATE_HZ.load(Ordering::Relaxed)).unwrap_or(choose::ASSUMED)
}

/// Notes the zero of [`uptime`]. Only the first call counts.
pub(crate) fn start() {
    // Losing the race is as good: somebody noted it.
    let _ = START.compare_exchange(0, now().get(), Ordering::Relaxed, Ordering::Relaxed);
}

/// Time since the console started; zero until the rate is known.
pub fn uptime() -> Nanos {
    if RATE_HZ.load(Ordering::Relaxed) == 0 {
        return Nanos::ZERO;
    }
    rate().to_nanos(now() - Ticks::new(START.load(Ordering::Relaxed)))
}

/// Waits `span`, relaxing. Boot only.
pub fn spin_for(span: Nanos) {
    let end = now() + rate().ticks(span);
    while now() < end {
        core::hint::spin_loop();
    }
}

/// What [`calibrate`] found.
#[derive(Clone, Debug)]
pub struct TscInfo {
    /// The rate in use.
    pub rate: TickRate,
    /// Where it comes from.
    pub source: TscSource,
    /// The TSC runs at this rate in every C-state (CPUID 8000_0007h EDX bit 8).
    pub nonstop: bool,
    /// Clocks that contradict each other or do not work, one line each.
    pub problems: Vec<alloc::string::String>,
}

/// Finds the rate of the TSC and sets [`rate`]. `option` is `tsc-hz` of the command line.
///
/// Takes at most about 10 ms: two clocks of 5 ms, or one if CPUID agrees with it.
#[cfg(target_os = "none")]
pub fn calibrate(firmware: &crate::acpi::FirmwareInfo, option: Option<TickRate>) -> TscInfo {
    use crate::console::port::MachinePorts;
    use alloc::format;
    use choose::Claims;
    use clocks::{PIT, PM_TIMER, PitClock, PmClock};
    use hpet::Hpet;
    use measure::{Until, measure};

    /// Long enough for 1 ppm by an HPET of 100 MHz, short enough for an emulator that executes every tick.
    const SPAN_US: u64 = 5_000;

    let cpuid = raw_cpuid::CpuId::new();
    let claims = Claims {
        option: option.map(TickRate::hz),
        cpuid: claims::from_cpuid(&cpuid),
        hypervisor: claims::from_hypervisor(&cpuid),
    };
    let claimed = claims.option.or(claims.cpuid).or(claims.hypervisor);
    let mut problems = Vec::new();
    let mut measured = Vec::new();

    let mut take =
        |source: TscSource,
         clock: &dyn Fn() -> Result<Option<measure::Bounds>, alloc::string::String>| {
            // Two clocks make a cross-check; one does where it agrees with what CPUID claims.
            let agreed = measured
                .iter()
                .any(|(_, b): &(TscSource, measure::Bounds)| {
                    claimed.is_some_and(|hz| !b.contradicts(hz, choose::TOLERANCE_PERCENT))
                });
            if measured.len() >= 2 || agreed {
                return;
            }
            match clock() {
                Ok(Some(bounds)) => measured.push((source, bounds)),
                Ok(None) => problems.push(format!("{source}: the counter stands still, not used")),
                Err(why) => problems.push(format!("{source}: {why}, not used")),
            }
        };
    if let Some(hpet) = firmware.hpet {
        take(TscSource::Hpet, &|| {
            let clock = Hpet::start(hpet.address)?;
            let span = measure(
                &clock,
                tsc::read_ordered,
                Until::Counter(clock.rate.ticks_in_micros(SPAN_US)),
            );
            if span.is_some() {
                HPET.call_once(|| clock);
            }
            Ok(span.map(|s| s.tsc_hz(clock.rate)))
        });
    }
    if let Some(timer) = firmware.pm_timer {
        take(TscSource::PmTimer, &|| {
            let clock = PmClock(timer, MachinePorts);
            let span = measure(
                &clock,
                tsc::read_ordered,
                Until::Counter(PM_TIMER.ticks_in_micros(SPAN_US)),
            );
            Ok(span.map(|s| s.tsc_hz(PM_TIMER)))
        });
    }
    take(TscSource::Pit, &|| {
        let clock = PitClock::start(MachinePorts);
        let span = measure(
            &clock,
            tsc::read_ordered,
            Until::Counter(PIT.ticks_in_micros(SPAN_US)),
        );
        Ok(span.map(|s| s.tsc_hz(PIT)))
    });

    let choice = choose::choose(claims, &measured);
    problems.extend(choice.problems);
    RATE_HZ.store(choice.rate.hz(), Ordering::Relaxed);
    TscInfo {
        rate: choice.rate,
        source: choice.source,
        nonstop: claims::nonstop(&cpuid),
        problems,
    }
}
