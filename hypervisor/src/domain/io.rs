//! Port I/O of a vCPU: IN, OUT, and the string forms through the guest's page tables.

use super::devices::{Devices, PortEffect};
use super::insn;
use super::walk::{self, Access, Fault};
use crate::virt::{
    AddressSize, Gpr, GuestCpuState, GuestMemory, IoExit, SegmentAttributes, SegmentRegister,
    VirtCpu,
};

use alloc::string::String;

/// Repetitions done in one exit; then the guest runs the instruction again with what is left, so that interrupts
/// get their turn.
const AT_ONCE: u64 = 512;

const DIRECTION: u64 = 1 << 10;

/// What came of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoResult {
    /// Go on in the guest.
    Resume,
    /// The guest ends with this code.
    Exit(u8),
}

/// Carries out an access. `line` gets the lines of output that it completes.
pub fn access(
    io: &IoExit,
    virt: &mut dyn VirtCpu,
    memory: &GuestMemory,
    devices: &mut Devices,
    line: &mut dyn FnMut(String),
) -> IoResult {
    if io.string {
        return string(io, virt, memory, devices, line);
    }
    let Some(next) = next_rip(io, virt, memory) else {
        return IoResult::Resume;
    };
    let rax = virt.gpr(Gpr::Rax);
    let mut result = IoResult::Resume;
    if io.write {
        // The lower 4 bytes at most: the mask below cuts the value to the access.
        match devices.write(io.port, low(rax, io.size)) {
            PortEffect::None => {}
            PortEffect::Line(text) => line(text),
            PortEffect::Exit(code) => result = IoResult::Exit(code),
        }
    } else {
        let value = u64::from(devices.read(io.port, io.size));
        let kept = match io.size {
            1 => rax & !0xff,
            2 => rax & !0xffff,
            _ => 0,
        };
        virt.set_gpr(Gpr::Rax, kept | value);
    }
    virt.advance(next);
    result
}

fn low(value: u64, size: u8) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    match size {
        1 => a.into(),
        2 => u16::from_le_bytes([a, b]).into(),
        _ => u32::from_le_bytes([a, b, c, d]),
    }
}

fn next_rip(io: &IoExit, virt: &dyn VirtCpu, memory: &GuestMemory) -> Option<u64> {
    use iced_x86::Mnemonic as M;
    let expected = [
        M::In,
        M::Out,
        M::Insb,
        M::Insw,
        M::Insd,
        M::Outsb,
        M::Outsw,
        M::Outsd,
    ];
    io.next_rip
        .or_else(|| insn::next_rip(virt, memory, &expected))
}

fn string(
    io: &IoExit,
    virt: &mut dyn VirtCpu,
    memory: &GuestMemory,
    devices: &mut Devices,
    line: &mut dyn FnMut(String),
) -> IoResult {
    let cpu = virt.cpu_state();
    let Some(next) = next_rip(io, virt, memory) else {
        return IoResult::Resume;
    };
    let segment = match io.segment {
        Some(segment) => segment,
        None if !io.write => SegmentRegister::Es,
        None => outs_segment(virt, memory, &cpu),
    };
    let pointer = if io.write { Gpr::Rsi } else { Gpr::Rdi };
    let mask = match io.address_size {
        AddressSize::Bits16 => 0xffff,
        AddressSize::Bits32 => 0xffff_ffff,
        AddressSize::Bits64 => u64::MAX,
    };
    let count = if io.rep { virt.gpr(Gpr::Rcx) & mask } else { 1 };
    let size = usize::from(io.size.min(4));
    let mut done = 0;
    let mut result = IoResult::Resume;
    let mut fault = None;
    while done < count.min(AT_ONCE) && result == IoResult::Resume {
        let offset = virt.gpr(pointer) & mask;
        let mut bytes = [0u8; 4];
        let part = bytes.get_mut(..size).unwrap_or_default();
        let access = if io.write {
            Access::Read
        } else {
            Access::Write
        };
        let copied = linear(&cpu, segment, offset, size, access).and_then(|at| {
            if io.write {
                walk::read(memory, &cpu, at, Access::Read, part)
            } else {
                part.copy_from_slice(
                    devices
                        .read(io.port, io.size)
                        .to_le_bytes()
                        .get(..size)
                        .unwrap_or_default(),
                );
                walk::write(memory, &cpu, at, part)
            }
        });
        if let Err(problem) = copied {
            fault = Some(problem);
            break;
        }
        if io.write {
            match devices.write(io.port, u32::from_le_bytes(bytes)) {
                PortEffect::None => {}
                PortEffect::Line(text) => line(text),
                PortEffect::Exit(code) => result = IoResult::Exit(code),
            }
        }
        let step = if cpu.rflags & DIRECTION != 0 {
            0u64.wrapping_sub(size as u64)
        } else {
            size as u64
        };
        set_part(virt, pointer, offset.wrapping_add(step), mask);
        done += 1;
    }
    if io.rep {
        set_part(virt, Gpr::Rcx, count - done, mask);
    }
    match fault {
        Some(fault) => virt.inject(fault.injection()),
        None if done == count || result != IoResult::Resume => virt.advance(next),
        None => {}
    }
    result
}

/// As an instruction of that address size writes it: 32 bits clear the upper half, 16 leave the rest.
fn set_part(virt: &mut dyn VirtCpu, register: Gpr, value: u64, mask: u64) {
    let kept = if mask == 0xffff {
        virt.gpr(register) & !mask
    } else {
        0
    };
    virt.set_gpr(register, kept | value & mask);
}

/// OUTS has DS unless a prefix says otherwise.
fn outs_segment(virt: &dyn VirtCpu, memory: &GuestMemory, cpu: &GuestCpuState) -> SegmentRegister {
    use iced_x86::Register;
    match insn::fetch(memory, cpu, virt.instruction_bytes()).map(|i| i.segment_prefix()) {
        Some(Register::ES) => SegmentRegister::Es,
        Some(Register::CS) => SegmentRegister::Cs,
        Some(Register::SS) => SegmentRegister::Ss,
        Some(Register::FS) => SegmentRegister::Fs,
        Some(Register::GS) => SegmentRegister::Gs,
        _ => SegmentRegister::Ds,
    }
}

fn linear(
    cpu: &GuestCpuState,
    register: SegmentRegister,
    offset: u64,
    size: usize,
    access: Access,
) -> Result<u64, Fault> {
    let segment = cpu.segment(register);
    if cpu.code_bits() == 64 {
        let base = match register {
            SegmentRegister::Fs | SegmentRegister::Gs => segment.base,
            _ => 0,
        };
        return Ok(base.wrapping_add(offset));
    }
    let last = offset.saturating_add(size as u64 - 1);
    let expand_down = segment.attributes.contains(SegmentAttributes::DIRECTION)
        && !segment.attributes.contains(SegmentAttributes::CODE);
    let inside = last <= segment.limit.into();
    let real = cpu.cr0 & 1 == 0;
    let writable = real
        || access != Access::Write
        || segment.attributes.contains(SegmentAttributes::READ_WRITE);
    if inside == expand_down || !writable {
        return Err(Fault::Protection);
    }
    Ok(segment.base.wrapping_add(offset) & 0xffff_ffff)
}

#[cfg(test)]
#[path = "io_tests.rs"]
mod tests;
