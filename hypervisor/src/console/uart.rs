//! 16550 UART: polled transmit, interrupt-driven receive.
//!
//! The driver keeps no state but "stuck", so a panicking CPU may use it without the lock of [`super`].
//! Registers: National Semiconductor PC16550D data sheet, table II.
use super::port::Ports;
use core::sync::atomic::{AtomicBool, Ordering};

/// The base port of COM1.
pub const COM1: u16 = 0x3F8;

// Offsets of the registers from the base port.
const DATA: u16 = 0; // RBR / THR, divisor low with DLAB
const IER: u16 = 1; // interrupt enable, divisor high with DLAB
const FCR: u16 = 2; // FIFO control
const LCR: u16 = 3; // line control
const MCR: u16 = 4; // modem control
const LSR: u16 = 5; // line status
const SCRATCH: u16 = 7;

const LCR_8N1: u8 = 0x03;
const LCR_DLAB: u8 = 0x80;
const FCR_ENABLE_AND_CLEAR: u8 = 0x07;
const MCR_DTR_RTS_OUT2: u8 = 0x0B; // OUT2 gates the interrupt line on PC hardware
const IER_RX: u8 = 0x01;
const LSR_DATA_READY: u8 = 0x01;
const LSR_THR_EMPTY: u8 = 0x20;
const LSR_ALL_SENT: u8 = 0x40;

/// Bytes that the transmit FIFO takes once it reports empty.
const FIFO_DEPTH: usize = 16;
/// Reads of the line status after which a transmitter counts as stuck. A byte takes 87 us at 115200 baud and
/// a port read about 1 us on hardware, so a whole FIFO drains within 1 400 reads.
const TX_POLLS: u32 = 100_000;

/// One 16550 at a base port.
#[derive(Debug)]
pub struct Uart<P> {
    ports: P,
    base: u16,
    /// The transmitter did not drain once: do not wait for it again, or every line would stall the machine.
    stuck: AtomicBool,
}

impl<P: Ports> Uart<P> {
    /// A driver for the UART at `base`, which is not touched yet.
    pub const fn new(ports: P, base: u16) -> Self {
        Self {
            ports,
            base,
            stuck: AtomicBool::new(false),
        }
    }

    /// Looks for the UART and sets it to 115200 baud, 8N1, FIFOs on, interrupts off.
    /// Returns `false` if no UART answers: nothing may be sent then.
    pub fn init(&self) -> bool {
        // An absent UART reads all ones; a present one keeps what is written to the scratch register.
        for pattern in [0x5A, 0xA5] {
            self.set(SCRATCH, pattern);
            if self.get(SCRATCH) != pattern {
                return false;
            }
        }
        self.set(IER, 0);
        self.set(LCR, LCR_DLAB);
        self.set(DATA, 1);
        self.set(IER, 0);
        self.set(LCR, LCR_8N1);
        self.set(FCR, FCR_ENABLE_AND_CLEAR);
        self.set(MCR, MCR_DTR_RTS_OUT2);
        true
    }

    /// Raises an interrupt for each received byte from now on.
    pub fn enable_rx_interrupt(&self) {
        self.set(IER, IER_RX);
    }

    /// Sends `bytes`, waiting for the transmitter. Bytes are lost, never waited for without end, if it is stuck.
    pub fn send(&self, bytes: &[u8]) {
        self.send_and_take(bytes, || {});
    }

    /// The same; `take` is called when input arrives while it waits, which a FIFO of 16 bytes would soon lose.
    pub fn send_and_take(&self, bytes: &[u8], take: impl Fn()) {
        for chunk in bytes.chunks(FIFO_DEPTH) {
            if !self.wait_for(LSR_THR_EMPTY, &take) {
                return;
            }
            for &byte in chunk {
                self.set(DATA, byte);
            }
        }
    }

    /// Waits until the last bit has left the shift register: what a power-off must wait for.
    pub fn drain(&self) {
        self.wait_for(LSR_ALL_SENT, &|| {});
    }

    /// The next received byte, if there is one.
    pub fn receive(&self) -> Option<u8> {
        let status = self.get(LSR);
        // 0xFF is no UART at all; it must not look like an endless stream.
        (status != 0xFF && status & LSR_DATA_READY != 0).then(|| self.get(DATA))
    }

    fn wait_for(&self, bit: u8, take: &impl Fn()) -> bool {
        let polls = if self.stuck.load(Ordering::Relaxed) {
            1
        } else {
            TX_POLLS
        };
        for _ in 0..polls {
            let status = self.get(LSR);
            if status & LSR_DATA_READY != 0 {
                take();
            }
            if status & bit != 0 {
                self.stuck.store(false, Ordering::Relaxed);
                return true;
            }
            core::hint::spin_loop();
        }
        self.stuck.store(true, Ordering::Relaxed);
        false
    }

    fn get(&self, register: u16) -> u8 {
        self.ports.read8(self.base + register)
    }

    fn set(&self, register: u16, value: u8) {
        self.ports.write8(self.base + register, value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::port::mock::MockPorts;
    use super::*;

    fn present() -> Uart<MockPorts> {
        let ports = MockPorts {
            memory_like: vec![COM1 + SCRATCH],
            ..Default::default()
        };
        ports
            .sticky
            .borrow_mut()
            .insert(COM1 + LSR, (LSR_THR_EMPTY | LSR_ALL_SENT).into());
        Uart::new(ports, COM1)
    }

    #[test]
    fn absent_uart_is_noticed_and_gives_no_input() {
        let uart = Uart::new(MockPorts::default(), COM1);
        assert!(!uart.init());
        assert_eq!(uart.receive(), None);
    }

    #[test]
    fn init_sets_115200_8n1() {
        let uart = present();
        assert!(uart.init());
        let written = uart.ports.written.borrow();
        let dlab = written
            .iter()
            .position(|w| *w == (COM1 + LCR, 0x80))
            .unwrap();
        assert_eq!(written[dlab + 1], (COM1 + DATA, 1));
        assert_eq!(written[dlab + 2], (COM1 + IER, 0));
        assert_eq!(written[dlab + 3], (COM1 + LCR, 3));
    }

    #[test]
    fn send_passes_every_byte_in_order() {
        let uart = present();
        let text: Vec<u8> = (0..40).collect();
        uart.send(&text);
        let sent: Vec<u8> = uart
            .ports
            .written
            .borrow()
            .iter()
            .filter(|w| w.0 == COM1)
            .map(|w| w.1 as u8)
            .collect();
        assert_eq!(sent, text);
    }

    #[test]
    fn stuck_transmitter_costs_its_wait_once_and_may_recover() {
        let uart = present();
        uart.ports.sticky.borrow_mut().insert(COM1 + LSR, 0);
        uart.send(b"ab");
        assert!(uart.stuck.load(Ordering::Relaxed));
        uart.ports
            .sticky
            .borrow_mut()
            .insert(COM1 + LSR, LSR_THR_EMPTY.into());
        uart.send(b"c");
        assert!(!uart.stuck.load(Ordering::Relaxed));
        assert_eq!(
            uart.ports.written.borrow().last(),
            Some(&(COM1, b'c'.into()))
        );
    }

    #[test]
    fn what_arrives_while_it_sends_is_taken() {
        let uart = present();
        let both = LSR_THR_EMPTY | LSR_DATA_READY;
        uart.ports
            .queued
            .borrow_mut()
            .insert(COM1 + LSR, vec![0, LSR_DATA_READY.into(), both.into()]);
        let taken = core::cell::Cell::new(0);
        uart.send_and_take(b"a", || taken.set(taken.get() + 1));
        assert_eq!(taken.get(), 2);
        assert_eq!(
            uart.ports.written.borrow().last(),
            Some(&(COM1, b'a'.into()))
        );
    }

    #[test]
    fn receive_reads_data_only_when_ready() {
        let uart = present();
        uart.ports
            .queued
            .borrow_mut()
            .insert(COM1 + LSR, vec![0x60, 0x61]);
        uart.ports.sticky.borrow_mut().insert(COM1, b'k'.into());
        assert_eq!(uart.receive(), None);
        assert_eq!(uart.receive(), Some(b'k'));
    }
}
