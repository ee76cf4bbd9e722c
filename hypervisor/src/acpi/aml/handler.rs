//! The interpreter's hands: memory, ports and PCI configuration, as far as the [`Rules`] let them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use lull_aml::aml::AmlError;
use lull_aml::aml::namespace::AmlName;
use lull_aml::{Handle, RawPhysicalMapping};
use spin::Mutex;

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
    /// Nanoseconds since some moment.
    fn nanoseconds(&self) -> u64;
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

/// The machine, guarded. All copies are one.
pub struct Guarded<M>(Arc<Inner<M>>);

struct Inner<M> {
    machine: M,
    rules: Rules,
    refusals: &'static Refusals,
    mutexes: AtomicU32,
    tables_not_loaded: Mutex<Vec<(AmlName, AmlError)>>,
}

impl<M> Clone for Guarded<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: Machine> Guarded<M> {
    /// The machine behind these rules; what they refuse is counted.
    pub fn new(machine: M, rules: Rules, refusals: &'static Refusals) -> Self {
        Self(Arc::new(Inner {
            machine,
            rules,
            refusals,
            mutexes: AtomicU32::new(0),
            tables_not_loaded: Mutex::new(Vec::new()),
        }))
    }

    /// The tables that AML wanted to load and could not, since the last time.
    pub fn take_tables_not_loaded(&self) -> Vec<(AmlName, AmlError)> {
        core::mem::take(&mut *self.0.tables_not_loaded.lock())
    }

    fn refuse(&self, what: Refused, write: bool) {
        self.0.refusals.add(what, write);
    }

    /// Reads memory. Ones where it may not.
    fn memory(&self, address: usize, size: u64) -> u64 {
        let at = address as u64;
        let allowed = self.0.rules.memory(at, size);
        let found = allowed.then(|| self.0.machine.read_memory(at, size));
        found.flatten().unwrap_or_else(|| {
            self.refuse(Refused::Memory(at), false);
            u64::MAX
        })
    }

    fn set_memory(&self, address: usize, size: u64, value: u64) {
        let at = address as u64;
        if !(self.0.rules.memory(at, size) && self.0.machine.write_memory(at, size, value)) {
            self.refuse(Refused::Memory(at), true);
        }
    }

    fn port(&self, port: u16, size: u16) -> u32 {
        if self.0.rules.port(port, size) {
            return self.0.machine.read_port(port, size);
        }
        self.refuse(Refused::Port(port), false);
        u32::MAX
    }

    fn set_port(&self, port: u16, size: u16, value: u32) {
        if self.0.rules.port(port, size) {
            self.0.machine.write_port(port, size, value);
        } else {
            self.refuse(Refused::Port(port), true);
        }
    }

    fn pci(&self, at: lull_aml::PciAddress, offset: u16, size: u16) -> u32 {
        match PciAddress::new(at.bus(), at.device(), at.function(), offset.into()) {
            Some(at) => self.0.machine.read_pci(at, size),
            None => {
                self.refuse(Refused::Pci, false);
                u32::MAX
            }
        }
    }

    fn set_pci(&self, at: lull_aml::PciAddress, offset: u16, size: u16, value: u32) {
        match PciAddress::new(at.bus(), at.device(), at.function(), offset.into()) {
            Some(at) => self.0.machine.write_pci(at, size, value),
            None => self.refuse(Refused::Pci, true),
        }
    }

    /// Waits. A wait that is too long is ended with all the rest.
    fn wait(&self, nanoseconds: u64) {
        let until = self.0.machine.nanoseconds().saturating_add(nanoseconds);
        while self.0.machine.nanoseconds() < until {
            core::hint::spin_loop();
        }
    }
}

impl<M: Machine> lull_aml::Handler for Guarded<M> {
    #[expect(unsafe_code, reason = "the trait has it so")]
    unsafe fn map_physical_region<T>(&self, _: usize, _: usize) -> RawPhysicalMapping<T> {
        // Only tables are mapped, which are loaded from copies here. A panic would be caught.
        unreachable!("nothing is mapped")
    }
    #[expect(unsafe_code, reason = "the trait has it so")]
    unsafe fn unmap_physical_region<T>(&self, _: RawPhysicalMapping<T>) {}

    fn read_u8(&self, address: usize) -> u8 {
        self.memory(address, 1) as u8
    }
    fn read_u16(&self, address: usize) -> u16 {
        self.memory(address, 2) as u16
    }
    fn read_u32(&self, address: usize) -> u32 {
        self.memory(address, 4) as u32
    }
    fn read_u64(&self, address: usize) -> u64 {
        self.memory(address, 8)
    }
    fn write_u8(&self, address: usize, value: u8) {
        self.set_memory(address, 1, value.into());
    }
    fn write_u16(&self, address: usize, value: u16) {
        self.set_memory(address, 2, value.into());
    }
    fn write_u32(&self, address: usize, value: u32) {
        self.set_memory(address, 4, value.into());
    }
    fn write_u64(&self, address: usize, value: u64) {
        self.set_memory(address, 8, value);
    }
    fn read_io_u8(&self, port: u16) -> u8 {
        self.port(port, 1) as u8
    }
    fn read_io_u16(&self, port: u16) -> u16 {
        self.port(port, 2) as u16
    }
    fn read_io_u32(&self, port: u16) -> u32 {
        self.port(port, 4)
    }
    fn write_io_u8(&self, port: u16, value: u8) {
        self.set_port(port, 1, value.into());
    }
    fn write_io_u16(&self, port: u16, value: u16) {
        self.set_port(port, 2, value.into());
    }
    fn write_io_u32(&self, port: u16, value: u32) {
        self.set_port(port, 4, value);
    }
    fn read_pci_u8(&self, at: lull_aml::PciAddress, offset: u16) -> u8 {
        self.pci(at, offset, 1) as u8
    }
    fn read_pci_u16(&self, at: lull_aml::PciAddress, offset: u16) -> u16 {
        self.pci(at, offset, 2) as u16
    }
    fn read_pci_u32(&self, at: lull_aml::PciAddress, offset: u16) -> u32 {
        self.pci(at, offset, 4)
    }
    fn write_pci_u8(&self, at: lull_aml::PciAddress, offset: u16, value: u8) {
        self.set_pci(at, offset, 1, value.into());
    }
    fn write_pci_u16(&self, at: lull_aml::PciAddress, offset: u16, value: u16) {
        self.set_pci(at, offset, 2, value.into());
    }
    fn write_pci_u32(&self, at: lull_aml::PciAddress, offset: u16, value: u32) {
        self.set_pci(at, offset, 4, value);
    }

    fn nanos_since_boot(&self) -> u64 {
        self.0.machine.nanoseconds()
    }
    fn stall(&self, microseconds: u64) {
        self.wait(microseconds.saturating_mul(1000));
    }
    fn sleep(&self, milliseconds: u64) {
        self.wait(milliseconds.saturating_mul(1_000_000));
    }

    // One thread runs one method at a time, so every mutex is free.
    fn create_mutex(&self) -> Handle {
        Handle(self.0.mutexes.fetch_add(1, Ordering::Relaxed))
    }
    fn acquire(&self, _: Handle, _: u16) -> Result<(), AmlError> {
        Ok(())
    }
    fn release(&self, _: Handle) {}

    fn table_not_loaded(&self, object: &AmlName, why: &AmlError) {
        self.0
            .tables_not_loaded
            .lock()
            .push((object.clone(), why.clone()));
    }
    /// The interpreter returns an error after this; the crate's own way would be a line of the log.
    fn handle_fatal_error(&self, _: u8, _: u32, _: u64) {}
}

#[cfg(target_os = "none")]
mod bare {
    #![expect(unsafe_code, reason = "the firmware's registers are raw memory")]
    use super::{Machine, PciAddress};
    use crate::cage::undisturbed;
    use crate::console::port::{MachinePorts, Ports};
    use crate::mm::paging::Access;
    use crate::mm::{self, Range};
    use crate::time;
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

        fn nanoseconds(&self) -> u64 {
            time::rate().to_nanos(time::now()).get()
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
