//! What the firmware's code may touch: pure.
//!
//! AML reads and writes memory, ports and PCI configuration as it likes. Refused is what is Lull's: all RAM (the firmware
//! keeps its own data in ranges that the memory map calls ACPI or reserved), the interrupt controllers and the HPET, the
//! console, the ports that switch the machine off or reset it, and PCI configuration past its owner. A refused read gives
//! ones, as where no device answers; a refused write does nothing. Both are counted.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::mm::Range;
use crate::mm::frames::FRAME;

/// What Lull keeps for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    memory: Vec<Range>,
    ports: Vec<(u16, u16)>,
}

/// Both interrupt controllers, PIC and its twin; the PIT; debug ports; COM1; PCI configuration and the reset register.
const OWN_PORTS: [(u16, u16); 7] = [
    (0x20, 0x21),
    (0x40, 0x43),
    (0xA0, 0xA1),
    (0xE9, 0xE9),
    (0xF4, 0xF4),
    (0x3F8, 0x3FF),
    (0xCF8, 0xCFF),
];

impl Rules {
    /// Keeps these ranges of memory, the frames around these registers, and these ports besides the usual ones.
    pub fn new(
        ram: impl IntoIterator<Item = Range>,
        registers: impl IntoIterator<Item = u64>,
        ports: impl IntoIterator<Item = u16>,
    ) -> Self {
        let first_page = Range {
            start: 0,
            end: FRAME,
        };
        let registers = registers
            .into_iter()
            .map(|address| Range::new(address, 1).frames_around());
        Self {
            memory: ram
                .into_iter()
                .chain(registers)
                .chain([first_page])
                .collect(),
            ports: OWN_PORTS
                .into_iter()
                .chain(ports.into_iter().map(|port| (port, port)))
                .collect(),
        }
    }

    /// May these `size` bytes be touched?
    pub fn memory(&self, address: u64, size: u64) -> bool {
        let wanted = Range::new(address, size);
        wanted.len() == size && !self.memory.iter().any(|kept| kept.overlaps(&wanted))
    }

    /// May these `size` ports be touched?
    pub fn port(&self, port: u16, size: u16) -> bool {
        let Some(last) = port.checked_add(size.saturating_sub(1)) else {
            return false;
        };
        !self
            .ports
            .iter()
            .any(|&(from, to)| port <= to && from <= last)
    }
}

/// How often something was refused, and what first.
#[derive(Debug)]
pub struct Refusals {
    count: AtomicU32,
    /// Kind in bits 63:60 (1 memory, 2 port, 3 PCI), write in bit 59, address below.
    first: AtomicU64,
}

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Memory at this address.
    Memory(u64),
    /// This port.
    Port(u16),
    /// Configuration space out of reach.
    Pci,
}

impl Refusals {
    /// None yet.
    pub const fn none() -> Self {
        Self {
            count: AtomicU32::new(0),
            first: AtomicU64::new(0),
        }
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.first.store(0, Ordering::Relaxed);
    }

    /// One more.
    pub fn add(&self, what: Refused, write: bool) {
        let (kind, at) = match what {
            Refused::Memory(at) => (1, at),
            Refused::Port(port) => (2, port.into()),
            Refused::Pci => (3, 0),
        };
        const ADDRESS: u64 = (1 << 59) - 1;
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            let first = kind << 60 | u64::from(write) << 59 | at & ADDRESS;
            self.first.store(first, Ordering::Relaxed);
        }
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }
}

/// The first access of some that were counted: `write to port 0xe9`.
pub struct First<'a>(pub &'a Refusals);

impl fmt::Display for First<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.0.first.load(Ordering::Relaxed);
        f.write_str(if first & 1 << 59 != 0 {
            "write to "
        } else {
            "read of "
        })?;
        let at = first & ((1 << 59) - 1);
        match first >> 60 {
            1 => write!(f, "memory at {at:#x}"),
            2 => write!(f, "port {at:#x}"),
            _ => f.write_str("PCI configuration out of reach"),
        }
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, first) = (self.count(), First(self));
        write!(f, "{count} accesses refused, the first a {first}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let ram = Range {
            start: 0x10_0000,
            end: 0x1FFE_0000,
        };
        Rules::new([ram], [0xFEE0_0000, 0xFED0_0010], [0x604])
    }

    #[test]
    fn ram_and_interrupt_controllers_are_lulls() {
        let rules = rules();
        for (address, size) in [
            (0x10_0000, 4),
            (0x1FFD_FFFF, 1),
            (0xF_FFFF, 2),
            (0xFEE0_0300, 4),
            (0xFED0_0FFF, 1),
            (0x400, 2),
            (u64::MAX, 4),
        ] {
            assert!(!rules.memory(address, size), "{address:#x}");
        }
        for (address, size) in [
            (0x1FFE_0000, 8),
            (0xF_FFFE, 2),
            (0xFEE0_1000, 4),
            (0xFED0_1000, 4),
        ] {
            assert!(rules.memory(address, size), "{address:#x}");
        }
    }

    #[test]
    fn the_ports_of_console_and_power_are_lulls() {
        let rules = rules();
        for (port, size) in [
            (0x604, 2),
            (0x603, 2),
            (0xE9, 1),
            (0xCF9, 1),
            (0x3F6, 4),
            (0xFFFF, 2),
        ] {
            assert!(!rules.port(port, size), "{port:#x}");
        }
        for (port, size) in [(0x603, 1), (0x606, 2), (0x414, 1), (0xB2, 1), (0xFFFF, 1)] {
            assert!(rules.port(port, size), "{port:#x}");
        }
    }

    #[test]
    fn refusals_are_counted_and_the_first_is_named() {
        let refusals = Refusals::none();
        refusals.add(Refused::Memory(0x10_0000), true);
        refusals.add(Refused::Port(0xE9), false);
        assert_eq!(
            refusals.to_string(),
            "2 accesses refused, the first a write to memory at 0x100000"
        );
    }
}
