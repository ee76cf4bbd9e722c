//! Transient execution: to which attacks a CPU is open, what is done about each, and which barriers that asks for.
//!
//! Pure: facts of a CPU in, verdicts and barriers out. What a barrier is made of is the machine's.
//!
//! Guests never share an address space with the hypervisor or with each other, and stage 2 translation is always on. What is left is
//! what two guests, or a guest and the hypervisor, share in the core that they take turns on: predictors, buffers, the L1 cache.
//! Hyper-threads that run different guests at the same time are not kept apart: that needs core scheduling.
//!
//! Sources: Intel, "Affected Processors: Transient Execution Attacks & Related Security Issues by CPU", and IA32_ARCH_CAPABILITIES
//! (SDM vol. 4, table 2-2); AMD, "Software Techniques for Managing Speculation" and product security bulletins AMD-SB-7005,
//! 7008, 7029.

use crate::cstate::models::{Identity, Vendor};

mod facts;
mod judge;
#[cfg(test)]
mod tests;

pub use facts::{ArchCapabilities, CpuFacts, Offers};
pub use judge::judge;

/// A known attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vulnerability {
    /// Bounds check bypass.
    SpectreV1,
    /// Branch target injection.
    SpectreV2,
    /// Branch history injection.
    Bhi,
    /// Rogue data cache load.
    Meltdown,
    /// Speculative store bypass.
    Ssb,
    /// L1 terminal fault.
    L1tf,
    /// Microarchitectural data sampling.
    Mds,
    /// TSX asynchronous abort.
    Taa,
    /// Processor MMIO stale data.
    MmioStaleData,
    /// Register file data sampling.
    Rfds,
    /// Special register buffer data sampling.
    Srbds,
    /// Returns that are predicted like indirect branches.
    Retbleed,
    /// Speculative return stack overflow.
    Srso,
    /// Gather data sampling.
    Gds,
    /// Indirect target selection.
    Its,
    /// Transient scheduler attacks.
    Tsa,
}

impl Vulnerability {
    /// All, in the order in which they became known.
    pub const ALL: [Self; 16] = [
        Self::SpectreV1,
        Self::SpectreV2,
        Self::Meltdown,
        Self::Ssb,
        Self::L1tf,
        Self::Mds,
        Self::Taa,
        Self::Srbds,
        Self::Bhi,
        Self::MmioStaleData,
        Self::Retbleed,
        Self::Srso,
        Self::Gds,
        Self::Rfds,
        Self::Its,
        Self::Tsa,
    ];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SpectreV1 => "Spectre v1",
            Self::SpectreV2 => "Spectre v2",
            Self::Bhi => "BHI",
            Self::Meltdown => "Meltdown",
            Self::Ssb => "SSB",
            Self::L1tf => "L1TF",
            Self::Mds => "MDS",
            Self::Taa => "TAA",
            Self::MmioStaleData => "MMIO stale data",
            Self::Rfds => "RFDS",
            Self::Srbds => "SRBDS",
            Self::Retbleed => "Retbleed",
            Self::Srso => "SRSO",
            Self::Gds => "GDS",
            Self::Its => "ITS",
            Self::Tsa => "TSA",
        }
    }
}

/// How it stands with one of them. The text says by what, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This CPU does not have it.
    NotAffected(&'static str),
    /// Something is done.
    Mitigated(&'static str),
    /// Nothing is done, or not all.
    Vulnerable(&'static str),
}

bitflags::bitflags! {
    /// What is done when guests change or are entered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Barriers: u8 {
        /// Indirect branch prediction barrier, where another guest runs on a CPU than before.
        const IBPB = 1 << 0;
        /// The return stack is filled with harmless entries, at the same place.
        const RSB_FILL = 1 << 1;
        /// VERW clears buffers before an entry.
        const VERW = 1 << 2;
        /// The L1 data cache is flushed before an entry.
        const L1D_FLUSH = 1 << 3;
    }
}

impl Barriers {
    /// Those of every entry: with one of them no exit is answered without leaving the guest.
    pub const AT_ENTRY: Self = Self::VERW.union(Self::L1D_FLUSH);

    /// Each with its name.
    pub const NAMES: [(Self, &'static str); 4] = [
        (Self::IBPB, "IBPB"),
        (Self::RSB_FILL, "RSB fill"),
        (Self::VERW, "VERW"),
        (Self::L1D_FLUSH, "L1D flush"),
    ];
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// What the CPU needs.
    #[default]
    Auto,
    /// Nothing.
    Off,
    /// Every barrier that there is, needed or not.
    Force,
}

/// The barriers of this CPU.
pub fn barriers(cpu: &CpuFacts, policy: Policy) -> Barriers {
    match policy {
        Policy::Off => Barriers::empty(),
        Policy::Force => Barriers::all(),
        Policy::Auto => judge::needed(cpu),
    }
}

/// A CPU that executes in order never speculates.
fn in_order(id: &Identity) -> bool {
    const BONNELL: [u8; 5] = [0x1c, 0x26, 0x27, 0x35, 0x36];
    id.vendor == Vendor::Intel && (id.family == 5 || id.family == 6 && BONNELL.contains(&id.model))
}
