//! Reference clocks beside the HPET: ACPI PM timer, and channel 2 of the 8254.
//!
//! Used by the boot CPU only, before the other CPUs run.
use super::measure::{Counter, Rate};
#[cfg(target_os = "none")]
use crate::acpi::PmTimer;
use crate::console::port::Ports;

/// The rate of the PM timer: ACPI specification 6.5, 4.8.3.3.
pub const PM_TIMER: Rate = Rate {
    numerator: 3_579_545,
    denominator: 1,
};
/// The rate of the 8254: a third of the PM timer's.
pub const PIT: Rate = Rate {
    numerator: 3_579_545,
    denominator: 3,
};

/// The ACPI PM timer.
#[cfg(target_os = "none")]
pub struct PmClock<P>(pub PmTimer, pub P);

#[cfg(target_os = "none")]
impl<P: Ports> Counter for PmClock<P> {
    fn read(&self) -> u64 {
        // Hardware without the 32-bit flag may still drive the upper bits.
        u64::from(self.1.read32(self.0.port)) & self.mask()
    }
    fn mask(&self) -> u64 {
        if self.0.is_32_bit {
            u32::MAX.into()
        } else {
            0xFF_FFFF
        }
    }
}

/// Channel 2 of the 8254, the only one that raises no interrupt. Intel 8254 data sheet, "Counter Latch Command".
pub struct PitClock<P: Ports>(P);

impl<P: Ports> PitClock<P> {
    const CHANNEL_2: u16 = 0x42;
    const COMMAND: u16 = 0x43;
    const GATE: u16 = 0x61;
    const GATE_2: u8 = 1 << 0;
    const SPEAKER: u8 = 1 << 1;

    /// Lets channel 2 run through its whole range again and again, with the speaker off.
    pub fn start(ports: P) -> Self {
        let gate = ports.read8(Self::GATE);
        ports.write8(Self::GATE, (gate & !Self::SPEAKER) | Self::GATE_2);
        ports.write8(Self::COMMAND, 0b1011_0100); // channel 2, low then high byte, mode 2, binary
        ports.write8(Self::CHANNEL_2, 0);
        ports.write8(Self::CHANNEL_2, 0);
        Self(ports)
    }
}

impl<P: Ports> Counter for PitClock<P> {
    fn read(&self) -> u64 {
        self.0.write8(Self::COMMAND, 0b1000_0000); // latch channel 2
        let low = self.0.read8(Self::CHANNEL_2);
        let high = self.0.read8(Self::CHANNEL_2);
        // It counts down; a counter here counts up.
        u64::from(u16::MAX - u16::from_le_bytes([low, high]))
    }
    fn mask(&self) -> u64 {
        u16::MAX.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::port::mock::MockPorts;

    #[test]
    fn pit_counts_up_and_wraps() {
        let ports = MockPorts::default();
        ports
            .queued
            .borrow_mut()
            .insert(0x42, vec![0x34, 0x12, 0x33, 0x12, 0x00, 0x00, 0xFF, 0xFF]);
        let pit = PitClock::start(ports);
        let (a, b, c, d) = (pit.read(), pit.read(), pit.read(), pit.read());
        assert_eq!((b - a, c, d.wrapping_sub(c) & pit.mask()), (1, 0xFFFF, 1));
    }
}
