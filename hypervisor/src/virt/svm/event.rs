//! Events on their way into a guest as AMD-V writes them: EVENTINJ, EXITINTINFO (AMD APM vol. 2, 15.20 and 15.7.2).

pub use crate::virt::events::EventQueue;
use crate::virt::{Exit, Injection};

const TYPE_SHIFT: u32 = 8;
const TYPE_INTERRUPT: u64 = 0;
const TYPE_NMI: u64 = 2;
const TYPE_EXCEPTION: u64 = 3;
const TYPE_SOFTWARE: u64 = 4;
const TYPE: u64 = 0b111 << TYPE_SHIFT;
const HAS_ERROR: u64 = 1 << 11;
const VALID: u64 = 1 << 31;
const ERROR_SHIFT: u32 = 32;

/// The form of EVENTINJ.
pub fn encode(event: Injection) -> u64 {
    match event {
        Injection::Interrupt(vector) => VALID | TYPE_INTERRUPT << TYPE_SHIFT | u64::from(vector),
        Injection::Nmi => VALID | TYPE_NMI << TYPE_SHIFT | 2,
        Injection::Exception { vector, error } => {
            let error = error.map_or(0, |code| HAS_ERROR | u64::from(code) << ERROR_SHIFT);
            VALID | TYPE_EXCEPTION << TYPE_SHIFT | u64::from(vector) | error
        }
    }
}

/// An interrupt in the form of EVENTINJ that a software interrupt has. The processor then pushes RIP as it is only if it does not
/// add the length of an INT instruction: QEMU's emulator does not.
pub fn encode_software(vector: u8) -> u64 {
    VALID | TYPE_SOFTWARE << TYPE_SHIFT | u64::from(vector)
}

/// Whether EXITINTINFO names an event.
pub fn is_valid(exit_int_info: u64) -> bool {
    exit_int_info & VALID != 0
}

/// What of EXITINTINFO must be injected again. Software interrupts and #BP, #OF come of instructions that run again by themselves:
/// RIP still points to them. Without the valid bit the rest is stale.
pub fn interrupted_delivery(exit_int_info: u64) -> Option<Injection> {
    if exit_int_info & VALID == 0 {
        return None;
    }
    let vector = exit_int_info as u8;
    match exit_int_info >> TYPE_SHIFT & 0b111 {
        TYPE_INTERRUPT => Some(Injection::Interrupt(vector)),
        TYPE_NMI => Some(Injection::Nmi),
        TYPE_EXCEPTION if !matches!(vector, 3 | 4) => {
            let error =
                (exit_int_info & HAS_ERROR != 0).then_some((exit_int_info >> ERROR_SHIFT) as u32);
            Some(Injection::Exception { vector, error })
        }
        _ => None,
    }
}

/// As [`interrupted_delivery`], after `vector` went in by [`encode_software`].
pub fn interrupted_software(vector: u8, exit_int_info: u64) -> Option<Injection> {
    if exit_int_info & (VALID | TYPE | 0xff) == encode_software(vector) {
        return Some(Injection::Interrupt(vector));
    }
    interrupted_delivery(exit_int_info)
}

/// The exit for an exception intercepted by vector.
pub fn intercepted(vector: u8, error: u64) -> Exit {
    Exit::Exception {
        vector,
        error: error as u32,
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
        assert_eq!(encode(Injection::Interrupt(0x31)), 0x8000_0031);
        assert_eq!(encode(Injection::Nmi), 0x8000_0202);
        assert_eq!(encode(Injection::UD), 0x8000_0306);
        assert_eq!(encode(PF), 0x0000_0002_8000_0b0e);
        for event in [
            Injection::Interrupt(0xff),
            Injection::Nmi,
            Injection::UD,
            Injection::GP0,
            PF,
        ] {
            assert_eq!(interrupted_delivery(encode(event)), Some(event));
        }
    }

    #[test]
    fn what_is_stale_or_runs_again_is_not_injected() {
        // QEMU leaves type and vector of a delivery that was completed.
        for stale in [0, 0x30, 0x331, 0x0000_0002_0000_0b0e] {
            assert_eq!(interrupted_delivery(stale), None, "{stale:#x}");
        }
        assert_eq!(interrupted_delivery(0x8000_0480), None, "INT 0x80");
        assert_eq!(interrupted_delivery(0x8000_0303), None, "#BP");
        assert_eq!(interrupted_delivery(0x8000_0304), None, "#OF");
    }

    #[test]
    fn an_interrupt_that_went_in_as_a_software_interrupt_comes_again_as_what_it_is() {
        assert_eq!(encode_software(0x61), 0x8000_0461);
        let after = |exit_int_info| interrupted_software(0x61, exit_int_info);
        assert_eq!(after(0x8000_0461), Some(Injection::Interrupt(0x61)));
        assert_eq!(after(0x461), None, "delivered");
        assert_eq!(after(0x8000_0480), None, "delivered; then INT 0x80");
        assert_eq!(after(encode(PF)), Some(PF), "delivered; then #PF");
    }
}
