//! The MSRs that live in a vCPU's save area.

use x86::msr;

use crate::virt::Gp;
use crate::virt::rules::{self, is_canonical, valid_pat};

use super::reset::EFER_SVME;
use super::vmcb::Save;

/// EFER as the guest sees it.
pub fn guest_efer(save: &Save) -> u64 {
    save.efer & !EFER_SVME
}

/// Reads one of them; `None` if it is not one.
pub fn get(save: &Save, msr: u32) -> Option<u64> {
    Some(match msr {
        msr::IA32_EFER => guest_efer(save),
        msr::IA32_PAT => save.g_pat,
        msr::IA32_FS_BASE => save.fs.base,
        msr::IA32_GS_BASE => save.gs.base,
        msr::IA32_KERNEL_GSBASE => save.kernel_gs_base,
        msr::IA32_STAR => save.star,
        msr::IA32_LSTAR => save.lstar,
        msr::IA32_CSTAR => save.cstar,
        msr::IA32_FMASK => save.sfmask,
        msr::IA32_SYSENTER_CS => save.sysenter_cs,
        msr::IA32_SYSENTER_ESP => save.sysenter_esp,
        msr::IA32_SYSENTER_EIP => save.sysenter_eip,
        msr::IA32_DEBUGCTL => 0,
        _ => return None,
    })
}

/// Writes one of them.
pub fn set(save: &mut Save, msr: u32, value: u64) -> Result<(), Gp> {
    let canonical = || {
        if is_canonical(value) {
            Ok(value)
        } else {
            Err(Gp)
        }
    };
    match msr {
        msr::IA32_EFER => save.efer = new_efer(save, value)?,
        msr::IA32_PAT if valid_pat(value) => save.g_pat = value,
        msr::IA32_FS_BASE => save.fs.base = canonical()?,
        msr::IA32_GS_BASE => save.gs.base = canonical()?,
        msr::IA32_KERNEL_GSBASE => save.kernel_gs_base = canonical()?,
        msr::IA32_STAR => save.star = value,
        msr::IA32_LSTAR => save.lstar = canonical()?,
        msr::IA32_CSTAR => save.cstar = canonical()?,
        msr::IA32_FMASK => save.sfmask = value & 0xffff_ffff,
        msr::IA32_SYSENTER_CS => save.sysenter_cs = value & 0xffff_ffff,
        msr::IA32_SYSENTER_ESP => save.sysenter_esp = canonical()?,
        msr::IA32_SYSENTER_EIP => save.sysenter_eip = canonical()?,
        msr::IA32_DEBUGCTL if value == 0 => {}
        _ => return Err(Gp),
    }
    Ok(())
}

/// EFER after a write by the guest.
fn new_efer(save: &Save, value: u64) -> Result<u64, Gp> {
    rules::new_efer(save.cr0, guest_efer(save), value).map(|efer| efer | EFER_SVME)
}

#[cfg(test)]
mod tests {
    use super::super::page::zeroed;
    use super::super::reset::reset;
    use super::*;
    use crate::virt::StartState;

    const EFER_SCE: u64 = 1 << 0;
    const EFER_LME: u64 = 1 << 8;
    const EFER_LMA: u64 = 1 << 10;
    const EFER_NXE: u64 = 1 << 11;
    const CR0_PG: u64 = 1 << 31;

    #[test]
    fn efer_hides_svm_and_keeps_lma() {
        let mut save = zeroed::<Save>();
        reset(&mut save, StartState::Sipi { vector: 0 });
        assert_eq!(get(&save, msr::IA32_EFER), Some(0));
        assert_eq!(set(&mut save, msr::IA32_EFER, EFER_LME | EFER_NXE), Ok(()));
        assert_eq!(save.efer, EFER_LME | EFER_NXE | EFER_SVME);
        // Paging goes on: the processor sets LMA.
        save.efer |= EFER_LMA;
        save.cr0 |= CR0_PG;
        assert_eq!(
            set(&mut save, msr::IA32_EFER, EFER_LME | EFER_LMA | EFER_SCE),
            Ok(())
        );
        assert_eq!(
            get(&save, msr::IA32_EFER),
            Some(EFER_LME | EFER_LMA | EFER_SCE)
        );
        assert_eq!(
            set(&mut save, msr::IA32_EFER, EFER_LMA),
            Err(Gp),
            "LME under paging"
        );
        assert_eq!(
            set(&mut save, msr::IA32_EFER, EFER_LME | EFER_SVME),
            Err(Gp),
            "guests have no SVM"
        );
        assert_eq!(save.efer & EFER_SVME, EFER_SVME);
    }

    #[test]
    fn values_that_the_processor_refuses_are_refused() {
        let mut save = zeroed::<Save>();
        for msr in [
            msr::IA32_FS_BASE,
            msr::IA32_GS_BASE,
            msr::IA32_KERNEL_GSBASE,
            msr::IA32_LSTAR,
            msr::IA32_SYSENTER_EIP,
        ] {
            assert_eq!(set(&mut save, msr, 0x8000_0000_0000), Err(Gp), "{msr:#x}");
            assert_eq!(
                set(&mut save, msr, 0xffff_8000_0000_0000),
                Ok(()),
                "{msr:#x}"
            );
            assert_eq!(get(&save, msr), Some(0xffff_8000_0000_0000), "{msr:#x}");
        }
        assert_eq!(
            set(&mut save, msr::IA32_PAT, 0x0202_0202_0202_0202),
            Err(Gp)
        );
        assert_eq!(set(&mut save, msr::IA32_DEBUGCTL, 1), Err(Gp));
        assert_eq!(set(&mut save, 0xc001_0117, 0), Err(Gp));
        assert_eq!(get(&save, 0xc001_0117), None);
    }
}
