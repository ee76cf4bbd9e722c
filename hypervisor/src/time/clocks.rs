//! Reference clocks: HPET, ACPI PM timer, and channel 2 of the 8254.
//!
//! Used by the boot CPU only, before the other CPUs run.
use super::measure::{Counter, Rate};
use crate::console::port::Ports;
#[cfg(target_os = "none")]
use crate::{acpi::PmTimer, apic::mmio::Mmio};

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

/// The rate of an HPET by the period in its capabilities register, in femtoseconds.
///
/// IA-PC HPET specification 1.0a, 2.3.4: a period of zero or above 100 ns is not allowed.
pub fn hpet_rate(period_fs: u32) -> Option<Rate> {
    const MAX_PERIOD_FS: u32 = 100_000_000;
    (period_fs != 0 && period_fs <= MAX_PERIOD_FS).then(|| Rate {
        numerator: 1_000_000_000_000_000,
        denominator: period_fs.into(),
    })
}

/// The main counter of an HPET. Its low 32 bits do: the fastest one wraps after 43 s.
#[cfg(target_os = "none")]
pub struct Hpet {
    registers: Mmio,
    /// Its rate.
    pub rate: Rate,
}

#[cfg(target_os = "none")]
impl Hpet {
    const PERIOD: usize = 0x004;
    const CONFIGURATION: usize = 0x010;
    const COUNTER: usize = 0x0F0;
    const ENABLE: u32 = 1;

    /// Maps the HPET at `physical` and starts its counter.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn start(physical: u64) -> Result<Self, alloc::string::String> {
        let registers = Mmio::map(physical, 0x400)?;
        let period = registers.read32(Self::PERIOD);
        let rate = hpet_rate(period)
            .ok_or_else(|| alloc::format!("its period is {period} fs, expected 1 to 100000000"))?;
        let configuration = registers.read32(Self::CONFIGURATION);
        registers.write32(Self::CONFIGURATION, configuration | Self::ENABLE);
        Ok(Self { registers, rate })
    }
}

#[cfg(target_os = "none")]
impl Counter for Hpet {
    fn read(&self) -> u64 {
        self.registers.read32(Self::COUNTER).into()
    }
    fn mask(&self) -> u64 {
        u32::MAX.into()
    }
}

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
    fn hpet_periods_outside_the_specification_are_refused() {
        assert_eq!(hpet_rate(0), None);
        assert_eq!(hpet_rate(100_000_001), None);
        assert_eq!(
            hpet_rate(10_000_000).map(|r| r.ticks_in_micros(5000)),
            Some(500_000)
        );
        assert_eq!(
            hpet_rate(69_841_279).map(|r| r.ticks_in_micros(1_000_000)),
            Some(14_318_179)
        );
    }

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
