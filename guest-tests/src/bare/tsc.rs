//! How fast the TSC and the LAPIC timer run.
//!
//! Sources for the TSC, best first: command line `tschz=`, the hypervisor's timing leaf, CPUID 15h, a measurement against PIT
//! channel 2, and 1 GHz with a note.

use super::lapic::{self, Register};
use super::{cpu, verdict};
use crate::host::Host;
use crate::options::Options;
use crate::units::{TickRate, Ticks};
use core::sync::atomic::{AtomicU64, Ordering};

static TSC_HZ: AtomicU64 = AtomicU64::new(TickRate::GIGAHERTZ.hz());
static LAPIC_HZ: AtomicU64 = AtomicU64::new(TickRate::GIGAHERTZ.hz());

/// The TSC's rate.
#[must_use]
pub fn rate() -> TickRate {
    load(&TSC_HZ)
}

/// The LAPIC timer's rate before its divider.
#[must_use]
pub fn lapic_rate() -> TickRate {
    load(&LAPIC_HZ)
}

fn load(hz: &AtomicU64) -> TickRate {
    TickRate::new(hz.load(Ordering::Relaxed)).unwrap_or(TickRate::GIGAHERTZ)
}

/// Who runs us, and the number of its first CPUID leaf. Compatible hypervisors may stand in front: Xen may be at a later base.
pub(super) fn host() -> (Host, u32) {
    if !cpu::features().hypervisor {
        return (Host::Bare, 0);
    }
    let mut first = None;
    for base in (0x4000_0000..0x4001_0000).step_by(0x100) {
        let leaf = cpu::cpuid(base, 0);
        let mut signature = [0; 12];
        for (to, from) in signature.chunks_mut(4).zip([leaf.ebx, leaf.ecx, leaf.edx]) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        let host = Host::by_signature(&signature);
        if host == Host::Xen {
            return (host, base);
        }
        first.get_or_insert((host, base));
    }
    first.unwrap_or((Host::Other, 0x4000_0000))
}

/// Finds both rates; gives the name of the source of the TSC's.
pub(super) fn calibrate(host: Host, base: u32, options: &Options<'_>) -> &'static str {
    let leaf = timing_leaf(host, base);
    let (tsc, source) = if let Some(rate) = options
        .number_if_given("tschz", 1_000_000..=100_000_000_000)
        .and_then(TickRate::new)
    {
        (rate, "command line")
    } else if let Some(rate) = leaf.tsc {
        (rate, "hypervisor leaf")
    } else if let Some(rate) = crystal() {
        (rate, "CPUID 15h")
    } else if let Some(rate) = by_pit() {
        (rate.settled(), "PIT")
    } else {
        crate::note!("nothing tells the TSC frequency: taken as 1 GHz");
        (TickRate::GIGAHERTZ, "assumed")
    };
    TSC_HZ.store(tsc.hz(), Ordering::Relaxed);
    let lapic = leaf.lapic.unwrap_or_else(|| by_tsc(tsc).settled());
    LAPIC_HZ.store(lapic.hz(), Ordering::Relaxed);
    source
}

struct TimingLeaf {
    tsc: Option<TickRate>,
    lapic: Option<TickRate>,
}

fn timing_leaf(host: Host, base: u32) -> TimingLeaf {
    let kilohertz = |khz: u32| TickRate::new(u64::from(khz) * 1000);
    let none = TimingLeaf {
        tsc: None,
        lapic: None,
    };
    if host == Host::Xen && cpu::cpuid(base, 0).eax >= base + 3 {
        // Xen's time leaf: ECX of sub-leaf 0 is the guest's TSC frequency in kHz (public header arch-x86/cpuid.h).
        return TimingLeaf {
            tsc: kilohertz(cpu::cpuid(base + 3, 0).ecx),
            ..none
        };
    }
    if host.has_timing_leaf() && cpu::cpuid(0x4000_0000, 0).eax >= 0x4000_0010 {
        let leaf = cpu::cpuid(0x4000_0010, 0);
        return TimingLeaf {
            tsc: kilohertz(leaf.eax),
            lapic: kilohertz(leaf.ebx),
        };
    }
    none
}

/// CPUID 15h: EBX/EAX times the crystal in ECX; only where all three are given.
fn crystal() -> Option<TickRate> {
    if cpu::cpuid(0, 0).eax < 0x15 {
        return None;
    }
    let leaf = cpu::cpuid(0x15, 0);
    if leaf.eax == 0 {
        return None;
    }
    let hz = u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax);
    // Some emulators give a crystal of a few hertz.
    (hz >= 100_000_000).then(|| TickRate::new(hz)).flatten()
}

/// The surest of up to five measurements of 10 ms: on a busy host a CPU may be away at either end of one.
fn by_pit() -> Option<TickRate> {
    let mut best: Option<Bounds> = None;
    for _ in 0..5 {
        let bounds = pit_once()?;
        if best.is_none_or(|best| bounds.width() < best.width()) {
            best = Some(bounds);
        }
        if best.is_some_and(Bounds::is_narrow) {
            break;
        }
    }
    let hz = u128::from(best?.middle()) * PIT_HZ / u128::from(PIT_COUNT);
    let hz = u64::try_from(hz).ok()?;
    (100_000_000..=20_000_000_000)
        .contains(&hz)
        .then(|| TickRate::new(hz))
        .flatten()
}

/// 11932 periods of 1.193182 MHz are 10 ms.
const PIT_HZ: u128 = 1_193_182;
const PIT_COUNT: u16 = 11932;

/// Between which two numbers of ticks something took.
#[derive(Clone, Copy)]
struct Bounds {
    least: u64,
    most: u64,
}

impl Bounds {
    const fn width(self) -> u64 {
        self.most.saturating_sub(self.least)
    }

    const fn middle(self) -> u64 {
        self.least + self.width() / 2
    }

    /// Known to 500 ppm.
    const fn is_narrow(self) -> bool {
        self.width() < self.least / 2000
    }
}

/// TSC ticks that channel 2 takes to count down in mode 0, where its output rises at the end; `None` where there is no PIT.
fn pit_once() -> Option<Bounds> {
    const GATE: u16 = 0x61;
    const OUTPUT: u8 = 1 << 5;
    let gate = cpu::inb(GATE);
    // Gate off, speaker off; channel 2, both bytes, mode 0.
    cpu::outb(GATE, gate & !0b11);
    cpu::outb(0x43, 0b1011_0000);
    let [low, high] = PIT_COUNT.to_le_bytes();
    cpu::outb(0x42, low);
    cpu::outb(0x42, high);
    // An absent port reads all ones: then the output is high although the count has not begun.
    if cpu::inb(GATE) & OUTPUT != 0 {
        return None;
    }
    let before = cpu::now();
    cpu::outb(GATE, gate & !0b10 | 1);
    let after = cpu::now();
    let (mut still_low, mut bounds) = (after, None);
    for _ in 0..1_000_000 {
        let asked = cpu::now();
        let risen = cpu::inb(GATE) & OUTPUT != 0;
        let now = cpu::now();
        if risen {
            bounds = Some(Bounds {
                least: still_low.since(after).0,
                most: now.since(before).0,
            });
            break;
        }
        still_low = asked;
        // A port read is dear on an emulator, and more so on a hypervisor: one in about a microsecond does.
        for step in 0..200u32 {
            core::hint::black_box(step);
        }
    }
    cpu::outb(GATE, gate);
    bounds
}

/// Measures the LAPIC timer against the TSC over 5 ms. A reading is placed in the middle of the time it took, and of several
/// the one that took the least is used.
fn by_tsc(tsc: TickRate) -> TickRate {
    let read = || {
        let before = cpu::now();
        let count = lapic::read(Register::TimerCurrent);
        (before, cpu::now().since(before), count)
    };
    let reading = || {
        let (before, width, count) = (0..8)
            .map(|_| read())
            .min_by_key(|&(_, width, _)| width)
            .unwrap_or_else(read);
        (Ticks(before.0 + width.0 / 2), count)
    };
    lapic::write(Register::TimerDivide, 0b1011);
    lapic::write(Register::LvtTimer, 1 << 16);
    lapic::write(Register::TimerInitial, u32::MAX);
    let (start, first) = reading();
    let until = start.after(tsc.millis(5));
    while cpu::now() < until {
        cpu::pause();
    }
    let (end, last) = reading();
    lapic::write(Register::TimerInitial, 0);
    let counted = u128::from(first.saturating_sub(last));
    let hz = counted * u128::from(tsc.hz()) / u128::from(end.since(start).0.max(1));
    u64::try_from(hz)
        .ok()
        .and_then(TickRate::new)
        .unwrap_or_else(|| verdict::fail(format_args!("the LAPIC timer does not count")))
}
