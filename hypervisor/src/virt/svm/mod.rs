//! AMD-V: VMCB, nested paging, VMRUN.
//!
//! Read in this order: [`vmcb`] (what the processor sees), `reset`, `event`, `exit` (what it means), `vcpu` (the trait), `entry`
//! (the gate), and at the side `npt`, `asid`, `permissions`, `msr`, `check`.
//!
//! Lock order: the ASID pool of a CPU is a leaf; it is taken before and after an entry, never held across it.

mod asid;
mod check;
mod entry;
mod event;
mod exit;
mod features;
mod msr;
mod npt;
mod page;
mod permissions;
mod registers;
mod reset;
mod vcpu;
pub mod vmcb;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use lull_core::units::{CpuId, MAX_CPUS};
use raw_cpuid::CpuIdReader;
use spin::{Mutex, Once};

use super::GuestMemory;
use super::fpu::FpuFeatures;
use asid::AsidPool;
pub use features::NoSvm;
use features::SvmFeatures;
pub use npt::Npt;
use page::zeroed;
use permissions::{IoMap, MsrMap};
pub use vcpu::SvmVcpu;
use vmcb::Vmcb;

/// AMD-V of this machine.
#[derive(Clone)]
pub struct Svm(Arc<Shared>);

/// What all vCPUs share.
struct Shared {
    features: SvmFeatures,
    fpu: FpuFeatures,
    io_map: Box<IoMap>,
    msr_map: Box<MsrMap>,
    cpus: Vec<Once<HostCpu>>,
}

impl Shared {
    fn cpu(&self, cpu: CpuId) -> Option<&HostCpu> {
        self.cpus.get(cpu.index())?.get()
    }
}

/// What one pCPU needs to run guests. Exists only for CPUs on which AMD-V is on.
struct HostCpu {
    asids: Mutex<AsidPool>,
    /// The host's VMLOAD state of this CPU.
    state: Box<Vmcb>,
}

impl Svm {
    /// AMD-V by CPUID.
    pub fn detect(cpuid: &impl CpuIdReader) -> Result<Self, NoSvm> {
        Ok(Self::new(
            SvmFeatures::read(cpuid)?,
            FpuFeatures::read(cpuid),
        ))
    }

    fn new(features: SvmFeatures, fpu: FpuFeatures) -> Self {
        Self(Arc::new(Shared {
            features,
            fpu,
            io_map: permissions::io_map(),
            msr_map: permissions::msr_map(),
            cpus: core::iter::repeat_with(Once::new).take(MAX_CPUS).collect(),
        }))
    }

    pub(super) fn describe(&self) -> String {
        self.0.features.describe()
    }

    pub(super) fn new_vcpu(&self, npt: &Npt) -> SvmVcpu {
        SvmVcpu::new(&self.0, npt)
    }

    pub(super) fn new_npt(&self, memory: &GuestMemory) -> Npt {
        Npt::new(memory.host_base(), memory.size(), self.0.features.max_page)
    }

    #[cfg(test)]
    fn for_test() -> Self {
        let features = SvmFeatures {
            asids: 16,
            flags: features::SvmFlags::NESTED_PAGING,
            max_page: npt::MaxPage::Size2M,
            tsc_aux: true,
            rdpru: false,
            invlpgb: false,
            mcommit: false,
            physical_bits: 52,
        };
        Self::new(
            features,
            FpuFeatures {
                xcr0: Some(7),
                size: 832,
            },
        )
    }
}

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "turns AMD-V on, runs guests")]

    use alloc::format;

    use super::features::SvmFlags;
    use super::page::Pages;
    use super::*;
    use crate::virt::fpu;

    impl HostCpu {
        /// One guest run on this CPU; the gate is closed.
        pub(super) fn run(&self, gprs: &mut [u64; 16], vmcb: &mut Vmcb) {
            // SAFETY: `self` exists, so AMD-V is on here and `state` was filled by VMSAVE; `SvmVcpu`, the only caller, closed the
            // gate, owns the VMCB, and keeps its maps and tables alive.
            unsafe { entry::run(gprs, vmcb, super::page::physical(&*self.state)) };
        }
    }

    impl Svm {
        pub(in crate::virt) fn enable_on_this_cpu(&self, cpu: CpuId) -> Result<(), String> {
            let slot = self
                .0
                .cpus
                .get(cpu.index())
                .ok_or_else(|| format!("CPU {}: no such CPU", cpu.index()))?;
            let features = SvmFeatures::read(&raw_cpuid::CpuIdReaderNative)
                .map_err(|_| "this CPU has no AMD-V, the first one has")?;
            if !features
                .flags
                .contains(self.0.features.flags & SvmFlags::all())
            {
                return Err("this CPU's AMD-V offers less than the first one's".into());
            }
            // Emulators may lack VM_CR: then nothing is disabled.
            if let Ok(vm_cr) = registers::read(registers::VM_CR)
                && vm_cr & registers::VM_CR_SVMDIS != 0
            {
                let locked = vm_cr & registers::VM_CR_LOCK != 0;
                return Err(format!(
                    "firmware switched AMD-V off (VM_CR.SVMDIS{}); switch on \"SVM mode\" in its setup",
                    if locked { ", locked" } else { "" }
                ));
            }
            registers::set_svme().map_err(|fault| format!("EFER.SVME cannot be set ({fault})"))?;
            registers::set_host_save(Box::leak(zeroed::<Pages<4096>>()))
                .map_err(|fault| format!("VM_HSAVE_PA cannot be set ({fault})"))?;
            fpu::prepare_cpu(self.0.fpu);
            slot.call_once(|| {
                let mut state = zeroed::<Vmcb>();
                // SAFETY: EFER.SVME was set above, on this CPU.
                unsafe { entry::save_host(&mut state) };
                let flush_by_asid = features.flags.contains(SvmFlags::FLUSH_BY_ASID);
                HostCpu {
                    asids: Mutex::new(AsidPool::new(cpu, features.asids, flush_by_asid)),
                    state,
                }
            });
            Ok(())
        }
    }
}

/// On the host on which tests run no guest runs.
#[cfg(not(target_os = "none"))]
mod hardware {
    use super::*;

    impl HostCpu {
        pub(super) fn run(&self, _: &mut [u64; 16], _: &mut Vmcb) {}
    }

    impl Svm {
        pub(in crate::virt) fn enable_on_this_cpu(&self, _: CpuId) -> Result<(), String> {
            Err("not on the bare machine".into())
        }
    }
}
