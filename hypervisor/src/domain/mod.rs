//! Domains: guests, their loader, firmware tables and devices.

pub mod acpi_tables;
mod alu;
pub mod bundle;
pub mod cpuid;
pub mod devices;
pub mod elf;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod fixture_cpu;
pub mod insn;
pub mod layout;
pub mod loader;
pub mod mmio;
pub mod vlapic;
pub mod walk;
