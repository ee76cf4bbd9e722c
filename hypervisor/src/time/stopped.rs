//! Puts the TSC right after a sleep in which it may have stopped (CPUs without a nonstop TSC).
//!
//! Each CPU notes both clocks before such a sleep and restores its own TSC after it. What is written is computed in
//! [`lull_core::idle::PlatformTimer`].
#![cfg(target_os = "none")]
#![expect(unsafe_code, reason = "writing the TSC")]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lull_core::idle::{Anchor, ClockPair, PlatformTimer};
use lull_core::units::{CpuId, MAX_CPUS, Nanos, Ticks};
use spin::Once;

use super::clocks::PmClock;
use super::hpet::Hpet;
use super::measure::Counter;
use crate::acpi::FirmwareInfo;
use crate::console::port::MachinePorts;
use crate::cpu::safe;

/// IA32_TIME_STAMP_COUNTER.
const TSC: u32 = 0x10;

enum Source {
    Hpet(Hpet),
    PmTimer(PmClock<MachinePorts>),
}

impl Source {
    fn read(&self) -> u64 {
        match self {
            Self::Hpet(hpet) => hpet.read(),
            Self::PmTimer(timer) => timer.read(),
        }
    }

    const fn word(&self) -> &'static str {
        match self {
            Self::Hpet(_) => "hpet",
            Self::PmTimer(_) => "pm-timer",
        }
    }
}

struct Platform {
    source: Source,
    timer: PlatformTimer,
    /// When it was made ready.
    first: ClockPair,
}

static PLATFORM: Once<Platform> = Once::new();
/// The TSC can be written.
static RESTORES: AtomicBool = AtomicBool::new(false);
/// By how much the TSC falls behind when it is written, in ticks: from the reading that the value was made of to the write.
static WRITE_COST: AtomicU64 = AtomicU64::new(0);
/// Testing: the TSC is set back after each such sleep, as if it had stopped.
static STOPS_ON_PURPOSE: AtomicBool = AtomicBool::new(false);

/// A pair that only its own CPU reads and writes; its TSC is 0 if there is none.
struct Kept {
    tsc: AtomicU64,
    platform: AtomicU64,
}

impl Kept {
    const fn none() -> Self {
        Self {
            tsc: AtomicU64::new(0),
            platform: AtomicU64::new(0),
        }
    }

    fn get(&self) -> Option<ClockPair> {
        let pair = ClockPair {
            tsc: Ticks::new(self.tsc.load(Ordering::Relaxed)),
            platform: self.platform.load(Ordering::Relaxed),
        };
        (pair.tsc != Ticks::ZERO).then_some(pair)
    }

    fn set(&self, pair: Option<ClockPair>) {
        let tsc = pair.map_or(Ticks::ZERO, |pair| pair.tsc);
        self.tsc.store(tsc.get(), Ordering::Relaxed);
        self.platform
            .store(pair.map_or(0, |pair| pair.platform), Ordering::Relaxed);
    }
}

#[repr(align(64))]
struct Slot {
    anchor: Kept,
    /// What the TSC is restored from behind the sleep that is on.
    before: Kept,
    /// What it read before that sleep.
    stopped_at: AtomicU64,
    restored: AtomicU64,
    /// How long its part in the run took by its own TSC, and by the platform timer, in TSC ticks. Set once it has ended.
    by_tsc: AtomicU64,
    by_platform: AtomicU64,
}

static SLOTS: [Slot; MAX_CPUS] = [const {
    Slot {
        anchor: Kept::none(),
        before: Kept::none(),
        stopped_at: AtomicU64::new(0),
        restored: AtomicU64::new(0),
        by_tsc: AtomicU64::new(0),
        by_platform: AtomicU64::new(0),
    }
}; MAX_CPUS];

/// Finds a clock that runs on. Once, on the boot CPU. `hpet_stops`: the HPET must not be taken. `stop`: testing, see
/// `test.tsc`.
pub fn init(firmware: &FirmwareInfo, hpet_stops: bool, stop: bool) {
    let hpet = super::hpet().filter(|_| !hpet_stops);
    let found = match (hpet, firmware.pm_timer) {
        (Some(hpet), _) => {
            let (ticks, period) = (hpet.rate.numerator, hpet.rate.denominator);
            let timer = PlatformTimer::new(ticks, period, hpet.mask(), super::rate());
            timer.map(|timer| (Source::Hpet(hpet), timer))
        }
        (None, Some(timer)) => {
            let clock = PmClock(timer, MachinePorts);
            let rate = super::clocks::PM_TIMER;
            let timer = PlatformTimer::new(
                rate.numerator,
                rate.denominator,
                clock.mask(),
                super::rate(),
            );
            timer.map(|timer| (Source::PmTimer(clock), timer))
        }
        (None, None) => None,
    };
    let Some((source, timer)) = found else { return };
    STOPS_ON_PURPOSE.store(stop, Ordering::Relaxed);
    PLATFORM.call_once(|| Platform {
        first: read(&source),
        source,
        timer,
    });
    let works = takes_writes();
    if works && let Some(platform) = PLATFORM.get() {
        measure_cost(platform);
    }
    RESTORES.store(works, Ordering::Relaxed);
}

/// Writes the TSC many times over, each time as what it reads, and sees how far it has fallen behind. Then makes up for it.
fn measure_cost(platform: &Platform) {
    const WRITES: u64 = 256;
    let before = read(&platform.source);
    for _ in 0..WRITES {
        write(super::now());
    }
    let after = read(&platform.source);
    if let Some(expected) = platform.timer.restored(before, after) {
        let behind = expected - after.tsc;
        WRITE_COST.store(behind.get() / WRITES, Ordering::Relaxed);
        log::debug!(
            "a write of the TSC costs it {} ticks",
            behind.get() / WRITES
        );
        set(expected, after.tsc);
    }
}

/// Sets the TSC to `expected`, which it should have read when it read `read`.
fn set(expected: Ticks, read: Ticks) {
    // The TSC runs while this is computed.
    let late = super::now() - read;
    write(expected + late + Ticks::new(WRITE_COST.load(Ordering::Relaxed)));
}

/// Some emulators and hypervisors ignore writes of the TSC, or refuse them. Sets it ahead and back again: nobody reads it
/// meanwhile.
fn takes_writes() -> bool {
    const AHEAD: Ticks = Ticks::new(1 << 32);
    let before = super::now();
    if !write(before + AHEAD) {
        return false;
    }
    let after = super::now();
    if after < before + AHEAD {
        return false;
    }
    write(after - AHEAD)
}

/// The clock that the TSC is restored from; `None` if it cannot be restored.
pub fn source() -> Option<&'static str> {
    let platform = PLATFORM.get()?;
    RESTORES
        .load(Ordering::Relaxed)
        .then(|| platform.source.word())
}

/// The longest sleep after which the TSC can be restored.
pub fn longest() -> Option<Nanos> {
    Some(PLATFORM.get()?.timer.longest())
}

/// This CPU is about to sleep in a state in which its TSC stops.
pub fn note(cpu: CpuId) {
    let (Some(platform), Some(slot)) = (PLATFORM.get(), SLOTS.get(cpu.index())) else {
        return;
    };
    let pair = read(&platform.source);
    let mut anchor = Anchor::of(slot.anchor.get());
    slot.before
        .set(Some(anchor.before_sleep(&platform.timer, pair)));
    slot.anchor.set(anchor.pair());
    slot.stopped_at.store(pair.tsc.get(), Ordering::Relaxed);
}

/// This CPU is back, and nothing has read its TSC since.
pub fn restore(cpu: CpuId) {
    let (Some(platform), Some(slot)) = (PLATFORM.get(), SLOTS.get(cpu.index())) else {
        return;
    };
    let Some(before) = slot.before.get() else {
        return;
    };
    slot.before.set(None);
    if STOPS_ON_PURPOSE.load(Ordering::Relaxed) {
        write(Ticks::new(slot.stopped_at.load(Ordering::Relaxed)));
    }
    let after = read(&platform.source);
    if let Some(expected) = platform.timer.restored(before, after) {
        set(expected, after.tsc);
        slot.restored.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often a CPU's TSC was restored.
pub fn count(cpu: CpuId) -> u64 {
    SLOTS
        .get(cpu.index())
        .map_or(0, |slot| slot.restored.load(Ordering::Relaxed))
}

/// This CPU will not sleep any more: compares its TSC with the platform timer. On the CPU itself.
pub fn close(cpu: CpuId) {
    let (Some(platform), Some(slot)) = (PLATFORM.get(), SLOTS.get(cpu.index())) else {
        return;
    };
    let last = read(&platform.source);
    let by_tsc = last.tsc - platform.first.tsc;
    let by_platform = platform.timer.elapsed(platform.first, last);
    slot.by_platform.store(by_platform.get(), Ordering::Relaxed);
    // Whoever sees this one sees the other.
    slot.by_tsc.store(by_tsc.get(), Ordering::Release);
}

/// The time from [`init`] to [`close`] by the TSC of that CPU, and by the platform timer, both in TSC ticks.
pub fn compare(cpu: CpuId) -> Option<(Ticks, Ticks)> {
    let slot = SLOTS.get(cpu.index())?;
    let by_tsc = slot.by_tsc.load(Ordering::Acquire);
    let by_platform = slot.by_platform.load(Ordering::Relaxed);
    (by_tsc != 0).then_some((Ticks::new(by_tsc), Ticks::new(by_platform)))
}

fn read(source: &Source) -> ClockPair {
    ClockPair {
        tsc: super::now(),
        platform: source.read(),
    }
}

fn write(tsc: Ticks) -> bool {
    // SAFETY: the TSC is only a clock: it is set to what it would be had it not stopped, on the CPU that had it stop.
    unsafe { safe::wrmsr(TSC, tsc.get()) }.is_ok()
}
