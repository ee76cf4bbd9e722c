//! Arithmetic with flags, for the few instructions that combine a register with a device's.

/// Carry, parity, auxiliary carry, zero, sign, overflow.
pub const STATUS_FLAGS: u64 = 1 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 11;

/// Operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alu {
    /// Bitwise and; TEST if the result is dropped.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Sum.
    Add,
    /// Difference; CMP if the result is dropped.
    Sub,
}

/// Mask of the low `size` bytes (1, 2, 4 or 8).
pub fn mask(size: usize) -> u64 {
    if size >= 8 {
        u64::MAX
    } else {
        (1 << (8 * size)) - 1
    }
}

impl Alu {
    /// Result, and the status flags it leaves (AMD APM vol. 1, 3.1.4). AND, OR and XOR clear the auxiliary carry,
    /// which is undefined after them.
    pub fn apply(self, a: u64, b: u64, size: usize) -> (u64, u64) {
        let mask = mask(size);
        let (a, b) = (a & mask, b & mask);
        let sign = (mask >> 1) + 1;
        let (result, carry, overflow) = match self {
            Self::And => (a & b, false, false),
            Self::Or => (a | b, false, false),
            Self::Xor => (a ^ b, false, false),
            Self::Add => {
                let sum = a.wrapping_add(b) & mask;
                (sum, sum < a, (a ^ sum) & (b ^ sum) & sign != 0)
            }
            Self::Sub => {
                let difference = a.wrapping_sub(b) & mask;
                (difference, a < b, (a ^ b) & (a ^ difference) & sign != 0)
            }
        };
        let arithmetic = matches!(self, Self::Add | Self::Sub);
        let auxiliary = arithmetic && (a ^ b ^ result) & 0x10 != 0;
        let parity = (result & 0xff).count_ones().is_multiple_of(2);
        let flags = u64::from(carry)
            | u64::from(parity) << 2
            | u64::from(auxiliary) << 4
            | u64::from(result == 0) << 6
            | u64::from(result & sign != 0) << 7
            | u64::from(overflow) << 11;
        (result, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: u64 = 1;
    const P: u64 = 1 << 2;
    const A: u64 = 1 << 4;
    const Z: u64 = 1 << 6;
    const S: u64 = 1 << 7;
    const O: u64 = 1 << 11;

    #[test]
    fn results_and_flags() {
        let cases = [
            (Alu::And, 0xf0f0, 0x0ff0, 2, 0x00f0, P),
            (Alu::And, 0xff00, 0x00ff, 4, 0, P | Z),
            (Alu::Or, 0x80, 0x01, 1, 0x81, P | S),
            (Alu::Xor, 5, 5, 4, 0, P | Z),
            (Alu::Add, 0xff, 1, 1, 0, C | P | A | Z),
            (Alu::Add, 0x7f, 1, 1, 0x80, A | S | O),
            (Alu::Add, 0xff, 1, 2, 0x100, P | A),
            (Alu::Sub, 0, 1, 4, 0xffff_ffff, C | P | A | S),
            (Alu::Sub, 0x8000_0000, 1, 4, 0x7fff_ffff, P | A | O),
            (Alu::Sub, 7, 7, 8, 0, P | Z),
            (Alu::Add, u64::MAX, 1, 8, 0, C | P | A | Z),
        ];
        for (op, a, b, size, result, flags) in cases {
            assert_eq!(
                op.apply(a, b, size),
                (result, flags),
                "{op:?} {a:#x} {b:#x} {size}"
            );
        }
    }
}
