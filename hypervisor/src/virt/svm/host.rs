//! What one pCPU needs to run guests, and how AMD-V is turned on there (AMD APM vol. 2, 15.4).
#![cfg_attr(
    target_os = "none",
    expect(unsafe_code, reason = "turns AMD-V on, runs guests")
)]

use alloc::boxed::Box;
use alloc::string::String;

use lull_core::units::CpuId;
use spin::Mutex;

use super::Svm;
use super::asid::AsidPool;
use super::vcpu::Rounds;
use super::vmcb::Vmcb;

/// A pCPU on which AMD-V is on. Exists for no other.
pub struct HostCpu {
    /// Identifiers for the guests that run here.
    pub asids: Mutex<AsidPool>,
    /// The host's VMLOAD state of this CPU.
    state: Box<Vmcb>,
}

#[cfg(target_os = "none")]
mod hardware {
    use alloc::format;

    use raw_cpuid::CpuIdReaderNative;

    use super::super::features::{SvmFeatures, SvmFlags};
    use super::super::page::{Pages, physical, zeroed};
    use super::super::{entry, registers};
    use super::{AsidPool, Box, CpuId, HostCpu, Mutex, Rounds, String, Svm, Vmcb};
    use crate::virt::fpu;

    impl HostCpu {
        /// The guest runs on this CPU until an exit that is not answered; the gate is closed.
        pub fn run(&self, rounds: &mut Rounds<'_>) {
            // SAFETY: `self` exists, so AMD-V is on here and `state` was filled by VMSAVE; `SvmVcpu`, the only caller, closed the
            // gate, owns the VMCB, and keeps its maps and tables alive.
            unsafe { entry::run(rounds, physical(&*self.state)) };
        }
    }

    impl Svm {
        pub(in crate::virt) fn enable_on_this_cpu(&self, cpu: CpuId) -> Result<(), String> {
            let slot = self
                .0
                .cpus
                .get(cpu.index())
                .ok_or_else(|| format!("CPU {}: no such CPU", cpu.index()))?;
            let features = SvmFeatures::read(&CpuIdReaderNative)
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
                let locked = if vm_cr & registers::VM_CR_LOCK != 0 {
                    ", locked"
                } else {
                    ""
                };
                return Err(format!(
                    "firmware switched AMD-V off (VM_CR.SVMDIS{locked}); switch on \"SVM mode\" in its setup"
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

/// On the host on which tests run: a processor on which every guest is left at once, by CPUID.
#[cfg(not(target_os = "none"))]
mod hardware {
    use super::super::page::zeroed;
    use super::{AsidPool, CpuId, HostCpu, Mutex, Rounds, String, Svm, Vmcb};

    impl HostCpu {
        /// A guest that is left at once, again and again.
        pub fn run(&self, rounds: &mut Rounds<'_>) {
            loop {
                rounds.registers().1.control.exit_code = self.state.control.exit_code;
                if !rounds.exited() {
                    return;
                }
            }
        }
    }

    impl Svm {
        pub(in crate::virt) fn enable_on_this_cpu(&self, cpu: CpuId) -> Result<(), String> {
            let slot = self.0.cpus.get(cpu.index()).ok_or("no such CPU")?;
            slot.call_once(|| {
                let mut state = zeroed::<Vmcb>();
                state.control.exit_code = 0x72;
                HostCpu {
                    asids: Mutex::new(AsidPool::new(cpu, 16, false)),
                    state,
                }
            });
            Ok(())
        }
    }
}
