//! The HPET's comparator stands in for local APIC timers that stop in deep C-states (CPUs without ARAT).
//!
//! The interrupt comes to the boot CPU, which wakes the CPUs whose deadlines have come as any CPU is woken: by a post to their
//! wake words. Its handler takes no lock: it posts TIMER to its own CPU, whose dispatch loop then calls [`wake_due`].
//!
//! Lock: `ALL` is a leaf, taken with interrupts off.
#![cfg(target_os = "none")]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lull_core::options::HpetInterrupt;
use lull_core::timer::Broadcast;
use lull_core::units::{CpuId, MAX_CPUS, Ticks};
use spin::Once;
use spin::mutex::SpinMutex;

use super::hpet::{self, Delivery, Hpet};
use crate::acpi::FirmwareInfo;
use crate::apic::ioapic::IoApic;
use crate::apic::{timer, vector};

struct StandIn {
    hpet: Hpet,
    delivery: Delivery,
}

static STAND_IN: Once<StandIn> = Once::new();
static ALL: SpinMutex<Option<Broadcast>> = SpinMutex::new(None);
static FIRED: AtomicBool = AtomicBool::new(false);
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

/// What was done for each CPU.
struct Counts {
    /// Sleeps for which its deadline was handed over. Written by that CPU only.
    handed_over: AtomicU64,
    /// Times that it was woken for its deadline. Written by the boot CPU only.
    woken: AtomicU64,
}

static COUNTS: [Counts; MAX_CPUS] = [const {
    Counts {
        handed_over: AtomicU64::new(0),
        woken: AtomicU64::new(0),
    }
}; MAX_CPUS];

/// Makes the comparator ready. Once, on the boot CPU, before any CPU idles; its handler is registered.
///
/// # Errors
/// Why it cannot be used.
pub fn init(
    firmware: &FirmwareInfo,
    io_apics: &mut [IoApic],
    apic_id: u32,
    cpus: usize,
    allowed: HpetInterrupt,
) -> Result<Delivery, String> {
    let hpet = super::hpet().ok_or_else(|| "there is no HPET that works".to_string())?;
    let ways: &[Delivery] = match allowed {
        HpetInterrupt::Any => &[Delivery::Legacy, Delivery::Message],
        HpetInterrupt::Legacy => &[Delivery::Legacy],
        HpetInterrupt::Message => &[Delivery::Message],
    };
    let mut faults: Vec<String> = Vec::new();
    for &delivery in ways {
        match take(&hpet, delivery, firmware, io_apics, apic_id) {
            Ok(()) => {
                *ALL.lock() = Some(Broadcast::new(cpus));
                STAND_IN.call_once(|| StandIn { hpet, delivery });
                return Ok(delivery);
            }
            Err(why) => faults.push(why),
        }
    }
    Err(format!("HPET: {}", faults.join("; ")))
}

/// Makes the comparator interrupt the CPU of `apic_id` in this way.
fn take(
    hpet: &Hpet,
    delivery: Delivery,
    firmware: &FirmwareInfo,
    io_apics: &mut [IoApic],
    apic_id: u32,
) -> Result<(), String> {
    if !hpet.offers(delivery) {
        return Err(match delivery {
            Delivery::Legacy => "its comparator has no legacy routing".to_string(),
            Delivery::Message => "its comparator has no messages".to_string(),
        });
    }
    if delivery == Delivery::Legacy {
        let wiring = hpet::legacy_wiring(firmware.isa_wiring(hpet::legacy_irq()));
        let routed = io_apics
            .iter_mut()
            .any(|io_apic| io_apic.route(wiring, vector::BROADCAST, apic_id));
        if !routed {
            return Err(format!("no IOAPIC takes GSI {}", wiring.gsi));
        }
    }
    hpet.prepare(delivery, vector::BROADCAST, apic_id)
}

/// How the interrupt is delivered, if the comparator is ready to stand in.
pub fn ready() -> Option<Delivery> {
    Some(STAND_IN.get()?.delivery)
}

/// This CPU is about to sleep in a state in which its timer stops: if it is armed, the comparator takes over.
pub fn hand_over(cpu: CpuId) {
    let Some(stand_in) = STAND_IN.get() else {
        return;
    };
    let Some(deadline) = timer::suspend(cpu) else {
        return;
    };
    if let Some(counts) = COUNTS.get(cpu.index()) {
        counts.handed_over.fetch_add(1, Ordering::Relaxed);
    }
    let mut all = ALL.lock();
    if let Some(earlier) = all.as_mut().and_then(|all| all.hand_over(cpu, deadline)) {
        stand_in.set(earlier);
    }
}

/// This CPU is awake, and will arm its own timer.
pub fn take_back(cpu: CpuId) {
    if STAND_IN.get().is_some()
        && let Some(all) = ALL.lock().as_mut()
    {
        all.take_back(cpu);
    }
}

/// What the interrupt's handler calls, before it posts TIMER to its own CPU.
pub fn on_interrupt() {
    INTERRUPTS.fetch_add(1, Ordering::Relaxed);
    FIRED.store(true, Ordering::Relaxed);
}

/// If the comparator has interrupted: gives the CPUs whose deadlines have come to `wake`, and sets it anew. On the boot CPU.
pub fn wake_due(mut wake: impl FnMut(CpuId)) {
    if !FIRED.swap(false, Ordering::Relaxed) {
        return;
    }
    let Some(stand_in) = STAND_IN.get() else {
        return;
    };
    let mut all = ALL.lock();
    let Some(all) = all.as_mut() else { return };
    let next = all.fired(super::now(), |cpu| {
        if let Some(counts) = COUNTS.get(cpu.index()) {
            counts.woken.fetch_add(1, Ordering::Relaxed);
        }
        // A post is a store and perhaps an IPI: it takes no lock.
        wake(cpu);
    });
    if let Some(next) = next {
        stand_in.set(next);
    }
}

/// How often a CPU's deadline was handed over, and how often it was woken for it.
pub fn counts(cpu: CpuId) -> (u64, u64) {
    COUNTS.get(cpu.index()).map_or((0, 0), |counts| {
        (
            counts.handed_over.load(Ordering::Relaxed),
            counts.woken.load(Ordering::Relaxed),
        )
    })
}

/// How often the comparator has interrupted.
pub fn interrupts() -> u64 {
    INTERRUPTS.load(Ordering::Relaxed)
}

impl StandIn {
    fn set(&self, deadline: Ticks) {
        let span = deadline - super::now();
        let tsc = super::rate();
        // Rounded up, so as not to be early.
        let ticks = (u128::from(span.get()) * u128::from(self.hpet.rate.numerator))
            .div_ceil(u128::from(tsc.hz()) * u128::from(self.hpet.rate.denominator));
        self.hpet
            .interrupt_in(u64::try_from(ticks).unwrap_or(u64::MAX));
    }
}
