//! Emulates the instruction that touched a device's memory.
//!
//! Any instruction with one memory operand and a general register or an immediate: MOV in all forms, MOVZX, MOVSX,
//! MOVSXD, MOVNTI, XCHG, AND, OR, XOR, ADD, SUB, TEST, CMP. Decoding is `iced-x86`'s. The address is the one of the
//! exit, so it is not computed a second time.

use core::fmt;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::alu::{Alu, mask};
use crate::virt::{Gpr, VirtCpu};

/// The device register that was touched.
pub trait Target {
    /// Reads `size` (1, 2, 4 or 8) bytes.
    fn read(&mut self, size: usize) -> u64;
    /// Writes them.
    fn write(&mut self, size: usize, value: u64);
}

/// An instruction that is not emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported(pub Mnemonic);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} on a device's memory; expected MOV, MOVZX, MOVSX, XCHG, or arithmetic",
            self.0
        )
    }
}

/// Status flags to be set after the instruction; `None` leaves them.
pub type Flags = Option<u64>;

/// Executes `instruction` with its memory operand replaced by `target`. RIP stays.
///
/// # Errors
/// [`Unsupported`]; nothing has been touched then.
pub fn emulate(
    virt: &mut dyn VirtCpu,
    instruction: &Instruction,
    target: &mut impl Target,
) -> Result<Flags, Unsupported> {
    let unsupported = Unsupported(instruction.mnemonic());
    let size = instruction.memory_size().size();
    let to_memory = instruction.op0_kind() == OpKind::Memory;
    let other = if to_memory { 1 } else { 0 };
    if !matches!(size, 1 | 2 | 4 | 8)
        || instruction.op_count() != 2
        || !(to_memory || instruction.op1_kind() == OpKind::Memory)
        || instruction.is_string_instruction()
    {
        return Err(unsupported);
    }
    let operand = Operand::of(instruction, other).ok_or(unsupported)?;
    match (instruction.mnemonic(), operand) {
        (Mnemonic::Mov | Mnemonic::Movnti, operand) if to_memory => {
            target.write(size, operand.get(virt))
        }
        (Mnemonic::Mov | Mnemonic::Movzx, Operand::Register(register)) => {
            let value = target.read(size);
            set(virt, register, value);
        }
        (Mnemonic::Movsx | Mnemonic::Movsxd, Operand::Register(register)) => {
            let unused = 64 - 8 * size;
            let value = (target.read(size) << unused).cast_signed() >> unused;
            set(virt, register, value.cast_unsigned());
        }
        (Mnemonic::Xchg, Operand::Register(register)) => {
            let value = target.read(size);
            target.write(size, get(virt, register));
            set(virt, register, value);
        }
        (mnemonic, operand) => {
            let (alu, keep) = alu(mnemonic).ok_or(unsupported)?;
            let (memory, other) = (target.read(size), operand.get(virt));
            let (a, b) = if to_memory {
                (memory, other)
            } else {
                (other, memory)
            };
            let (result, flags) = alu.apply(a, b, size);
            match operand {
                _ if !keep => {}
                _ if to_memory => target.write(size, result),
                Operand::Register(register) => set(virt, register, result),
                Operand::Immediate(_) => return Err(unsupported),
            }
            return Ok(Some(flags));
        }
    }
    Ok(None)
}

fn alu(mnemonic: Mnemonic) -> Option<(Alu, bool)> {
    Some(match mnemonic {
        Mnemonic::And => (Alu::And, true),
        Mnemonic::Or => (Alu::Or, true),
        Mnemonic::Xor => (Alu::Xor, true),
        Mnemonic::Add => (Alu::Add, true),
        Mnemonic::Sub => (Alu::Sub, true),
        Mnemonic::Test => (Alu::And, false),
        Mnemonic::Cmp => (Alu::Sub, false),
        _ => return None,
    })
}

#[derive(Clone, Copy)]
enum Operand {
    Register(Register),
    Immediate(u64),
}

impl Operand {
    fn of(instruction: &Instruction, index: u32) -> Option<Self> {
        match instruction.op_kind(index) {
            OpKind::Register => {
                let register = instruction.op_register(index);
                register.is_gpr().then_some(Self::Register(register))
            }
            OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => Some(Self::Immediate(instruction.immediate(index))),
            _ => None,
        }
    }

    fn get(self, virt: &dyn VirtCpu) -> u64 {
        match self {
            Self::Register(register) => get(virt, register),
            Self::Immediate(value) => value,
        }
    }
}

/// The full register, and by how many bits the named part is shifted in it.
fn place(register: Register) -> (Gpr, u32) {
    let high = matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    );
    let number = u8::try_from(register.full_register().number()).unwrap_or(0);
    (
        Gpr::from_encoding(number).unwrap_or(Gpr::Rax),
        if high { 8 } else { 0 },
    )
}

fn get(virt: &dyn VirtCpu, register: Register) -> u64 {
    let (gpr, shift) = place(register);
    virt.gpr(gpr) >> shift & mask(register.size())
}

/// As the processor writes it: 32 bits clear the upper half, 8 and 16 bits leave the rest.
fn set(virt: &mut dyn VirtCpu, register: Register, value: u64) {
    let (gpr, shift) = place(register);
    let mask = mask(register.size());
    let value = match register.size() {
        4 | 8 => value & mask,
        _ => (virt.gpr(gpr) & !(mask << shift)) | (value & mask) << shift,
    };
    virt.set_gpr(gpr, value);
}

#[cfg(test)]
#[path = "mmio_tests.rs"]
mod tests;
