//! A 16550 UART: enough for polled output, for probing, and for loopback self-tests.
//!
//! The transmitter is always ready and nothing is ever received, except in loopback. There is no interrupt line
//! (guests have no I/O APIC), but IIR tells what would have raised one. Registers: TI PC16550D data sheet, table II.

/// LCR bit 7: registers 0 and 1 are the divisor.
const DLAB: u8 = 0x80;
const MCR_LOOP: u8 = 0x10;
const LSR_READY: u8 = 1;
const LSR_EMPTY: u8 = 0x60;

/// Carrier, data set ready, clear to send: someone is listening.
const MSR_CONNECTED: u8 = 0xb0;

/// The device.
#[derive(Debug, Default)]
pub struct Uart {
    divisor: [u8; 2],
    ier: u8,
    fifo: bool,
    lcr: u8,
    mcr: u8,
    scratch: u8,
    received: Option<u8>,
    thre_pending: bool,
}

impl Uart {
    /// Reads register 0..=7.
    pub fn read(&mut self, register: u8) -> u8 {
        match register {
            0 | 1 if self.lcr & DLAB != 0 => self
                .divisor
                .get(usize::from(register))
                .copied()
                .unwrap_or(0),
            0 => self.received.take().unwrap_or(0),
            1 => self.ier,
            2 => self.identify(),
            3 => self.lcr,
            4 => self.mcr,
            5 => {
                LSR_EMPTY
                    | if self.received.is_some() {
                        LSR_READY
                    } else {
                        0
                    }
            }
            6 => self.modem_status(),
            7 => self.scratch,
            _ => 0xff,
        }
    }

    /// Writes register 0..=7; returns a byte that goes out.
    pub fn write(&mut self, register: u8, value: u8) -> Option<u8> {
        match register {
            0 | 1 if self.lcr & DLAB != 0 => {
                if let Some(byte) = self.divisor.get_mut(usize::from(register)) {
                    *byte = value;
                }
            }
            0 => {
                self.thre_pending = true;
                if self.mcr & MCR_LOOP == 0 {
                    return Some(value);
                }
                self.received = Some(value);
            }
            1 => {
                // Enabling the interrupt while the register is empty raises it.
                self.thre_pending |= value & 2 != 0 && self.ier & 2 == 0;
                self.ier = value & 0x0f;
            }
            2 => {
                self.fifo = value & 1 != 0;
                if value & 2 != 0 {
                    self.received = None;
                }
            }
            3 => self.lcr = value,
            4 => self.mcr = value & 0x1f,
            7 => self.scratch = value,
            _ => {}
        }
        None
    }

    /// IIR: the reason of highest priority. Reading it takes the transmitter's.
    fn identify(&mut self) -> u8 {
        let fifo = if self.fifo { 0xc0 } else { 0 };
        let reason = if self.ier & 1 != 0 && self.received.is_some() {
            4
        } else if self.ier & 2 != 0 && self.thre_pending {
            self.thre_pending = false;
            2
        } else {
            1
        };
        fifo | reason
    }

    fn modem_status(&self) -> u8 {
        if self.mcr & MCR_LOOP == 0 {
            return MSR_CONNECTED;
        }
        // DTR, RTS, OUT1, OUT2 come back as DSR, CTS, RI, DCD.
        let bit = |from: u8, to: u8| if self.mcr & from != 0 { to } else { 0 };
        bit(1, 0x20) | bit(2, 0x10) | bit(4, 0x40) | bit(8, 0x80)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_goes_out_and_the_transmitter_is_ready() {
        let mut uart = Uart::default();
        assert_eq!(uart.read(5), 0x60);
        assert_eq!(uart.write(0, b'A'), Some(b'A'));
        assert_eq!((uart.read(5), uart.read(0), uart.read(6)), (0x60, 0, 0xb0));
    }

    #[test]
    fn the_divisor_hides_data_and_interrupt_enable() {
        let mut uart = Uart::default();
        uart.write(3, 0x83);
        assert_eq!((uart.write(0, 1), uart.write(1, 2)), (None, None));
        assert_eq!((uart.read(0), uart.read(1)), (1, 2));
        uart.write(3, 3);
        assert_eq!((uart.read(0), uart.read(1), uart.read(3)), (0, 0, 3));
    }

    #[test]
    fn loopback_returns_data_and_modem_lines() {
        let mut uart = Uart::default();
        uart.write(4, 0x1e);
        assert_eq!(uart.read(6), 0xd0);
        assert_eq!(uart.write(0, 0xae), None);
        assert_eq!(
            (uart.read(5), uart.read(0), uart.read(5)),
            (0x61, 0xae, 0x60)
        );
        uart.write(0, 1);
        uart.write(2, 3);
        assert_eq!(
            (uart.read(5), uart.read(4)),
            (0x60, 0x1e),
            "the FIFO was cleared"
        );
        uart.write(4, 0xef);
        assert_eq!(uart.read(4), 0x0f, "upper bits do not exist");
        assert_eq!(uart.write(0, 2), Some(2));
    }

    #[test]
    fn interrupt_reasons_and_scratch() {
        let mut uart = Uart::default();
        assert_eq!(uart.read(2), 1);
        uart.write(1, 0xff);
        uart.write(2, 1);
        assert_eq!(
            (uart.read(1), uart.read(2), uart.read(2)),
            (0x0f, 0xc2, 0xc1)
        );
        uart.write(4, 0x10);
        uart.write(0, 9);
        assert_eq!(
            (uart.read(2), uart.read(0), uart.read(2), uart.read(2)),
            (0xc4, 9, 0xc2, 0xc1)
        );
        uart.write(7, 0x5a);
        assert_eq!(uart.read(7), 0x5a);
    }
}
