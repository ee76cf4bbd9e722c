//! The HPET: a counter that runs on when CPUs sleep, and a comparator that interrupts.
//!
//! IA-PC HPET specification 1.0a, chapter 2. Only the low 32 bits of the counter are used, and only comparator 0, as a one-shot.
//! Whoever uses the comparator has it alone.
use super::measure::{Counter, Rate};
use crate::acpi::Wiring;
use crate::apic::mmio::Mmio;
use alloc::format;
use alloc::string::String;
use core::fmt;

const CAPABILITIES: usize = 0x000;
#[cfg(any(target_os = "none", test))]
const PERIOD: usize = 0x004;
const CONFIGURATION: usize = 0x010;
const COUNTER: usize = 0x0F0;
const TIMER_0: usize = 0x100;
const TIMER_0_COMPARATOR: usize = 0x108;
const TIMER_0_FSB: usize = 0x110;

const LEGACY_CAPABLE: u32 = 1 << 15;
const ENABLE: u32 = 1 << 0;
const LEGACY: u32 = 1 << 1;
const TIMER_ENABLE: u32 = 1 << 2;
const TIMER_PERIODIC: u32 = 1 << 3;
const TIMER_LEVEL: u32 = 1 << 1;
const TIMER_32_BIT: u32 = 1 << 8;
const TIMER_FSB: u32 = 1 << 14;
const TIMER_FSB_CAPABLE: u32 = 1 << 15;
/// Where a message-signalled interrupt is written to, with the APIC id in bits 19:12 (Intel SDM, volume 3, 11.11).
const MESSAGE_ADDRESS: u32 = 0xFEE0_0000;

/// A comparator that is closer than this to the counter may be passed before it is set, and then it interrupts a wrap later.
const CLOSEST: u32 = 8;

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

/// How the comparator's interrupt gets to a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// In the place of the PIT's, where ISA interrupt 0 arrives.
    Legacy,
    /// As a message, without an IOAPIC.
    Message,
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy routing",
            Self::Message => "messages",
        })
    }
}

/// An HPET.
#[derive(Clone, Copy, Debug)]
pub struct Hpet {
    registers: Mmio,
    /// Its rate.
    pub rate: Rate,
}

impl Hpet {
    /// Maps the HPET at `physical` and starts its counter.
    ///
    /// # Errors
    /// Says what is wrong with it.
    #[cfg(target_os = "none")]
    pub fn start(physical: u64) -> Result<Self, String> {
        Self::over(Mmio::map(physical, 0x400)?)
    }

    #[cfg(any(target_os = "none", test))]
    fn over(registers: Mmio) -> Result<Self, String> {
        let period = registers.read32(PERIOD);
        let rate = hpet_rate(period)
            .ok_or_else(|| format!("its period is {period} fs, expected 1 to 100000000"))?;
        let configuration = registers.read32(CONFIGURATION);
        registers.write32(CONFIGURATION, configuration | ENABLE);
        Ok(Self { registers, rate })
    }

    /// The counter's low 32 bits.
    pub fn now(&self) -> u32 {
        self.registers.read32(COUNTER)
    }

    /// Whether the comparator's interrupt can be delivered so.
    pub fn offers(&self, delivery: Delivery) -> bool {
        match delivery {
            Delivery::Legacy => self.registers.read32(CAPABILITIES) & LEGACY_CAPABLE != 0,
            Delivery::Message => self.registers.read32(TIMER_0) & TIMER_FSB_CAPABLE != 0,
        }
    }

    /// Makes the comparator a one-shot that interrupts the CPU of `apic_id` at `vector`. With [`Delivery::Legacy`] the caller has
    /// routed ISA interrupt 0.
    ///
    /// # Errors
    /// The id does not fit into a message.
    pub fn prepare(&self, delivery: Delivery, vector: u8, apic_id: u32) -> Result<(), String> {
        let old = self.registers.read32(TIMER_0);
        let mut new = old & !(TIMER_PERIODIC | TIMER_LEVEL | TIMER_FSB) | TIMER_32_BIT;
        // Off while it is changed.
        self.registers.write32(TIMER_0, new & !TIMER_ENABLE);
        if delivery == Delivery::Message {
            let id = u8::try_from(apic_id)
                .map_err(|_| format!("APIC id {apic_id} does not fit into its message"))?;
            self.registers.write32(TIMER_0_FSB, vector.into());
            self.registers
                .write32(TIMER_0_FSB + 4, MESSAGE_ADDRESS | u32::from(id) << 12);
            new |= TIMER_FSB;
        }
        let configuration = self.registers.read32(CONFIGURATION);
        let legacy = if delivery == Delivery::Legacy {
            LEGACY
        } else {
            0
        };
        self.registers
            .write32(CONFIGURATION, configuration & !LEGACY | ENABLE | legacy);
        // A whole wrap away.
        self.registers.write32(TIMER_0_COMPARATOR, self.now());
        self.registers.write32(TIMER_0, new | TIMER_ENABLE);
        Ok(())
    }

    /// Interrupts in so many ticks of the counter; sooner, if that is more than half of its range. The comparator only looks for
    /// equality: one that was passed while it was set is set again, farther away.
    pub fn interrupt_in(&self, ticks: u64) {
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX).min(u32::MAX / 2);
        let mut ahead = ticks.max(CLOSEST);
        loop {
            let at = self.now().wrapping_add(ahead);
            self.registers.write32(TIMER_0_COMPARATOR, at);
            let left = at.wrapping_sub(self.now());
            if left != 0 && left <= u32::MAX / 2 {
                return;
            }
            ahead = ahead.saturating_mul(2).min(u32::MAX / 2);
        }
    }
}

impl Counter for Hpet {
    fn read(&self) -> u64 {
        self.now().into()
    }
    fn mask(&self) -> u64 {
        u32::MAX.into()
    }
}

/// The wiring of legacy routing.
pub const fn legacy_irq() -> u8 {
    0
}

/// As the interrupt controller needs it: an HPET in legacy routing is edge-triggered, whatever the table says of ISA interrupt 0.
pub fn legacy_wiring(isa: Wiring) -> Wiring {
    Wiring {
        level: false,
        active_low: false,
        ..isa
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers as plain memory: the counter stands still.
    fn memory(capabilities: u32, timer: u32) -> Vec<u32> {
        let mut memory = vec![0; 0x100];
        memory[0] = capabilities;
        memory[1] = 10_000_000;
        memory[COUNTER / 4] = 5;
        memory[TIMER_0 / 4] = timer;
        memory
    }

    #[test]
    fn periods_outside_the_specification_are_refused() {
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
        let mut broken = memory(0, 0);
        broken[1] = 0;
        assert!(Hpet::over(Mmio::over(&mut broken)).is_err());
    }

    #[test]
    fn the_registers_say_how_it_can_interrupt() {
        for (capabilities, timer, legacy, message) in [
            (LEGACY_CAPABLE, TIMER_FSB_CAPABLE, true, true),
            (0, TIMER_FSB_CAPABLE, false, true),
            (LEGACY_CAPABLE, 0, true, false),
            (0, 0, false, false),
        ] {
            let mut memory = memory(capabilities, timer);
            let hpet = Hpet::over(Mmio::over(&mut memory)).unwrap();
            assert_eq!(hpet.offers(Delivery::Legacy), legacy);
            assert_eq!(hpet.offers(Delivery::Message), message);
        }
    }

    #[test]
    fn the_comparator_becomes_a_one_shot() {
        let mut legacy = memory(LEGACY_CAPABLE, TIMER_PERIODIC | TIMER_LEVEL);
        let hpet = Hpet::over(Mmio::over(&mut legacy)).unwrap();
        hpet.prepare(Delivery::Legacy, 0xEE, 3).unwrap();
        assert_eq!(legacy[TIMER_0 / 4], TIMER_ENABLE | TIMER_32_BIT);
        assert_eq!(legacy[CONFIGURATION / 4], ENABLE | LEGACY);

        let mut message = memory(0, TIMER_FSB_CAPABLE);
        let hpet = Hpet::over(Mmio::over(&mut message)).unwrap();
        hpet.prepare(Delivery::Message, 0xEE, 3).unwrap();
        assert_eq!(
            message[TIMER_0 / 4],
            TIMER_FSB_CAPABLE | TIMER_FSB | TIMER_ENABLE | TIMER_32_BIT
        );
        assert_eq!(message[TIMER_0_FSB / 4..][..2], [0xEE, 0xFEE0_3000]);
        assert_eq!(message[CONFIGURATION / 4], ENABLE);
        assert!(hpet.prepare(Delivery::Message, 0xEE, 256).is_err());
    }

    #[test]
    fn a_deadline_is_never_too_close_nor_too_far() {
        for (ticks, at) in [(0, 13), (100, 105), (u64::MAX, 5 + u32::MAX / 2)] {
            let mut memory = memory(0, 0);
            Hpet::over(Mmio::over(&mut memory))
                .unwrap()
                .interrupt_in(ticks);
            assert_eq!(memory[TIMER_0_COMPARATOR / 4], at);
        }
    }
}
