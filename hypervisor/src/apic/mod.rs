//! Local APIC: interrupt delivery, timer and IPIs of each CPU; and the IOAPIC and 8259 in front of them.
//!
//! Life: [`init`] on the boot CPU, then [`init_this_cpu`] on every other one. From then on [`eoi`], the functions of
//! [`ipi`] and [`timer`] work on that CPU. All are called with interrupts off.
//!
//! One mode for the whole machine: x2APIC where CPUID offers it, else xAPIC (ids up to 254).
pub mod icr;
pub mod ioapic;
pub mod ipi;
pub mod local;
pub mod mmio;
mod msr;
pub mod pic;
pub mod timer;
pub mod vector;

#[cfg(target_os = "none")]
mod init;

#[cfg(target_os = "none")]
pub use init::{ApicInfo, init, init_this_cpu};
pub use local::Mode;

/// Ends the interrupt that is being handled on this CPU. Not for NMIs, and not for the spurious vector.
#[inline]
pub fn eoi() {
    if let Some(apic) = local::get() {
        apic.write(local::Register::Eoi, 0);
    }
}

/// The id of this CPU's local APIC, or `None` before [`init`].
pub fn id() -> Option<u32> {
    local::get().map(|apic| apic.id())
}

/// The mode of all local APICs, or `None` before [`init`].
pub fn mode() -> Option<Mode> {
    local::get().map(|apic| apic.mode())
}
