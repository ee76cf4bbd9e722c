//! What the firmware says about C-states: `_CST`, the FADT, the P_BLK.
//!
//! Typed and checked, and nothing else: whoever runs AML hands over the tree of values that came back ([`Value`]), and
//! gets the entries that make sense, and a named fault for each that does not. A bad entry is skipped, never fatal; only
//! a `_CST` whose frame is wrong is refused whole. Source: ACPI specification 6.5, section 8.4.2.1 (`_CST`), 5.2.9 (FADT).

use crate::units::Micros;
use alloc::vec::Vec;
use core::fmt;

mod parse;

pub use parse::Value;

/// The largest number of entries that are taken from one `_CST`.
pub const MAX_ENTRIES: usize = 7;

/// A latency above this makes no sense for a C-state: the entry is skipped.
pub const MAX_LATENCY: Micros = Micros::new(100_000);

/// Generic address structure of a register, as a `_CST` entry holds it. Source: ACPI specification 6.5, 6.4.3.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register {
    /// Which address space: 1 is system I/O, 0x7F functional fixed hardware.
    pub space: u8,
    /// Size in bits; for fixed hardware the vendor's code.
    pub bit_width: u8,
    /// Offset in bits; for fixed hardware the class.
    pub bit_offset: u8,
    /// Access size; for fixed hardware flags.
    pub access_size: u8,
    /// The address; for fixed hardware the hint of MWAIT.
    pub address: u64,
}

/// ACPI's own three types. Not MWAIT's class numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AcpiType {
    /// The CPU may be asked for at any time.
    C1,
    /// Deeper, caches kept.
    C2,
    /// Caches may be lost to the sight of bus masters.
    C3,
}

impl AcpiType {
    /// 1, 2 or 3.
    pub const fn number(self) -> u8 {
        match self {
            AcpiType::C1 => 1,
            AcpiType::C2 => 2,
            AcpiType::C3 => 3,
        }
    }
}

/// How an entry says that the state is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CstMethod {
    /// MWAIT with this hint. Fixed hardware, class 2, vendor code 1 (Intel) or 2 (AMD).
    Mwait {
        /// EAX.
        hint: super::MwaitHint,
        /// Arg1 bit 1: BM_STS must be looked at before.
        check_bus_master: bool,
    },
    /// HLT. Fixed hardware, class 0, or class 1 (I/O then HLT), which nobody implements as such.
    Halt,
    /// A read of this port.
    Io(u16),
}

/// One entry of `_CST` that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CstEntry {
    /// How it is entered.
    pub method: CstMethod,
    /// ACPI's type.
    pub acpi_type: AcpiType,
    /// Worst-case latency.
    pub latency: Micros,
}

/// A `_CST` that made sense, of the first CPU that has one: it counts for all.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Cst {
    /// The entries, in the firmware's order.
    pub entries: Vec<CstEntry>,
    /// What was skipped or repaired, by the entry's position from 1.
    pub faults: Vec<(usize, CstFault)>,
}

impl Cst {
    /// Are all entries MWAIT ones, up to the `deepest` class that is to be used? Only then they can be compared with a table's
    /// hints. What is deeper nobody looks at.
    pub fn all_mwait(&self, deepest: Option<u8>) -> bool {
        let mut within = self.entries.iter().filter(|entry| {
            let class = match entry.method {
                CstMethod::Mwait { hint, .. } => hint.class(),
                CstMethod::Halt | CstMethod::Io(_) => entry.acpi_type.number().into(),
            };
            deepest.is_none_or(|deepest| class <= u32::from(deepest))
        });
        let mwait = |entry: &CstEntry| matches!(entry.method, CstMethod::Mwait { .. });
        within.next().is_some_and(mwait) && within.all(mwait)
    }
}

/// Of the FADT, what C-states need. Source: ACPI specification 6.5, 5.2.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Fadt {
    /// The fixed feature flags, offset 112.
    pub flags: u32,
    /// P_LVL2_LAT, offset 96, in microseconds.
    pub lvl2_latency: u16,
    /// P_LVL3_LAT, offset 98, in microseconds.
    pub lvl3_latency: u16,
    /// CST_CNT, offset 95: what is written to SMI_CMD to take `_CST` over. 0: nothing.
    pub cst_control: u8,
    /// There is a PM2 control block, so that arbitration can be disabled.
    pub pm2_control: bool,
}

impl Fadt {
    /// Bit 0: WBINVD works.
    pub const fn wbinvd(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Bit 3: the C2 of P_BLK works with more than one CPU.
    pub const fn lvl2_multiprocessor(&self) -> bool {
        self.flags & 1 << 3 != 0
    }

    /// Bit 20: there is none of the fixed hardware, so no P_BLK either.
    pub const fn hardware_reduced(&self) -> bool {
        self.flags & 1 << 20 != 0
    }

    /// The latency of the C2 in P_BLK, if there is one: at 0 and above 100 us there is none.
    pub fn lvl2(&self) -> Option<Micros> {
        (1..=100)
            .contains(&self.lvl2_latency)
            .then_some(Micros::new(u64::from(self.lvl2_latency)))
    }

    /// The latency of the C3 in P_BLK, if there is one: at 0 and above 1000 us there is none.
    pub fn lvl3(&self) -> Option<Micros> {
        (1..=1000)
            .contains(&self.lvl3_latency)
            .then_some(Micros::new(u64::from(self.lvl3_latency)))
    }
}

/// What is wrong with an entry of `_CST`, or with all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CstFault {
    /// Not a package, or one without a count and an entry.
    NotAList,
    /// The count does not match the entries.
    WrongCount {
        /// The count.
        said: u64,
        /// The entries.
        found: usize,
    },
    /// The entry is no package of exactly four.
    NotFour,
    /// The entry's register is no buffer with a register descriptor.
    BadRegister,
    /// One of type, latency and power is no integer.
    NotAnInteger,
    /// ACPI knows types 1 to 3.
    BadType(u64),
    /// The register is in an address space that C-states cannot be in.
    BadSpace(u8),
    /// Fixed hardware of a vendor that is not known.
    BadVendor(u8),
    /// Fixed hardware of a class that cannot enter such a state.
    BadClass(u8),
    /// No such I/O port.
    BadPort(u64),
    /// The latency makes no sense.
    BadLatency(u64),
    /// There are more than [`MAX_ENTRIES`].
    TooMany,
    /// The port is one that the firmware has no business with.
    PortTaken(u16),
    /// Not skipped: the entries were out of order, and are in order now.
    Unsorted,
}

impl fmt::Display for CstFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CstFault::NotAList => f.write_str("not a package of a count and entries"),
            CstFault::WrongCount { said, found } => {
                write!(f, "the count says {said}, but there are {found} entries")
            }
            CstFault::NotFour => f.write_str("not a package of register, type, latency and power"),
            CstFault::BadRegister => f.write_str("its register is no register descriptor"),
            CstFault::NotAnInteger => f.write_str("type, latency and power must be integers"),
            CstFault::BadType(found) => write!(f, "type {found}, expected 1, 2 or 3"),
            CstFault::BadSpace(found) => write!(
                f,
                "address space {found:#x}, expected 0x1 (I/O) or 0x7f (fixed hardware)"
            ),
            CstFault::BadVendor(found) => write!(
                f,
                "fixed hardware of vendor {found}, expected 1 (Intel) or 2 (AMD)"
            ),
            CstFault::BadClass(found) => write!(
                f,
                "fixed hardware of class {found}, expected 2 (MWAIT) for this type"
            ),
            CstFault::BadPort(found) => write!(f, "{found:#x} is no I/O port"),
            CstFault::BadLatency(found) => {
                write!(
                    f,
                    "latency {found} us, expected 1 to {}",
                    MAX_LATENCY.get()
                )
            }
            CstFault::TooMany => write!(f, "only {MAX_ENTRIES} entries are used"),
            CstFault::Unsorted => f.write_str(
                "the entries were out of order: they are sorted by type, and none has less latency than a shallower one",
            ),
            CstFault::PortTaken(port) => write!(
                f,
                "port {port:#x} is not the firmware's to give: its states are not used"
            ),
        }
    }
}

impl core::error::Error for CstFault {}

#[cfg(test)]
mod tests;
