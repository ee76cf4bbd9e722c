//! From the values that AML gave back to entries that make sense.

use super::{AcpiType, Cst, CstEntry, CstFault, CstMethod, MAX_ENTRIES, MAX_LATENCY, Register};
use crate::cstate::MwaitHint;
use crate::units::Micros;
use alloc::vec::Vec;

/// The address spaces of a C-state's register.
const SYSTEM_IO: u8 = 0x01;
const FIXED_HARDWARE: u8 = 0x7F;

/// A generic register descriptor: tag, and the length of what follows it. Source: ACPI specification 6.5, 6.4.3.7.
const REGISTER_TAG: u8 = 0x82;
const REGISTER_LENGTH: u16 = 12;

/// What an AML method gave back, as far as `_CST` is concerned. Free of any interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An integer.
    Integer(u64),
    /// Bytes.
    Buffer(Vec<u8>),
    /// A list.
    Package(Vec<Value>),
    /// Anything else: a string, a reference, nothing at all.
    Other,
}

impl Value {
    fn integer(&self) -> Result<u64, CstFault> {
        match self {
            Value::Integer(value) => Ok(*value),
            _ => Err(CstFault::NotAnInteger),
        }
    }
}

impl Register {
    /// Takes a register descriptor apart. An end tag may follow it.
    ///
    /// # Errors
    /// It is too short, or another descriptor.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CstFault> {
        let &[
            tag,
            low,
            high,
            space,
            bit_width,
            bit_offset,
            access_size,
            ref rest @ ..,
        ] = bytes
        else {
            return Err(CstFault::BadRegister);
        };
        let address: Option<&[u8; 8]> = rest.first_chunk();
        match address {
            Some(address)
                if tag == REGISTER_TAG && u16::from_le_bytes([low, high]) >= REGISTER_LENGTH =>
            {
                Ok(Self {
                    space,
                    bit_width,
                    bit_offset,
                    access_size,
                    address: u64::from_le_bytes(*address),
                })
            }
            _ => Err(CstFault::BadRegister),
        }
    }

    /// How a state of this type is entered through the register.
    fn method(&self, acpi_type: AcpiType) -> Result<CstMethod, CstFault> {
        match self.space {
            SYSTEM_IO => match u16::try_from(self.address) {
                Ok(port) if port != 0 => Ok(CstMethod::Io(port)),
                _ => Err(CstFault::BadPort(self.address)),
            },
            FIXED_HARDWARE => match (self.bit_offset, self.bit_width) {
                (2, 1 | 2) => Ok(CstMethod::Mwait {
                    // Arg0 is 64 bits wide; EAX takes the lower half.
                    hint: MwaitHint::new(self.address as u32),
                    check_bus_master: self.access_size & 2 != 0,
                }),
                // C1 can always be had by HLT, whatever else the firmware meant.
                _ if acpi_type == AcpiType::C1 => Ok(CstMethod::Halt),
                (2, vendor) => Err(CstFault::BadVendor(vendor)),
                (class, _) => Err(CstFault::BadClass(class)),
            },
            space => Err(CstFault::BadSpace(space)),
        }
    }
}

impl Cst {
    /// Reads what `_CST` gave back.
    ///
    /// # Errors
    /// Its frame is wrong, so that nothing in it can be trusted. Bad entries are only skipped, see [`Cst::faults`].
    pub fn parse(value: &Value) -> Result<Self, CstFault> {
        let Value::Package(elements) = value else {
            return Err(CstFault::NotAList);
        };
        let [count, entries @ ..] = elements.as_slice() else {
            return Err(CstFault::NotAList);
        };
        if entries.is_empty() {
            return Err(CstFault::NotAList);
        }
        let said = count.integer()?;
        if said != entries.len() as u64 {
            return Err(CstFault::WrongCount {
                said,
                found: entries.len(),
            });
        }

        let mut cst = Self::default();
        for (at, value) in entries.iter().enumerate() {
            if cst.entries.len() == MAX_ENTRIES {
                cst.faults.push((at + 1, CstFault::TooMany));
                break;
            }
            match entry(value) {
                Ok(entry) => cst.entries.push(entry),
                Err(why) => cst.faults.push((at + 1, why)),
            }
        }
        cst.put_in_order();
        Ok(cst)
    }

    /// Firmware has been seen with its latencies out of order. Then nothing of it is known to be right, but a limit on latency
    /// must hold: entries come in the order of their types, and none costs less to leave than a shallower one.
    fn put_in_order(&mut self) {
        let entries = &self.entries;
        if entries.is_sorted_by_key(|entry| entry.latency)
            && entries.is_sorted_by_key(|entry| entry.acpi_type)
        {
            return;
        }
        self.entries.sort_by_key(|entry| entry.acpi_type);
        let mut least = Micros::ZERO;
        for entry in &mut self.entries {
            least = least.max(entry.latency);
            entry.latency = least;
        }
        self.faults.push((0, CstFault::Unsorted));
    }
}

fn entry(value: &Value) -> Result<CstEntry, CstFault> {
    let Value::Package(fields) = value else {
        return Err(CstFault::NotFour);
    };
    let [register, acpi_type, latency, power] = fields.as_slice() else {
        return Err(CstFault::NotFour);
    };
    let Value::Buffer(register) = register else {
        return Err(CstFault::BadRegister);
    };
    let (acpi_type, latency, _power) = (acpi_type.integer()?, latency.integer()?, power.integer()?);
    let acpi_type = match acpi_type {
        1 => AcpiType::C1,
        2 => AcpiType::C2,
        3 => AcpiType::C3,
        other => return Err(CstFault::BadType(other)),
    };
    let method = Register::from_bytes(register)?.method(acpi_type)?;
    // Less than a microsecond may be C1's, and nothing deeper's.
    let latency = match acpi_type {
        AcpiType::C1 => latency.max(1),
        _ => latency,
    };
    if !(1..=MAX_LATENCY.get()).contains(&latency) {
        return Err(CstFault::BadLatency(latency));
    }
    Ok(CstEntry {
        method,
        acpi_type,
        latency: Micros::new(latency),
    })
}
