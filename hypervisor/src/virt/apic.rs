//! A guest's local APIC, as it is lent to a processor that virtualizes it.
//!
//! The model of the APIC is the domain's, for all vendors. What the processor changes by itself while the guest runs (task
//! priority, interrupts in service and requested) it is lent before an entry, and gives back after the exit; all other registers
//! it is only shown, so that the guest can read them without an exit.

use super::vectors::VectorSet;

/// How an APIC is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApicMode {
    /// Globally disabled (`IA32_APIC_BASE.EN` = 0).
    Disabled,
    /// By its page.
    XApic,
    /// By MSRs.
    X2Apic,
}

/// What changes without an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApicState {
    /// Task priority.
    pub tpr: u8,
    /// ISR.
    pub in_service: VectorSet,
    /// IRR.
    pub requested: VectorSet,
}

/// A register by its number (its offset in the page divided by 16, its MSR less 800h), and what it reads as.
pub type ShownRegister = (u32, u32);
