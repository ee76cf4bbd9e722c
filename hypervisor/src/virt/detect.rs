//! Which virtualization hardware there is: by feature bits, never by the vendor's name.

use alloc::string::{String, ToString};

use raw_cpuid::{CpuIdReader, CpuIdReaderNative};

use super::Backend;
use super::svm::{NoSvm, Svm};
use super::vmx::capability::ReadMsr;
use super::vmx::{ApicWanted, NativeMsrs, NoVmx, Vmx};

/// The backend for this machine, by the CPU that runs this code. `apic`: what it may use for guests' APICs.
///
/// # Errors
/// A sentence that says why guests cannot run.
pub fn detect(apic: ApicWanted) -> Result<Backend, String> {
    detect_by(&CpuIdReaderNative, &NativeMsrs, apic)
}

fn detect_by(
    cpuid: &impl CpuIdReader,
    msrs: &impl ReadMsr,
    apic: ApicWanted,
) -> Result<Backend, String> {
    let no_svm = match Svm::detect(cpuid) {
        Ok(svm) => return Ok(Backend::Svm(svm)),
        Err(why) => why,
    };
    match (Vmx::detect(cpuid, msrs, apic), no_svm) {
        (Ok(vmx), _) => Ok(Backend::Vmx(vmx)),
        (Err(_), NoSvm::NoNestedPaging) => {
            Err("SVM present, but without nested paging, which Lull needs".into())
        }
        (Err(NoVmx::Absent), NoSvm::Absent) => Err(
            "the CPU offers neither SVM nor VMX (hidden by an outer hypervisor, or switched off)"
                .into(),
        ),
        (Err(why), NoSvm::Absent) => Err(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use raw_cpuid::CpuIdResult;

    use super::super::vmx::capability::tests::{Fake, skylake};
    use super::*;

    fn machine(vmx: Option<Fake>, svm: bool, npt: bool) -> Result<&'static str, String> {
        let has_vmx = vmx.is_some();
        let cpuid = move |leaf: u32, _: u32| {
            let mut result = CpuIdResult {
                eax: 0,
                ebx: 0,
                ecx: 0,
                edx: 0,
            };
            match leaf {
                1 => result.ecx = u32::from(has_vmx) << 5,
                0x8000_0000 => result.eax = 0x8000_000a,
                0x8000_0001 => result.ecx = u32::from(svm) << 2,
                0x8000_000a => (result.ebx, result.edx) = (16, u32::from(npt)),
                _ => {}
            }
            result
        };
        let msrs = vmx.unwrap_or_default();
        detect_by(
            &cpuid,
            &|msr| msrs.get(&msr).copied(),
            ApicWanted::default(),
        )
        .map(|backend| backend.name())
    }

    #[test]
    fn tells_what_it_found() {
        assert_eq!(machine(None, true, true), Ok("svm"));
        assert_eq!(machine(Some(skylake()), true, true), Ok("svm"));
        assert_eq!(machine(Some(skylake()), false, false), Ok("vmx"));
        assert!(
            machine(None, true, false)
                .unwrap_err()
                .contains("without nested paging")
        );
        assert!(
            machine(None, false, false)
                .unwrap_err()
                .contains("neither SVM nor VMX")
        );
    }

    #[test]
    fn vmx_that_cannot_be_used_says_why() {
        let mut locked = skylake();
        locked.insert(x86::msr::IA32_FEATURE_CONTROL, 1);
        assert!(
            machine(Some(locked), false, false)
                .unwrap_err()
                .contains("firmware switched VMX off")
        );
        let mut no_ept = skylake();
        no_ept.insert(
            x86::msr::IA32_VMX_PROCBASED_CTLS2,
            !(1 << 33) & !0xffff_ffff,
        );
        assert!(
            machine(Some(no_ept), false, false)
                .unwrap_err()
                .contains("without EPT")
        );
    }
}
