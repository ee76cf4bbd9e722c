//! Fields of operation regions, accessed as ACPI says.
//!
//! The interpreter takes a field's offset, in bits, for one in bytes, and knows no bit offsets, so that it would read
//! and write other registers than the firmware means. So it is never let at a region: after each table, every field is
//! replaced by one in a region of our own whose "address" is a number ([`adopt`]), and the handler does the access for
//! that number ([`Field::read`], [`Field::write`]). A field of a region that cannot be reached is replaced by one that
//! makes its method fail. Fields that a method makes for itself keep the interpreter's addresses: they are refused.
//! ACPI specification 6.5, 19.6.48 (Field), 19.6.100 (OperationRegion).

use alloc::sync::Arc;
use alloc::vec::Vec;

use ::aml::value::{FieldAccessType, FieldFlags, FieldUpdateRule, RegionSpace};
use ::aml::{AmlContext, AmlHandle, AmlName, AmlValue};
use spinning_top::Spinlock;

/// The fields of all tables, by number. Shared by the handler and whoever loads tables; it lies in the heap of the cage.
pub type Fields = Arc<Spinlock<Vec<Field>>>;

/// Addresses from here on are numbers of fields.
pub const FIRST: u64 = 1 << 62;

/// Where a region lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// In memory.
    Memory,
    /// At ports.
    Port,
    /// In the configuration space of this function.
    Pci {
        /// The bus.
        bus: u8,
        /// The device.
        device: u8,
        /// The function.
        function: u8,
    },
}

/// A field of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The region's space.
    pub space: Space,
    /// The region's first address.
    pub base: u64,
    /// The region's length in bytes.
    pub length: u64,
    /// Where the field begins in the region, in bits.
    pub offset: u64,
    /// How many bits it has: 1 to 64.
    pub bits: u64,
    /// The width of one access in bytes: 1, 2, 4 or 8.
    pub width: u64,
    /// What is written to the other bits of an access.
    pub rest: FieldUpdateRule,
}

/// One access to a region: space, address, width in bytes.
pub type Access = (Space, u64, u64);

const fn ones(bits: u64) -> u128 {
    (1 << bits) - 1
}

impl Field {
    /// The accesses that reach it, lowest first, and how far its first bit is into the first. `None`: it lies outside of
    /// its region.
    fn accesses(&self) -> Option<(impl Iterator<Item = Access> + use<>, u64)> {
        let (space, base, width) = (self.space, self.base, self.width);
        let unit = width * 8;
        let end = self.offset.checked_add(self.bits)?;
        let (first, behind) = (self.offset / unit, end.div_ceil(unit));
        let inside = end.div_ceil(8) <= self.length;
        base.checked_add(behind.checked_mul(width)?)?;
        let accesses = (first..behind).map(move |at| (space, base + at * width, width));
        inside.then_some((accesses, self.offset % unit))
    }

    /// Reads it.
    pub fn read(&self, mut read: impl FnMut(Access) -> Option<u64>) -> Option<u64> {
        let (accesses, skip) = self.accesses()?;
        let mut all = 0_u128;
        for (at, access) in accesses.enumerate() {
            all |= u128::from(read(access)?) << (at as u64 * self.width * 8);
        }
        u64::try_from(all >> skip & ones(self.bits)).ok()
    }

    /// Writes it. `false`: it cannot be reached.
    pub fn write(
        &self,
        value: u64,
        mut read: impl FnMut(Access) -> Option<u64>,
        mut write: impl FnMut(Access, u64) -> bool,
    ) -> bool {
        let Some((accesses, skip)) = self.accesses() else {
            return false;
        };
        let ours = ones(self.bits) << skip;
        let value = (u128::from(value) << skip) & ours;
        let unit = self.width * 8;
        for (at, access) in accesses.enumerate() {
            let part = |all: u128| (all >> (at as u64 * unit) & ones(unit)) as u64;
            let rest = match self.rest {
                // Nothing is left over of an access that is all ours.
                _ if part(ours) == part(u128::MAX) => 0,
                FieldUpdateRule::Preserve => match read(access) {
                    Some(old) => old,
                    None => return false,
                },
                FieldUpdateRule::WriteAsOnes => u64::MAX,
                FieldUpdateRule::WriteAsZeros => 0,
            };
            let new = part(value) | (rest & part(u128::MAX) & !part(ours));
            if !write(access, new) {
                return false;
            }
        }
        true
    }
}

/// Replaces the fields that tables have added since the last time.
pub fn adopt(context: &mut AmlContext, fields: &Fields) {
    let Some(own) = own_region(context) else {
        return;
    };
    let Some(nothing) = handle(context, "\\_REV") else {
        return;
    };
    for name in super::all_names(context) {
        let Ok(&AmlValue::Field {
            region,
            flags,
            offset,
            length,
        }) = context.namespace.get_by_path(&name)
        else {
            continue;
        };
        if region == own || region == nothing {
            continue;
        }
        let known = described(context, region, flags, offset, length);
        let Ok(AmlValue::Field {
            region,
            flags,
            offset,
            ..
        }) = context.namespace.get_by_path_mut(&name)
        else {
            continue;
        };
        // QWord access, other bits as zeros: the interpreter asks once for all 64 bits, and reads nothing to write.
        *flags = FieldFlags::new(4 | 2 << 5);
        match known {
            Some(field) => {
                let mut fields = fields.lock();
                *region = own;
                *offset = fields.len() as u64;
                fields.push(field);
            }
            // No region: an access is an error.
            None => *region = nothing,
        }
    }
}

fn handle(context: &AmlContext, path: &str) -> Option<AmlHandle> {
    context
        .namespace
        .get_handle(&AmlName::from_str(path).ok()?)
        .ok()
}

/// The region in which all fields are put. Firmware that has something else of that name has no fields.
fn own_region(context: &mut AmlContext) -> Option<AmlHandle> {
    const NAME: &str = "\\_LUL";
    if let Some(known) = handle(context, NAME) {
        let ours = matches!(
            context.namespace.get(known),
            Ok(AmlValue::OpRegion { offset: FIRST, .. })
        );
        return ours.then_some(known);
    }
    let region = AmlValue::OpRegion {
        region: RegionSpace::SystemMemory,
        offset: FIRST,
        length: FIRST,
        parent_device: None,
    };
    let name = AmlName::from_str(NAME).ok()?;
    context.namespace.add_value(name, region).ok()
}

fn described(
    context: &AmlContext,
    region: AmlHandle,
    flags: FieldFlags,
    offset: u64,
    bits: u64,
) -> Option<Field> {
    let AmlValue::OpRegion {
        region,
        offset: base,
        length,
        parent_device,
    } = context.namespace.get(region).ok()?
    else {
        return None;
    };
    let space = match region {
        RegionSpace::SystemMemory => Space::Memory,
        RegionSpace::SystemIo => Space::Port,
        RegionSpace::PciConfig => pci(context, parent_device.as_ref()?)?,
        _ => return None,
    };
    let width = match flags.access_type().ok()? {
        FieldAccessType::Any | FieldAccessType::Byte => 1,
        FieldAccessType::Word => 2,
        FieldAccessType::DWord => 4,
        FieldAccessType::QWord if space == Space::Memory => 8,
        FieldAccessType::QWord | FieldAccessType::Buffer => return None,
    };
    (1..=64).contains(&bits).then_some(Field {
        space,
        base: *base,
        length: *length,
        offset,
        bits,
        width,
        rest: flags.field_update_rule().ok()?,
    })
}

/// The function of a device right below a root bridge. What lies behind further bridges has a bus number that only they
/// know.
fn pci(context: &AmlContext, device: &AmlName) -> Option<Space> {
    // PNP0A03 and PNP0A08, as EISAID gives them.
    const ROOT_BRIDGES: [u64; 2] = [0x030A_D041, 0x080A_D041];
    let integer = |path: &AmlName, name: &str| {
        let name = AmlName::from_str(name).ok()?.resolve(path).ok()?;
        match context.namespace.get_by_path(&name) {
            Ok(AmlValue::Integer(value)) => Some(*value),
            _ => None,
        }
    };
    let bridge = device.parent().ok()?;
    if !ROOT_BRIDGES.contains(&integer(&bridge, "_HID")?)
        || integer(&bridge, "_SEG").unwrap_or(0) != 0
    {
        return None;
    }
    let address = integer(device, "_ADR")?;
    Some(Space::Pci {
        bus: u8::try_from(integer(&bridge, "_BBN").unwrap_or(0)).ok()?,
        device: u8::try_from(address >> 16).ok().filter(|at| *at < 32)?,
        function: u8::try_from(address & 0xFFFF).ok().filter(|at| *at < 8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    fn field(offset: u64, bits: u64, width: u64, rest: FieldUpdateRule) -> Field {
        Field {
            space: Space::Port,
            base: 0x100,
            length: 16,
            offset,
            bits,
            width,
            rest,
        }
    }

    /// Sixteen bytes of registers at 0x100, and the accesses to them.
    struct Bytes(RefCell<[u8; 16]>, RefCell<Vec<(bool, u64, u64)>>);

    impl Bytes {
        fn new(byte: u8) -> Self {
            Self(RefCell::new([byte; 16]), RefCell::default())
        }
        fn read(&self, (_, at, width): Access) -> Option<u64> {
            self.1.borrow_mut().push((false, at, width));
            let from = (at - 0x100) as usize;
            let mut value = [0; 8];
            value[..width as usize]
                .copy_from_slice(self.0.borrow().get(from..from + width as usize)?);
            Some(u64::from_le_bytes(value))
        }
        fn write(&self, (_, at, width): Access, value: u64) -> bool {
            self.1.borrow_mut().push((true, at, width));
            let from = (at - 0x100) as usize;
            self.0.borrow_mut()[from..from + width as usize]
                .copy_from_slice(&value.to_le_bytes()[..width as usize]);
            true
        }
    }

    #[test]
    fn bits_in_the_middle_are_read_at_their_byte() {
        let bytes = Bytes::new(0);
        bytes.0.borrow_mut()[2] = 0b0110_1000;
        let three = field(2 * 8 + 3, 3, 1, FieldUpdateRule::Preserve);
        assert_eq!(three.read(|a| bytes.read(a)), Some(0b101));
        assert_eq!(*bytes.1.borrow(), [(false, 0x102, 1)]);
    }

    #[test]
    fn the_rest_of_an_access_is_kept_or_filled() {
        for (rest, byte, reads) in [
            (FieldUpdateRule::Preserve, 0b0010_1010, true),
            (FieldUpdateRule::WriteAsOnes, 0b1110_1111, false),
            (FieldUpdateRule::WriteAsZeros, 0b0000_1000, false),
        ] {
            let bytes = Bytes::new(0b0010_0010);
            let two = field(5 * 8 + 3, 2, 1, rest);
            let done = two.write(0b101, |a| bytes.read(a), |a, v| bytes.write(a, v));
            assert!(done);
            assert_eq!(bytes.0.borrow()[5], byte, "{rest:?}");
            assert_eq!(bytes.1.borrow().contains(&(false, 0x105, 1)), reads);
        }
    }

    #[test]
    fn registers_are_accessed_in_their_width_and_whole_ones_are_not_read_before() {
        let bytes = Bytes::new(0xEE);
        let dword = field(32, 32, 4, FieldUpdateRule::Preserve);
        assert!(dword.write(0x1234_5678, |a| bytes.read(a), |a, v| bytes.write(a, v)));
        assert_eq!(*bytes.1.borrow(), [(true, 0x104, 4)]);
        assert_eq!(bytes.0.borrow()[3..9], [0xEE, 0x78, 0x56, 0x34, 0x12, 0xEE]);
    }

    #[test]
    fn what_lies_outside_of_the_region_is_not_touched() {
        let bytes = Bytes::new(0);
        for outside in [
            field(16 * 8, 1, 1, FieldUpdateRule::Preserve),
            field(15 * 8 + 1, 8, 1, FieldUpdateRule::Preserve),
            field(u64::MAX, 8, 1, FieldUpdateRule::Preserve),
        ] {
            assert_eq!(outside.read(|a| bytes.read(a)), None);
            assert!(!outside.write(1, |a| bytes.read(a), |a, v| bytes.write(a, v)));
        }
        assert!(bytes.1.borrow().is_empty());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_nothing_else_changes(
            offset in 0_u64..64, bits in 1_u64..=64, width in 0_u32..4, value: u64, before: [u8; 16]
        ) {
            let bytes = Bytes(RefCell::new(before), RefCell::default());
            let field = field(offset, bits, 1 << width, FieldUpdateRule::Preserve);
            let done = field.write(value, |a| bytes.read(a), |a, v| bytes.write(a, v));
            prop_assert!(done);
            prop_assert_eq!(field.read(|a| bytes.read(a)), Some(value & ones(bits) as u64));
            let ours = ones(bits) << offset;
            let after = u128::from_le_bytes(*bytes.0.borrow());
            prop_assert_eq!(after & !ours, u128::from_le_bytes(before) & !ours);
        }
    }
}
