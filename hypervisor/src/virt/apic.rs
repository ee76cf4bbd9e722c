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

impl ApicState {
    /// The interrupt that would be delivered to a guest that can take one.
    pub fn deliverable(&self) -> Option<u8> {
        let held = self.in_service.highest().unwrap_or(0).max(self.tpr) >> 4;
        self.requested.highest().filter(|vector| vector >> 4 > held)
    }
}

/// A register by its number (its offset in the page divided by 16, its MSR less 800h), and what it reads as.
pub type ShownRegister = (u32, u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_by_class() {
        let state = |tpr, serving: Option<u8>, requested: Option<u8>| {
            let mut state = ApicState {
                tpr,
                ..ApicState::default()
            };
            serving.into_iter().for_each(|v| state.in_service.insert(v));
            requested
                .into_iter()
                .for_each(|v| state.requested.insert(v));
            state.deliverable()
        };
        assert_eq!(state(0, None, None), None);
        assert_eq!(state(0, None, Some(0x31)), Some(0x31));
        assert_eq!(state(0x2f, None, Some(0x31)), Some(0x31));
        assert_eq!(state(0x30, None, Some(0x3f)), None);
        assert_eq!(state(0, Some(0x31), Some(0x3f)), None);
        assert_eq!(state(0x50, Some(0x31), Some(0x4f)), None);
        assert_eq!(state(0x10, Some(0x31), Some(0x41)), Some(0x41));
    }
}
