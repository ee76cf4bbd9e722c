//! Faults that were expected, and sleeps that an NMI cut in two: where to go on instead.
//!
//! Two read-only tables, filled by the assembly that may fault or sleep, in sections that `link.ld` keeps:
//! - `.lull_fixup`: `{rip of the instruction that may fault, rip to go on at}`. The recovery finds
//!   `0x100 | vector` in R8 and the error code in R9 (see [`super::safe`]).
//! - `.lull_sti_pairs`: `{rip of the second instruction of sti;hlt or sti;mwait, rip after it}`. An NMI
//!   between the two ends the STI shadow at its IRET, so that an interrupt could be taken before the
//!   sleep and nobody would wake it: the return is moved past the pair (a spurious wake; the loop re-checks).

use super::trap::TrapFrame;

/// The second address of the pair that begins with `rip`.
#[must_use]
pub fn find(pairs: &[[u64; 2]], rip: u64) -> Option<u64> {
    pairs.iter().find(|p| p[0] == rip).map(|p| p[1])
}

/// Sends a fault that is expected at this RIP to its recovery, and tells whether it was one.
#[must_use]
pub fn recover(frame: &mut TrapFrame) -> bool {
    match find(tables::fixups(), frame.rip) {
        Some(to) => {
            frame.r8 = 0x100 | frame.vector;
            frame.r9 = frame.error;
            frame.rip = to;
            true
        }
        None => false,
    }
}

/// Moves the return of an NMI or machine check that hit between STI and its sleep past the sleep.
pub fn leave_sti_pair(frame: &mut TrapFrame) {
    if let Some(to) = find(tables::sti_pairs(), frame.rip) {
        frame.rip = to;
    }
}

#[cfg(target_os = "none")]
mod tables {
    #![expect(unsafe_code, reason = "the tables lie between linker symbols")]

    // SAFETY: symbols that link.ld defines; only their addresses are used.
    unsafe extern "C" {
        static __fixup_start: [u64; 2];
        static __fixup_end: [u64; 2];
        static __sti_pairs_start: [u64; 2];
        static __sti_pairs_end: [u64; 2];
    }

    fn between(start: *const [u64; 2], end: *const [u64; 2]) -> &'static [[u64; 2]] {
        let bytes = end.addr() - start.addr();
        // SAFETY: link.ld puts both symbols around one 16-aligned read-only section of whole pairs.
        unsafe { core::slice::from_raw_parts(start, bytes / size_of::<[u64; 2]>()) }
    }

    pub(super) fn fixups() -> &'static [[u64; 2]] {
        between(&raw const __fixup_start, &raw const __fixup_end)
    }

    pub(super) fn sti_pairs() -> &'static [[u64; 2]] {
        between(&raw const __sti_pairs_start, &raw const __sti_pairs_end)
    }
}

#[cfg(not(target_os = "none"))]
mod tables {
    pub(super) fn fixups() -> &'static [[u64; 2]] {
        &[[0x1000, 0x2000]]
    }

    pub(super) fn sti_pairs() -> &'static [[u64; 2]] {
        &[[0x3000, 0x3001]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expected_fault_goes_to_its_recovery_with_vector_and_error() {
        let mut frame = TrapFrame {
            rip: 0x1000,
            vector: 13,
            error: 0x18,
            ..TrapFrame::default()
        };
        assert!(recover(&mut frame));
        assert_eq!((frame.rip, frame.r8, frame.r9), (0x2000, 0x10d, 0x18));
    }

    #[test]
    fn any_other_fault_is_left_alone() {
        let mut frame = TrapFrame {
            rip: 0x1001,
            vector: 13,
            ..TrapFrame::default()
        };
        assert!(!recover(&mut frame));
        assert_eq!(frame.rip, 0x1001);
    }

    #[test]
    fn only_the_second_instruction_of_a_pair_is_skipped() {
        let mut frame = TrapFrame {
            rip: 0x3000,
            ..TrapFrame::default()
        };
        leave_sti_pair(&mut frame);
        assert_eq!(frame.rip, 0x3001);
        frame.rip = 0x2fff;
        leave_sti_pair(&mut frame);
        assert_eq!(frame.rip, 0x2fff);
    }
}
