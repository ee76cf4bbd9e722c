//! What Lull tells a processor object that it can do, and what `_OSC` answers.
//!
//! Firmware hides MWAIT states from an operating system that does not say that it can use them. Source: Intel Processor
//! Vendor-Specific ACPI, interface specification, table 2 (the bits); ACPI specification 6.5, 6.2.12 and 8.4.1.

use bitflags::bitflags;
use core::fmt;

bitflags! {
    /// The capability dword of `_PDC` and of the processor's `_OSC`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// C1 by I/O and HLT.
        const C1_HALT = 1 << 1;
        /// C1, P and T states of each CPU alone, on machines with several.
        const SMP_C1PT = 1 << 3;
        /// C2 and C3 of each CPU alone, on machines with several.
        const SMP_C2C3 = 1 << 4;
        /// C1 by MWAIT.
        const C1_NATIVE = 1 << 8;
        /// C2 and C3 by MWAIT.
        const C2C3_NATIVE = 1 << 9;
    }
}

/// The processor's `_OSC`: 4077A616-290C-47BE-9EBD-D87058713953, in the byte order of ToUUID.
pub const OSC_UUID: [u8; 16] = [
    0x16, 0xA6, 0x77, 0x40, 0x0C, 0x29, 0xBE, 0x47, 0x9E, 0xBD, 0xD8, 0x70, 0x58, 0x71, 0x39, 0x53,
];

/// The revision of that interface.
pub const OSC_REVISION: u64 = 1;

impl Capabilities {
    /// What Lull can do. `mwait`: it can use MWAIT on this machine, and may.
    pub fn of_lull(mwait: bool) -> Self {
        let always = Self::C1_HALT | Self::SMP_C1PT | Self::SMP_C2C3;
        if mwait {
            always | Self::C1_NATIVE | Self::C2C3_NATIVE
        } else {
            always
        }
    }

    /// The argument of `_PDC`: revision 1, one dword, the dword.
    pub fn for_pdc(self) -> [u8; 12] {
        let mut bytes = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        bytes[8..].copy_from_slice(&self.bits().to_le_bytes());
        bytes
    }

    /// The fourth argument of `_OSC`: a status dword without the query flag, and the dword.
    pub fn for_osc(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[4..].copy_from_slice(&self.bits().to_le_bytes());
        bytes
    }
}

/// What `_OSC` gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The first dword. Bit 1: failed; 2: unknown UUID; 3: unknown revision; 4: some capabilities were masked. `None`:
    /// the buffer is too short for any.
    pub status: Option<u32>,
    /// The second dword: what the firmware granted.
    pub granted: Option<u32>,
}

impl Answer {
    /// Takes the returned buffer apart.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let dword = |at: usize| {
            let bytes = bytes.get(at..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes))
        };
        Self {
            status: dword(0),
            granted: dword(4),
        }
    }

    /// Has the firmware taken note?
    pub fn accepted(&self) -> bool {
        self.status.is_some_and(|status| status & 0b1110 == 0)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(status) = self.status else {
            return f.write_str("its answer is shorter than a dword");
        };
        let why = match status {
            _ if status & 1 << 2 != 0 => "it does not know the UUID",
            _ if status & 1 << 3 != 0 => "it does not know the revision",
            _ if status & 1 << 1 != 0 => "it failed",
            _ if status & 1 << 4 != 0 => "it masked capabilities",
            _ => "it accepted",
        };
        write!(f, "{why} (status {status:#x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dword_is_that_of_linux_and_xen() {
        assert_eq!(Capabilities::of_lull(true).bits(), 0x031A);
        assert_eq!(Capabilities::of_lull(false).bits(), 0x001A);
    }

    #[test]
    fn arguments_have_their_headers() {
        let all = Capabilities::of_lull(true);
        assert_eq!(all.for_pdc(), [1, 0, 0, 0, 1, 0, 0, 0, 0x1A, 3, 0, 0]);
        assert_eq!(all.for_osc(), [0, 0, 0, 0, 0x1A, 3, 0, 0]);
    }

    #[test]
    fn answers_are_judged_by_their_status() {
        let answer = Answer::from_bytes(&[0x10, 0, 0, 0, 0x1A, 0, 0, 0]);
        assert!(answer.accepted(), "masked, but taken note of");
        assert_eq!(answer.granted, Some(0x1A));
        for (bytes, says) in [
            (&[2, 0, 0, 0][..], "it failed (status 0x2)"),
            (
                &[4, 0, 0, 0, 0][..],
                "it does not know the UUID (status 0x4)",
            ),
            (
                &[8, 0, 0, 0][..],
                "it does not know the revision (status 0x8)",
            ),
            (&[0, 0, 0][..], "its answer is shorter than a dword"),
        ] {
            let answer = Answer::from_bytes(bytes);
            assert!(!answer.accepted() && answer.granted.is_none());
            assert_eq!(answer.to_string(), says);
        }
    }
}
