//! Lull, the bootable hypervisor image.
//!
//! Everything that touches a register is here; what can be decided without one is in `lull-core`.
//! The library also compiles for the host, where its pure parts are tested. What only makes sense on
//! the bare machine (start-up code, panic handler, global allocator) is `cfg(target_os = "none")`.
//!
//! Read it in this order: [`boot`], [`cpu`], [`mm`], [`cage`], [`acpi`], [`apic`], [`time`], [`smp`], [`machine`],
//! [`virt`], [`domain`], [`console`], [`init`].
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod acpi;
pub mod apic;
pub mod boot;
pub mod cage;
pub mod console;
pub mod cpu;
pub mod domain;
#[cfg(target_os = "none")]
pub mod init;
pub mod keys;
pub mod machine;
pub mod mm;
pub mod panic;
pub mod run;
pub mod smp;
pub mod time;
pub mod virt;
