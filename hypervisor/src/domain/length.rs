//! The length of an intercepted instruction without operands in memory, found by reading it: prefixes, then one of few opcodes.
//!
//! These instructions are most of all exits of a guest, and a whole decoder costs more than all the rest of such an exit.
//! What is not found here is left to the decoder: nothing is assumed.

use iced_x86::Mnemonic;

/// Longest instruction, bytes (AMD APM vol. 3, 1.1).
const LONGEST: usize = 15;
const REP: u8 = 0xf3;

/// What comes after the prefixes; `true`: F3 is a part of the opcode, and must be among the prefixes.
fn opcodes(mnemonic: Mnemonic) -> Option<(&'static [u8], bool)> {
    Some(match mnemonic {
        Mnemonic::Hlt => (&[0xf4], false),
        Mnemonic::Pause => (&[0x90], true),
        Mnemonic::Cpuid => (&[0x0f, 0xa2], false),
        Mnemonic::Rdmsr => (&[0x0f, 0x32], false),
        Mnemonic::Wrmsr => (&[0x0f, 0x30], false),
        Mnemonic::Invd => (&[0x0f, 0x08], false),
        Mnemonic::Wbinvd => (&[0x0f, 0x09], false),
        Mnemonic::Xsetbv => (&[0x0f, 0x01, 0xd1], false),
        _ => return None,
    })
}

/// Segment, operand size, address size and repeat prefixes. LOCK is none: with it these instructions fault and do not exit.
fn is_prefix(byte: u8, code_bits: u32) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | REP)
        || (code_bits == 64 && matches!(byte, 0x40..=0x4f))
}

/// The same without prefixes, where only one instruction is expected: nearly every time.
#[inline]
fn plain_length(bytes: &[u8], expected: &[Mnemonic]) -> Option<u64> {
    let &[mnemonic] = expected else {
        return None;
    };
    match (mnemonic, bytes) {
        (Mnemonic::Hlt, [0xf4, ..]) => Some(1),
        (Mnemonic::Pause, [REP, 0x90, ..]) => Some(2),
        _ => None,
    }
}

/// Length of the instruction that `bytes` begin with, if it is one of `expected` and can be told without a decoder.
pub fn length(bytes: &[u8], code_bits: u32, expected: &[Mnemonic]) -> Option<u64> {
    if let Some(length) = plain_length(bytes, expected) {
        return Some(length);
    }
    let prefixes = bytes.iter().position(|&byte| !is_prefix(byte, code_bits))?;
    let (before, rest) = bytes.split_at_checked(prefixes)?;
    let found = expected.iter().find_map(|&mnemonic| {
        let (opcode, repeated) = opcodes(mnemonic)?;
        let fits = rest.starts_with(opcode) && (!repeated || before.contains(&REP));
        fits.then_some(opcode.len())
    })?;
    let length = prefixes + found;
    (length <= LONGEST).then_some(length as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};
    use proptest::prelude::*;

    const ALL: [Mnemonic; 8] = [
        Mnemonic::Hlt,
        Mnemonic::Pause,
        Mnemonic::Cpuid,
        Mnemonic::Rdmsr,
        Mnemonic::Wrmsr,
        Mnemonic::Invd,
        Mnemonic::Wbinvd,
        Mnemonic::Xsetbv,
    ];

    #[test]
    fn only_what_is_expected_is_found() {
        assert_eq!(length(&[0x0f, 0xa2], 64, &[Mnemonic::Cpuid]), Some(2));
        assert_eq!(length(&[0x0f, 0xa2], 64, &[Mnemonic::Rdmsr]), None);
        assert_eq!(length(&[0x66, 0x48, 0x0f, 0x32], 64, &ALL), Some(4));
        assert_eq!(length(&[0x48, 0x0f, 0x32], 32, &ALL), None, "DEC EAX first");
        assert_eq!(length(&[0x90], 64, &ALL), None, "NOP");
        assert_eq!(length(&[0xf3, 0x66, 0x90], 16, &ALL), Some(3));
        assert_eq!(length(&[0x0f], 64, &ALL), None, "cut off");
        assert_eq!(length(&[], 64, &ALL), None);
        assert_eq!(length(&[0xf0, 0xf4], 64, &ALL), None, "LOCK HLT faults");
        let mut long = [0x66; 16];
        (long[13], long[14]) = (0x0f, 0xa2);
        assert_eq!(length(&long, 64, &ALL), Some(15));
        (long[13], long[14], long[15]) = (0x66, 0x0f, 0xa2);
        assert_eq!(length(&long, 64, &ALL), None, "16 bytes are too many");
    }

    proptest! {
        /// Where both see one of these instructions, they agree on its length.
        #[test]
        fn agrees_with_the_decoder(
            prefixes in prop::collection::vec(prop::sample::select(
                vec![0x26u8, 0x2e, 0x64, 0x66, 0x67, 0xf2, 0xf3, 0x41, 0x48, 0x4f]), 0..9),
            which in 0usize..8,
            bits in prop::sample::select(vec![16u32, 32, 64]),
        ) {
            let (opcode, _) = opcodes(ALL[which]).unwrap();
            let mut bytes = prefixes;
            bytes.extend_from_slice(opcode);
            bytes.extend_from_slice(&[0x90; 4]);
            let mut decoder = Decoder::with_ip(bits, &bytes, 0, DecoderOptions::NONE);
            let instruction = decoder.decode();
            if let Some(found) = length(&bytes, bits, &ALL)
                && ALL.contains(&instruction.mnemonic())
            {
                prop_assert_eq!(found, instruction.len() as u64);
            }
        }
    }
}
