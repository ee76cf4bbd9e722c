//! IOAPIC: device interrupts to CPUs.
//!
//! Set up by the boot CPU before the others run; an index and a data register make one access, so whoever has the
//! [`IoApic`] has it alone. Intel 82093AA data sheet, chapter 3.
use super::mmio::Mmio;
use crate::acpi::Wiring;

const INDEX: usize = 0x00;
const DATA: usize = 0x10;
const VERSION: u8 = 0x01;
const REDIRECTION: u8 = 0x10;

const MASKED: u32 = 1 << 16;
const LEVEL: u32 = 1 << 15;
const ACTIVE_LOW: u32 = 1 << 13;

/// One IOAPIC.
#[derive(Debug)]
pub struct IoApic {
    registers: Mmio,
    gsi_base: u32,
    inputs: u32,
}

impl IoApic {
    /// Bytes of its register window.
    pub const WINDOW: usize = 0x20;

    /// Takes the IOAPIC behind `registers`, and masks all of its inputs.
    pub fn new(registers: Mmio, gsi_base: u32) -> Self {
        let mut this = Self {
            registers,
            gsi_base,
            inputs: 0,
        };
        this.inputs = (this.read(VERSION) >> 16 & 0xFF) + 1;
        for input in 0..this.inputs.min(u32::from((u8::MAX - REDIRECTION) / 2) + 1) {
            this.write_entry(input, MASKED, 0);
        }
        this
    }

    /// The global system interrupts that it takes.
    pub fn gsis(&self) -> core::ops::Range<u32> {
        self.gsi_base..self.gsi_base.saturating_add(self.inputs)
    }

    /// Lets the interrupt at `wiring` arrive as `vector` at the CPU of `apic_id`. Returns `false` if the input is not
    /// one of this IOAPIC's, or if the id has more bits than an entry can hold.
    #[must_use]
    pub fn route(&mut self, wiring: Wiring, vector: u8, apic_id: u32) -> bool {
        if !self.gsis().contains(&wiring.gsi) {
            return false;
        }
        let Ok(id) = u8::try_from(apic_id) else {
            return false;
        };
        self.write_entry(
            wiring.gsi - self.gsi_base,
            entry_low(wiring, vector),
            u32::from(id) << 24,
        );
        true
    }

    fn write_entry(&mut self, input: u32, low: u32, high: u32) {
        let index = REDIRECTION.saturating_add((input * 2).min(0xFE) as u8);
        // Masked while the destination changes.
        self.write(index, MASKED);
        self.write(index.saturating_add(1), high);
        self.write(index, low);
    }

    fn read(&self, index: u8) -> u32 {
        self.registers.write32(INDEX, index.into());
        self.registers.read32(DATA)
    }

    fn write(&self, index: u8, value: u32) {
        self.registers.write32(INDEX, index.into());
        self.registers.write32(DATA, value);
    }
}

/// Fixed delivery, physical destination, unmasked.
const fn entry_low(wiring: Wiring, vector: u8) -> u32 {
    vector as u32
        | if wiring.level { LEVEL } else { 0 }
        | if wiring.active_low { ACTIVE_LOW } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_carry_polarity_and_trigger() {
        let wiring = |active_low, level| Wiring {
            gsi: 4,
            active_low,
            level,
        };
        assert_eq!(entry_low(wiring(false, false), 0x40), 0x40);
        assert_eq!(entry_low(wiring(true, true), 0x40), 0xA040);
    }

    #[test]
    fn only_its_own_inputs_and_ids_that_fit() {
        // Index and data as plain memory: the version register reads back its own index, so there is one input.
        let mut window = vec![0u32; 8];
        let mut ioapic = IoApic::new(Mmio::over(&mut window), 24);
        ioapic.inputs = 24;
        let at = |gsi| Wiring {
            gsi,
            active_low: false,
            level: false,
        };
        assert!(!ioapic.route(at(4), 0x40, 0));
        assert!(!ioapic.route(at(48), 0x40, 0));
        assert!(!ioapic.route(at(28), 0x40, 300));
        assert!(ioapic.route(at(28), 0x40, 2));
        assert_eq!((window[0], window[4]), (0x10 + 2 * 4, 0x40));
    }
}
