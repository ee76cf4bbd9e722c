//! Guest page-table walker, and guest memory by linear address.
//!
//! For what the hypervisor does on the guest's behalf: fetching an intercepted instruction, and the data of string
//! I/O. It follows the guest's own tables with the guest's own rights, and trusts nothing in them: a walk has at
//! most five steps and every read is bounds-checked.
//!
//! Accessed and dirty bits are not set: the processor has set A for the instruction it has just fetched; for string
//! I/O a page may stay clean for once, which only a guest that pages to a disk could notice.
//! Formats: AMD APM vol. 2, chapter 5.

use core::fmt;

use crate::virt::{GuestCpuState, GuestMemory, Injection};

const CR0_WP: u64 = 1 << 16;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;
const EFER_NXE: u64 = 1 << 11;
const RFLAGS_AC: u64 = 1 << 18;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// What is done at the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Data read.
    Read,
    /// Data write.
    Write,
    /// Instruction fetch.
    Fetch,
}

/// The guest may not do that; deliver it as the processor would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// #PF: goes with CR2.
    Page {
        /// Linear address.
        address: u64,
        /// Error code.
        error: u32,
    },
    /// #GP(0): not canonical, or beyond a segment's limit.
    Protection,
    /// Translated, but there is no memory at that guest-physical address.
    NoMemory {
        /// Guest-physical address.
        gpa: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page { address, error } => write!(f, "page fault {error:#x} at {address:#x}"),
            Self::Protection => write!(f, "protection fault"),
            Self::NoMemory { gpa } => write!(f, "no memory at {gpa:#x}"),
        }
    }
}

impl Fault {
    /// The exception that the guest gets. A page fault without CR2 would be a lie, so it becomes #GP(0): the trait
    /// behind a vCPU cannot set CR2, and well-behaved guests do string I/O from mapped memory.
    pub fn injection(self) -> Injection {
        Injection::GP0
    }
}

/// Translates a linear address.
///
/// # Errors
/// The [`Fault`] that the access would raise in the guest.
pub fn translate(
    memory: &GuestMemory,
    cpu: &GuestCpuState,
    linear: u64,
    access: Access,
) -> Result<u64, Fault> {
    if !cpu.paging() {
        return Ok(linear & 0xffff_ffff);
    }
    let walk = Walk {
        memory,
        cpu,
        linear,
        access,
    };
    match (cpu.long_mode(), cpu.cr4 & CR4_PAE != 0) {
        (true, _) => walk.long(),
        (false, true) => walk.pae(),
        (false, false) => walk.legacy(),
    }
}

/// Copies out of guest memory at a linear address.
///
/// # Errors
/// As [`translate`]; nothing is known of `to` then.
pub fn read(
    memory: &GuestMemory,
    cpu: &GuestCpuState,
    linear: u64,
    access: Access,
    to: &mut [u8],
) -> Result<(), Fault> {
    let mut linear = linear;
    let mut rest = to;
    while !rest.is_empty() {
        let gpa = translate(memory, cpu, linear, access)?;
        let (part, more) = rest.split_at_mut(to_page_end(gpa).min(rest.len()));
        memory
            .read(gpa, part)
            .map_err(|_| Fault::NoMemory { gpa })?;
        linear = advance(cpu, linear, part.len());
        rest = more;
    }
    Ok(())
}

/// Copies into guest memory at a linear address.
///
/// # Errors
/// As [`translate`]; a part may have been written then.
pub fn write(
    memory: &GuestMemory,
    cpu: &GuestCpuState,
    linear: u64,
    from: &[u8],
) -> Result<(), Fault> {
    let mut linear = linear;
    let mut rest = from;
    while !rest.is_empty() {
        let gpa = translate(memory, cpu, linear, Access::Write)?;
        let (part, more) = rest.split_at(to_page_end(gpa).min(rest.len()));
        memory
            .write(gpa, part)
            .map_err(|_| Fault::NoMemory { gpa })?;
        linear = advance(cpu, linear, part.len());
        rest = more;
    }
    Ok(())
}

fn to_page_end(gpa: u64) -> usize {
    // At most 4096.
    usize::try_from(4096 - (gpa & 4095)).unwrap_or(1)
}

/// The next address; 32-bit modes wrap at 4 GiB.
fn advance(cpu: &GuestCpuState, linear: u64, by: usize) -> u64 {
    let next = linear.wrapping_add(by as u64);
    if cpu.long_mode() {
        next
    } else {
        next & 0xffff_ffff
    }
}

struct Walk<'a> {
    memory: &'a GuestMemory,
    cpu: &'a GuestCpuState,
    linear: u64,
    access: Access,
}

/// Rights collected on the way down: the most restrictive entry counts.
#[derive(Clone, Copy)]
struct Rights {
    write: bool,
    user: bool,
    execute: bool,
}

impl Rights {
    const ALL: Self = Self {
        write: true,
        user: true,
        execute: true,
    };

    fn and(self, entry: u64) -> Self {
        Self {
            write: self.write && entry & WRITABLE != 0,
            user: self.user && entry & USER != 0,
            execute: self.execute && entry & NO_EXECUTE == 0,
        }
    }
}

impl Walk<'_> {
    fn long(&self) -> Result<u64, Fault> {
        let levels = if self.cpu.cr4 & CR4_LA57 != 0 {
            5u32
        } else {
            4
        };
        let unused = 64 - (12 + 9 * levels);
        let canonical = (self.linear << unused).cast_signed() >> unused;
        if canonical.cast_unsigned() != self.linear {
            return Err(Fault::Protection);
        }
        self.tables(self.cpu.cr3 & ADDRESS, levels, Rights::ALL)
    }

    fn pae(&self) -> Result<u64, Fault> {
        let at = (self.cpu.cr3 & 0xffff_ffe0) + 8 * (self.linear >> 30 & 3);
        let entry = self.present(self.memory.read_u64(at).map_err(|_| self.reserved())?)?;
        // The top-level entries of this format carry no rights.
        self.tables(entry & ADDRESS, 2, Rights::ALL)
    }

    /// The 8-byte formats from `level` down to 1.
    fn tables(&self, root: u64, level: u32, rights: Rights) -> Result<u64, Fault> {
        let (mut table, mut rights) = (root, rights);
        for level in (1..=level).rev() {
            let shift = 12 + 9 * (level - 1);
            let at = table + 8 * (self.linear >> shift & 511);
            let mut entry = self.present(self.memory.read_u64(at).map_err(|_| self.reserved())?)?;
            if self.cpu.efer & EFER_NXE == 0 {
                entry &= !NO_EXECUTE;
            }
            rights = rights.and(entry);
            if level == 1 || (level <= 3 && entry & LARGE != 0) {
                let offset = (1u64 << shift) - 1;
                self.check(rights)?;
                return Ok((entry & ADDRESS & !offset) | (self.linear & offset));
            }
            if entry & LARGE != 0 {
                return Err(self.reserved());
            }
            table = entry & ADDRESS;
        }
        Err(self.reserved())
    }

    fn legacy(&self) -> Result<u64, Fault> {
        let read = |at: u64| {
            let entry = self.memory.read_u32(at).map_err(|_| self.reserved())?;
            self.present(entry.into())
        };
        let linear = self.linear & 0xffff_ffff;
        let directory = read((self.cpu.cr3 & 0xffff_f000) + 4 * (linear >> 22))?;
        let rights = Rights::ALL.and(directory);
        if directory & LARGE != 0 && self.cpu.cr4 & CR4_PSE != 0 {
            self.check(rights)?;
            // PSE-36: bits 20..13 are address bits 39..32.
            let high = (directory >> 13 & 0xff) << 32;
            return Ok(high | (directory & 0xffc0_0000) | (linear & 0x3f_ffff));
        }
        let entry = read((directory & 0xffff_f000) + 4 * (linear >> 12 & 1023))?;
        self.check(rights.and(entry))?;
        Ok((entry & 0xffff_f000) | (linear & 0xfff))
    }

    fn present(&self, entry: u64) -> Result<u64, Fault> {
        if entry & PRESENT != 0 {
            Ok(entry)
        } else {
            Err(self.fault(0))
        }
    }

    fn check(&self, rights: Rights) -> Result<(), Fault> {
        let (cr0, cr4) = (self.cpu.cr0, self.cpu.cr4);
        let user_mode = self.cpu.cpl == 3;
        let allowed = match self.access {
            _ if user_mode && !rights.user => false,
            Access::Fetch => rights.execute && (user_mode || !rights.user || cr4 & CR4_SMEP == 0),
            Access::Read | Access::Write
                if !user_mode
                    && rights.user
                    && cr4 & CR4_SMAP != 0
                    && self.cpu.rflags & RFLAGS_AC == 0 =>
            {
                false
            }
            Access::Write => rights.write || (!user_mode && cr0 & CR0_WP == 0),
            Access::Read => true,
        };
        if allowed { Ok(()) } else { Err(self.fault(1)) }
    }

    fn reserved(&self) -> Fault {
        self.fault(1 | 1 << 3)
    }

    fn fault(&self, bits: u32) -> Fault {
        let write = u32::from(self.access == Access::Write) << 1;
        let user = u32::from(self.cpu.cpl == 3) << 2;
        let nx = self.cpu.efer & EFER_NXE != 0 || self.cpu.cr4 & CR4_SMEP != 0;
        let fetch = u32::from(self.access == Access::Fetch && nx) << 4;
        Fault::Page {
            address: self.linear,
            error: bits | write | user | fetch,
        }
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
