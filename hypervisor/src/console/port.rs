//! Port I/O: the one place where IN and OUT are executed for drivers.
//!
//! Drivers take a [`Ports`], so that they run in host tests against a mock.
#![expect(unsafe_code, reason = "IN and OUT are unsafe instructions")]

/// The x86 I/O port space, as a driver sees it (Intel SDM vol. 1, chapter 19 "Input/Output").
pub trait Ports {
    /// Reads one byte from `port`.
    fn read8(&self, port: u16) -> u8;
    /// Writes one byte to `port`.
    fn write8(&self, port: u16, value: u8);
    /// Reads two bytes from `port`.
    fn read16(&self, port: u16) -> u16;
    /// Writes two bytes to `port`.
    fn write16(&self, port: u16, value: u16);
    /// Reads four bytes from `port`.
    fn read32(&self, port: u16) -> u32;
    /// Writes four bytes to `port`.
    fn write32(&self, port: u16, value: u32);
}

/// The ports of the real machine. Works at privilege level 0 only.
///
/// A port access is as powerful as the device behind it. No driver here names a port of a device that can
/// write memory (none programs DMA), which is what makes these functions safe to call.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachinePorts;

impl Ports for MachinePorts {
    fn read8(&self, port: u16) -> u8 {
        // SAFETY: runs at CPL 0; no device that our drivers name touches memory on a read.
        unsafe { x86::io::inb(port) }
    }

    fn write8(&self, port: u16, value: u8) {
        // SAFETY: runs at CPL 0; no device that our drivers name touches memory on a write.
        unsafe { x86::io::outb(port, value) }
    }

    fn read16(&self, port: u16) -> u16 {
        // SAFETY: as in `read8`.
        unsafe { x86::io::inw(port) }
    }

    fn write16(&self, port: u16, value: u16) {
        // SAFETY: as in `write8`.
        unsafe { x86::io::outw(port, value) }
    }

    fn read32(&self, port: u16) -> u32 {
        // SAFETY: as in `read8`.
        unsafe { x86::io::inl(port) }
    }

    fn write32(&self, port: u16, value: u32) {
        // SAFETY: as in `write8`.
        unsafe { x86::io::outl(port, value) }
    }
}

#[cfg(test)]
pub(crate) mod mock {
    //! A port space that answers from a script and records what is written.
    use super::Ports;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// A port space for tests: a byte read gives the first queued value, else the sticky one, else 0xFF.
    #[derive(Default)]
    pub(crate) struct MockPorts {
        pub(crate) sticky: RefCell<BTreeMap<u16, u32>>,
        pub(crate) queued: RefCell<BTreeMap<u16, Vec<u32>>>,
        pub(crate) written: RefCell<Vec<(u16, u32)>>,
        /// Ports that read back what was written last.
        pub(crate) memory_like: Vec<u16>,
    }

    impl MockPorts {
        fn read(&self, port: u16, none: u32) -> u32 {
            if let Some(queue) = self.queued.borrow_mut().get_mut(&port)
                && !queue.is_empty()
            {
                return queue.remove(0);
            }
            self.sticky.borrow().get(&port).copied().unwrap_or(none)
        }

        fn write(&self, port: u16, value: u32) {
            self.written.borrow_mut().push((port, value));
            if self.memory_like.contains(&port) {
                self.sticky.borrow_mut().insert(port, value);
            }
        }
    }

    impl Ports for MockPorts {
        fn read8(&self, port: u16) -> u8 {
            self.read(port, 0xFF) as u8
        }
        fn write8(&self, port: u16, value: u8) {
            self.write(port, value.into());
        }
        fn read16(&self, port: u16) -> u16 {
            self.read(port, 0xFFFF) as u16
        }
        fn write16(&self, port: u16, value: u16) {
            self.write(port, value.into());
        }
        fn read32(&self, port: u16) -> u32 {
            self.read(port, 0xFFFF_FFFF)
        }
        fn write32(&self, port: u16, value: u32) {
            self.write(port, value);
        }
    }
}
