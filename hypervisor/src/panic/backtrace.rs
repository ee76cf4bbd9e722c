//! Walks the chain of frame pointers.
//!
//! Pure: memory is read through a closure, so that a damaged chain ends the walk and never faults.

use core::fmt;

use super::symbols::Symbols;

/// Most frames that are shown.
pub const MAX_FRAMES: usize = 32;

/// Calls `each` with the return address of every frame from `rbp` outwards.
///
/// `read` gives the 64-bit word at an address, or `None` where nothing may be read; `is_code` tells whether a return
/// address can be one. The walk ends at a null or misaligned frame pointer, at one that does not go up, at what is no
/// return address, or after [`MAX_FRAMES`].
pub fn walk(
    mut rbp: u64,
    read: impl Fn(u64) -> Option<u64>,
    is_code: impl Fn(u64) -> bool,
    mut each: impl FnMut(u64),
) {
    for _ in 0..MAX_FRAMES {
        if rbp == 0 || !rbp.is_multiple_of(8) {
            return;
        }
        let (Some(next), Some(address)) = (read(rbp), rbp.checked_add(8).and_then(&read)) else {
            return;
        };
        if !is_code(address) {
            return;
        }
        each(address);
        if next <= rbp {
            return;
        }
        rbp = next;
    }
}

/// Writes one line of a backtrace. `is_call` for return addresses: the call lies just before them.
pub fn line(
    out: &mut dyn fmt::Write,
    depth: usize,
    address: u64,
    is_call: bool,
    symbols: Option<&Symbols<'_>>,
) -> fmt::Result {
    let inside = if is_call {
        address.saturating_sub(1)
    } else {
        address
    };
    match symbols.and_then(|s| s.lookup(inside)) {
        Some((name, offset)) => {
            let offset = offset + u32::from(is_call);
            writeln!(out, "  #{depth:<2} {address:016x} {name}+{offset:#x}")
        }
        None => writeln!(out, "  #{depth:<2} {address:016x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn frames(memory: &[(u64, u64)], rbp: u64) -> Vec<u64> {
        let mut found = Vec::new();
        walk(
            rbp,
            |a| memory.iter().find(|(at, _)| *at == a).map(|(_, v)| *v),
            |a| (10..100).contains(&a),
            |a| found.push(a),
        );
        found
    }

    #[test]
    fn frames_are_listed_from_the_inside_out() {
        let memory = [(0x100, 0x200), (0x108, 11), (0x200, 0), (0x208, 22)];
        assert_eq!(frames(&memory, 0x100), [11, 22]);
    }

    #[test]
    fn a_damaged_chain_ends_the_walk() {
        assert_eq!(
            frames(&[(0x100, 0x100), (0x108, 11)], 0x100),
            [11],
            "a loop"
        );
        assert_eq!(
            frames(&[(0x100, 0x300), (0x108, 11)], 0x100),
            [11],
            "unreadable next frame"
        );
        let stray = [(0x100, 0x200), (0x108, 11), (0x200, 0x300), (0x208, 9999)];
        assert_eq!(frames(&stray, 0x100), [11], "no return address");
        assert_eq!(frames(&[], 0x101), Vec::<u64>::new(), "misaligned");
        assert_eq!(
            frames(&[], u64::MAX - 7),
            Vec::<u64>::new(),
            "end of the address space"
        );
    }

    #[test]
    fn a_return_address_is_named_after_its_call() {
        let bytes = b"LULLSYM1\x02\0\0\0\x00\x01\0\0\x1c\0\0\0\x00\x02\0\0\x1e\0\0\0a\0b\0";
        let symbols = Symbols::parse(bytes).unwrap();
        let mut text = alloc::string::String::new();
        line(&mut text, 0, 0x200, true, Some(&symbols)).unwrap();
        line(&mut text, 1, 0x200, false, Some(&symbols)).unwrap();
        assert_eq!(
            text,
            "  #0  0000000000000200 a+0x100\n  #1  0000000000000200 b+0x0\n"
        );
    }
}
