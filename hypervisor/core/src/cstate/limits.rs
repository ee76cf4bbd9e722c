//! The package C-state limit: what its code in MSR 0xE2 means, which differs from model to model.
//!
//! The limit is the firmware's and usually locked. It does not forbid a state to a core: it keeps the package from going
//! as deep, so that a deep core state costs less, and saves less, than its table says. Source: turbostat of Linux 7.1.5.

use super::models::{Identity, Vendor};

bitflags::bitflags! {
    /// What else MSRs tell about C-states on a model.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Extras: u8 {
        /// MSR 0x660 counts C1 residency.
        const C1_COUNTER = 1 << 0;
        /// MSR 0xE2 bit 16 lets the hardware turn requests for shallow states into deeper ones.
        const AUTO_CONVERSION = 1 << 1;
    }
}

/// The meaning of the limit's codes, MSR 0xE2 bits 3:0.
pub type Codes = &'static [(u8, &'static str)];

/// What is known about MSR 0xE2 on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackageControl {
    /// Family, the extended family added.
    pub family: u16,
    /// Model, the extended model in front.
    pub model: u8,
    /// The meaning of its codes.
    pub codes: Codes,
    /// What else there is.
    pub extras: Extras,
}

impl PackageControl {
    /// What is known about this CPU.
    pub fn of(id: &Identity) -> Option<&'static Self> {
        let known = |one: &&Self| one.family == id.family && one.model == id.model;
        PACKAGE_CONTROLS
            .iter()
            .find(known)
            .filter(|_| id.vendor == Vendor::Intel)
    }

    /// The deepest package state that a value of MSR 0xE2 allows, if its code is a known one.
    pub fn limit(&self, value: u64) -> Option<&'static str> {
        let code = (value & 0xF) as u8;
        let mut known = self.codes.iter();
        known.find(|(one, _)| *one == code).map(|(_, name)| *name)
    }

    /// Does the hardware turn requests into deeper ones, by this value of MSR 0xE2?
    pub const fn converts(&self, value: u64) -> bool {
        self.extras.contains(Extras::AUTO_CONVERSION) && value & 1 << 16 != 0
    }
}

/// Nehalem and Westmere.
const NHM: Codes = &[
    (0, "PC0"),
    (1, "PC1"),
    (2, "PC3"),
    (3, "PC6"),
    (4, "PC7"),
    (7, "unlimited"),
];
/// Sandy Bridge and Ivy Bridge.
const SNB: Codes = &[
    (0, "PC0"),
    (1, "PC2"),
    (2, "PC6N"),
    (3, "PC6R"),
    (4, "PC7"),
    (5, "PC7S"),
    (7, "unlimited"),
];
/// Haswell to Panther Lake clients, Haswell and Broadwell servers.
const HSW: Codes = &[
    (0, "PC0"),
    (1, "PC2"),
    (2, "PC3"),
    (3, "PC6"),
    (4, "PC7"),
    (5, "PC7S"),
    (6, "PC8"),
    (7, "PC9"),
    (8, "unlimited"),
];
/// Silvermont.
const SLV: Codes = &[
    (0, "PC0"),
    (1, "PC1"),
    (4, "PC4"),
    (6, "PC6"),
    (7, "PC7"),
    (14, "PC6"),
    (15, "PC7"),
];
/// Airmont.
const AMT: Codes = &[
    (0, "unlimited"),
    (1, "PC1"),
    (2, "PC2"),
    (6, "PC6"),
    (7, "PC7"),
];
/// Xeon Phi.
const PHI: Codes = &[
    (0, "PC0"),
    (1, "PC2"),
    (2, "PC6N"),
    (3, "PC6R"),
    (7, "unlimited"),
];
/// Goldmont and Tremont.
const GLM: Codes = &[
    (0, "unlimited"),
    (1, "PC1"),
    (2, "PC3"),
    (3, "PC6"),
    (4, "PC7"),
    (5, "PC7S"),
    (6, "PC8"),
    (7, "PC9"),
    (8, "PC10"),
];
/// Skylake-SP, and servers since Sapphire Rapids.
const SKX: Codes = &[
    (0, "PC0"),
    (1, "PC2"),
    (2, "PC6N"),
    (3, "PC6R"),
    (7, "unlimited"),
];
/// Ice Lake-SP.
const ICX: Codes = &[
    (0, "PC0"),
    (1, "PC2"),
    (2, "PC6"),
    (3, "PC6"),
    (7, "unlimited"),
];

const NONE: Extras = Extras::empty();
const C1: Extras = Extras::C1_COUNTER;
const AUTO: Extras = Extras::AUTO_CONVERSION;

const fn known(family: u16, model: u8, codes: Codes, extras: Extras) -> PackageControl {
    PackageControl {
        family,
        model,
        codes,
        extras,
    }
}

/// All models whose codes are known.
pub const PACKAGE_CONTROLS: [PackageControl; 71] = [
    known(6, 0x1a, NHM, NONE),
    known(6, 0x1e, NHM, NONE),
    known(6, 0x1f, NHM, NONE),
    known(6, 0x25, NHM, NONE),
    known(6, 0x2a, SNB, NONE),
    known(6, 0x2c, NHM, NONE),
    known(6, 0x2d, SNB, NONE),
    known(6, 0x2e, NHM, NONE),
    known(6, 0x2f, NHM, NONE),
    known(6, 0x37, SLV, C1),
    known(6, 0x3a, SNB, NONE),
    known(6, 0x3c, HSW, NONE),
    known(6, 0x3d, HSW, NONE),
    known(6, 0x3e, SNB, NONE),
    known(6, 0x3f, HSW, NONE),
    known(6, 0x45, HSW, NONE),
    known(6, 0x46, HSW, NONE),
    known(6, 0x47, HSW, NONE),
    known(6, 0x4c, AMT, NONE),
    known(6, 0x4d, SLV, NONE),
    known(6, 0x4e, HSW, NONE),
    known(6, 0x4f, HSW, AUTO),
    known(6, 0x55, SKX, AUTO),
    known(6, 0x56, HSW, AUTO),
    known(6, 0x57, PHI, NONE),
    known(6, 0x5c, GLM, NONE),
    known(6, 0x5e, HSW, NONE),
    known(6, 0x5f, GLM, C1),
    known(6, 0x66, HSW, C1),
    known(6, 0x6a, ICX, C1),
    known(6, 0x6c, ICX, C1),
    known(6, 0x7a, GLM, NONE),
    known(6, 0x7e, HSW, C1),
    known(6, 0x85, PHI, NONE),
    known(6, 0x86, GLM, NONE),
    known(6, 0x8a, HSW, C1),
    known(6, 0x8c, HSW, C1),
    known(6, 0x8d, HSW, C1),
    known(6, 0x8e, HSW, NONE),
    known(6, 0x8f, SKX, C1),
    known(6, 0x96, GLM, NONE),
    known(6, 0x97, HSW, C1),
    known(6, 0x9a, HSW, C1),
    known(6, 0x9c, GLM, NONE),
    known(6, 0x9d, HSW, C1),
    known(6, 0x9e, HSW, NONE),
    known(6, 0xa5, HSW, NONE),
    known(6, 0xa6, HSW, NONE),
    known(6, 0xa7, HSW, C1),
    known(6, 0xaa, HSW, C1),
    known(6, 0xac, HSW, C1),
    known(6, 0xad, SKX, C1),
    known(6, 0xae, SKX, C1),
    known(6, 0xaf, SKX, C1),
    known(6, 0xb5, HSW, C1),
    known(6, 0xb6, SKX, C1),
    known(6, 0xb7, HSW, C1),
    known(6, 0xba, HSW, C1),
    known(6, 0xbd, HSW, C1),
    known(6, 0xbe, HSW, C1),
    known(6, 0xbf, HSW, C1),
    known(6, 0xc5, HSW, C1),
    known(6, 0xc6, HSW, C1),
    known(6, 0xcc, HSW, C1),
    known(6, 0xcf, SKX, C1),
    known(6, 0xd5, HSW, C1),
    known(6, 0xd7, HSW, C1),
    known(6, 0xdd, SKX, C1),
    known(18, 0x01, HSW, C1),
    known(18, 0x03, HSW, C1),
    known(19, 0x01, SKX, C1),
];

#[cfg(test)]
mod tests;
