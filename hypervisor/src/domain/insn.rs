//! Fetches the instruction that the guest is at, to decode it or just to learn its length.
//!
//! Hardware that says where the next instruction begins is asked first. Where it does not, the bytes are read
//! through the guest's page tables and must decode to what the exit was for: another vCPU may have changed them
//! or the mapping meanwhile. If they do not, nothing is emulated; the vCPU runs the instruction again, and exits or
//! faults as it deserves.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};

use super::length;
use super::walk::{self, Access};
use crate::virt::{GuestCpuState, GuestMemory, VirtCpu, fast};

/// Longest instruction, bytes.
const LONGEST: usize = 15;

/// The instruction at CS:RIP, if it can be fetched and is one.
pub fn fetch(memory: &GuestMemory, cpu: &GuestCpuState, hint: &[u8]) -> Option<Instruction> {
    let mut buffer = [0u8; LONGEST];
    let bytes = if hint.is_empty() {
        fetch_bytes(memory, cpu, &mut buffer)?
    } else {
        hint
    };
    let mut decoder =
        Decoder::try_with_ip(cpu.code_bits(), bytes, cpu.rip, DecoderOptions::NONE).ok()?;
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Address of the instruction after the one that caused the exit, which must be one of `expected`.
/// `None`: let the guest execute it again.
pub fn next_rip(virt: &dyn VirtCpu, memory: &GuestMemory, expected: &[Mnemonic]) -> Option<u64> {
    if let Some(rip) = virt.next_rip() {
        return Some(rip);
    }
    if let Some((cr3, rip)) = virt.plain_code()
        && let Some(code) = fast::code_at(memory, cr3, rip)
        && let Some(length) = length::length(&code.to_le_bytes(), 64, expected)
    {
        return Some(rip.wrapping_add(length));
    }
    let cpu = virt.cpu_state();
    let mut buffer = [0u8; LONGEST];
    let bytes = match virt.instruction_bytes() {
        [] => fetch_bytes(memory, &cpu, &mut buffer)?,
        hint => hint,
    };
    if let Some(length) = length::length(bytes, cpu.code_bits(), expected) {
        return Some(wrapped(&cpu, cpu.rip.wrapping_add(length)));
    }
    let instruction = fetch(memory, &cpu, bytes)?;
    expected
        .contains(&instruction.mnemonic())
        .then(|| after(&cpu, &instruction))
}

/// RIP behind an instruction; it wraps with the width of the code segment.
pub fn after(cpu: &GuestCpuState, instruction: &Instruction) -> u64 {
    wrapped(cpu, cpu.rip.wrapping_add(instruction.len() as u64))
}

fn wrapped(cpu: &GuestCpuState, next: u64) -> u64 {
    if cpu.code_bits() == 64 {
        next
    } else {
        next & 0xffff_ffff
    }
}

fn fetch_bytes<'b>(
    memory: &GuestMemory,
    cpu: &GuestCpuState,
    buffer: &'b mut [u8; LONGEST],
) -> Option<&'b [u8]> {
    let linear = if cpu.code_bits() == 64 {
        cpu.rip
    } else {
        cpu.cs.base.wrapping_add(cpu.rip & 0xffff_ffff) & 0xffff_ffff
    };
    if walk::read(memory, cpu, linear, Access::Fetch, buffer).is_ok() {
        return Some(buffer);
    }
    // The next page may be absent and not needed. Less than 4096, so the conversion cannot fail.
    let here = usize::try_from(4096 - (linear & 4095)).ok()?;
    let part = buffer.get_mut(..here.min(LONGEST))?;
    walk::read(memory, cpu, linear, Access::Fetch, part).ok()?;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virt::{Segment, SegmentAttributes};

    fn flat(bits: u32, rip: u64) -> GuestCpuState {
        let attributes = match bits {
            64 => SegmentAttributes::LONG,
            32 => SegmentAttributes::BIG,
            _ => SegmentAttributes::empty(),
        };
        GuestCpuState {
            cr0: 1,
            efer: if bits == 64 { 1 << 10 } else { 0 },
            rip,
            cs: Segment {
                attributes,
                ..Segment::default()
            },
            ..GuestCpuState::default()
        }
    }

    fn at_end_of_memory(code: &[u8]) -> (GuestMemory, u64) {
        let memory = GuestMemory::leaked(0x2000);
        let at = 0x2000 - code.len() as u64;
        memory.write(at, code).expect("in range");
        (memory, at)
    }

    #[test]
    fn instructions_are_decoded_in_the_mode_of_the_guest() {
        // 48 0f a2: REX.W CPUID in 64-bit code, DEC EAX before it in 32-bit code.
        for (bits, mnemonic, len) in [
            (64, Mnemonic::Cpuid, 3),
            (32, Mnemonic::Dec, 1),
            (16, Mnemonic::Dec, 1),
        ] {
            let (memory, at) = at_end_of_memory(&[0x48, 0x0f, 0xa2]);
            let cpu = flat(bits, at);
            let instruction = fetch(&memory, &cpu, &[]).expect("decodes");
            assert_eq!((instruction.mnemonic(), instruction.len()), (mnemonic, len));
            assert_eq!(after(&cpu, &instruction), at + len as u64);
        }
    }

    #[test]
    fn an_instruction_may_end_with_the_memory_but_not_beyond_it() {
        let (memory, at) = at_end_of_memory(&[0xf4]);
        assert_eq!(
            fetch(&memory, &flat(64, at), &[]).expect("HLT").mnemonic(),
            Mnemonic::Hlt
        );
        let (memory, at) = at_end_of_memory(&[0x0f]);
        assert!(fetch(&memory, &flat(64, at), &[]).is_none());
        assert!(fetch(&memory, &flat(64, 0x1_0000), &[]).is_none());
    }

    #[test]
    fn the_code_segment_has_a_base() {
        let (memory, at) = at_end_of_memory(&[0x0f, 0x32]);
        let mut cpu = flat(16, at & 0xff);
        cpu.cs.base = at & !0xff;
        assert_eq!(
            fetch(&memory, &cpu, &[]).expect("RDMSR").mnemonic(),
            Mnemonic::Rdmsr
        );
    }
}
