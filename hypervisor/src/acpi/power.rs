//! Power-off and reboot, by every way that a PC offers, one after the other.
//!
//! The last act of the machine: called once, by one CPU, with the others stopped or not. Nothing here returns.
use super::s5::SleepType;
use crate::console::port::Ports;

/// A register of firmware's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// An I/O port.
    Port(u16),
    /// A physical address.
    Memory(u64),
}

/// Writing `value` to `register` resets the machine (ACPI specification 6.5, 4.8.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetRegister {
    /// Where to write.
    pub register: Register,
    /// What to write.
    pub value: u8,
}

/// Writing `value` to `port` hands the PM registers over from firmware (ACPI specification 6.5, 16.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcpiEnable {
    /// SMI_CMD.
    pub port: u16,
    /// ACPI_ENABLE.
    pub value: u8,
}

/// How to enter S5 (ACPI specification 6.5, 4.8.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerOff {
    /// Port of PM1a_CNT.
    pub control_a: u16,
    /// Port of PM1b_CNT.
    pub control_b: Option<u16>,
    /// SLP_TYP for both.
    pub sleep_type: SleepType,
    /// How to switch to ACPI mode first, where there is a legacy mode.
    pub enable: Option<AcpiEnable>,
}

const SCI_EN: u16 = 1 << 0;
const SLP_TYP: u32 = 10;
const SLP_TYP_MASK: u16 = 0b111 << SLP_TYP;
const SLP_EN: u16 = 1 << 13;

impl PowerOff {
    /// Enters S5. Returns only if the machine is still on.
    pub fn enter(&self, ports: &impl Ports) {
        if let Some(enable) = self.enable
            && ports.read16(self.control_a) & SCI_EN == 0
        {
            ports.write8(enable.port, enable.value);
            // Firmware takes some milliseconds at most; a port read takes about 1 us.
            for _ in 0..100_000 {
                if ports.read16(self.control_a) & SCI_EN != 0 {
                    break;
                }
            }
        }
        for (port, sleep_type) in [
            (Some(self.control_a), self.sleep_type.a),
            (self.control_b, self.sleep_type.b),
        ] {
            let Some(port) = port else { continue };
            let kept = ports.read16(port) & !(SLP_TYP_MASK | SLP_EN);
            ports.write16(port, kept | u16::from(sleep_type) << SLP_TYP | SLP_EN);
        }
    }
}

/// The reset control register of PCI chip sets (ICH and later, "RST_CNT").
const RESET_CONTROL: u16 = 0xCF9;
const KEYBOARD_COMMAND: u16 = 0x64;
const KEYBOARD_BUSY: u8 = 1 << 1;
const KEYBOARD_PULSE_RESET: u8 = 0xFE;

/// Resets by chip set and keyboard controller. Returns only if the machine is still running.
pub fn reset_by_ports(ports: &impl Ports) {
    let control = ports.read8(RESET_CONTROL) & !0b110;
    ports.write8(RESET_CONTROL, control | 0b010); // system reset ...
    ports.write8(RESET_CONTROL, control | 0b110); // ... now
    for _ in 0..10_000 {
        if ports.read8(KEYBOARD_COMMAND) & KEYBOARD_BUSY == 0 {
            break;
        }
    }
    ports.write8(KEYBOARD_COMMAND, KEYBOARD_PULSE_RESET);
}

#[cfg(target_os = "none")]
mod machine {
    #![expect(unsafe_code, reason = "a triple fault, a halt")]
    use super::{PowerOff, Register, ResetRegister, reset_by_ports};
    use crate::apic::mmio::Mmio;
    use crate::console::port::{MachinePorts, Ports};
    use core::arch::asm;

    /// Ends the machine: by the exit port with `code` if there is one, else by ACPI, else by halting this CPU.
    pub fn power_off(code: u8, acpi: Option<&PowerOff>) -> ! {
        crate::console::flush();
        crate::panic::exit_port::leave(&MachinePorts, code);
        if let Some(acpi) = acpi {
            acpi.enter(&MachinePorts);
        }
        halt_for_ever()
    }

    /// Restarts the machine: ACPI's reset register, chip set, keyboard controller, triple fault.
    pub fn reboot(acpi: Option<&ResetRegister>) -> ! {
        crate::console::flush();
        if let Some(reset) = acpi {
            match reset.register {
                Register::Port(port) => MachinePorts.write8(port, reset.value),
                Register::Memory(address) => {
                    if let Ok(window) = Mmio::map(address & !3, 4) {
                        window.write32(0, u32::from(reset.value) << ((address & 3) * 8));
                    }
                }
            }
        }
        reset_by_ports(&MachinePorts);
        let empty_table = [0u64; 2];
        // SAFETY: nothing runs after this: without an IDT the UD2 is a triple fault, which resets the machine.
        unsafe { asm!("lidt [{}]", "ud2", in(reg) empty_table.as_ptr(), options(noreturn)) }
    }

    fn halt_for_ever() -> ! {
        loop {
            // SAFETY: with interrupts off only an NMI ends the halt, and then it is entered again.
            unsafe { asm!("cli", "hlt", options(nomem, nostack)) }
        }
    }
}

#[cfg(target_os = "none")]
pub use machine::{power_off, reboot};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::port::mock::MockPorts;

    #[test]
    fn s5_keeps_other_bits_and_switches_to_acpi_first() {
        let ports = MockPorts::default();
        ports
            .queued
            .borrow_mut()
            .insert(0x604, vec![0x0000, 0x0001, 0x3C03]);
        ports.sticky.borrow_mut().insert(0x608, 0x0004);
        let off = PowerOff {
            control_a: 0x604,
            control_b: Some(0x608),
            sleep_type: SleepType { a: 5, b: 2 },
            enable: Some(AcpiEnable {
                port: 0xB2,
                value: 0xF1,
            }),
        };
        off.enter(&ports);
        assert_eq!(
            *ports.written.borrow(),
            [
                (0xB2, 0xF1),
                (0x604, 0x0003 | 5 << 10 | 1 << 13),
                (0x608, 0x0004 | 2 << 10 | 1 << 13)
            ]
        );
    }

    #[test]
    fn reset_tries_chip_set_then_keyboard() {
        let ports = MockPorts::default();
        ports.sticky.borrow_mut().insert(RESET_CONTROL, 0);
        ports.sticky.borrow_mut().insert(KEYBOARD_COMMAND, 0);
        reset_by_ports(&ports);
        assert_eq!(
            *ports.written.borrow(),
            [(0xCF9, 2), (0xCF9, 6), (0x64, 0xFE)]
        );
    }
}
