//! AMD-V: VMCB, nested paging, VMRUN.
//!
//! Read in this order: [`vmcb`] (what the processor sees), `reset`, `event`, `exit` (what it means), `vcpu` (the trait), `entry`
//! (the gate), and at the side `npt`, `asid`, `permissions`, `msr`, `check`.
//!
//! Lock order: the ASID pool of a CPU is a leaf; it is taken before and after an entry, never held across it.

mod asid;
mod check;
mod clean;
mod entry;
mod event;
mod exit;
mod features;
mod host;
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
use spin::Once;

use super::GuestMemory;
use super::fpu::FpuFeatures;
pub use features::NoSvm;
use features::SvmFeatures;
use host::HostCpu;
pub use npt::Npt;
use permissions::{IoMap, MsrMap};
pub use vcpu::SvmVcpu;

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
            doubles_injections: false,
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
