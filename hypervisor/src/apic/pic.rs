//! The 8259 pair: moved away from the exception vectors, and masked for good.
use super::vector;
use crate::console::port::Ports;

const MASTER: u16 = 0x20;
const SLAVE: u16 = 0xA0;

/// Masks both. They are initialised first, since even a masked 8259 can raise its spurious interrupt, and firmware's
/// vectors are those of exceptions. Intel 8259A data sheet, "Initialization Command Words".
pub fn mask(ports: &impl Ports) {
    for (base, first, cascade) in [(MASTER, vector::PIC, 1 << 2), (SLAVE, vector::PIC + 8, 2)] {
        ports.write8(base, 0x11); // ICW1: edge, cascade, ICW4 follows
        ports.write8(base + 1, first); // ICW2: vectors
        ports.write8(base + 1, cascade); // ICW3
        ports.write8(base + 1, 0x01); // ICW4: 8086 mode
        ports.write8(base + 1, 0xFF); // OCW1: all masked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::port::mock::MockPorts;

    #[test]
    fn ends_masked_on_vectors_that_are_no_exceptions() {
        let ports = MockPorts::default();
        mask(&ports);
        let written = ports.written.borrow();
        assert_eq!(
            written[..5],
            [
                (0x20, 0x11),
                (0x21, 0x20),
                (0x21, 4),
                (0x21, 1),
                (0x21, 0xFF)
            ]
        );
        assert_eq!(
            written[5..],
            [
                (0xA0, 0x11),
                (0xA1, 0x28),
                (0xA1, 2),
                (0xA1, 1),
                (0xA1, 0xFF)
            ]
        );
    }
}
