//! The interpreter's hands: memory, ports and PCI configuration, as far as the [`Rules`] let them.

use super::rules::{Refusals, Refused, Rules};

/// The machine behind the rules. Sizes are 1, 2, 4 or (memory) 8 bytes.
pub trait Machine: Send + Sync + 'static {
    /// Reads memory. `None`: there is none that can be reached.
    fn read_memory(&self, address: u64, size: u64) -> Option<u64>;
    /// Writes memory. `false`: there is none that can be reached.
    fn write_memory(&self, address: u64, size: u64, value: u64) -> bool;
    /// Reads a port.
    fn read_port(&self, port: u16, size: u16) -> u32;
    /// Writes a port.
    fn write_port(&self, port: u16, size: u16, value: u32);
    /// Reads configuration space of segment 0, by the old mechanism. The offset is below 256.
    fn read_pci(&self, at: PciAddress, size: u16) -> u32;
    /// Writes configuration space likewise.
    fn write_pci(&self, at: PciAddress, size: u16, value: u32);
}

/// A register in the configuration space of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    /// The bus.
    pub bus: u8,
    /// The device, 0 to 31.
    pub device: u8,
    /// The function, 0 to 7.
    pub function: u8,
    /// The byte.
    pub offset: u8,
}

impl PciAddress {
    fn new(segment: u16, bus: u8, device: u8, function: u8, offset: u16) -> Option<Self> {
        (segment == 0 && device < 32 && function < 8).then_some(())?;
        Some(Self {
            bus,
            device,
            function,
            offset: u8::try_from(offset).ok()?,
        })
    }

    /// What is written to port CF8 to reach it. PCI Local Bus specification 3.0, 3.2.2.3.2.
    pub fn selector(self) -> u32 {
        1 << 31
            | u32::from(self.bus) << 16
            | u32::from(self.device) << 11
            | u32::from(self.function) << 8
            | u32::from(self.offset & !3)
    }
}

/// The machine, guarded.
pub struct Guarded<M> {
    /// The machine.
    pub machine: M,
    /// What is kept from the firmware.
    pub rules: Rules,
    /// Where refusals are counted.
    pub refusals: &'static Refusals,
}

impl<M: Machine> Guarded<M> {
    fn read_memory(&self, address: usize, size: u64) -> u64 {
        let address = address as u64;
        if self.rules.memory(address, size)
            && let Some(value) = self.machine.read_memory(address, size)
        {
            return value;
        }
        self.refusals.add(Refused::Memory(address), false);
        u64::MAX
    }

    fn write_memory(&self, address: usize, size: u64, value: u64) {
        let address = address as u64;
        if !self.rules.memory(address, size) || !self.machine.write_memory(address, size, value) {
            self.refusals.add(Refused::Memory(address), true);
        }
    }

    fn read_port(&self, port: u16, size: u16) -> u32 {
        if self.rules.port(port, size) {
            return self.machine.read_port(port, size);
        }
        self.refusals.add(Refused::Port(port), false);
        u32::MAX
    }

    fn write_port(&self, port: u16, size: u16, value: u32) {
        if self.rules.port(port, size) {
            self.machine.write_port(port, size, value);
        } else {
            self.refusals.add(Refused::Port(port), true);
        }
    }

    fn read_pci(&self, at: Option<PciAddress>, size: u16) -> u32 {
        match at {
            Some(at) => self.machine.read_pci(at, size),
            None => {
                self.refusals.add(Refused::Pci, false);
                u32::MAX
            }
        }
    }

    fn write_pci(&self, at: Option<PciAddress>, size: u16, value: u32) {
        match at {
            Some(at) => self.machine.write_pci(at, size, value),
            None => self.refusals.add(Refused::Pci, true),
        }
    }
}

impl<M: Machine> ::aml::Handler for Guarded<M> {
    fn read_u8(&self, address: usize) -> u8 {
        self.read_memory(address, 1) as u8
    }
    fn read_u16(&self, address: usize) -> u16 {
        self.read_memory(address, 2) as u16
    }
    fn read_u32(&self, address: usize) -> u32 {
        self.read_memory(address, 4) as u32
    }
    fn read_u64(&self, address: usize) -> u64 {
        self.read_memory(address, 8)
    }
    fn write_u8(&mut self, address: usize, value: u8) {
        self.write_memory(address, 1, value.into());
    }
    fn write_u16(&mut self, address: usize, value: u16) {
        self.write_memory(address, 2, value.into());
    }
    fn write_u32(&mut self, address: usize, value: u32) {
        self.write_memory(address, 4, value.into());
    }
    fn write_u64(&mut self, address: usize, value: u64) {
        self.write_memory(address, 8, value);
    }
    fn read_io_u8(&self, port: u16) -> u8 {
        self.read_port(port, 1) as u8
    }
    fn read_io_u16(&self, port: u16) -> u16 {
        self.read_port(port, 2) as u16
    }
    fn read_io_u32(&self, port: u16) -> u32 {
        self.read_port(port, 4)
    }
    fn write_io_u8(&self, port: u16, value: u8) {
        self.write_port(port, 1, value.into());
    }
    fn write_io_u16(&self, port: u16, value: u16) {
        self.write_port(port, 2, value.into());
    }
    fn write_io_u32(&self, port: u16, value: u32) {
        self.write_port(port, 4, value);
    }
    fn read_pci_u8(&self, segment: u16, bus: u8, device: u8, function: u8, offset: u16) -> u8 {
        self.read_pci(PciAddress::new(segment, bus, device, function, offset), 1) as u8
    }
    fn read_pci_u16(&self, segment: u16, bus: u8, device: u8, function: u8, offset: u16) -> u16 {
        self.read_pci(PciAddress::new(segment, bus, device, function, offset), 2) as u16
    }
    fn read_pci_u32(&self, segment: u16, bus: u8, device: u8, function: u8, offset: u16) -> u32 {
        self.read_pci(PciAddress::new(segment, bus, device, function, offset), 4)
    }
    fn write_pci_u8(
        &self,
        segment: u16,
        bus: u8,
        device: u8,
        function: u8,
        offset: u16,
        value: u8,
    ) {
        let at = PciAddress::new(segment, bus, device, function, offset);
        self.write_pci(at, 1, value.into());
    }
    fn write_pci_u16(
        &self,
        segment: u16,
        bus: u8,
        device: u8,
        function: u8,
        offset: u16,
        value: u16,
    ) {
        let at = PciAddress::new(segment, bus, device, function, offset);
        self.write_pci(at, 2, value.into());
    }
    fn write_pci_u32(
        &self,
        segment: u16,
        bus: u8,
        device: u8,
        function: u8,
        offset: u16,
        value: u32,
    ) {
        let at = PciAddress::new(segment, bus, device, function, offset);
        self.write_pci(at, 4, value);
    }
    /// The interpreter returns an error after this; the crate's own way would be a panic.
    fn handle_fatal_error(&self, _kind: u8, _code: u32, _argument: u64) {}
}

#[cfg(target_os = "none")]
mod bare {
    #![expect(unsafe_code, reason = "the firmware's registers are raw memory")]
    use super::{Machine, PciAddress};
    use crate::cage::undisturbed;
    use crate::console::port::{MachinePorts, Ports};
    use crate::mm::paging::Access;
    use crate::mm::{self, Range};
    use core::ptr::with_exposed_provenance_mut;

    /// This machine. Mapping memory takes locks of [`mm`]: nothing of it is cut in two.
    pub struct ThisMachine;

    const PCI_ADDRESS: u16 = 0xCF8;
    const PCI_DATA: u16 = 0xCFC;

    /// Maps what is not mapped yet, uncached. What is mapped stays as it is.
    fn reach(address: u64, size: u64) -> bool {
        mm::map_device(address, size).is_ok() || mm::is_mapped(Range::new(address, size))
    }

    impl Machine for ThisMachine {
        fn read_memory(&self, address: u64, size: u64) -> Option<u64> {
            undisturbed(|| {
                reach(address, size).then(|| {
                    let at = with_exposed_provenance_mut::<u8>(address as usize);
                    // SAFETY: mapped, and not RAM of Lull's (the rules have been asked), so nobody else's object. Wide
                    // reads only where aligned: registers want their own width.
                    unsafe {
                        match size {
                            2 if address.is_multiple_of(2) => {
                                at.cast::<u16>().read_volatile().into()
                            }
                            4 if address.is_multiple_of(4) => {
                                at.cast::<u32>().read_volatile().into()
                            }
                            8 if address.is_multiple_of(8) => at.cast::<u64>().read_volatile(),
                            _ => (0..size as usize).rev().fold(0, |value, byte| {
                                value << 8 | u64::from(at.add(byte).read_volatile())
                            }),
                        }
                    }
                })
            })
        }

        fn write_memory(&self, address: u64, size: u64, value: u64) -> bool {
            undisturbed(|| {
                let range = Range::new(address, size);
                // Firmware's own data is mapped for reading: it is opened for this one write.
                let cached = mm::map_device(address, size).is_err();
                if cached
                    && !(mm::is_mapped(range) && mm::set_access(range, Some(Access::Data)).is_ok())
                {
                    return false;
                }
                let at = with_exposed_provenance_mut::<u8>(address as usize);
                // SAFETY: mapped, writable, and not RAM of Lull's: as in `read_memory`.
                unsafe {
                    match size {
                        2 if address.is_multiple_of(2) => {
                            at.cast::<u16>().write_volatile(value as u16)
                        }
                        4 if address.is_multiple_of(4) => {
                            at.cast::<u32>().write_volatile(value as u32)
                        }
                        8 if address.is_multiple_of(8) => at.cast::<u64>().write_volatile(value),
                        _ => {
                            for (byte, part) in value
                                .to_le_bytes()
                                .into_iter()
                                .take(size as usize)
                                .enumerate()
                            {
                                at.add(byte).write_volatile(part);
                            }
                        }
                    }
                }
                !cached || mm::set_access(range, Some(Access::ReadOnly)).is_ok()
            })
        }

        fn read_port(&self, port: u16, size: u16) -> u32 {
            match size {
                1 => MachinePorts.read8(port).into(),
                2 => MachinePorts.read16(port).into(),
                _ => MachinePorts.read32(port),
            }
        }

        fn write_port(&self, port: u16, size: u16, value: u32) {
            match size {
                1 => MachinePorts.write8(port, value as u8),
                2 => MachinePorts.write16(port, value as u16),
                _ => MachinePorts.write32(port, value),
            }
        }

        fn read_pci(&self, at: PciAddress, size: u16) -> u32 {
            MachinePorts.write32(PCI_ADDRESS, at.selector());
            self.read_port(PCI_DATA + u16::from(at.offset & 3), size)
        }

        fn write_pci(&self, at: PciAddress, size: u16, value: u32) {
            MachinePorts.write32(PCI_ADDRESS, at.selector());
            self.write_port(PCI_DATA + u16::from(at.offset & 3), size, value);
        }
    }
}

#[cfg(target_os = "none")]
pub use bare::ThisMachine;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_beyond_the_old_mechanism_are_none() {
        let at = PciAddress::new(0, 1, 31, 7, 0xA6).unwrap();
        assert_eq!(at.selector(), 0x8001_FFA4);
        assert_eq!(PciAddress::new(1, 0, 0, 0, 0), None);
        assert_eq!(PciAddress::new(0, 0, 32, 0, 0), None);
        assert_eq!(PciAddress::new(0, 0, 0, 8, 0), None);
        assert_eq!(PciAddress::new(0, 0, 0, 0, 0x100), None);
    }
}
