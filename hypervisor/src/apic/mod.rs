//! Local APIC: interrupt delivery, timer and IPIs of each CPU.
pub mod mmio;
