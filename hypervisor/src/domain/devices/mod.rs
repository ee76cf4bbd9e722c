//! The devices of a guest: a 16550 at COM1, the debug port E9h, the exit port F4h. Other ports read all ones.
//!
//! One [`Devices`] a guest, behind a spin lock that is held for one access (or one line of output).

mod line;
mod report;
mod uart;

pub use line::LineAssembler;
pub use report::{Report, Verdict, parse};
pub use uart::Uart;

/// First port of COM1.
const COM1: u16 = 0x3f8;

/// Debug port: a write is a character, a read says that it is there.
const DEBUG: u16 = 0xe9;

/// Exit port: a write ends the guest.
const EXIT: u16 = 0xf4;

/// What the caller has to do after a write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum PortEffect {
    /// Nothing.
    None,
    /// A line of output is complete.
    Line(alloc::string::String),
    /// The guest ends with this code.
    Exit(u8),
}

/// Port-mapped devices of one guest.
#[derive(Debug, Default)]
pub struct Devices {
    uart: Uart,
    uart_line: LineAssembler,
    debug_line: LineAssembler,
}

impl Devices {
    /// IN of `size` bytes (1, 2, 4). A wide access takes consecutive ports.
    pub fn read(&mut self, port: u16, size: u8) -> u32 {
        let mut bytes = [0xff; 4];
        for (index, byte) in (0..u16::from(size)).zip(&mut bytes) {
            *byte = self.read_byte(port.wrapping_add(index));
        }
        let value = u32::from_le_bytes(bytes);
        match size {
            1 => value & 0xff,
            2 => value & 0xffff,
            _ => value,
        }
    }

    /// OUT of `size` bytes. A wide access to a device reaches its first port only with its first byte; no guest
    /// of these devices means anything else.
    pub fn write(&mut self, port: u16, value: u32) -> PortEffect {
        let [byte, ..] = value.to_le_bytes();
        let line = match port {
            DEBUG => self.debug_line.push(byte),
            EXIT => return PortEffect::Exit(byte),
            _ => match com1(port).and_then(|offset| self.uart.write(offset, byte)) {
                Some(byte) => self.uart_line.push(byte),
                None => None,
            },
        };
        line.map_or(PortEffect::None, PortEffect::Line)
    }

    /// Output that no newline ended, when the guest is over.
    pub fn rest(&mut self) -> impl Iterator<Item = alloc::string::String> {
        [self.debug_line.take(), self.uart_line.take()]
            .into_iter()
            .flatten()
    }

    fn read_byte(&mut self, port: u16) -> u8 {
        match port {
            DEBUG => 0xe9,
            _ => com1(port).map_or(0xff, |offset| self.uart.read(offset)),
        }
    }
}

/// Register of COM1 that is at `port`.
fn com1(port: u16) -> Option<u8> {
    port.checked_sub(COM1)
        .and_then(|offset| u8::try_from(offset).ok())
        .filter(|offset| *offset < 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_where_a_pc_has_them() {
        let mut devices = Devices::default();
        assert_eq!(devices.read(0xe9, 1), 0xe9);
        assert_eq!(devices.read(0x3fd, 1), 0x60);
        assert_eq!(
            (devices.read(0x60, 1), devices.read(0xcf8, 4)),
            (0xff, 0xffff_ffff)
        );
        assert_eq!(devices.read(0xe9, 2), 0xffe9);
        assert_eq!(devices.read(0xffff, 2), 0xffff, "wraps");
        assert_eq!(devices.write(0xf4, 0x110), PortEffect::Exit(0x10));
        assert_eq!(devices.write(0x80, 1), PortEffect::None);
    }

    #[test]
    fn both_consoles_make_lines_of_their_own() {
        let mut devices = Devices::default();
        let mut lines = std::vec::Vec::new();
        for (a, b) in b"one\n".iter().zip(b"two\n") {
            for (port, byte) in [(0xe9, *a), (0x3f8, *b)] {
                if let PortEffect::Line(line) = devices.write(port, byte.into()) {
                    lines.push(line);
                }
            }
        }
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(devices.write(0xe9, b'x'.into()), PortEffect::None);
        assert_eq!(devices.rest().collect::<std::vec::Vec<_>>(), ["x"]);
        assert_eq!(devices.rest().count(), 0);
    }
}
