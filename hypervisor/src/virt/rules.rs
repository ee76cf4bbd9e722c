//! Values that the processor refuses, the same for all vendors.

use super::Gp;

const EFER_SCE: u64 = 1 << 0;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;
/// Bits of EFER that a guest may set. LMA is written back as read.
const EFER_GUEST: u64 = EFER_SCE | EFER_LME | EFER_NXE;
const CR0_PG: u64 = 1 << 31;

/// Whether an address has the form that 48-bit linear addresses have.
pub fn is_canonical(address: u64) -> bool {
    ((address << 16) as i64 >> 16) as u64 == address
}

/// All eight fields hold a memory type (AMD APM vol. 2, 7.8.1).
pub fn valid_pat(pat: u64) -> bool {
    pat.to_le_bytes()
        .iter()
        .all(|memory_type| matches!(memory_type, 0 | 1 | 4..=7))
}

/// EFER after a write by the guest: no bit that its CPUID does not name, no change of LME while paging is on.
///
/// # Errors
/// The guest gets #GP(0).
pub fn new_efer(cr0: u64, old: u64, value: u64) -> Result<u64, Gp> {
    let switches_mode_while_paging = cr0 & CR0_PG != 0 && (old ^ value) & EFER_LME != 0;
    if value & !(EFER_GUEST | EFER_LMA) != 0 || switches_mode_while_paging {
        return Err(Gp);
    }
    Ok(value & EFER_GUEST | old & EFER_LMA)
}
