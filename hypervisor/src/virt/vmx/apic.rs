//! The virtual-APIC page: what the processor keeps of a guest's local APIC (SDM vol. 3, chapter "APIC virtualization and virtual
//! interrupts").
//!
//! The page is a view. Between [`VirtualApic::lend`] and [`VirtualApic::take_back`] it is right, and the model above is not; all
//! other registers in it are copies of the model's.
//!
//! All or nothing: APIC-register virtualization and virtual-interrupt delivery both, in a mode that the processor virtualizes, or
//! none of it. Then the page holds the task priority and nothing else.

use alloc::boxed::Box;

use lull_core::options::Posting;

use super::controls::{PinbasedControls, PrimaryControls, SecondaryControls};
use super::field::Field;
use super::vmcs::Vmcs;
use crate::virt::page::{Pages, physical, zeroed};
use crate::virt::{ApicMode, ApicState, ShownRegister, VectorSet};

/// What of APIC virtualization is to be used, where it is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApicWanted {
    /// Registers, priorities and interrupt delivery by the processor.
    pub virtualized: bool,
    /// Interrupts that other CPUs post while the guest runs.
    pub posting: Posting,
}

impl Default for ApicWanted {
    fn default() -> Self {
        Self {
            virtualized: true,
            posting: Posting::default(),
        }
    }
}

/// Secondary controls that virtualize an APIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApicControls {
    /// In x2APIC mode; 0: not virtualized.
    pub x2apic: u32,
    /// The pin-based control of posted interrupts, with any of them; or 0.
    pub posting: u32,
    /// Interrupts are posted even where the machine ignores IF.
    pub insists: bool,
}

impl ApicControls {
    /// By the primary controls as they will be set, and the capability MSRs of the secondary and the pin-based ones.
    pub fn offered(primary: u32, secondary: u64, pin: u64) -> Self {
        let may = (secondary >> 32) as u32;
        let both = SecondaryControls::VIRTUALIZE_APIC_REGISTER
            | SecondaryControls::VIRTUAL_INTERRUPT_DELIVERY;
        let all_of = |controls: SecondaryControls| {
            let offered = may & controls.bits() == controls.bits()
                && primary & PrimaryControls::USE_TPR_SHADOW.bits() != 0;
            if offered { controls.bits() } else { 0 }
        };
        let x2apic = all_of(both | SecondaryControls::VIRTUALIZE_X2APIC);
        let posting = (pin >> 32) as u32 & PinbasedControls::POSTED_INTERRUPTS.bits();
        Self {
            x2apic,
            posting: if x2apic == 0 { 0 } else { posting },
            insists: false,
        }
    }

    /// Keeps what is wanted.
    pub fn keep(&mut self, wanted: ApicWanted) {
        if !wanted.virtualized {
            *self = Self::default();
        }
        match wanted.posting {
            Posting::Off => self.posting = 0,
            Posting::Auto => {}
            Posting::On => self.insists = true,
        }
    }

    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.x2apic != 0
    }

    /// Whether this CPU can do all that `first`, another one, was set up for.
    pub fn covers(&self, first: &Self) -> bool {
        self.x2apic & first.x2apic == first.x2apic && self.posting & first.posting == first.posting
    }

    /// The control of posted interrupts, on a machine that ignores IF or does not.
    pub fn posting_where(&self, ignores_if: bool) -> u32 {
        if ignores_if && !self.insists {
            0
        } else {
            self.posting
        }
    }

    /// For an APIC in this mode.
    pub fn of(&self, mode: ApicMode) -> u32 {
        match mode {
            ApicMode::X2Apic => self.x2apic,
            ApicMode::XApic | ApicMode::Disabled => 0,
        }
    }
}

/// Numbers of the x2APIC's registers that are read from the page without an exit. Others are not there at all, cannot be read, or
/// (ICR, current count) are not in the page as the guest is to see them.
pub const READ_DIRECTLY: [core::ops::RangeInclusive<u32>; 9] = [
    0x02..=0x03,
    0x08..=0x08,
    0x0a..=0x0a,
    0x0d..=0x0d,
    0x0f..=0x0f,
    0x10..=0x28,
    0x32..=0x37,
    0x38..=0x38,
    0x3e..=0x3e,
];

/// TPR, EOI, SELF IPI.
pub const WRITTEN_DIRECTLY: [u32; 3] = [0x08, 0x0b, 0x3f];

const TPR: usize = 0x08;
const ISR: usize = 0x10;
const IRR: usize = 0x20;
/// A register has 16 bytes of the page.
const STEP: usize = 16;

/// One vCPU's page.
pub struct VirtualApic {
    page: Box<Pages<4096>>,
    /// Secondary controls for the mode that the APIC is in.
    controls: u32,
    /// What the page's ISR holds.
    in_service: VectorSet,
    /// Guest interrupt status as it is in the VMCS.
    status: u64,
}

impl VirtualApic {
    pub fn new() -> Self {
        Self {
            page: zeroed(),
            controls: 0,
            in_service: VectorSet::default(),
            status: 0,
        }
    }

    /// For the VMCS.
    pub fn address(&self) -> u64 {
        physical(&*self.page)
    }

    /// Fields of the VMCS that are there if any APIC can be virtualized, and do not change.
    pub fn fields(&self) -> [(Field, u64); 5] {
        // Every interrupt is edge-triggered: no EOI is of interest to anybody else.
        [
            (Field::EOI_EXIT0, 0),
            (Field::EOI_EXIT1, 0),
            (Field::EOI_EXIT2, 0),
            (Field::EOI_EXIT3, 0),
            (Field::INTERRUPT_STATUS, self.status),
        ]
    }

    /// Secondary controls that hold now.
    pub fn controls(&self) -> u32 {
        self.controls
    }

    /// Shows the guest these registers; `controls` are those for the mode that the APIC is in now.
    pub fn show(&mut self, controls: u32, registers: &[ShownRegister]) {
        self.controls = controls;
        if controls != 0 {
            for &(number, value) in registers {
                self.set(number as usize, value);
            }
        }
    }

    /// A register by its offset in the page.
    pub fn at(&self, offset: u32) -> u32 {
        self.get(offset as usize / STEP)
    }

    /// Task priority.
    pub fn tpr(&self) -> u8 {
        self.get(TPR) as u8
    }

    pub fn set_tpr(&mut self, tpr: u8) {
        self.set(TPR, u32::from(tpr));
    }

    /// Puts the state where the processor finds it at the entry.
    pub fn lend(&mut self, vmcs: &Vmcs, state: &ApicState) {
        self.set_tpr(state.tpr);
        if self.in_service != state.in_service {
            self.set_rows(ISR, &state.in_service);
            self.in_service = state.in_service;
        }
        // Its rows are empty while the state is not lent.
        if !state.requested.is_empty() {
            self.set_rows(IRR, &state.requested);
        }
        let highest = |set: &VectorSet| u64::from(set.highest().unwrap_or(0));
        let status = highest(&state.in_service) << 8 | highest(&state.requested);
        if status != self.status {
            self.status = status;
            vmcs.write(Field::INTERRUPT_STATUS, status);
        }
    }

    /// What the processor has made of it. It tells whether there is anything: zero is no vector that an interrupt can have.
    pub fn take_back(&mut self, vmcs: &Vmcs) -> ApicState {
        self.status = vmcs.read(Field::INTERRUPT_STATUS);
        self.in_service = if self.status >> 8 == 0 {
            VectorSet::default()
        } else {
            self.rows(ISR)
        };
        let requested = if self.status & 0xff == 0 {
            VectorSet::default()
        } else {
            let requested = self.rows(IRR);
            self.set_rows(IRR, &VectorSet::default());
            requested
        };
        ApicState {
            tpr: self.tpr(),
            in_service: self.in_service,
            requested,
        }
    }

    fn rows(&self, first: usize) -> VectorSet {
        VectorSet::from_words(core::array::from_fn(|row| self.get(first + row)))
    }

    fn set_rows(&mut self, first: usize, set: &VectorSet) {
        for row in 0..8 {
            self.set(first + row, set.word(row));
        }
    }

    fn get(&self, number: usize) -> u32 {
        let bytes = self
            .page
            .0
            .get(number * STEP..)
            .and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |&bytes| u32::from_le_bytes(bytes))
    }

    fn set(&mut self, number: usize, value: u32) {
        let bytes = self.page.0.get_mut(number * STEP..);
        if let Some(bytes) = bytes.and_then(<[u8]>::first_chunk_mut) {
            *bytes = value.to_le_bytes();
        }
    }
}

#[cfg(test)]
#[path = "apic_tests.rs"]
mod tests;
