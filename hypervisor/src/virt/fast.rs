//! Frequent exits, answered between two entries: the guest is not left.
//!
//! What a guest asks for most often (CPUID, an MSR of its local APIC) changes nothing of what an entry depends on. So the backend
//! offers such an exit to the caller right behind it, with nothing accounted, nothing looked at again and the wake word still in
//! the state GUEST, and enters again after a plain look at the word.
//!
//! Why that loses no wake: whoever posts to this CPU sees GUEST, and sends an interrupt; that one stays pending until the next
//! entry, which it ends at once. What this CPU posts to itself meanwhile sends none: that is what the plain look is for.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::{GateEvent, GuestMemory};

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    /// Nothing was done: it is an exit like any other.
    Leave,
    /// Done, and RIP is moved: enter again.
    Enter,
    /// Done, and RIP is moved; what the vCPU waits for, or its timer, has changed: [`Exit::Answered`](super::Exit::Answered).
    Look,
    /// The guest has no such instruction: #UD.
    Undefined,
}

/// Who stands at the gate: is told of entries, and may answer exits.
///
/// Called with interrupts held off. FPU and debug registers are the guest's, as they are from load to unload; all else that an
/// exit puts back is the hypervisor's. General registers come in encoding order, RSP not among them. Where the instruction ends
/// was found already; RIP is moved behind it if the answer says so.
pub trait Gate {
    /// The guest is about to run, or was left for good. Once each an entry, whatever was answered in between.
    fn pass(&mut self, event: GateEvent);

    /// Whether exits of this entry are answered at all; else each of them leaves the guest.
    fn answers(&self) -> bool {
        true
    }

    /// The guest's memory, to read intercepted instructions from. Without, exits are answered only where the processor tells where
    /// the next instruction is.
    fn memory(&self) -> Option<Arc<GuestMemory>> {
        None
    }

    /// So many CPUIDs were answered by [`Remembered`]; told before the guest is left for good.
    fn told_cpuid(&mut self, times: u64) {
        let _ = times;
    }

    /// RDMSR. `cr8` is what the guest has made it.
    fn read_msr(&mut self, gprs: &mut [u64; 16], cr8: u8) -> Answer {
        let _ = (gprs, cr8);
        Answer::Leave
    }

    /// WRMSR. May change `cr8`.
    fn write_msr(&mut self, gprs: &[u64; 16], cr8: &mut u8) -> Answer {
        let _ = (gprs, cr8);
        Answer::Leave
    }

    /// VMMCALL or VMCALL.
    fn hypercall(&mut self) -> Answer {
        Answer::Leave
    }
}

impl<F: FnMut(GateEvent)> Gate for F {
    fn pass(&mut self, event: GateEvent) {
        self(event);
    }
}

/// Answers that are remembered: 32 leaves in each range (basic, the hypervisor's, extended), and room.
const REMEMBERED: usize = 128;

/// Answers to CPUID of one vCPU by leaf, so that they need not be made anew: those that follow from nothing that a guest changes without
/// being seen. Where a subleaf counts, the one that was asked for last.
#[derive(Clone, Debug)]
pub struct Remembered(Box<[Slot; REMEMBERED]>);

#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Slot {
    leaf: u32,
    subleaf: u32,
    /// The bits of the subleaf that count.
    mask: u32,
    regs: [u32; 4],
}

impl Default for Remembered {
    fn default() -> Self {
        Self::new()
    }
}

impl Remembered {
    /// Nothing.
    pub fn new() -> Self {
        let mut empty = Self(Box::new(
            [Slot {
                leaf: 0,
                subleaf: 0,
                mask: 0,
                regs: [0; 4],
            }; REMEMBERED],
        ));
        empty.forget();
        empty
    }

    /// No two leaves that are remembered have the same.
    #[inline(always)]
    fn place(leaf: u32) -> usize {
        ((leaf ^ leaf >> 25) & (REMEMBERED as u32 - 1)) as usize
    }

    /// The answer, if it is known.
    #[inline(always)]
    pub fn get(&self, leaf: u32, subleaf: u32, cr4: u64) -> Option<[u32; 4]> {
        let slot = &self.0[Self::place(leaf)];
        if slot.leaf != leaf || (slot.subleaf ^ subleaf) & slot.mask != 0 {
            return None;
        }
        if leaf == 1 {
            return Some(with_osxsave(slot.regs, cr4));
        }
        Some(slot.regs)
    }

    /// Remembers an answer.
    pub fn put(&mut self, leaf: u32, subleaf: u32, regs: [u32; 4]) {
        // By XCR0, which is not asked for at every exit.
        const XSAVE: u32 = 0xd;
        if leaf & 0x3fff_ffff >= 32 || leaf >> 30 == 3 || leaf == XSAVE {
            return;
        }
        let mask = if matches!(leaf, 4 | 7 | 0xb) { !0 } else { 0 };
        self.0[Self::place(leaf)] = Slot {
            leaf,
            subleaf,
            mask,
            regs,
        };
    }

    /// Something that answers are made of has changed.
    pub fn forget(&mut self) {
        for (slot, place) in self.0.iter_mut().zip(0..) {
            // A leaf that is looked for elsewhere.
            slot.leaf = place ^ 1;
        }
    }
}

/// Puts an answer where CPUID leaves it.
#[inline(always)]
pub fn set_cpuid(gprs: &mut [u64; 16], [eax, ebx, ecx, edx]: [u32; 4]) {
    // RAX, RCX, RDX, RBX.
    gprs[0] = eax.into();
    gprs[1] = ecx.into();
    gprs[2] = edx.into();
    gprs[3] = ebx.into();
}

#[cold]
fn with_osxsave(mut regs: [u32; 4], cr4: u64) -> [u32; 4] {
    const OSXSAVE: u64 = 1 << 18;
    const OFFERED: u32 = 1 << 26;
    const ENABLED: u32 = 1 << 27;
    let enabled = cr4 & OSXSAVE != 0 && regs[2] & OFFERED != 0;
    regs[2] = regs[2] & !ENABLED | if enabled { ENABLED } else { 0 };
    regs
}

/// Second bytes of the instructions that are looked for.
pub mod opcode {
    /// WRMSR.
    pub const WRMSR: u8 = 0x30;
    /// RDMSR.
    pub const RDMSR: u8 = 0x32;
    /// CPUID.
    pub const CPUID: u8 = 0xa2;
}

/// Where the instruction `0F opcode` ends that was intercepted at `rip`, in 64-bit code under four levels of paging, by reading it.
/// `None`: it is not plain to see.
#[inline(always)]
pub fn next(memory: &GuestMemory, cr3: u64, rip: u64, opcode: u8) -> Option<u64> {
    let bytes = code_at(memory, cr3, rip)?;
    if bytes as u16 == u16::from_le_bytes([0x0f, opcode]) {
        return Some(rip.wrapping_add(2));
    }
    after_prefixes(rip, bytes, opcode)
}

/// The 16 bytes at the intercepted instruction, in 64-bit code under four levels of paging. `None`: they are not all in one page, or
/// not in the memory any more.
#[inline(always)]
pub fn code_at(memory: &GuestMemory, cr3: u64, rip: u64) -> Option<u128> {
    memory.code(fetched_from(memory, cr3, rip)?)
}

#[cold]
#[inline(never)]
fn after_prefixes(rip: u64, bytes: u128, opcode: u8) -> Option<u64> {
    let bytes = bytes.to_le_bytes();
    // Segments, operand and address size, repetition, and REX. One byte less than the longest instruction has, so 15 are seen.
    let is_prefix = |byte: u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3);
    let prefixes = bytes.iter().position(|&byte| !is_prefix(byte))?;
    let found = prefixes <= LONGEST - 2 && bytes.get(prefixes..)?.starts_with(&[0x0f, opcode]);
    found.then(|| rip.wrapping_add(prefixes as u64 + 2))
}

/// Longest instruction, bytes.
const LONGEST: usize = 15;

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const LARGE: u64 = 1 << 7;

/// Where the processor has just fetched an instruction from, in 64-bit code under four levels of paging. Whether it may, and whether
/// the entries are present, is not asked: they were. Entries that have changed since lead to other code, or out of the memory: `None`.
#[inline(always)]
fn fetched_from(memory: &GuestMemory, cr3: u64, linear: u64) -> Option<u64> {
    let top = entry(memory, cr3, linear, 39)?;
    let third = entry(memory, top, linear, 30)?;
    if third & LARGE != 0 {
        return Some(page(third, linear, 30));
    }
    let second = entry(memory, third, linear, 21)?;
    if second & LARGE != 0 {
        return Some(page(second, linear, 21));
    }
    Some(page(entry(memory, second, linear, 12)?, linear, 12))
}

#[inline(always)]
fn entry(memory: &GuestMemory, table: u64, linear: u64, shift: u32) -> Option<u64> {
    memory.word((table & ADDRESS) | (linear >> (shift - 3) & 0xff8))
}

#[inline(always)]
fn page(entry: u64, linear: u64, shift: u32) -> u64 {
    let offset = (1u64 << shift) - 1;
    (entry & ADDRESS & !offset) | (linear & offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_remembered_for_what_it_is_an_answer_to() {
        let mut told = Remembered::new();
        for leaf in (0..300)
            .chain(0x4000_0000..0x4000_0100)
            .chain(0x7fff_ff00..0x8000_0100)
        {
            assert_eq!(told.get(leaf, 0, 0), None, "{leaf:#x}");
        }
        assert_eq!(told.get(u32::MAX, 0, 0), None);
        let leaves = [
            0,
            1,
            2,
            7,
            0xb,
            0x1f,
            0x4000_0000,
            0x4000_0010,
            0x8000_0000,
            0x8000_001e,
        ];
        for leaf in leaves {
            told.put(leaf, 3, [leaf, 2, 0, 4]);
        }
        told.put(0xd, 0, [9; 4]);
        told.put(0xc000_0000, 0, [9; 4]);
        told.put(0x20, 0, [9; 4]);
        for leaf in leaves {
            assert_eq!(told.get(leaf, 3, 0), Some([leaf, 2, 0, 4]), "{leaf:#x}");
            let any = !matches!(leaf, 4 | 7 | 0xb);
            assert_eq!(told.get(leaf, 0, 0).is_some(), any, "{leaf:#x}");
        }
        for leaf in [0xd, 0xc000_0000, 0x20, 4] {
            assert_eq!(told.get(leaf, 0, 0), None, "{leaf:#x}");
        }
        told.forget();
        assert_eq!(told.get(0, 3, 0), None);
    }

    #[test]
    fn leaf_1_tells_of_osxsave_what_cr4_says() {
        let mut told = Remembered::new();
        told.put(1, 0, [0, 0, 1 << 26 | 1 << 27, 0]);
        assert_eq!(told.get(1, 0, 0), Some([0, 0, 1 << 26, 0]));
        assert_eq!(told.get(1, 0, 1 << 18), Some([0, 0, 1 << 26 | 1 << 27, 0]));
        told.put(1, 0, [0; 4]);
        assert_eq!(told.get(1, 0, 1 << 18), Some([0; 4]), "no XSAVE at all");
    }

    #[test]
    fn up_to_fifteen_bytes_are_an_instruction() {
        let at = |code: &[u8]| {
            let mut bytes = [0x90; 16];
            bytes[..code.len()].copy_from_slice(code);
            after_prefixes(100, u128::from_le_bytes(bytes), opcode::CPUID)
        };
        assert_eq!(at(&[0x66, 0x0f, 0xa2]), Some(103));
        assert_eq!(at(&[0x48, 0x0f, 0xa2]), Some(103));
        assert_eq!(at(&[0xf0, 0x0f, 0xa2]), None, "LOCK");
        assert_eq!(at(&[0x66, 0x0f, 0x30]), None, "another instruction");
        let mut long = [0x66; 16];
        (long[13], long[14]) = (0x0f, 0xa2);
        assert_eq!(at(&long), Some(115));
        (long[13], long[14], long[15]) = (0x66, 0x0f, 0xa2);
        assert_eq!(at(&long), None, "16 bytes are too many");
    }
}
