//! Domains: guests, their loader, firmware tables and devices.

pub mod elf;
#[cfg(test)]
mod fixture;
pub mod layout;
pub mod vlapic;
