//! MSRs of a guest: those of the APIC and the clock here, those of the processor in the backend, a few that every
//! kernel looks at with a fixed answer, and #GP for the rest.
//!
//! Numbers: AMD APM vol. 2 appendix A, SDM 4.

use lull_core::units::Ticks;

use super::vlapic::{Icr, Lapic, Mode, Now};
use crate::virt::{Gp, VirtCpu};

/// MSRs of the local APIC in x2APIC mode.
const X2APIC: core::ops::RangeInclusive<u32> = 0x800..=0x8ff;

/// `MTRRCAP`: write-combining, no variable and no fixed ranges.
const MTRRCAP: u64 = 1 << 10;

/// `MTRR_DEF_TYPE` after reset: enabled, write-back.
const MTRR_DEFAULT: u64 = 1 << 11 | 6;

/// MSRs of one vCPU that neither the APIC nor the backend keeps.
#[derive(Debug)]
pub struct Msrs {
    tsc_offset: u64,
    mtrr_default: u64,
}

/// What a write asks of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Nothing.
    Done,
    /// Send this.
    Ipi(Icr),
}

impl Msrs {
    /// After power-up; the guest's TSC is the real one plus `tsc_offset`.
    pub fn new(tsc_offset: u64) -> Self {
        Self {
            tsc_offset,
            mtrr_default: MTRR_DEFAULT,
        }
    }

    /// What the guest's TSC is ahead of the real one, modulo 2^64.
    pub fn tsc_offset(&self) -> u64 {
        self.tsc_offset
    }

    fn now(&self, tsc: Ticks) -> Now {
        Now {
            tsc,
            offset: self.tsc_offset,
        }
    }

    /// RDMSR.
    ///
    /// # Errors
    /// #GP(0): there is no such MSR.
    pub fn read(
        &self,
        msr: u32,
        virt: &dyn VirtCpu,
        lapic: &mut Lapic,
        tsc: Ticks,
    ) -> Result<u64, Gp> {
        match msr {
            0x10 => Ok(tsc.get().wrapping_add(self.tsc_offset)),
            0x1b => Ok(lapic.base()),
            0x6e0 => Ok(lapic.tsc_deadline()),
            msr if X2APIC.contains(&msr) => lapic.read_msr(msr & 0xff, self.now(tsc)),
            0xfe => Ok(MTRRCAP),
            0x2ff => Ok(self.mtrr_default),
            // MISC_ENABLE: fast strings.
            0x1a0 => Ok(1),
            // DE_CFG: LFENCE waits for everything before it.
            0xc001_1029 => Ok(2),
            // PLATFORM_ID, BIOS_SIGN_ID, MCG_CAP (no banks), MCG_STATUS, SYSCFG, HWCR, NB_CFG, INT_PENDING.
            0x17 | 0x8b | 0x179 | 0x17a | 0xc001_0010 | 0xc001_0015 | 0xc001_001f | 0xc001_0055 => {
                Ok(0)
            }
            _ => virt.get_msr(msr).ok_or(Gp),
        }
    }

    /// WRMSR.
    ///
    /// # Errors
    /// #GP(0): there is no such MSR, it is read-only, or it does not take this value.
    pub fn write(
        &mut self,
        msr: u32,
        value: u64,
        virt: &mut dyn VirtCpu,
        lapic: &mut Lapic,
        tsc: Ticks,
    ) -> Result<Written, Gp> {
        match msr {
            0x10 => {
                self.tsc_offset = value.wrapping_sub(tsc.get());
                virt.set_tsc_offset(self.tsc_offset);
                lapic.tsc_offset_changed(self.now(tsc));
            }
            0x1b => lapic.set_base(value)?,
            0x6e0 => lapic.set_tsc_deadline(value, self.now(tsc)),
            msr if X2APIC.contains(&msr) => {
                let ipi = lapic.write_msr(msr & 0xff, value, self.now(tsc))?;
                return Ok(ipi.map_or(Written::Done, Written::Ipi));
            }
            // Types UC, WC, WT, WP, WB; bits 10 and 11.
            0x2ff if value & !0xcff == 0 && matches!(value & 0xff, 0 | 1 | 4 | 5 | 6) => {
                self.mtrr_default = value;
            }
            // What kernels write back as they read it, or clear.
            0x1a0 if value == 1 => {}
            0xc001_1029 if value == 2 => {}
            0x8b | 0x17a | 0xc001_0015 if value == 0 => {}
            _ => virt.set_msr(msr, value)?,
        }
        Ok(Written::Done)
    }

    /// Whether the APIC shows up in CPUID.
    pub fn apic_visible(lapic: &Lapic) -> bool {
        lapic.mode() != Mode::Disabled
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::MockCpu;
    use super::super::vlapic::LapicShared;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_clock_can_be_set() {
        let (mut cpu, mut lapic) = (MockCpu::new(), Lapic::new(Arc::new(LapicShared::new(0))));
        let mut msrs = Msrs::new(0u64.wrapping_sub(1000));
        let at = Ticks::new(1500);
        assert_eq!(msrs.read(0x10, &cpu, &mut lapic, at), Ok(500));
        assert_eq!(
            msrs.write(0x10, 7, &mut cpu, &mut lapic, at),
            Ok(Written::Done)
        );
        assert_eq!(msrs.read(0x10, &cpu, &mut lapic, Ticks::new(1510)), Ok(17));
        assert_eq!(cpu.state().offset, 7u64.wrapping_sub(1500));
    }

    #[test]
    fn known_unknown_and_read_only_ones() {
        let (mut cpu, mut lapic) = (MockCpu::new(), Lapic::new(Arc::new(LapicShared::new(0))));
        let mut msrs = Msrs::new(0);
        let at = Ticks::new(0);
        assert_eq!(msrs.read(0x1b, &cpu, &mut lapic, at), Ok(0xfee0_0900));
        assert_eq!(
            msrs.read(0x802, &cpu, &mut lapic, at),
            Err(Gp),
            "xAPIC mode"
        );
        assert_eq!(
            msrs.write(0x1b, 0xfee0_0d00, &mut cpu, &mut lapic, at),
            Ok(Written::Done)
        );
        assert_eq!(msrs.read(0x802, &cpu, &mut lapic, at), Ok(0));
        let ipi = msrs.write(0x83f, 0x40, &mut cpu, &mut lapic, at);
        assert_eq!(ipi, Ok(Written::Ipi(Icr::self_ipi(0x40))));
        for msr in [0x840, 0x8ff, 0xe2, 0x186, 0x3a, 0xc001_0117, 0xc000_0104] {
            assert_eq!(msrs.read(msr, &cpu, &mut lapic, at), Err(Gp), "{msr:#x}");
            assert_eq!(
                msrs.write(msr, 0, &mut cpu, &mut lapic, at),
                Err(Gp),
                "{msr:#x}"
            );
        }
        for (msr, value) in [
            (0xfe, 0x400),
            (0x179, 0),
            (0x2ff, 7),
            (0x2ff, 0x1006),
            (0x1a0, 0),
        ] {
            assert_eq!(
                msrs.write(msr, value, &mut cpu, &mut lapic, at),
                Err(Gp),
                "{msr:#x}"
            );
        }
        assert_eq!(
            msrs.write(0x2ff, 0xc00, &mut cpu, &mut lapic, at),
            Ok(Written::Done)
        );
        assert_eq!(msrs.read(0x2ff, &cpu, &mut lapic, at), Ok(0xc00));
        assert_eq!(
            msrs.write(0xc000_0080, 0x500, &mut cpu, &mut lapic, at),
            Ok(Written::Done)
        );
        assert_eq!(
            msrs.read(0xc000_0080, &cpu, &mut lapic, at),
            Ok(0x500),
            "kept by the backend"
        );
    }
}
