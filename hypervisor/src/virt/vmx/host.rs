//! What one pCPU needs to run guests, and how VMX is turned on there (SDM vol. 3, 25.7 and 25.8).

use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;

use super::capability::Invvpid;
#[cfg(any(target_os = "none", test))]
use super::capability::{Fixed, NoVmx};
use super::field::Field;
use super::vmcs::Vmcs;
use super::{ept, vpid};

/// A pCPU on which VMX is on. Exists for no other.
pub struct HostCpu {
    state: HostState,
    /// The generation of extended page tables that this CPU holds nothing older of.
    flushed: AtomicU64,
    /// Whose translations it may hold; kept in debug builds.
    held: Mutex<vpid::Held>,
}

/// What a VM exit loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    /// CR0, CR3, CR4.
    pub control: [u64; 3],
    /// ES, CS, SS, DS, FS, GS, TR.
    pub selectors: [u16; 7],
    /// FS, GS, TR, GDTR, IDTR.
    pub bases: [u64; 5],
    /// PAT, EFER.
    pub msrs: [u64; 2],
    /// Where an exit goes on.
    pub rip: u64,
}

impl HostState {
    fn fields(&self) -> impl Iterator<Item = (Field, u64)> {
        let control = [Field::HOST_CR0, Field::HOST_CR3, Field::HOST_CR4];
        let selectors = [
            Field::HOST_ES_SELECTOR,
            Field::HOST_CS_SELECTOR,
            Field::HOST_SS_SELECTOR,
            Field::HOST_DS_SELECTOR,
            Field::HOST_FS_SELECTOR,
            Field::HOST_GS_SELECTOR,
            Field::HOST_TR_SELECTOR,
        ];
        let bases = [
            Field::HOST_FS_BASE,
            Field::HOST_GS_BASE,
            Field::HOST_TR_BASE,
            Field::HOST_GDTR_BASE,
            Field::HOST_IDTR_BASE,
        ];
        let none = [
            Field::HOST_SYSENTER_CS,
            Field::HOST_SYSENTER_ESP,
            Field::HOST_SYSENTER_EIP,
        ];
        control
            .into_iter()
            .zip(self.control)
            .chain(selectors.into_iter().zip(self.selectors.map(u64::from)))
            .chain(bases.into_iter().zip(self.bases))
            .chain(
                [Field::HOST_PAT, Field::HOST_EFER]
                    .into_iter()
                    .zip(self.msrs),
            )
            .chain(none.into_iter().map(|field| (field, 0)))
            .chain([(Field::HOST_RIP, self.rip)])
    }
}

/// The base that a 64-bit TSS descriptor scatters (SDM vol. 3, 9.2.3).
#[cfg(any(target_os = "none", test))]
pub fn descriptor_base(low: u64, high: u64) -> u64 {
    low >> 16 & 0x00ff_ffff | (low >> 56 & 0xff) << 24 | high << 32
}

impl HostCpu {
    fn new(state: HostState) -> Self {
        Self {
            state,
            flushed: AtomicU64::new(0),
            held: Mutex::default(),
        }
    }

    /// Writes this CPU's own state into the current VMCS.
    pub fn write_state(&self, vmcs: &Vmcs) {
        for (field, value) in self.state.fields() {
            vmcs.write(field, value);
        }
    }

    /// Before an entry: drops what this CPU holds of extended page tables that are no more.
    #[inline]
    pub fn drop_stale_tables(&self) {
        if self.is_stale() {
            self.flush_tables();
        }
    }

    /// The only place that says that this CPU holds nothing old: right behind the flush.
    fn flush_tables(&self) {
        // Before the flush: a set that is made meanwhile asks for another one.
        let wanted = ept::generation();
        instructions::invept_all();
        self.flushed.store(wanted, Ordering::Relaxed);
    }

    fn is_stale(&self) -> bool {
        self.flushed.load(Ordering::Relaxed) != ept::generation()
    }

    /// The last thing before an entry, in debug builds: nothing that was due may have been left out. No emulator would notice.
    ///
    /// `needed` is the generation of the tables that are about to be used.
    ///
    /// # Panics
    /// If this CPU has not flushed since those tables were made.
    #[inline]
    pub fn check_flushed(&self, needed: u64) {
        if cfg!(debug_assertions) {
            let flushed = self.flushed.load(Ordering::Relaxed);
            assert!(
                flushed >= needed,
                "entry with extended page tables of generation {needed} on a CPU that has flushed up to {flushed}: INVEPT is missing since the tables were made"
            );
        }
    }

    /// As [`check_flushed`](Self::check_flushed), for what is kept under a VPID.
    ///
    /// # Panics
    /// If this CPU has not dropped what it may hold under `vpid` of another vCPU, or what is out of date.
    #[inline]
    pub fn check_dropped(&self, vpid: u16, owner: vpid::Owner) {
        if cfg!(debug_assertions) {
            self.held.lock().enter(vpid, owner);
        }
    }

    /// Drops what this CPU holds under a VPID.
    pub fn drop_translations(&self, how: Invvpid, vpid: u16) {
        instructions::invvpid(how, vpid);
        if cfg!(debug_assertions) {
            self.held.lock().dropped(vpid);
        }
    }
}

/// CR0 or CR4 as VMX wants it.
#[cfg(any(target_os = "none", test))]
pub fn fit(register: &'static str, value: u64, fixed: Fixed) -> Result<u64, NoVmx> {
    let value = value | fixed.ones;
    match value & !fixed.may {
        0 => Ok(value),
        forbidden => Err(NoVmx::FixedBits {
            register,
            forbidden,
        }),
    }
}

#[cfg(target_os = "none")]
mod instructions {
    #![expect(unsafe_code, reason = "VMX instructions")]

    use core::arch::asm;

    use super::Invvpid;

    /// Drops all that this CPU has cached by any extended page tables.
    pub fn invept_all() {
        const ALL_CONTEXTS: u64 = 2;
        let (descriptor, failed) = ([0u64; 2], &mut 0u8);
        // SAFETY: dropping cached translations is always allowed; VMX is on (`HostCpu` exists).
        unsafe {
            asm!("invept {t}, [{d}]", "setna {f}", t = in(reg) ALL_CONTEXTS, d = in(reg) &raw const descriptor,
                f = out(reg_byte) *failed, options(nostack));
        }
        assert!(*failed == 0, "INVEPT failed, although it is offered");
    }

    /// Drops what this CPU has cached under a VPID.
    pub fn invvpid(how: Invvpid, vpid: u16) {
        let (descriptor, failed) = ([u64::from(vpid), 0], &mut 0u8);
        // SAFETY: as in `invept_all`.
        unsafe {
            asm!("invvpid {t}, [{d}]", "setna {f}", t = in(reg) how as u64, d = in(reg) &raw const descriptor,
                f = out(reg_byte) *failed, options(nostack));
        }
        assert!(*failed == 0, "INVVPID failed, although it is offered");
    }
}

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "turns VMX on")]

    use alloc::boxed::Box;
    use alloc::format;
    use alloc::string::{String, ToString};
    use core::arch::asm;

    use lull_core::units::CpuId;
    use raw_cpuid::CpuIdReaderNative;
    use x86::msr;
    use x86::segmentation;

    use super::super::capability::{self, Capabilities, FEATURE_CONTROL_ON, Firmware, ReadMsr};
    use super::super::{NativeMsrs, Vmx, entry, probe};
    use super::{HostCpu, HostState, descriptor_base, fit};
    use crate::apic::{ipi, vector};
    use crate::cpu::regs;
    use crate::cpu::safe::wrmsr;
    use crate::virt::page::{Pages, physical, zeroed};
    use crate::virt::{GuestMemory, VirtCpu, fpu};

    #[repr(C, packed)]
    #[derive(Default)]
    struct TablePointer {
        limit: u16,
        base: u64,
    }

    impl Vmx {
        pub(in crate::virt) fn enable_on_this_cpu(&self, cpu: CpuId) -> Result<(), String> {
            let shared = &self.0;
            let slot = shared
                .cpus
                .get(cpu.index())
                .ok_or_else(|| format!("CPU {}: no such CPU", cpu.index()))?;
            let here = Capabilities::read(&CpuIdReaderNative, &NativeMsrs)
                .map_err(|why| why.to_string())?;
            if !here.covers(&shared.capabilities) {
                return Err("this CPU's VMX offers less than the first one's".into());
            }
            match capability::firmware(&NativeMsrs).map_err(|why| why.to_string())? {
                Firmware::Allows => {}
                Firmware::LeftOpen => {
                    // SAFETY: allows VMXON, and nothing else.
                    unsafe { wrmsr(msr::IA32_FEATURE_CONTROL, FEATURE_CONTROL_ON) }
                        .map_err(|fault| format!("firmware left VMX undecided, and IA32_FEATURE_CONTROL cannot be set ({fault})"))?;
                    log::info!("{cpu}: firmware left VMX undecided: switched on");
                }
            }
            fpu::prepare_cpu(shared.fpu);
            let cr0 = fit("CR0", regs::cr0(), here.cr0).map_err(|why| why.to_string())?;
            let cr4 = fit("CR4", regs::cr4(), here.cr4).map_err(|why| why.to_string())?;
            // SAFETY: only adds what VMX insists on: CR0.NE, CR4.VMXE; paging and protection are on anyway.
            unsafe {
                regs::set_cr0(cr0);
                regs::set_cr4(cr4);
            }
            if slot.get().is_none() {
                vmxon(Box::leak(zeroed::<Pages<4096>>()), here.revision)?;
            }
            slot.call_once(|| HostCpu::new(state()));
            if shared.loses_rip.get().is_none() {
                self.probe(cpu);
            }
            Ok(())
        }

        /// Looks for faults of the machine, on this CPU, on which VMX is on.
        fn probe(&self, cpu: CpuId) {
            let Ok(memory) = GuestMemory::allocate(GuestMemory::ALIGN) else {
                // Without 2 MiB there will be no guest.
                return;
            };
            let ept = self.new_ept(&memory);
            let mut vcpu = self.new_vcpu(&ept);
            vcpu.load(cpu);
            let found = probe::loses_rip(&mut vcpu, &memory);
            let ignores_if = probe::ignores_if(&mut vcpu, &memory, || {
                // Its handler says nothing.
                ipi::send_self(vector::EVENT_CHECK);
            });
            vcpu.unload();
            drop(vcpu);
            // SAFETY: the only vCPU that could reach it is gone; it came from `allocate`.
            let _ = unsafe { memory.release() };
            if let Some(runs) = found {
                log::warn!(
                    "VMX: this processor (an emulator) reports a wrong RIP after exceptions (found in run {runs}): they are all intercepted"
                );
            }
            if ignores_if {
                log::warn!(
                    "VMX: this processor (an emulator) delivers virtual interrupts to guests that have interrupts off: they are kept back until the guest can take them"
                );
                if self.0.capabilities.apic.posting_where(true) == 0 {
                    log::info!(
                        "VMX: for that reason no interrupts are posted (vmx.posted=on: all the same)"
                    );
                }
            }
            self.0.loses_rip.call_once(|| found.is_some());
            self.0.ignores_if.call_once(|| ignores_if);
        }
    }

    /// VMX operation begins; it lasts as long as the machine runs.
    fn vmxon(region: &'static mut Pages<4096>, revision: u32) -> Result<(), String> {
        for (to, from) in region.0.iter_mut().zip(revision.to_le_bytes()) {
            *to = from;
        }
        let address = physical(region);
        let (raised, failed): (u64, u8);
        // SAFETY: the region is `'static` and only the processor uses it from now on. A fault lands behind the instruction, with
        // R8 = 0x100 | vector, through the fix-up table.
        unsafe {
            asm!(
                "xor r8d, r8d",
                "2: vmxon [{a}]",
                "3: setna {f}",
                ".pushsection .lull_fixup,\"a\",@progbits",
                ".balign 16",
                ".quad 2b, 3b",
                ".popsection",
                a = in(reg) &raw const address,
                f = out(reg_byte) failed,
                out("r8") raised,
                out("r9") _,
                options(nostack)
            );
        }
        match (raised, failed) {
            (0, 0) => Ok(()),
            (0, _) => Err("VMXON failed: VMX is in use already".into()),
            (raised, _) => Err(format!("VMXON raised exception {}", raised & 0xff)),
        }
    }

    /// This CPU as it is now, which is how exits find it.
    fn state() -> HostState {
        let (mut gdt, mut idt) = (TablePointer::default(), TablePointer::default());
        let tr: u16;
        // SAFETY: these store registers, and change nothing.
        unsafe {
            asm!("sgdt [{}]", in(reg) &raw mut gdt, options(nostack, preserves_flags));
            asm!("sidt [{}]", in(reg) &raw mut idt, options(nostack, preserves_flags));
            asm!("str {:x}", out(reg) tr, options(nostack, nomem, preserves_flags));
        }
        let descriptor =
            core::ptr::with_exposed_provenance::<u64>(gdt.base as usize + usize::from(tr & !7));
        // SAFETY: the task register was loaded from this descriptor, which has 16 bytes.
        let (low, high) = unsafe { (descriptor.read(), descriptor.add(1).read()) };
        let msr = |msr| NativeMsrs.read(msr).unwrap_or(0);
        HostState {
            control: [regs::cr0(), regs::cr3(), regs::cr4()],
            selectors: [
                segmentation::es().bits(),
                segmentation::cs().bits(),
                segmentation::ss().bits(),
                segmentation::ds().bits(),
                segmentation::fs().bits(),
                segmentation::gs().bits(),
                tr,
            ],
            bases: [
                msr(msr::IA32_FS_BASE),
                msr(msr::IA32_GS_BASE),
                descriptor_base(low, high),
                gdt.base,
                idt.base,
            ],
            msrs: [msr(msr::IA32_PAT), msr(msr::IA32_EFER)],
            rip: entry::exit_address(),
        }
    }
}

#[cfg(not(target_os = "none"))]
use super::mock::instructions;

#[cfg(not(target_os = "none"))]
mod hardware {
    use alloc::string::String;

    use lull_core::units::CpuId;

    use super::super::Vmx;
    use super::{HostCpu, HostState};

    impl Vmx {
        pub(in crate::virt) fn enable_on_this_cpu(&self, cpu: CpuId) -> Result<(), String> {
            let slot = self.0.cpus.get(cpu.index()).ok_or("no such CPU")?;
            slot.call_once(|| HostCpu::new(HostState::default()));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::descriptors::tss_descriptor;

    #[test]
    fn a_scattered_base_is_put_together() {
        let base = 0x1122_3344_5566_7788;
        let [low, high] = tss_descriptor(base, 103);
        assert_eq!(descriptor_base(low, high), base);
    }

    #[test]
    fn control_registers_get_what_vmx_insists_on() {
        let fixed = Fixed {
            ones: 0x2000,
            may: 0x27ff,
        };
        assert_eq!(fit("CR4", 0x20, fixed), Ok(0x2020));
        assert_eq!(
            fit("CR4", 0x1_0020, fixed),
            Err(NoVmx::FixedBits {
                register: "CR4",
                forbidden: 0x1_0000
            })
        );
    }

    #[test]
    #[should_panic(expected = "INVEPT is missing since the tables were made")]
    fn an_entry_without_the_flush_is_caught() {
        let host = HostCpu::new(HostState::default());
        host.check_flushed(ept::generation() + 1);
    }

    #[test]
    fn a_flush_is_enough_for_all_tables_so_far() {
        let host = HostCpu::new(HostState::default());
        let needed = ept::generation();
        host.drop_stale_tables();
        host.check_flushed(needed);
    }

    #[test]
    fn all_of_the_host_comes_back_at_an_exit() {
        let state = HostState {
            control: [1, 2, 3],
            selectors: [4, 5, 6, 7, 8, 9, 10],
            bases: [11, 12, 13, 14, 15],
            msrs: [16, 17],
            rip: 18,
        };
        let vmcs = Vmcs::new(1);
        vmcs.make_current(lull_core::units::CpuId::new(0));
        HostCpu::new(state).write_state(&vmcs);
        let read = |field| vmcs.read(field);
        assert_eq!((read(Field::HOST_CR3), read(Field::HOST_CR4)), (2, 3));
        assert_eq!(
            (read(Field::HOST_CS_SELECTOR), read(Field::HOST_TR_SELECTOR)),
            (5, 10)
        );
        assert_eq!(
            (read(Field::HOST_GS_BASE), read(Field::HOST_IDTR_BASE)),
            (12, 15)
        );
        assert_eq!((read(Field::HOST_EFER), read(Field::HOST_RIP)), (17, 18));
    }
}
