//! Domains: guests, their loader, firmware tables and devices.

pub mod acpi_tables;
pub mod elf;
#[cfg(test)]
mod fixture;
pub mod layout;
pub mod loader;
pub mod vlapic;
pub mod walk;
