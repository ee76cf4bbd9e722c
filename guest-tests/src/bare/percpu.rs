//! What each CPU has of its own, found through the GS base.
#![expect(unsafe_code, reason = "the GS base is set and used by assembly")]

use super::cpu;
use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most CPUs a guest kernel starts.
pub const MAX_CPUS: usize = 64;

/// A CPU by its place in the runtime's own order: 0 is the boot CPU, the others follow the MADT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuIndex(u32);

impl CpuIndex {
    /// The boot CPU.
    pub const BOOT: Self = Self(0);

    /// CPU `index`; `None` beyond [`MAX_CPUS`].
    #[must_use]
    pub const fn new(index: u32) -> Option<Self> {
        if (index as usize) < MAX_CPUS {
            Some(Self(index))
        } else {
            None
        }
    }

    /// The CPU this runs on.
    #[must_use]
    pub fn current() -> Self {
        Self(here().index.load(Ordering::Relaxed))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The first `count` CPUs.
    pub fn first(count: u32) -> impl Iterator<Item = Self> {
        (0..count.min(MAX_CPUS as u32)).map(Self)
    }
}

impl fmt::Display for CpuIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One CPU's area. All words are atomic: any CPU may read any of them.
#[repr(C, align(128))]
pub struct PerCpu {
    /// Own number. At offset 0, read through GS.
    index: AtomicU32, // 0
    /// Set once the CPU runs Rust code.
    pub(super) online: AtomicU32, // 4
    /// Where an expected exception goes on; 0 if none is expected. Written through GS by [`crate::attempt!`].
    pub(super) resume: AtomicU64, // 8
    /// Vector of the exception that was expected and came, or [`NO_TRAP`].
    pub(super) trap_vector: AtomicU32, // 16
    /// Its error code.
    pub(super) trap_error: AtomicU32, // 20
    /// LAPIC id.
    pub apic_id: AtomicU32, // 24
    /// Id in logical destination mode.
    pub logical_id: AtomicU32, // 28
    /// Timer interrupts taken.
    pub timer_fired: AtomicU32, // 32
    /// NMIs taken.
    pub nmis: AtomicU32, // 36
    /// TSC at the start of the last timer interrupt's handler.
    pub timer_stamp: AtomicU64, // 40
    /// Deadline of the watchdog; 0 if it is off.
    pub(super) watchdog: AtomicU64, // 48
    /// For the kernel's own use.
    pub user: [AtomicU32; 8], // 56
}

const _: () = assert!(core::mem::offset_of!(PerCpu, index) == 0);
const _: () = assert!(
    core::mem::offset_of!(PerCpu, resume) == 8 && core::mem::offset_of!(PerCpu, trap_vector) == 16
);

/// No exception came.
pub(super) const NO_TRAP: u32 = u32::MAX;

impl PerCpu {
    const fn new() -> Self {
        Self {
            index: AtomicU32::new(0),
            online: AtomicU32::new(0),
            resume: AtomicU64::new(0),
            trap_vector: AtomicU32::new(NO_TRAP),
            trap_error: AtomicU32::new(0),
            apic_id: AtomicU32::new(0),
            logical_id: AtomicU32::new(0),
            timer_fired: AtomicU32::new(0),
            nmis: AtomicU32::new(0),
            timer_stamp: AtomicU64::new(0),
            watchdog: AtomicU64::new(0),
            user: [const { AtomicU32::new(0) }; 8],
        }
    }
}

static AREAS: [PerCpu; MAX_CPUS] = [const { PerCpu::new() }; MAX_CPUS];

/// The area of `cpu`.
#[must_use]
pub fn of(cpu: CpuIndex) -> &'static PerCpu {
    // A `CpuIndex` is below MAX_CPUS by construction.
    &AREAS[cpu.0 as usize]
}

/// The area of the CPU this runs on.
#[must_use]
pub fn here() -> &'static PerCpu {
    let index: u32;
    // SAFETY: `install` has pointed GS at this CPU's area before any other code ran, and `index` is at offset 0.
    unsafe {
        asm!("mov {:e}, gs:[0]", out(reg) index, options(readonly, nostack, preserves_flags))
    };
    &AREAS[index as usize % MAX_CPUS]
}

/// Makes the area of `cpu` the one of the CPU this runs on. Called once, first of all, on each CPU.
pub(super) fn install(cpu: CpuIndex) {
    const GS_BASE: u32 = 0xc000_0101;
    let area = of(cpu);
    area.index.store(cpu.0, Ordering::Relaxed);
    // SAFETY: nothing but `here` and `attempt!` uses GS, and the area lives for ever.
    unsafe { cpu::wrmsr(GS_BASE, core::ptr::from_ref(area) as u64) };
}
