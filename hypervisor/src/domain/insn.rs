//! Fetches the instruction that the guest is at, to decode it or just to learn its length.
//!
//! Hardware that says where the next instruction begins is asked first. Where it does not, the bytes are read
//! through the guest's page tables and must decode to what the exit was for: another vCPU may have changed them
//! or the mapping meanwhile. If they do not, nothing is emulated; the vCPU runs the instruction again, and exits or
//! faults as it deserves.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};

use super::walk::{self, Access};
use crate::virt::{GuestCpuState, GuestMemory, VirtCpu};

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
    let cpu = virt.cpu_state();
    if let Some((mnemonic, len)) = common(memory, &cpu)
        && expected.contains(&mnemonic)
    {
        return Some(cpu.rip.wrapping_add(len));
    }
    let instruction = fetch(memory, &cpu, virt.instruction_bytes())?;
    expected
        .contains(&instruction.mnemonic())
        .then(|| after(&cpu, &instruction))
}

/// The instruction at RIP and its length, if it is one of the most frequent ones without prefixes, in 64-bit code and well
/// inside of a page. Everything else is for the decoder, which costs ten times as much.
fn common(memory: &GuestMemory, cpu: &GuestCpuState) -> Option<(Mnemonic, u64)> {
    if cpu.code_bits() != 64 || cpu.rip & 4095 > 4092 {
        return None;
    }
    let gpa = walk::translate(memory, cpu, cpu.rip, Access::Fetch).ok()?;
    let bytes = memory.read_u32(gpa).ok()?;
    Some(match bytes.to_le_bytes() {
        [0x0f, 0xa2, ..] => (Mnemonic::Cpuid, 2),
        [0x0f, 0x30, ..] => (Mnemonic::Wrmsr, 2),
        [0x0f, 0x32, ..] => (Mnemonic::Rdmsr, 2),
        [0xf3, 0x90, ..] => (Mnemonic::Pause, 2),
        [0xf4, ..] => (Mnemonic::Hlt, 1),
        _ => return None,
    })
}

/// RIP behind an instruction; it wraps with the width of the code segment.
pub fn after(cpu: &GuestCpuState, instruction: &Instruction) -> u64 {
    let next = cpu.rip.wrapping_add(instruction.len() as u64);
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
    fn the_short_way_finds_what_the_decoder_finds() {
        let memory = GuestMemory::leaked(0x2000);
        for code in [
            [0x0f, 0xa2, 0x66, 0x0f],
            [0x0f, 0x30, 0x90, 0x90],
            [0x0f, 0x32, 0xcc, 0xf4],
            [0xf3, 0x90, 0x90, 0x90],
            [0xf4, 0x0f, 0xa2, 0xf4],
        ] {
            memory.write(0x1000, &code).expect("in range");
            let cpu = flat(64, 0x1000);
            let decoded = fetch(&memory, &cpu, &[]).expect("decodes");
            let expected = (decoded.mnemonic(), decoded.len() as u64);
            assert_eq!(common(&memory, &cpu), Some(expected), "{code:x?}");
            assert_eq!(common(&memory, &flat(32, 0x1000)), None);
        }
        // A prefix, and the end of a page.
        memory
            .write(0x1000, &[0x66, 0x0f, 0xa2, 0x90])
            .expect("in range");
        assert_eq!(common(&memory, &flat(64, 0x1000)), None);
        memory.write(0x1ffd, &[0xf4; 3]).expect("in range");
        assert_eq!(common(&memory, &flat(64, 0x1ffd)), None);
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
