//! The sleep type of S5 ("soft off"), found in AML without an interpreter.
//!
//! Pure. `_S5_` is a package of constants in every firmware that offers it: `Name(_S5_, Package(){a, b, ..})`,
//! encoded as NameOp, path, PackageOp, PkgLength, count, elements (ACPI specification 6.5, 20.2).

const NAME_OP: u8 = 0x08;
const PACKAGE_OP: u8 = 0x12;
const BYTE_PREFIX: u8 = 0x0A;
const WORD_PREFIX: u8 = 0x0B;
const DWORD_PREFIX: u8 = 0x0C;

/// Values for SLP_TYP of PM1a_CNT and PM1b_CNT that switch the machine off. Each has three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepType {
    /// For PM1a_CNT.
    pub a: u8,
    /// For PM1b_CNT.
    pub b: u8,
}

/// Looks through the AML of one table, header included or not.
pub fn find(aml: &[u8]) -> Option<SleepType> {
    let starts = aml
        .windows(4)
        .enumerate()
        .filter(|(_, w)| *w == b"_S5_")
        .map(|(at, _)| at);
    starts.into_iter().find_map(|at| {
        let before = |n: usize| at.checked_sub(n).and_then(|i| aml.get(i)).copied();
        let named =
            before(1) == Some(NAME_OP) || before(1) == Some(b'\\') && before(2) == Some(NAME_OP);
        if named {
            package(aml.get(at + 4..)?)
        } else {
            None
        }
    })
}

fn package(aml: &[u8]) -> Option<SleepType> {
    let (&op, rest) = aml.split_first()?;
    if op != PACKAGE_OP {
        return None;
    }
    // PkgLength: the two upper bits of its first byte say how many bytes follow it.
    let more = usize::from(rest.first()? >> 6);
    let (&count, elements) = rest.get(1 + more..)?.split_first()?;
    if count < 2 {
        return None;
    }
    let (a, rest) = integer(elements)?;
    let (b, _) = integer(rest)?;
    let three_bits = |v: u32| u8::try_from(v).ok().filter(|v| *v <= 7);
    Some(SleepType {
        a: three_bits(a)?,
        b: three_bits(b)?,
    })
}

fn integer(aml: &[u8]) -> Option<(u32, &[u8])> {
    let (&op, rest) = aml.split_first()?;
    let width = match op {
        0 | 1 => return Some((op.into(), rest)),
        BYTE_PREFIX => 1,
        WORD_PREFIX => 2,
        DWORD_PREFIX => 4,
        _ => return None,
    };
    let (bytes, rest) = rest.split_at_checked(width)?;
    Some((
        bytes.iter().rev().fold(0, |v, b| v << 8 | u32::from(*b)),
        rest,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_constants_as_qemu_writes_them() {
        let aml = [
            &b"junk_S5_\x08"[..],
            b"_S5_\x12\x06\x04\x00\x00\x00\x00",
            b"tail",
        ]
        .concat();
        assert_eq!(find(&aml), Some(SleepType { a: 0, b: 0 }));
    }

    #[test]
    fn byte_constants_root_path_and_long_length() {
        assert_eq!(
            find(b"\x08\\_S5_\x12\x0a\x04\x0a\x05\x0a\x07\x00\x00"),
            Some(SleepType { a: 5, b: 7 })
        );
        assert_eq!(
            find(b"\x08_S5_\x12\x40\x01\x02\x01\x0b\x06\x00"),
            Some(SleepType { a: 1, b: 6 })
        );
    }

    #[test]
    fn what_is_not_a_constant_package_is_refused() {
        for aml in [
            &b"_S5_\x12\x06\x04\x05\x05"[..],    // no Name
            b"\x08_S5_\x13\x06\x04\x01\x01",     // a variable package
            b"\x08_S5_\x12\x06\x01\x01",         // too few elements
            b"\x08_S5_\x12\x06\x04\x0a\x08\x00", // more than three bits
            b"\x08_S5_\x12\x06\x04\x0a",         // cut
            b"\x08_S5_\x12\xc0",                 // cut inside PkgLength
            b"\x08_S5_",
            b"",
        ] {
            assert_eq!(find(aml), None, "{aml:x?}");
        }
    }
}
