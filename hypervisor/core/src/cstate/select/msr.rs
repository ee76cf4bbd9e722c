//! Which MSRs are to be written, where and when.
//!
//! A write is a change of bits and never a value: the rest of the MSR belongs to the firmware, and may differ from CPU to
//! CPU. The image reads, changes and writes with faults caught, and logs the old and the new value.

use super::facts::Query;
use crate::cstate::errata::Errata;
use crate::cstate::models::Quirks;
use alloc::vec::Vec;
use core::fmt;

/// On which CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// On each CPU as it comes online, and on the boot CPU again after a resume.
    EveryCpu,
    /// Once, on the boot CPU, and there again after a resume: the MSR belongs to the package, of which there is one.
    BootCpu,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// Before the first idle entry.
    Start,
    /// Also each time that ACPI mode is switched on: the firmware may set the bits then.
    StartAndAcpiEnable,
    /// After so many days without a reset.
    AfterDays(u32),
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteReason {
    /// The hardware would demote C3 and C1 requests by itself, behind the governor's back.
    AutoDemotion,
    /// The hardware would demote C6 requests by itself.
    C6AutoDemotion,
    /// The package's policy of demotion.
    DemotionPolicy,
    /// So that C1 requests stay C1.
    DisableC1ePromotion,
    /// So that the only C1-like state of the table is what its figures say, whatever the firmware left.
    EnableC1ePromotion,
    /// `preferred-c1e=`: C1 is used instead of C1E.
    C1Preferred,
    /// C1E stops the local APIC timer (AMD 400).
    DisarmC1e,
    /// A core may hang in CC6 after 1044 days (AMD 1474).
    Cc6HangsLate,
}

impl fmt::Display for WriteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WriteReason::AutoDemotion => "the governor decides, not C3/C1 auto-demotion",
            WriteReason::C6AutoDemotion => "the governor decides, not C6 auto-demotion",
            WriteReason::DemotionPolicy => {
                "the governor decides, not the package's demotion policy"
            }
            WriteReason::DisableC1ePromotion => "C1 stays C1 (C1E promotion off)",
            WriteReason::EnableC1ePromotion => "C1E is C1E (C1E promotion on)",
            WriteReason::C1Preferred => "preferred-c1e=off: C1 instead of C1E",
            WriteReason::DisarmC1e => "C1E would stop the local APIC timer (AMD 400)",
            WriteReason::Cc6HangsLate => "a core may hang in CC6 after 1044 days (AMD 1474)",
        })
    }
}

/// Bits of an MSR to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MsrWrite {
    /// The MSR.
    pub msr: u32,
    /// Bits to clear.
    pub clear: u64,
    /// Bits to set.
    pub set: u64,
    /// Where.
    pub scope: Scope,
    /// When.
    pub when: When,
    /// Why.
    pub why: WriteReason,
}

impl MsrWrite {
    /// The value to write, if `old` was read; `None` if nothing would change.
    pub const fn apply(&self, old: u64) -> Option<u64> {
        let new = (old & !self.clear) | self.set;
        if new == old { None } else { Some(new) }
    }
}

impl fmt::Display for MsrWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MSR {:#x}:", self.msr)?;
        if self.clear == u64::MAX {
            f.write_str(" write 0")?;
        } else if self.clear != 0 {
            write!(f, " clear {:#x}", self.clear)?;
        }
        if self.set != 0 {
            write!(f, " set {:#x}", self.set)?;
        }
        f.write_str(match self.scope {
            Scope::EveryCpu => " on every CPU",
            Scope::BootCpu => " once, on the boot CPU",
        })?;
        match self.when {
            When::Start => {}
            When::StartAndAcpiEnable => f.write_str(", again after ACPI is enabled")?,
            When::AfterDays(days) => write!(f, ", after {days} days")?,
        }
        write!(f, ": {}", self.why)
    }
}

const PACKAGE_CONTROL: u32 = 0xE2;
const POWER_CONTROL: u32 = 0x1FC;
const CC6_DEMOTION_POLICY: u32 = 0x668;
const MC6_DEMOTION_POLICY: u32 = 0x669;
const AMD_INTERRUPT_PENDING: u32 = 0xC001_0055;
const AMD_CSTATE_CONFIG: u32 = 0xC001_0296;

/// C1 and C3 auto-demotion. Above bit 15, so the lock (bit 15) does not cover them. Source: Intel SDM, volume 4.
const DEMOTE_C1_C3: u64 = 1 << 26 | 1 << 25;
/// The same position means C6 on Lincroft.
const DEMOTE_C6: u64 = 1 << 25;
const C1E_PROMOTION: u64 = 1 << 1;
/// C1E on halt, and by SMI. Source: AMD BKDG for families 0Fh to 11h.
pub(super) const AMD_C1E: u64 = 0x1800_0000;
/// CCR0 to CCR2, CC6 enabled.
const AMD_CC6: u64 = 1 << 6 | 1 << 14 | 1 << 22;

/// The writes that errata ask for, whatever idle does.
pub(super) fn for_errata(query: &Query<'_>, errata: Errata, plan: &mut Vec<MsrWrite>) {
    let id = &query.cpu.identity;
    let amd_c1e = (0x0F..=0x11).contains(&id.family)
        && id.vendor == crate::cstate::models::Vendor::Amd
        && query.msrs.interrupt_pending.is_some();
    if amd_c1e {
        plan.push(MsrWrite {
            msr: AMD_INTERRUPT_PENDING,
            clear: AMD_C1E,
            set: 0,
            scope: Scope::EveryCpu,
            when: When::StartAndAcpiEnable,
            why: WriteReason::DisarmC1e,
        });
    }
    if errata.contains(Errata::CC6_HANGS_LATE) && !query.cpu.hypervisor {
        plan.push(MsrWrite {
            msr: AMD_CSTATE_CONFIG,
            clear: AMD_CC6,
            set: 0,
            scope: Scope::EveryCpu,
            when: When::AfterDays(1000),
            why: WriteReason::Cc6HangsLate,
        });
    }
}

/// The writes that a model needs when its MWAIT states are used. `prefer_c1`: of C1 and C1E, C1 was chosen.
pub(super) fn for_model(
    quirks: Quirks,
    query: &Query<'_>,
    prefer_c1: bool,
    plan: &mut Vec<MsrWrite>,
) {
    let mut push = |msr, clear, set, scope, why| {
        plan.push(MsrWrite {
            msr,
            clear,
            set,
            scope,
            when: When::Start,
            why,
        });
    };
    if query.msrs.package_control.is_some() {
        if quirks.contains(Quirks::CLEAR_C1_C3_DEMOTION) {
            let why = WriteReason::AutoDemotion;
            push(PACKAGE_CONTROL, DEMOTE_C1_C3, 0, Scope::EveryCpu, why);
        }
        if quirks.contains(Quirks::CLEAR_C6_DEMOTION) {
            let why = WriteReason::C6AutoDemotion;
            push(PACKAGE_CONTROL, DEMOTE_C6, 0, Scope::EveryCpu, why);
        }
    }
    if quirks.contains(Quirks::ZERO_DEMOTION_POLICY) {
        for msr in [CC6_DEMOTION_POLICY, MC6_DEMOTION_POLICY] {
            push(
                msr,
                u64::MAX,
                0,
                Scope::BootCpu,
                WriteReason::DemotionPolicy,
            );
        }
    }
    if query.msrs.power_control.is_none() {
        return;
    }
    let (clear, set, why) = if quirks.contains(Quirks::DISABLE_C1E_PROMOTION) {
        (C1E_PROMOTION, 0, WriteReason::DisableC1ePromotion)
    } else if !quirks.contains(Quirks::ENABLE_C1E_PROMOTION) {
        return;
    } else if prefer_c1 {
        (C1E_PROMOTION, 0, WriteReason::C1Preferred)
    } else {
        (0, C1E_PROMOTION, WriteReason::EnableC1ePromotion)
    };
    push(POWER_CONTROL, clear, set, Scope::EveryCpu, why);
}
