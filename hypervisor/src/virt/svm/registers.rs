//! The machine registers of AMD-V (AMD APM vol. 2, 15.4 and 15.30).

#[cfg(target_os = "none")]
pub use hardware::{VM_CR, VM_CR_LOCK, VM_CR_SVMDIS, read, set_host_save, set_svme, write_tsc_aux};

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "writes MSRs")]

    use x86::msr::{IA32_EFER, IA32_TSC_AUX};

    use crate::cpu::safe::{Fault, rdmsr, wrmsr};

    use super::super::page::{Pages, physical};
    use super::super::reset::EFER_SVME;

    /// VM_CR.
    pub const VM_CR: u32 = 0xc001_0114;
    /// Physical address of the page where VMRUN keeps the host's state.
    pub const VM_HSAVE_PA: u32 = 0xc001_0117;
    /// VM_CR.SVMDIS: EFER.SVME cannot be set.
    pub const VM_CR_SVMDIS: u64 = 1 << 4;
    /// VM_CR.LOCK: SVMDIS cannot be cleared.
    pub const VM_CR_LOCK: u64 = 1 << 3;

    /// Reads an MSR, if it exists.
    pub fn read(msr: u32) -> Result<u64, Fault> {
        rdmsr(msr)
    }

    /// EFER.SVME of this CPU.
    pub fn set_svme() -> Result<(), Fault> {
        let efer = rdmsr(IA32_EFER)?;
        // SAFETY: only adds the instructions of AMD-V; all other bits stay.
        unsafe { wrmsr(IA32_EFER, efer | EFER_SVME) }
    }

    /// Gives this CPU its host save page, for ever.
    pub fn set_host_save(page: &'static Pages<4096>) -> Result<(), Fault> {
        // SAFETY: the page is `'static`, and only VMRUN and #VMEXIT use it.
        unsafe { wrmsr(VM_HSAVE_PA, physical(page)) }
    }

    /// TSC_AUX of this CPU.
    pub fn write_tsc_aux(value: u32) {
        // SAFETY: the hypervisor does not use TSC_AUX. A fault cannot happen where RDTSCP is offered; if it does, the old value,
        // a guest's, stays.
        let _ = unsafe { wrmsr(IA32_TSC_AUX, u64::from(value)) };
    }
}

/// No such register on the host on which tests run.
#[cfg(not(target_os = "none"))]
pub fn write_tsc_aux(_: u32) {}
