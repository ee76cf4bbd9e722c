//! The instructions that Rust has no word for.
#![expect(
    unsafe_code,
    reason = "each function is one instruction or one fixed sequence of them"
)]

use crate::units::Ticks;
use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _mm_pause, _rdtsc, CpuidResult};
use core::ops::Range;
use core::sync::atomic::AtomicU32;

/// The time stamp counter. Not serializing: good for distances far above the width of the pipeline.
#[must_use]
pub fn now() -> Ticks {
    // SAFETY: reads a counter; CR4.TSD is clear.
    Ticks(unsafe { _rdtsc() })
}

/// CPUID.
#[must_use]
pub fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    __cpuid_count(leaf, subleaf)
}

/// PAUSE: every wait on another CPU goes through it, or an emulator that slices time between CPUs would never run the other.
pub fn pause() {
    _mm_pause();
}

/// Writes a byte to a port.
pub fn outb(port: u16, value: u8) {
    // SAFETY: the whole machine is this guest's; no device behind a port touches its memory unless told an address, and no
    // kernel here tells any.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags))
    };
}

/// Reads a byte from a port.
#[must_use]
pub fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: as for `outb`.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags))
    };
    value
}

/// Reads an MSR that exists (one that does not ends the guest with the exception's name).
#[must_use]
pub fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading changes nothing; a fault is caught and reported by the trap handler.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes an MSR.
///
/// # Safety
/// The register must not change how this kernel's memory or code is found.
pub unsafe fn wrmsr(msr: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: by the caller.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") low, in("edx") high, options(nostack, preserves_flags))
    };
}

/// MFENCE: an xAPIC write must be done before the TSC-deadline MSR is written (Intel SDM vol. 3, "TSC-Deadline Mode").
pub fn fence() {
    // SAFETY: orders memory accesses, nothing else.
    unsafe { asm!("mfence", options(nostack, preserves_flags)) };
}

unsafe extern "C" {
    fn lull_guest_halt(word: *const u32, value: u32);
    fn lull_guest_halt_end();
}

/// From the look at the word to behind HLT: an instruction pointer in this range is about to halt or halted.
pub(super) fn halt_range() -> Range<u64> {
    lull_guest_halt as *const () as u64..lull_guest_halt_end as *const () as u64
}

/// Halts once, unless `word` has already another value than `value`. Interrupts are off before and after, open while halted.
/// May return for any interrupt or NMI: the caller looks again.
pub fn halt_while(word: &AtomicU32, value: u32) {
    // SAFETY: reads one aligned word that outlives the call; interrupts that come are handled by the trap handler, which keeps
    // all registers.
    unsafe { lull_guest_halt(word.as_ptr(), value) };
}

/// Takes the interrupts that are pending now, and none after.
///
/// The NOPs matter: STI opens one instruction later, and some emulators let a PAUSE or CLI there keep it shut.
pub fn open_window() {
    // SAFETY: the trap handler keeps all registers. Not `nomem`: handlers write memory.
    unsafe { asm!("sti", "nop", "nop", "cli", options(nostack)) };
}

/// Stops this CPU for good.
pub fn stop() -> ! {
    loop {
        // SAFETY: interrupts stay off; an NMI returns to the loop.
        unsafe { asm!("cli", "hlt", options(nostack)) };
    }
}

/// CR8, the task-priority class.
#[must_use]
pub fn read_cr8() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr8", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Sets CR8; bits above 3 are reserved and fault.
pub fn write_cr8(class: u64) {
    // SAFETY: only decides which interrupts wait.
    unsafe { asm!("mov cr8, {}", in(reg) class, options(nostack, preserves_flags)) };
}

/// What CPUID says of the host and of this CPU, as far as the runtime asks.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// x2APIC mode is offered.
    pub x2apic: bool,
    /// The LAPIC timer has TSC-deadline mode.
    pub tsc_deadline: bool,
    /// MONITOR and MWAIT are offered.
    pub monitor: bool,
    /// A hypervisor says it is there.
    pub hypervisor: bool,
    /// Logical processors that leaf 1 speaks of.
    pub logical_cpus: u32,
    /// VMCALL rather than VMMCALL calls the hypervisor.
    pub vmcall: bool,
}

/// Reads CPUID leaf 0 and 1.
#[must_use]
pub fn features() -> Features {
    let vendor = cpuid(0, 0);
    let one = cpuid(1, 0);
    Features {
        x2apic: one.ecx & 1 << 21 != 0,
        tsc_deadline: one.ecx & 1 << 24 != 0,
        monitor: one.ecx & 1 << 3 != 0,
        hypervisor: one.ecx & 1 << 31 != 0,
        logical_cpus: if one.edx & 1 << 28 != 0 {
            one.ebx >> 16 & 0xff
        } else {
            1
        },
        vmcall: vendor.ebx == u32::from_le_bytes(*b"Genu"),
    }
}
