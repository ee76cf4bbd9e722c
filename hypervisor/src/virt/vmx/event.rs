//! Events on their way into a guest as VMX writes them: VM-entry interruption information, IDT-vectoring information
//! (SDM vol. 3, 27.8.3 and 27.9.3).

use crate::virt::Injection;

const TYPE_SHIFT: u64 = 8;
const TYPE_INTERRUPT: u64 = 0;
const TYPE_NMI: u64 = 2;
const TYPE_EXCEPTION: u64 = 3;
const HAS_ERROR: u64 = 1 << 11;
/// VM-exit interruption information, and the exit qualification of an EPT violation: IRET had ended the masking of NMIs, and then
/// faulted.
pub const NMI_UNBLOCKED: u64 = 1 << 12;
const VALID: u64 = 1 << 31;

/// Interruption information, and the error code for the field beside it.
pub fn encode(event: Injection) -> (u64, u64) {
    match event {
        Injection::Interrupt(vector) => {
            (VALID | TYPE_INTERRUPT << TYPE_SHIFT | u64::from(vector), 0)
        }
        Injection::Nmi => (VALID | TYPE_NMI << TYPE_SHIFT | 2, 0),
        Injection::Exception { vector, error } => {
            let flag = if error.is_some() { HAS_ERROR } else { 0 };
            (
                VALID | TYPE_EXCEPTION << TYPE_SHIFT | u64::from(vector) | flag,
                u64::from(error.unwrap_or(0)),
            )
        }
    }
}

/// Whether information of this kind says anything.
pub fn is_valid(info: u64) -> bool {
    info & VALID != 0
}

/// Whether an error code comes with it.
pub fn has_error(info: u64) -> bool {
    info & HAS_ERROR != 0
}

/// What of the IDT-vectoring information must be injected again. Software interrupts, INT1, INT3 and INTO come of instructions that
/// run again by themselves: RIP still points to them.
pub fn interrupted_delivery(info: u64, error: u64) -> Option<Injection> {
    if !is_valid(info) {
        return None;
    }
    let vector = info as u8;
    match info >> TYPE_SHIFT & 0b111 {
        TYPE_INTERRUPT => Some(Injection::Interrupt(vector)),
        TYPE_NMI => Some(Injection::Nmi),
        TYPE_EXCEPTION => Some(Injection::Exception {
            vector,
            error: has_error(info).then_some(error as u32),
        }),
        _ => None,
    }
}

/// What an exit for an exception or an NMI was about (VM-exit interruption information).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// NMI on the physical CPU.
    Nmi,
    /// An exception of the guest.
    Exception(u8),
}

/// Reads VM-exit interruption information of an exit for an exception or NMI.
pub fn arrived(info: u64) -> Arrived {
    if info >> TYPE_SHIFT & 0b111 == TYPE_NMI {
        Arrived::Nmi
    } else {
        Arrived::Exception(info as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PF: Injection = Injection::Exception {
        vector: 14,
        error: Some(2),
    };

    #[test]
    fn encodes_as_the_manual_says() {
        assert_eq!(encode(Injection::Interrupt(0x31)), (0x8000_0031, 0));
        assert_eq!(encode(Injection::Nmi), (0x8000_0202, 0));
        assert_eq!(encode(Injection::UD), (0x8000_0306, 0));
        assert_eq!(encode(PF), (0x8000_0b0e, 2));
        for event in [
            Injection::Interrupt(0xff),
            Injection::Nmi,
            Injection::UD,
            Injection::GP0,
            PF,
        ] {
            let (info, error) = encode(event);
            assert_eq!(interrupted_delivery(info, error), Some(event));
        }
    }

    #[test]
    fn what_is_stale_or_runs_again_is_not_injected() {
        assert_eq!(interrupted_delivery(0x0000_0b0e, 2), None);
        for (info, what) in [
            (0x8000_0480, "INT 0x80"),
            (0x8000_0501, "INT1"),
            (0x8000_0603, "INT3"),
            (0x8000_0604, "INTO"),
        ] {
            assert_eq!(interrupted_delivery(info, 0), None, "{what}");
        }
    }

    #[test]
    fn an_nmi_is_told_from_an_exception() {
        assert_eq!(arrived(0x8000_0202), Arrived::Nmi);
        assert_eq!(arrived(0x8000_0301), Arrived::Exception(1));
        assert_eq!(arrived(0x8000_0b11), Arrived::Exception(17));
    }
}
