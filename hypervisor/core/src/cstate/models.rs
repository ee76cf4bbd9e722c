//! The CPU models that have a record of their own: which table, and which quirks.
//!
//! A model is named by vendor, family **and** model: families other than 6 exist on Intel too (Nova Lake is 18, Diamond
//! Rapids 19). A model that is not here gets its states from the firmware: figures of a sibling are not its own.
//! The stepping is not part of it: Skylake, Cascade Lake and Cooper Lake servers share one model and, closely enough, their
//! figures.

use super::tables::IdleTable;
use core::fmt;

mod list;

pub use list::MODELS;

/// Who made a CPU, by the string of CPUID leaf 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Vendor {
    /// `GenuineIntel`.
    Intel,
    /// `AuthenticAMD`.
    Amd,
    /// `HygonGenuine`.
    Hygon,
    /// `CentaurHauls`.
    Centaur,
    /// `  Shanghai  `.
    Zhaoxin,
    /// Anybody else.
    #[default]
    Other,
}

impl Vendor {
    /// The vendor with this string in leaf 0 (EBX, EDX, ECX).
    pub fn from_id(id: &[u8]) -> Self {
        match id {
            b"GenuineIntel" => Vendor::Intel,
            b"AuthenticAMD" => Vendor::Amd,
            b"HygonGenuine" => Vendor::Hygon,
            b"CentaurHauls" => Vendor::Centaur,
            b"  Shanghai  " => Vendor::Zhaoxin,
            _ => Vendor::Other,
        }
    }
}

impl Vendor {
    /// Its string in leaf 0 (EBX, EDX, ECX); zeros for [`Vendor::Other`].
    pub const fn id(self) -> [u8; 12] {
        match self {
            Vendor::Intel => *b"GenuineIntel",
            Vendor::Amd => *b"AuthenticAMD",
            Vendor::Hygon => *b"HygonGenuine",
            Vendor::Centaur => *b"CentaurHauls",
            Vendor::Zhaoxin => *b"  Shanghai  ",
            Vendor::Other => [0; 12],
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Vendor::Intel => "Intel",
            Vendor::Amd => "AMD",
            Vendor::Hygon => "Hygon",
            Vendor::Centaur => "Centaur",
            Vendor::Zhaoxin => "Zhaoxin",
            Vendor::Other => "unknown vendor",
        })
    }
}

/// Which CPU it is. Shown as `Intel 06_55 stepping 4`, numbers in hexadecimal as the manuals have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Identity {
    /// Who made it.
    pub vendor: Vendor,
    /// The family, the extended family added.
    pub family: u16,
    /// The model, the extended model in front.
    pub model: u8,
    /// The stepping.
    pub stepping: u8,
}

impl Identity {
    /// From CPUID leaf 1 EAX. Source: Intel SDM, volume 2, CPUID, "Version Information"; AMD APM, volume 3, Fn0000_0001.
    pub fn from_signature(vendor: Vendor, eax: u32) -> Self {
        let base = (eax >> 8) as u16 & 0xF;
        let extended = (eax >> 20) as u16 & 0xFF;
        let model = (eax >> 4) as u8 & 0xF;
        // AMD extends the model for family Fh only, Intel for 6 too; no other family has ever had a non-zero field.
        let high = if base == 6 || base == 0xF {
            (eax >> 16) as u8 & 0xF
        } else {
            0
        };
        Self {
            vendor,
            family: if base == 0xF { base + extended } else { base },
            model: high << 4 | model,
            stepping: eax as u8 & 0xF,
        }
    }

    /// What leaf 1 EAX would say; `None` if it could not say that.
    pub fn signature(&self) -> Option<u32> {
        let extended = self.family.saturating_sub(0xF);
        let eax = u32::from(extended) << 20
            | u32::from(self.model >> 4) << 16
            | u32::from(self.family.min(0xF)) << 8
            | u32::from(self.model & 0xF) << 4
            | u32::from(self.stepping & 0xF);
        (Self::from_signature(self.vendor, eax) == *self).then_some(eax)
    }

    /// An Intel CPU of this family, and one of these models?
    pub(crate) fn is_intel(&self, family: u16, models: &[u8]) -> bool {
        self.vendor == Vendor::Intel && self.family == family && models.contains(&self.model)
    }

    /// The record of this model, if it has one.
    pub fn model_record(&self) -> Option<&'static Model> {
        if self.vendor != Vendor::Intel {
            return None;
        }
        MODELS
            .iter()
            .find(|model| model.family == self.family && model.model == self.model)
    }

    /// May HLT go deeper than C1? On Zen and later it may go as deep as CC6.
    pub const fn halt_may_be_deep(&self) -> bool {
        match self.vendor {
            Vendor::Amd => self.family >= 0x17,
            Vendor::Hygon => true,
            _ => false,
        }
    }

    /// An AMD or Hygon CPU on which C1 is MWAIT and HLT is the way to CC6: Zen and everything since.
    ///
    /// Each family is named. A family that is not, however new, is left to its firmware.
    pub const fn zen(&self) -> bool {
        match self.vendor {
            Vendor::Amd => matches!(self.family, 0x17 | 0x19 | 0x1A),
            Vendor::Hygon => self.family == 0x18,
            _ => false,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:02X}_{:02X} stepping {}",
            self.vendor, self.family, self.model, self.stepping
        )
    }
}

bitflags::bitflags! {
    /// What must be done, or looked at, on a model. Sources: Linux 7.1.5 intel_idle, Xen 4.22 mwait-idle.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Quirks: u32 {
        /// Clear C3 and C1 auto-demotion (MSR 0xE2 bits 25 and 26) on every CPU.
        const CLEAR_C1_C3_DEMOTION = 1 << 0;
        /// Clear C6 auto-demotion (MSR 0xE2 bit 25, which means C3 elsewhere) on every CPU.
        const CLEAR_C6_DEMOTION = 1 << 1;
        /// Write 0 to the CC6 and MC6 demotion policies (MSRs 0x668, 0x669), once in the package.
        const ZERO_DEMOTION_POLICY = 1 << 2;
        /// Clear C1E promotion (MSR 0x1FC bit 1) on every CPU, so that C1 is C1.
        const DISABLE_C1E_PROMOTION = 1 << 3;
        /// C1 and C1E exclude each other, and the table has C1E: set C1E promotion on every CPU.
        const ENABLE_C1E_PROMOTION = 1 << 4;
        /// `_CST`, where there is one, says which states of the table are on.
        const CST_SWITCHES = 1 << 5;
        /// C1 demotion can be switched at run time (MSR 0xE2 bits 26 and 28, on every CPU).
        const C1_DEMOTION_CONTROL = 1 << 6;
        /// Another table for more sockets.
        const BY_SOCKETS = 1 << 7;
        /// Deep states' figures are in the IRTL MSRs.
        const BY_IRTL = 1 << 8;
        /// With PC10 allowed and SGX off, C8 and C9 must not be used beside C10.
        const PC10_NEEDS_SGX = 1 << 9;
        /// C6 costs less where the package C-state limit keeps PC6 away.
        const BY_PC6_LIMIT = 1 << 10;
    }
}

/// One CPU model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Family, the extended family added.
    pub family: u16,
    /// Model, the extended model in front.
    pub model: u8,
    /// What Linux calls it.
    pub name: &'static str,
    /// Its table. `None`: its states come from `_CST` only.
    pub table: Option<&'static IdleTable>,
    /// What is special about it.
    pub quirks: Quirks,
}

const fn all(list: &[Quirks]) -> Quirks {
    let mut all = Quirks::empty();
    let mut index = 0;
    while index < list.len() {
        all = all.union(list[index]);
        index += 1;
    }
    all
}

const fn model(
    family: u16,
    model: u8,
    name: &'static str,
    table: &'static IdleTable,
    quirks: &[Quirks],
) -> Model {
    Model {
        family,
        model,
        name,
        table: Some(table),
        quirks: all(quirks),
    }
}

const fn no_table(family: u16, model: u8, name: &'static str, quirks: &[Quirks]) -> Model {
    Model {
        family,
        model,
        name,
        table: None,
        quirks: all(quirks),
    }
}

#[cfg(test)]
mod tests;
