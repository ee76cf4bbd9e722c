//! The hint of MWAIT, taken apart as the manual says.

use core::fmt;

/// The EAX hint of MWAIT: which C-state, and which sub-state of it, the CPU is asked for.
///
/// Bits 7:4 are the C-state less one (so that 0 is C1, and 0xF is C0); bits 3:0 the sub-state. The names of the states
/// do not follow from the numbers, and sub-states need not be consecutive: both are taken from tables, never computed.
/// Source: Intel SDM, volume 2, MWAIT, "MWAIT hints register (EAX)".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MwaitHint(u32);

impl MwaitHint {
    /// C1, sub-state 0: what every CPU with MWAIT has.
    pub const C1: Self = Self(0x00);

    /// The hint with these bits; see [`is_one`](Self::is_one).
    pub const fn new(eax: u32) -> Self {
        Self(eax)
    }

    /// What goes into EAX.
    pub const fn eax(self) -> u32 {
        self.0
    }

    /// The hardware's C-state number: 1 for C1, 0 for C0 (nibble 0xF).
    ///
    /// This is also the index of the nibble of CPUID leaf 5 EDX that counts the sub-states.
    pub const fn class(self) -> u32 {
        ((self.0 >> 4) + 1) & 0xF
    }

    /// Does it ask for a C-state? Bits above 7 are reserved, and nibble 0xF is C0.
    pub const fn is_one(self) -> bool {
        self.0 <= 0xFF && self.class() != 0
    }

    /// The sub-state, from 0.
    pub const fn substate(self) -> u32 {
        self.0 & 0xF
    }

    /// Does CPUID leaf 5 EDX report any sub-state of this hint's class?
    ///
    /// The count is no bound on the sub-state's number: some CPUs number theirs sparsely. Zero means absent.
    pub const fn reported_by(self, leaf5_edx: u32) -> bool {
        let class = self.class();
        class < 8 && (leaf5_edx >> (class * 4)) & 0xF != 0
    }
}

impl fmt::Display for MwaitHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}

impl fmt::Debug for MwaitHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
