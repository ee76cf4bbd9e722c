//! Errata of MONITOR, MWAIT and deep C-states, by CPU.
//!
//! Lists from Linux 7.1.5 and Xen 4.22, united; each flag names the vendors' erratum numbers. An erratum is a fact about
//! the CPU: no option and no run-time setting changes it, so that what is limited for it is limited again after a resume.

use super::models::{Identity, Vendor};
use core::fmt;

bitflags::bitflags! {
    /// What is wrong with a CPU.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Errata: u32 {
        /// AAI65: the monitored line must be flushed (CLFLUSH) before MONITOR. No fence is needed beside it.
        const CLFLUSH_MONITOR = 1 << 0;
        /// APL30, ICX143, LNL030: stores may not end MWAIT. MWAIT is still used; the interrupt is always sent.
        const MISSES_STORES = 1 << 1;
        /// AAJ72, BA106: no state of class 3 or deeper while an interrupt is in service, unless EOIs are directed.
        const IN_SERVICE_EOI = 1 << 2;
        /// BDX99, CLX30, SKX100, CFW125, BDF104, BDH85, BDM135, KWB131: the same, whatever the EOIs.
        const IN_SERVICE_PRIORITY = 1 << 3;
        /// BA80, AAK120, AAM108, AAO67, BD59, AAY54: fast C3/C6 transitions with Hyper-Threading: C1 at most.
        const RAPID_DEEP = 1 << 4;
        /// AMD 400: with C1E armed by the firmware, C1 stops the local APIC timer.
        const AMD_C1E_TIMER = 1 << 5;
        /// AMD's early Opterons: no state beyond C1.
        const C1_ONLY = 1 << 6;
        /// AMD family 10h: MWAIT never gets to a deep state, and is not used.
        const MWAIT_USELESS = 1 << 7;
        /// AMD 1474: a core may hang in CC6 after 1044 days.
        const CC6_HANGS_LATE = 1 << 8;
    }
}

impl Errata {
    /// Interrupts in service forbid states of class 3 and deeper.
    pub const IN_SERVICE: Self = Self::IN_SERVICE_EOI.union(Self::IN_SERVICE_PRIORITY);

    /// What is wrong with this CPU. Of circumstances (Hyper-Threading, directed EOIs) nothing is known here.
    pub fn of(id: &Identity) -> Self {
        match id.vendor {
            Vendor::Intel if id.family == 6 => intel(id.model),
            Vendor::Amd => amd(id),
            Vendor::Hygon if id.family == 0x18 => Self::CC6_HANGS_LATE,
            _ => Self::empty(),
        }
    }
}

fn intel(model: u8) -> Errata {
    const LISTS: [(Errata, &[u8]); 5] = [
        (Errata::CLFLUSH_MONITOR, &[0x1D, 0x2E, 0x2F]),
        // Ice Lake-SP is on Xen's list only.
        (Errata::MISSES_STORES, &[0x5C, 0xBD, 0x6A]),
        (
            Errata::IN_SERVICE_EOI,
            &[0x1A, 0x1E, 0x1F, 0x2E, 0x25, 0x2C, 0x2F],
        ),
        (
            Errata::IN_SERVICE_PRIORITY,
            &[
                0x3C, 0x3F, 0x45, 0x46, // Haswell: no number was published
                0x3D, 0x47, 0x4F, 0x56, // Broadwell
                0x4E, 0x5E, 0x55, 0x8E, 0x9E, // Skylake to Coffee Lake and Cascade Lake
                0x66, // Cannon Lake
            ],
        ),
        (Errata::RAPID_DEEP, &[0x1A, 0x1E, 0x1F, 0x2E, 0x25, 0x2C]),
    ];
    LISTS
        .iter()
        .filter(|(_, models)| models.contains(&model))
        .fold(Errata::empty(), |all, (erratum, _)| all | *erratum)
}

fn amd(id: &Identity) -> Errata {
    match id.family {
        0x0F => {
            let mut all = Errata::empty();
            if id.model > 0x41 || (id.model == 0x41 && id.stepping >= 2) {
                all |= Errata::AMD_C1E_TIMER;
            }
            if id.model <= 5 && id.stepping < 0xA {
                all |= Errata::C1_ONLY;
            }
            all
        }
        0x10 if id.model > 2 || (id.model == 2 && id.stepping >= 1) => {
            Errata::AMD_C1E_TIMER | Errata::MWAIT_USELESS
        }
        0x10 => Errata::MWAIT_USELESS,
        0x17 => Errata::CC6_HANGS_LATE,
        _ => Errata::empty(),
    }
}

/// One clause for each, with the vendor's numbers.
impl fmt::Display for Errata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WORDS: [(Errata, &str); 9] = [
            (
                Errata::CLFLUSH_MONITOR,
                "AAI65: the line is flushed before MONITOR",
            ),
            (
                Errata::MISSES_STORES,
                "APL30/ICX143/LNL030: MONITOR may miss stores, the IPI is always sent",
            ),
            (
                Errata::IN_SERVICE_EOI,
                "AAJ72/BA106: C1 while an interrupt is in service",
            ),
            (
                Errata::IN_SERVICE_PRIORITY,
                "BDX99/CLX30/SKX100 and kin: C1 while an interrupt is in service",
            ),
            (
                Errata::RAPID_DEEP,
                "BA80/AAK120 and kin: C1 at most with Hyper-Threading",
            ),
            (
                Errata::AMD_C1E_TIMER,
                "AMD 400: C1E stops the local APIC timer; it is disarmed, or C1 is all there is where MSR 0xc0010055 cannot be read",
            ),
            (Errata::C1_ONLY, "early Opteron: C1 at most"),
            (
                Errata::MWAIT_USELESS,
                "AMD family 10h: MWAIT reaches no deep state",
            ),
            (
                Errata::CC6_HANGS_LATE,
                "AMD 1474: CC6 is switched off after 1000 days",
            ),
        ];
        let mut space = "";
        for (erratum, words) in WORDS {
            if self.contains(erratum) {
                write!(f, "{space}{words}")?;
                space = "; ";
            }
        }
        Ok(())
    }
}
