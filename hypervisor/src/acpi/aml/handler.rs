//! The interpreter's hands: memory, ports and PCI configuration, as far as the [`Rules`] let them.
//!
//! Only through [`fields`](super::fields): an address that comes from the interpreter itself may be any, and is refused.

use super::fields::{Access, FIRST, Field, Fields, Space};
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
    fn new(bus: u8, device: u8, function: u8, offset: u64) -> Option<Self> {
        (device < 32 && function < 8).then_some(())?;
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
    /// The fields that the tables have.
    pub fields: Fields,
    /// What is kept from the firmware.
    pub rules: Rules,
    /// Where refusals are counted.
    pub refusals: &'static Refusals,
}

impl<M: Machine> Guarded<M> {
    fn read_access(&self, (space, at, width): Access) -> Option<u64> {
        let (port, size) = (u16::try_from(at).ok(), width as u16);
        let found = match space {
            Space::Memory if self.rules.memory(at, width) => self.machine.read_memory(at, width),
            Space::Port => port
                .filter(|port| self.rules.port(*port, size))
                .map(|port| self.machine.read_port(port, size).into()),
            Space::Pci {
                bus,
                device,
                function,
            } => PciAddress::new(bus, device, function, at)
                .map(|at| self.machine.read_pci(at, size).into()),
            Space::Memory => None,
        };
        if found.is_none() {
            self.refuse(space, at, false);
        }
        found
    }

    fn write_access(&self, (space, at, width): Access, value: u64) -> bool {
        let (port, size) = (u16::try_from(at).ok(), width as u16);
        let done = match space {
            Space::Memory => {
                self.rules.memory(at, width) && self.machine.write_memory(at, width, value)
            }
            Space::Port => port
                .filter(|port| self.rules.port(*port, size))
                .map(|port| self.machine.write_port(port, size, value as u32))
                .is_some(),
            Space::Pci {
                bus,
                device,
                function,
            } => PciAddress::new(bus, device, function, at)
                .map(|at| self.machine.write_pci(at, size, value as u32))
                .is_some(),
        };
        if !done {
            self.refuse(space, at, true);
        }
        done
    }

    fn refuse(&self, space: Space, at: u64, write: bool) {
        let what = match (space, u16::try_from(at)) {
            (Space::Memory, _) => Refused::Memory(at),
            (Space::Port, Ok(port)) => Refused::Port(port),
            _ => Refused::Pci,
        };
        self.refusals.add(what, write);
    }

    /// The field of an address that [`fields`](super::fields) made up.
    fn field(&self, address: usize) -> Option<Field> {
        let number = (address as u64).checked_sub(FIRST)?;
        self.fields
            .lock()
            .get(usize::try_from(number).ok()?)
            .copied()
    }

    /// An address of the interpreter's own making, which may be any.
    fn astray(&self, space: Space, at: u64, write: bool) -> u64 {
        self.refuse(space, at, write);
        u64::MAX
    }
}

impl<M: Machine> ::aml::Handler for Guarded<M> {
    fn read_u64(&self, address: usize) -> u64 {
        match self.field(address) {
            Some(field) => field
                .read(|access| self.read_access(access))
                .unwrap_or(u64::MAX),
            None => self.astray(Space::Memory, address as u64, false),
        }
    }
    fn write_u64(&mut self, address: usize, value: u64) {
        match self.field(address) {
            Some(field) => {
                // What is refused is counted where it is refused.
                let _done = field.write(
                    value,
                    |access| self.read_access(access),
                    |access, value| self.write_access(access, value),
                );
            }
            None => {
                self.astray(Space::Memory, address as u64, true);
            }
        }
    }
    fn read_u8(&self, address: usize) -> u8 {
        self.astray(Space::Memory, address as u64, false) as u8
    }
    fn read_u16(&self, address: usize) -> u16 {
        self.astray(Space::Memory, address as u64, false) as u16
    }
    fn read_u32(&self, address: usize) -> u32 {
        self.astray(Space::Memory, address as u64, false) as u32
    }
    fn write_u8(&mut self, address: usize, _: u8) {
        self.astray(Space::Memory, address as u64, true);
    }
    fn write_u16(&mut self, address: usize, _: u16) {
        self.astray(Space::Memory, address as u64, true);
    }
    fn write_u32(&mut self, address: usize, _: u32) {
        self.astray(Space::Memory, address as u64, true);
    }
    fn read_io_u8(&self, port: u16) -> u8 {
        self.astray(Space::Port, port.into(), false) as u8
    }
    fn read_io_u16(&self, port: u16) -> u16 {
        self.astray(Space::Port, port.into(), false) as u16
    }
    fn read_io_u32(&self, port: u16) -> u32 {
        self.astray(Space::Port, port.into(), false) as u32
    }
    fn write_io_u8(&self, port: u16, _: u8) {
        self.astray(Space::Port, port.into(), true);
    }
    fn write_io_u16(&self, port: u16, _: u16) {
        self.astray(Space::Port, port.into(), true);
    }
    fn write_io_u32(&self, port: u16, _: u32) {
        self.astray(Space::Port, port.into(), true);
    }
    fn read_pci_u8(&self, _: u16, _: u8, _: u8, _: u8, _: u16) -> u8 {
        self.astray(NO_FUNCTION, 0, false) as u8
    }
    fn read_pci_u16(&self, _: u16, _: u8, _: u8, _: u8, _: u16) -> u16 {
        self.astray(NO_FUNCTION, 0, false) as u16
    }
    fn read_pci_u32(&self, _: u16, _: u8, _: u8, _: u8, _: u16) -> u32 {
        self.astray(NO_FUNCTION, 0, false) as u32
    }
    fn write_pci_u8(&self, _: u16, _: u8, _: u8, _: u8, _: u16, _: u8) {
        self.astray(NO_FUNCTION, 0, true);
    }
    fn write_pci_u16(&self, _: u16, _: u8, _: u8, _: u8, _: u16, _: u16) {
        self.astray(NO_FUNCTION, 0, true);
    }
    fn write_pci_u32(&self, _: u16, _: u8, _: u8, _: u8, _: u16, _: u32) {
        self.astray(NO_FUNCTION, 0, true);
    }
    /// The interpreter returns an error after this; the crate's own way would be a panic.
    fn handle_fatal_error(&self, _kind: u8, _code: u32, _argument: u64) {}
}

/// Any function, for an access that is refused.
const NO_FUNCTION: Space = Space::Pci {
    bus: 0,
    device: 0,
    function: 0,
};

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
        let at = PciAddress::new(1, 31, 7, 0xA6).unwrap();
        assert_eq!(at.selector(), 0x8001_FFA4);
        assert_eq!(PciAddress::new(0, 32, 0, 0), None);
        assert_eq!(PciAddress::new(0, 0, 8, 0), None);
        assert_eq!(PciAddress::new(0, 0, 0, 0x100), None);
    }
}
