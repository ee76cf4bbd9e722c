//! Intel's VMX: VMCS, extended page tables, VM entry.
//!
//! Read in this order: [`capability`] and `controls` (what the processor offers, what is switched on), `vmcs` and `field` (what it
//! sees), `reset`, `segment`, `event`, `exit` (what it means), `vcpu` (the trait), `entry` (the gate), and at the side `ept`,
//! `apic`, `vpid`, `msr`, `debug`, `check`, `host`.
//!
//! Lock order: the pool of VPIDs is a leaf, taken when vCPUs are made and dropped.

mod apic;
pub mod capability;
mod check;
mod controls;
mod debug;
mod entry;
mod ept;
mod event;
mod exit;
mod field;
mod host;
#[cfg(not(target_os = "none"))]
mod mock;
mod msr;
#[cfg(any(target_os = "none", test))]
mod probe;
mod reset;
mod segment;
mod vcpu;
mod vmcs;
mod vpid;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use lull_core::units::{CpuId, MAX_CPUS};
use raw_cpuid::CpuIdReader;
use spin::{Mutex, Once};

use super::GuestMemory;
use super::fpu::FpuFeatures;
pub use apic::ApicWanted;
pub use capability::NoVmx;
use capability::{Capabilities, ReadMsr};
pub use ept::Ept;
use host::HostCpu;
use msr::MsrMap;
pub use vcpu::VmxVcpu;
use vpid::VpidPool;

/// VMX of this machine.
#[derive(Clone)]
pub struct Vmx(Arc<Shared>);

/// What all vCPUs share.
struct Shared {
    capabilities: Capabilities,
    fpu: FpuFeatures,
    msr_map: Box<MsrMap>,
    /// The same, for a vCPU whose x2APIC the processor virtualizes.
    x2apic_msr_map: Box<MsrMap>,
    vpids: Mutex<VpidPool>,
    cpus: Vec<Once<HostCpu>>,
    /// See [`probe`]; found out on the first CPU.
    loses_rip: Once<bool>,
    /// Likewise.
    ignores_if: Once<bool>,
}

impl Shared {
    /// The pin-based control of posted interrupts, if it is used.
    fn posting(&self) -> u32 {
        let ignores_if = self.ignores_if.get() == Some(&true);
        self.capabilities.apic.posting_where(ignores_if)
    }

    fn cpu(&self, cpu: CpuId) -> Option<&HostCpu> {
        self.cpus.get(cpu.index())?.get()
    }
}

impl Vmx {
    /// VMX by CPUID and the capability MSRs, if firmware lets it be used.
    ///
    /// # Errors
    /// Why not.
    pub fn detect(
        cpuid: &impl CpuIdReader,
        msrs: &impl ReadMsr,
        wanted: ApicWanted,
    ) -> Result<Self, NoVmx> {
        if !Capabilities::in_cpuid(cpuid) {
            return Err(NoVmx::Absent);
        }
        capability::firmware(msrs)?;
        let mut capabilities = Capabilities::read(cpuid, msrs)?;
        capabilities.apic.keep(wanted);
        Ok(Self(Arc::new(Shared {
            msr_map: msr::msr_map(capabilities.tsc_aux),
            x2apic_msr_map: msr::x2apic_msr_map(capabilities.tsc_aux),
            capabilities,
            fpu: FpuFeatures::read(cpuid),
            loses_rip: Once::new(),
            ignores_if: Once::new(),
            vpids: Mutex::default(),
            cpus: core::iter::repeat_with(Once::new).take(MAX_CPUS).collect(),
        })))
    }

    pub(super) fn describe(&self) -> String {
        self.0.capabilities.describe(self.0.posting() != 0)
    }

    pub(super) fn new_vcpu(&self, ept: &Ept) -> VmxVcpu {
        VmxVcpu::new(&self.0, ept)
    }

    pub(super) fn new_ept(&self, memory: &GuestMemory) -> Ept {
        let capabilities = &self.0.capabilities;
        Ept::new(
            memory.host_base(),
            memory.size(),
            capabilities.max_page,
            capabilities.accessed_dirty,
        )
    }
}

/// The MSRs of the CPU that runs this.
pub struct NativeMsrs;

impl ReadMsr for NativeMsrs {
    #[cfg(target_os = "none")]
    fn read(&self, msr: u32) -> Option<u64> {
        crate::cpu::safe::rdmsr(msr).ok()
    }

    /// None on the host on which tests run.
    #[cfg(not(target_os = "none"))]
    fn read(&self, _: u32) -> Option<u64> {
        None
    }
}
