//! A state on its way through the choice.

use super::reason::{Dropped, Kept, StateNote};
use crate::cstate::acpi::AcpiType;
use crate::cstate::tables::TableState;
use crate::cstate::{CState, EntryMethod, MwaitHint};
use crate::platform::IrqGate;
use alloc::vec::Vec;

/// A state that is being considered, before and while it is judged.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// As it would be entered.
    pub state: CState,
    /// How deep it is, as `max_cstate=` counts: MWAIT's class, or ACPI's type.
    pub class: u32,
    /// ACPI's type, if the firmware gave the state.
    pub acpi: Option<AcpiType>,
    /// Why it would be kept.
    pub kept: Kept,
    /// It is known already that it cannot be used.
    pub refused: Option<Dropped>,
    /// What is to be said about it.
    pub notes: Vec<StateNote>,
}

impl Candidate {
    pub(super) fn new(state: CState, class: u32, kept: Kept) -> Self {
        Self {
            state,
            class,
            acpi: None,
            kept,
            refused: None,
            notes: Vec::new(),
        }
    }

    /// A state of a table. Entered with interrupts masked until it is known that they may be open.
    pub(super) fn of_table(table: &'static str, from: &TableState) -> Self {
        let state = CState {
            name: from.name,
            method: EntryMethod::Mwait {
                hint: from.hint,
                gate: IrqGate::Masked,
            },
            flags: from.flags,
            exit_latency: from.exit_latency,
            target_residency: from.target_residency,
        };
        Self::new(state, from.hint.class(), Kept::Table(table))
    }

    /// The hint, if it is entered by MWAIT.
    pub(super) fn hint(&self) -> Option<MwaitHint> {
        match self.state.method {
            EntryMethod::Mwait { hint, .. } => Some(hint),
            _ => None,
        }
    }
}
