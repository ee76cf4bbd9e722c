//! Finding the tables: RSDP, RSDT or XSDT, and each table's length and checksum.
//!
//! Pure over [`PhysMem`]. All lengths come from firmware: everything is checked before anybody relies on it.
//! ACPI specification 6.5, 5.2.5 to 5.2.8.
use super::physmem::PhysMem;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Length of the header that all tables share.
pub(super) const HEADER: usize = 36;
/// No table that is needed here is larger; DSDTs of large machines have some 100 KiB.
pub(super) const MAX_TABLE: usize = 1 << 20;

/// Which kind of root table was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// 32-bit pointers.
    Rsdt(u64),
    /// 64-bit pointers.
    Xsdt(u64),
}

/// One table with a right checksum.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) signature: [u8; 4],
    /// All of it, with the header.
    pub(super) bytes: Vec<u8>,
}

/// What was found behind the RSDP.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) root: Root,
    pub(super) tables: Vec<Table>,
    /// Tables that cannot be used: name and reason.
    pub(super) damaged: Vec<(String, String)>,
}

/// The first byte-sum that is not zero makes a table invalid.
fn sums_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, b| sum.wrapping_add(*b)) == 0
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let end = offset.checked_add(4)?;
    Some(u32::from_le_bytes(bytes.get(offset..end)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let end = offset.checked_add(8)?;
    Some(u64::from_le_bytes(bytes.get(offset..end)?.try_into().ok()?))
}

/// A signature for people.
pub(super) fn name(signature: [u8; 4]) -> String {
    signature
        .iter()
        .map(|b| {
            if b.is_ascii_graphic() {
                char::from(*b)
            } else {
                '?'
            }
        })
        .collect()
}

/// Looks for the RSDP where a BIOS puts it: 16-byte steps in E0000h to FFFFFh, and the first KiB of the EBDA.
pub(super) fn search_bios(mem: &impl PhysMem) -> Option<u64> {
    let ebda = mem
        .bytes(0x40E)
        .map(|b| u64::from(u16::from_le_bytes(b)) << 4);
    let ebda = ebda.filter(|a| (0x8_0000..0xA_0000).contains(a));
    ebda.into_iter()
        .flat_map(|start| (start..start + 1024).step_by(16))
        .chain((0xE_0000..0x10_0000).step_by(16))
        .find(|at| check_rsdp(mem, *at).is_ok())
}

/// Checks the RSDP and gives the root tables it names, the better one first.
fn check_rsdp(mem: &impl PhysMem, at: u64) -> Result<Vec<Root>, String> {
    const V1: usize = 20;
    let Some(first) = mem.bytes::<V1>(at) else {
        return Err(format!("no memory at {at:#x}"));
    };
    if !first.starts_with(b"RSD PTR ") {
        return Err(format!("no signature \"RSD PTR \" at {at:#x}"));
    }
    if !sums_to_zero(&first) {
        return Err(String::from("wrong checksum"));
    }
    let rsdt = Root::Rsdt(u32_at(&first, 16).unwrap_or(0).into());
    let revision = first.get(15).copied().unwrap_or(0);
    if revision < 2 {
        return Ok(vec![rsdt]);
    }
    // An extension that is damaged leaves the first part usable.
    let xsdt = mem
        .bytes::<36>(at)
        .filter(|all| u32_at(all, 20) == Some(36) && sums_to_zero(all))
        .and_then(|all| u64_at(&all, 24))
        .map(Root::Xsdt);
    Ok(xsdt
        .into_iter()
        .chain([rsdt])
        .filter(|r| !matches!(r, Root::Rsdt(0) | Root::Xsdt(0)))
        .collect())
}

/// Reads a table and checks its length and checksum. The error carries its signature, if that could be read.
fn read_table(mem: &impl PhysMem, at: u64) -> Result<Table, (String, String)> {
    let Some(header) = mem.bytes::<HEADER>(at) else {
        return Err((String::from("table"), format!("no memory at {at:#x}")));
    };
    let mut signature = [0; 4];
    signature.copy_from_slice(header.get(..4).unwrap_or(&[0; 4]));
    let damaged = |why: String| (name(signature), why);
    let length = u32_at(&header, 4).map_or(0, |l| l as usize);
    if !(HEADER..=MAX_TABLE).contains(&length) {
        return Err(damaged(format!(
            "its length is {length}, expected {HEADER} to {MAX_TABLE}"
        )));
    }
    let mut bytes = vec![0; length];
    if !mem.read(at, &mut bytes) {
        return Err(damaged(format!(
            "its {length} bytes at {at:#x} are not all memory"
        )));
    }
    if !sums_to_zero(&bytes) {
        return Err(damaged(String::from("wrong checksum")));
    }
    Ok(Table { signature, bytes })
}

/// Reads a table outside the root table: the DSDT.
pub(super) fn read_other(
    mem: &impl PhysMem,
    at: u64,
    signature: [u8; 4],
) -> Result<Table, (String, String)> {
    match read_table(mem, at) {
        Ok(table) if table.signature != signature => Err((
            name(signature),
            format!("the table at {at:#x} is a {}", name(table.signature)),
        )),
        other => other,
    }
}

/// Reads the root table that the RSDP at `rsdp` names, and every table in it.
///
/// # Errors
/// Name and reason, if there is no usable root table at all.
pub(super) fn survey(mem: &impl PhysMem, rsdp: u64) -> Result<Survey, (String, String)> {
    let roots = check_rsdp(mem, rsdp).map_err(|why| (String::from("RSDP"), why))?;
    let mut damaged = Vec::new();
    for root in roots {
        let (at, signature, width) = match root {
            Root::Rsdt(at) => (at, *b"RSDT", 4),
            Root::Xsdt(at) => (at, *b"XSDT", 8),
        };
        let table = match read_other(mem, at, signature) {
            Ok(table) => table,
            Err(why) => {
                damaged.push(why);
                continue;
            }
        };
        let mut tables = Vec::new();
        for pointer in table.bytes.get(HEADER..).unwrap_or(&[]).chunks_exact(width) {
            let at = match width {
                4 => u32_at(pointer, 0).map(u64::from),
                _ => u64_at(pointer, 0),
            };
            match at.map(|at| read_table(mem, at)) {
                Some(Ok(table)) => tables.push(table),
                Some(Err(why)) => damaged.push(why),
                None => (),
            }
        }
        return Ok(Survey {
            root,
            tables,
            damaged,
        });
    }
    Err(damaged
        .into_iter()
        .next()
        .unwrap_or_else(|| (String::from("RSDP"), String::from("it names no root table"))))
}

impl Survey {
    /// The first table of that signature.
    pub(super) fn table(&self, signature: &[u8; 4]) -> Option<&Table> {
        self.tables.iter().find(|t| t.signature == *signature)
    }
}
