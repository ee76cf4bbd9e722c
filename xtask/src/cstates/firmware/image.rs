//! A memory with ACPI tables in it: RSDP, RSDT, an FADT that names the DSDT, and the tables of the files.

use anyhow::{Context, Result, ensure};
use lull::acpi::physmem::PhysMem;

/// Where the RSDP lies.
pub const RSDP: u64 = 0x1000;

/// The memory, from [`RSDP`] on.
pub struct Image(Vec<u8>);

impl PhysMem for Image {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let found = || {
            let from = usize::try_from(address.checked_sub(RSDP)?).ok()?;
            self.0.get(from..from.checked_add(into.len())?)
        };
        match found() {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }
}

/// An FADT for tables that came without: nothing in it but that P_BLK has no C2 and no C3.
fn plain_fadt() -> Vec<u8> {
    const LENGTH: usize = 116;
    let mut fadt = vec![0; LENGTH];
    fadt[..4].copy_from_slice(b"FACP");
    fadt[4] = LENGTH as u8;
    fadt[8] = 1;
    fadt[96..100].fill(0xFF);
    fadt
}

fn mend(table: &mut [u8], checksum: usize) {
    if let Some(byte) = table.get_mut(checksum) {
        *byte = 0;
    }
    let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    if let Some(byte) = table.get_mut(checksum) {
        *byte = sum.wrapping_neg();
    }
}

impl Image {
    /// Of these tables: at most one DSDT, FADT and MADT, and any number of others.
    ///
    /// # Errors
    /// There are two of which there can be only one, or more than 32-bit addresses can reach.
    pub fn of(tables: &[Vec<u8>]) -> Result<Self> {
        for single in [b"DSDT", b"FACP", b"APIC"] {
            let count = tables.iter().filter(|t| t.starts_with(single)).count();
            let name = String::from_utf8_lossy(single);
            ensure!(count <= 1, "{count} tables are a {name}: a machine has one");
        }
        let mut memory = Memory(vec![0; 64]);
        let dsdt = tables.iter().find(|table| table.starts_with(b"DSDT"));
        let dsdt = dsdt.map(|table| memory.place(table)).transpose()?;
        let given = tables.iter().find(|table| table.starts_with(b"FACP"));
        let mut fadt = given.map_or_else(plain_fadt, Clone::clone);
        // A FADT whose checksum is wrong stays so, and is named.
        let sound =
            given.is_none_or(|table| table.iter().fold(0_u8, |sum, b| sum.wrapping_add(*b)) == 0);
        // DSDT and X_DSDT, ACPI specification 6.5, table 5.9.
        if let Some(old) = fadt.get_mut(40..44) {
            old.copy_from_slice(&dsdt.unwrap_or(0).to_le_bytes());
        }
        if let Some(new) = fadt.get_mut(140..148) {
            new.copy_from_slice(&u64::from(dsdt.unwrap_or(0)).to_le_bytes());
        }
        if sound {
            mend(&mut fadt, 9);
        }
        let mut pointers = vec![memory.place(&fadt)?];
        for table in tables {
            if !table.starts_with(b"DSDT") && !table.starts_with(b"FACP") {
                pointers.push(memory.place(table)?);
            }
        }
        let length = 36 + pointers.len() * 4;
        let mut rsdt = vec![0; 36];
        rsdt[..4].copy_from_slice(b"RSDT");
        rsdt[4..8].copy_from_slice(&u32::try_from(length)?.to_le_bytes());
        rsdt[8] = 1;
        rsdt.extend(pointers.iter().flat_map(|pointer| pointer.to_le_bytes()));
        mend(&mut rsdt, 9);
        let root = memory.place(&rsdt)?;
        let mut rsdp = [0; 20];
        rsdp[..8].copy_from_slice(b"RSD PTR ");
        rsdp[16..].copy_from_slice(&root.to_le_bytes());
        mend(&mut rsdp, 8);
        memory.0[..20].copy_from_slice(&rsdp);
        Ok(Self(memory.0))
    }
}

struct Memory(Vec<u8>);

impl Memory {
    /// Puts a table behind the others, and gives its address.
    fn place(&mut self, table: &[u8]) -> Result<u32> {
        let at = self.0.len() as u64 + RSDP;
        self.0.extend_from_slice(table);
        self.0.resize(self.0.len().next_multiple_of(16), 0);
        u32::try_from(at).context("the tables are too large")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull::acpi;

    fn table(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut table = vec![0; 36];
        table[..4].copy_from_slice(signature);
        table[4] = 36 + body.len() as u8;
        table.extend_from_slice(body);
        mend(&mut table, 9);
        table
    }

    #[test]
    fn lull_finds_the_tables_as_on_a_machine() {
        let tables = [
            table(b"SSDT", &[1]),
            table(b"DSDT", &[2]),
            table(b"SSDT", &[3]),
        ];
        let info = acpi::read(&Image::of(&tables).unwrap(), Some(RSDP));
        let found: Vec<_> = info
            .aml
            .iter()
            .map(|table| (table.name.as_str(), table.bytes[36]))
            .collect();
        assert_eq!(found, [("DSDT", 2), ("SSDT 1", 1), ("SSDT 2", 3)]);
        assert_eq!(info.c_states.fadt.lvl2(), None);
    }

    #[test]
    fn a_fadt_of_the_machine_counts_and_a_damaged_table_is_named() {
        let mut fadt = plain_fadt();
        fadt[96] = 10;
        fadt[97] = 0;
        mend(&mut fadt, 9);
        let mut wrong = table(b"SSDT", &[1]);
        wrong[36] = 2;
        let info = acpi::read(&Image::of(&[fadt, wrong]).unwrap(), Some(RSDP));
        assert_eq!(info.c_states.fadt.lvl2_latency, 10);
        let named = |p: &acpi::Problem| p.name == "SSDT" && p.why.contains("wrong checksum");
        assert!(info.problems.iter().any(named), "{:?}", info.problems);
    }

    #[test]
    fn a_machine_has_one_dsdt() {
        let two = [table(b"DSDT", &[]), table(b"DSDT", &[])];
        let why = Image::of(&two).err().unwrap().to_string();
        assert_eq!(why, "2 tables are a DSDT: a machine has one");
    }
}
