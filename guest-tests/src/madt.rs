//! Which CPUs there are: RSDP, then RSDT or XSDT, then the MADT (ACPI 6.5, 5.2.5 to 5.2.12).
//!
//! The tables come from firmware or a hypervisor: every length is checked before it is used, and a table that does not add up
//! is left out.

use crate::memory::Memory;

/// The APIC ids of the CPUs that the MADT calls usable, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApicIds<const N: usize> {
    ids: [u32; N],
    used: usize,
    /// CPUs that found no place among the `N`.
    pub left_out: u32,
}

impl<const N: usize> ApicIds<N> {
    /// No CPU.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ids: [0; N],
            used: 0,
            left_out: 0,
        }
    }

    /// The ids.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        self.ids.get(..self.used).unwrap_or(&[])
    }

    /// Adds an id; the same id twice counts once.
    pub fn push(&mut self, id: u32) {
        if self.as_slice().contains(&id) {
            return;
        }
        match self.ids.get_mut(self.used) {
            Some(place) => {
                *place = id;
                self.used += 1;
            }
            None => self.left_out += 1,
        }
    }
}

impl<const N: usize> Default for ApicIds<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The usable CPUs by the RSDP at `rsdp`; `None` if no sound MADT is found.
pub fn cpus<const N: usize>(memory: &impl Memory, rsdp: u64) -> Option<ApicIds<N>> {
    let mut signature = [0; 8];
    if !memory.read(rsdp, &mut signature) || &signature != b"RSD PTR " {
        return None;
    }
    let xsdt = match memory.u8(rsdp + 15)? {
        0 | 1 => None,
        _ => memory.u64(rsdp + 24).filter(|&xsdt| xsdt != 0),
    };
    match xsdt {
        Some(xsdt) => find_madt(memory, xsdt, b"XSDT", 8),
        None => find_madt(memory, u64::from(memory.u32(rsdp + 16)?), b"RSDT", 4),
    }
    .and_then(|madt| read_madt(memory, madt))
}

/// The length of the table at `at`, if it has that signature, is of sane size, and its bytes sum to zero.
fn table(memory: &impl Memory, at: u64, signature: &[u8; 4]) -> Option<u64> {
    let mut found = [0; 4];
    if !memory.read(at, &mut found) || &found != signature {
        return None;
    }
    let length = u64::from(memory.u32(at + 4)?);
    if !(36..=0x1_0000).contains(&length) {
        return None;
    }
    let mut sum = 0u8;
    for byte in at..at.checked_add(length)? {
        sum = sum.wrapping_add(memory.u8(byte)?);
    }
    (sum == 0).then_some(length)
}

fn find_madt(memory: &impl Memory, root: u64, signature: &[u8; 4], pointer: u64) -> Option<u64> {
    let length = table(memory, root, signature)?;
    (0..(length - 36) / pointer).find_map(|index| {
        let entry = root + 36 + index * pointer;
        let at = if pointer == 8 {
            memory.u64(entry)?
        } else {
            u64::from(memory.u32(entry)?)
        };
        table(memory, at, b"APIC").map(|_| at)
    })
}

fn read_madt<const N: usize>(memory: &impl Memory, madt: u64) -> Option<ApicIds<N>> {
    const LOCAL_APIC: u8 = 0;
    const LOCAL_X2APIC: u8 = 9;
    const ENABLED: u32 = 1;
    let end = madt + table(memory, madt, b"APIC")?;
    let mut ids = ApicIds::new();
    let mut at = madt + 44;
    while at + 2 <= end {
        let (kind, length) = (memory.u8(at)?, u64::from(memory.u8(at + 1)?));
        if length < 2 || at + length > end {
            return None;
        }
        match (kind, length) {
            (LOCAL_APIC, 8..) if memory.u32(at + 4)? & ENABLED != 0 => {
                ids.push(u32::from(memory.u8(at + 3)?))
            }
            (LOCAL_X2APIC, 16..) if memory.u32(at + 8)? & ENABLED != 0 => {
                ids.push(memory.u32(at + 4)?)
            }
            _ => {}
        }
        at += length;
    }
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::fake::Pieces;
    use std::vec::Vec;

    /// A table with a right length and sum.
    fn sealed(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut bytes = signature.to_vec();
        bytes.extend((u32::try_from(body.len()).expect("small") + 36).to_le_bytes());
        bytes.extend([0; 28]);
        bytes.extend(body);
        let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        *bytes.get_mut(9).expect("checksum byte") = 0u8.wrapping_sub(sum);
        bytes
    }

    fn madt(entries: &[&[u8]]) -> Vec<u8> {
        let mut body = std::vec![0; 8];
        body.extend(entries.concat());
        sealed(b"APIC", &body)
    }

    fn rsdp(revision: u8, rsdt: u32, xsdt: u64) -> Vec<u8> {
        let mut bytes = b"RSD PTR ".to_vec();
        bytes.extend([0; 7]);
        bytes.push(revision);
        bytes.extend(rsdt.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(xsdt.to_le_bytes());
        bytes
    }

    fn machine(revision: u8, madt: Vec<u8>) -> Pieces {
        let mut root = std::vec![0u8; 0];
        root.extend(0x5000u32.to_le_bytes());
        root.extend(0x4000u32.to_le_bytes());
        let mut wide = Vec::new();
        wide.extend(0x4000u64.to_le_bytes());
        Pieces(std::vec![
            (0x1000, rsdp(revision, 0x2000, 0x3000)),
            (0x2000, sealed(b"RSDT", &root)),
            (0x3000, sealed(b"XSDT", &wide)),
            (0x4000, madt),
            (0x5000, sealed(b"FACP", &[1, 2, 3])),
        ])
    }

    const CPU0: &[u8] = &[0, 8, 0, 0, 1, 0, 0, 0];
    const CPU2: &[u8] = &[0, 8, 1, 2, 1, 0, 0, 0];
    const DISABLED: &[u8] = &[0, 8, 2, 4, 0, 0, 0, 0];
    const IOAPIC: &[u8] = &[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const X2: &[u8] = &[9, 16, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn usable_cpus_in_order_by_either_root() {
        for revision in [0, 2] {
            let memory = machine(revision, madt(&[CPU0, IOAPIC, CPU2, DISABLED, X2, CPU0]));
            let ids = cpus::<8>(&memory, 0x1000).expect("sound");
            assert_eq!(ids.as_slice(), [0, 2, 0x100]);
        }
    }

    #[test]
    fn more_than_fit_are_counted() {
        let ids = cpus::<1>(&machine(2, madt(&[CPU0, CPU2, X2])), 0x1000).expect("sound");
        assert_eq!((ids.as_slice(), ids.left_out), (&[0][..], 2));
    }

    #[test]
    fn damaged_tables_are_refused() {
        let mut wrong_sum = madt(&[CPU0]);
        *wrong_sum.get_mut(40).expect("inside") ^= 1;
        assert_eq!(cpus::<8>(&machine(2, wrong_sum), 0x1000), None);
        assert_eq!(
            cpus::<8>(&machine(2, madt(&[CPU0, &[0, 0]])), 0x1000),
            None,
            "an entry of length 0 would never end"
        );
        assert_eq!(
            cpus::<8>(&machine(2, madt(&[CPU0, &[0, 9, 0, 0]])), 0x1000),
            None,
            "an entry beyond the table"
        );
        assert_eq!(
            cpus::<8>(&machine(2, madt(&[])), 0x2000),
            None,
            "no RSDP there"
        );
        assert_eq!(cpus::<8>(&Pieces::default(), 0x1000), None);
    }
}
