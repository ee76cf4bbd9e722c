//! Which virtualization hardware there is: by feature bits, never by the vendor's name.

use alloc::string::String;

use raw_cpuid::{CpuIdReader, CpuIdReaderNative};

use super::Backend;
use super::svm::{NoSvm, Svm};

/// The backend for this machine, by the CPU that runs this code.
///
/// # Errors
/// A sentence that says why guests cannot run.
pub fn detect() -> Result<Backend, String> {
    detect_by(&CpuIdReaderNative)
}

fn detect_by(cpuid: &impl CpuIdReader) -> Result<Backend, String> {
    let vmx = cpuid.cpuid1(1).ecx & (1 << 5) != 0;
    match Svm::detect(cpuid) {
        Ok(svm) => Ok(Backend::Svm(svm)),
        Err(NoSvm::NoNestedPaging) => {
            Err("SVM present, but without nested paging, which Lull needs".into())
        }
        Err(NoSvm::Absent) if vmx => Err("VMX present, backend not built in yet".into()),
        Err(NoSvm::Absent) => Err(
            "the CPU offers neither SVM nor VMX (hidden by an outer hypervisor, or switched off)"
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use raw_cpuid::CpuIdResult;

    use super::*;

    fn machine(vmx: bool, svm: bool, npt: bool) -> Result<&'static str, String> {
        let cpuid = move |leaf: u32, _: u32| {
            let mut result = CpuIdResult {
                eax: 0,
                ebx: 0,
                ecx: 0,
                edx: 0,
            };
            match leaf {
                1 => result.ecx = u32::from(vmx) << 5,
                0x8000_0000 => result.eax = 0x8000_000a,
                0x8000_0001 => result.ecx = u32::from(svm) << 2,
                0x8000_000a => (result.ebx, result.edx) = (16, u32::from(npt)),
                _ => {}
            }
            result
        };
        detect_by(&cpuid).map(|backend| backend.name())
    }

    #[test]
    fn tells_what_it_found() {
        assert_eq!(machine(false, true, true), Ok("svm"));
        assert_eq!(machine(true, true, true), Ok("svm"));
        assert!(
            machine(true, true, false)
                .unwrap_err()
                .contains("without nested paging")
        );
        assert_eq!(
            machine(true, false, false).unwrap_err(),
            "VMX present, backend not built in yet"
        );
        assert!(
            machine(false, false, false)
                .unwrap_err()
                .contains("neither SVM nor VMX")
        );
    }
}
