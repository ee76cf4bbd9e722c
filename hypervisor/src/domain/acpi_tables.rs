//! The ACPI tables of a guest: RSDP, XSDT, FADT, DSDT, MADT.
//!
//! They say one thing: here are your local APICs. The FADT is of the hardware-reduced kind (no PM timer, no SCI,
//! no sleep registers), the DSDT is empty, the MADT has one entry a vCPU whose APIC id is the vCPU's index.
//!
//! Called by the loader. Layout: ACPI 6.5, chapter 5.2.

use alloc::vec::Vec;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

use super::layout::{ACPI_AREA, LAPIC_PAGE};

const RSDP_AT: u64 = ACPI_AREA.start;
const XSDT_AT: u64 = ACPI_AREA.start + 0x40;
const FADT_AT: u64 = ACPI_AREA.start + 0x100;
const DSDT_AT: u64 = ACPI_AREA.start + 0x300;
const MADT_AT: u64 = ACPI_AREA.start + 0x400;

/// `HW_REDUCED_ACPI`, `WBINVD`, no power and no sleep button.
const FADT_FLAGS: u32 = 1 << 20 | 1 | 1 << 4 | 1 << 5;

/// `IAPC_BOOT_ARCH`: no VGA, no CMOS clock.
const BOOT_ARCH: u16 = 1 << 2 | 1 << 5;

/// ACPI 6.5, 5.2.5.3.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Rsdp {
    signature: [u8; 8], // 0
    checksum: u8,       // 8: of bytes 0..20
    oem: [u8; 6],       // 9
    revision: u8,       // 15
    rsdt: U32,          // 16
    length: U32,        // 20
    xsdt: U64,          // 24
    checksum_all: u8,   // 32
    reserved: [u8; 3],  // 33
}
const _: () = assert!(size_of::<Rsdp>() == 36);

/// ACPI 6.5, 5.2.6.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    signature: [u8; 4],    // 0
    length: U32,           // 4
    revision: u8,          // 8
    checksum: u8,          // 9
    oem: [u8; 6],          // 10
    oem_table: [u8; 8],    // 16
    oem_revision: U32,     // 24
    creator: [u8; 4],      // 28
    creator_revision: U32, // 32
}
const _: () = assert!(size_of::<Header>() == 36);

/// ACPI 6.5, 5.2.9, after the header. Fields that are zero here have no name.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct FadtBody {
    zero_36: [u8; 73],   // 36
    boot_arch: U16,      // 109
    zero_111: u8,        // 111
    flags: U32,          // 112
    zero_116: [u8; 15],  // 116
    minor: u8,           // 131
    zero_132: [u8; 8],   // 132
    dsdt: U64,           // 140
    zero_148: [u8; 120], // 148
    hypervisor: [u8; 8], // 268
}
const _: () = assert!(size_of::<FadtBody>() == 276 - 36);
const _: () = assert!(core::mem::offset_of!(FadtBody, dsdt) == 140 - 36);

/// ACPI 6.5, 5.2.12, after the header.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct MadtBody {
    lapic: U32, // 36
    flags: U32, // 40: no 8259s
}

/// ACPI 6.5, 5.2.12.2.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct LocalApic {
    kind: u8,      // 0
    length: u8,    // 1
    processor: u8, // 2
    apic: u8,      // 3
    flags: U32,    // 4: enabled
}
const _: () = assert!(size_of::<LocalApic>() == 8);

/// Bytes to be put into guest memory.
#[derive(Debug)]
pub struct Table {
    /// Guest-physical address.
    pub at: u64,
    /// Contents.
    pub bytes: Vec<u8>,
}

/// Where the RSDP is.
pub const RSDP: u64 = RSDP_AT;

/// All tables for a guest of `vcpus` (at most 255: an APIC id of this table is a byte).
pub fn tables(vcpus: u8) -> [Table; 5] {
    let xsdt: Vec<u8> = [FADT_AT, MADT_AT]
        .iter()
        .flat_map(|at| at.to_le_bytes())
        .collect();
    let fadt = FadtBody {
        zero_36: [0; 73],
        boot_arch: U16::new(BOOT_ARCH),
        zero_111: 0,
        flags: U32::new(FADT_FLAGS),
        zero_116: [0; 15],
        minor: 5,
        zero_132: [0; 8],
        dsdt: U64::new(DSDT_AT),
        zero_148: [0; 120],
        hypervisor: *b"Lull\0\0\0\0",
    };
    let page = u32::try_from(LAPIC_PAGE).unwrap_or(0);
    let mut madt = MadtBody {
        lapic: U32::new(page),
        flags: U32::new(0),
    }
    .as_bytes()
    .to_vec();
    for id in 0..vcpus {
        let entry = LocalApic {
            kind: 0,
            length: 8,
            processor: id,
            apic: id,
            flags: U32::new(1),
        };
        madt.extend_from_slice(entry.as_bytes());
    }
    [
        Table {
            at: RSDP_AT,
            bytes: rsdp(),
        },
        Table {
            at: XSDT_AT,
            bytes: table(*b"XSDT", 1, &xsdt),
        },
        Table {
            at: FADT_AT,
            bytes: table(*b"FACP", 6, fadt.as_bytes()),
        },
        Table {
            at: DSDT_AT,
            bytes: table(*b"DSDT", 2, &[]),
        },
        Table {
            at: MADT_AT,
            bytes: table(*b"APIC", 5, &madt),
        },
    ]
}

/// What must be added for the bytes to sum up to zero.
fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, b| sum.wrapping_sub(*b))
}

fn rsdp() -> Vec<u8> {
    let mut rsdp = Rsdp {
        signature: *b"RSD PTR ",
        checksum: 0,
        oem: *b"LULL  ",
        revision: 2,
        rsdt: U32::new(0),
        length: U32::new(36),
        xsdt: U64::new(XSDT_AT),
        checksum_all: 0,
        reserved: [0; 3],
    };
    rsdp.checksum = checksum(rsdp.as_bytes().get(..20).unwrap_or(&[]));
    rsdp.checksum_all = checksum(rsdp.as_bytes());
    rsdp.as_bytes().to_vec()
}

fn table(signature: [u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut header = Header {
        signature,
        // A table has at most 44 + 255 * 8 bytes.
        length: U32::new(u32::try_from(size_of::<Header>() + body.len()).unwrap_or(0)),
        revision,
        checksum: 0,
        oem: *b"LULL  ",
        oem_table: *b"LULLGUES",
        oem_revision: U32::new(1),
        creator: *b"LULL",
        creator_revision: U32::new(1),
    };
    header.checksum = checksum(header.as_bytes()).wrapping_add(checksum(body));
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
#[expect(unsafe_code, reason = "the acpi crate reads tables by address")]
mod tests {
    use super::*;
    use acpi::madt::{Madt, MadtEntry};
    use acpi::{AcpiHandler, AcpiTables, PhysicalMapping};
    use core::ptr::NonNull;
    use std::sync::Arc;

    /// Tables in a buffer that stands for the guest's ACPI area.
    #[derive(Clone)]
    struct Area(Arc<Vec<u64>>);

    impl AcpiHandler for Area {
        unsafe fn map_physical_region<T>(
            &self,
            address: usize,
            size: usize,
        ) -> PhysicalMapping<Self, T> {
            let offset = address - ACPI_AREA.start as usize;
            assert!(offset + size <= self.0.len() * 8, "outside the ACPI area");
            let start = NonNull::from(&self.0[0]).cast::<u8>();
            // SAFETY: inside the buffer, which the handler keeps alive.
            unsafe {
                PhysicalMapping::new(address, start.add(offset).cast(), size, size, self.clone())
            }
        }

        fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
    }

    fn parsed(vcpus: u8) -> AcpiTables<Area> {
        let mut area = vec![0u64; ((ACPI_AREA.end - ACPI_AREA.start) / 8) as usize];
        let mut end = 0;
        for table in tables(vcpus) {
            assert!(table.at >= end, "tables do not overlap");
            end = table.at + table.bytes.len() as u64;
            assert!(end <= ACPI_AREA.end);
            let at = (table.at - ACPI_AREA.start) as usize;
            area.as_mut_bytes()[at..at + table.bytes.len()].copy_from_slice(&table.bytes);
        }
        // SAFETY: the handler maps the buffer.
        unsafe { AcpiTables::from_rsdp(Area(Arc::new(area)), RSDP as usize) }
            .expect("valid RSDP and XSDT")
    }

    #[test]
    fn the_acpi_crate_reads_them_back() {
        for vcpus in [1, 4, 255] {
            let tables = parsed(vcpus);
            let madt = tables.find_table::<Madt>().expect("valid MADT");
            assert_eq!({ madt.get().local_apic_address }, 0xfee0_0000);
            let ids: Vec<(u8, u8, u32)> = madt
                .get()
                .entries()
                .map(|entry| match entry {
                    MadtEntry::LocalApic(l) => (l.processor_id, l.apic_id, l.flags),
                    _ => panic!("only local APICs"),
                })
                .collect();
            assert_eq!(ids, (0..vcpus).map(|id| (id, id, 1)).collect::<Vec<_>>());
            let fadt = tables.find_table::<acpi::fadt::Fadt>().expect("valid FADT");
            assert_eq!(fadt.dsdt_address().expect("a DSDT"), DSDT_AT as usize);
            assert!({ fadt.flags }.system_is_hw_reduced_acpi());
            assert_eq!(tables.dsdt().expect("a DSDT").length, 0);
        }
    }

    #[test]
    fn every_checksum_is_right() {
        for table in tables(3) {
            assert_eq!(checksum(&table.bytes), 0, "{:#x}", table.at);
            if table.at != RSDP_AT {
                assert_eq!(table.bytes[4..8], (table.bytes.len() as u32).to_le_bytes());
            }
        }
        assert_eq!(checksum(&rsdp()[..20]), 0);
    }
}
