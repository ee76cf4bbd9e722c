//! What a domain asks of a vCPU.

use lull_core::units::CpuId;
use lull_core::wake::WakeWord;

use crate::virt::{
    Exit, Gate, Gp, Gpr, GuestCpuState, Injection, Segment, SegmentAttributes, StartState, VirtCpu,
};

use super::super::exit::{self, Decoded};
use super::super::features::SvmFlags;
use super::super::vmcb::{SegmentReg, clean, misc1, vintr};
use super::super::{msr, registers, reset};
use super::rounds::in_64_bit_code;
use super::{DB, DR6_BS, INTERRUPT_SHADOW, RFLAGS_IF, RFLAGS_TF, Step, SvmVcpu};

fn segment(register: SegmentReg) -> Segment {
    Segment {
        selector: register.selector,
        attributes: SegmentAttributes::from_bits_retain(register.attributes),
        limit: register.limit,
        base: register.base,
    }
}

impl VirtCpu for SvmVcpu {
    fn gpr(&self, register: Gpr) -> u64 {
        match register {
            Gpr::Rax => self.vmcb.save.rax,
            Gpr::Rsp => self.vmcb.save.rsp,
            _ => self.gprs[register.index()],
        }
    }

    fn set_gpr(&mut self, register: Gpr, value: u64) {
        match register {
            Gpr::Rax => self.vmcb.save.rax = value,
            Gpr::Rsp => self.vmcb.save.rsp = value,
            _ => self.gprs[register.index()] = value,
        }
    }

    fn rip(&self) -> u64 {
        self.vmcb.save.rip
    }

    fn rflags(&self) -> u64 {
        self.vmcb.save.rflags
    }

    fn set_rflags(&mut self, value: u64) {
        self.vmcb.save.rflags = value;
    }

    fn cpu_state(&self) -> GuestCpuState {
        let save = &self.vmcb.save;
        GuestCpuState {
            cr0: save.cr0,
            cr2: save.cr2,
            cr3: save.cr3,
            cr4: save.cr4,
            efer: msr::guest_efer(save),
            rflags: save.rflags,
            rip: save.rip,
            cpl: save.cpl,
            cs: segment(save.cs),
            ss: segment(save.ss),
            ds: segment(save.ds),
            es: segment(save.es),
            fs: segment(save.fs),
            gs: segment(save.gs),
        }
    }

    fn instruction_bytes(&self) -> &[u8] {
        let control = &self.vmcb.control;
        if !self
            .shared
            .features
            .flags
            .contains(SvmFlags::DECODE_ASSISTS)
        {
            return &[];
        }
        control
            .instruction
            .get(..usize::from(control.fetched))
            .unwrap_or(&[])
    }

    fn reset(&mut self, start: StartState) {
        self.gprs = reset::reset(&mut self.vmcb.save, start);
        self.vmcb.control.interrupt_shadow = 0;
        self.vmcb.control.vintr &= !vintr::TPR;
        self.window(None);
        self.intercept(misc1::IRET, false);
        self.nmi_masked = false;
        (self.iret_at, self.step) = (None, None);
        self.events.clear();
        self.fpu.reset();
        // A failed write leaves the register as it was, which only this vCPU can see.
        let _ = self.set_msr(x86::msr::IA32_TSC_AUX, 0);
        self.asid.drop_translations();
        self.clean = 0;
    }

    fn plain_code(&self) -> Option<(u64, u64)> {
        let save = &self.vmcb.save;
        in_64_bit_code(save).then_some((save.cr3, save.rip))
    }

    fn next_rip(&self) -> Option<u64> {
        let control = &self.vmcb.control;
        if control.exit_code == exit::IO
            && let Decoded::Exit(Exit::Io(io)) = self.decoded()
        {
            return io.next_rip;
        }
        // Saved for intercepted instructions only; zero where it was not.
        let saved = self.shared.features.flags.contains(SvmFlags::NRIPS) && control.next_rip != 0;
        saved.then_some(control.next_rip)
    }

    fn advance(&mut self, to_rip: u64) {
        self.vmcb.save.rip = to_rip;
        self.vmcb.control.interrupt_shadow &= !INTERRUPT_SHADOW;
        if self.vmcb.save.rflags & RFLAGS_TF != 0 {
            // The trap of the instruction that was emulated (AMD APM vol. 2, 13.1.4).
            self.vmcb.save.dr6 |= DR6_BS;
            self.events.push(Injection::Exception {
                vector: DB as u8,
                error: None,
            });
        }
    }

    fn interruptible(&self) -> bool {
        self.vmcb.save.rflags & RFLAGS_IF != 0 && !self.in_shadow() && !self.injection_pending()
    }

    fn nmi_ready(&self) -> bool {
        !self.nmi_masked && !self.in_shadow() && !self.injection_pending()
    }

    fn inject(&mut self, event: Injection) {
        if event == Injection::Nmi {
            self.nmi_masked = true;
            self.intercept(misc1::IRET, true);
        }
        self.events.push(event);
    }

    fn injection_pending(&self) -> bool {
        self.events.is_pending()
    }

    fn want_window(&mut self, on: bool) {
        self.window(on.then_some(vintr::PRIORITY | vintr::IGNORE_TPR));
    }

    fn want_window_below(&mut self, _class: u8) {
        // Not by V_INTR_PRIO: QEMU opens the window at the class itself, not below it. A write of CR8 is what ends the
        // wait, so it exits.
        self.window(None);
        self.intercept_cr8(true);
    }

    /// By a single step, over the IRET of the handler or over the instruction in the shadow: there is no such window in hardware.
    fn want_nmi_window(&mut self) {
        let save = &mut self.vmcb.save;
        let waits_for_iret = self.nmi_masked && self.iret_at != Some(save.rip);
        if waits_for_iret || self.events.is_pending() {
            return;
        }
        self.step = Some(Step {
            rip: save.rip,
            dr6: save.dr6,
            own: save.rflags & RFLAGS_TF != 0,
        });
        save.rflags |= RFLAGS_TF;
    }

    fn cr8(&self) -> u8 {
        (self.vmcb.control.vintr & vintr::TPR) as u8
    }

    fn set_cr8(&mut self, class: u8) {
        let field = &mut self.vmcb.control.vintr;
        *field = *field & !vintr::TPR | u64::from(class) & vintr::TPR;
    }

    fn get_msr(&self, msr: u32) -> Option<u64> {
        if msr == x86::msr::IA32_TSC_AUX {
            return self
                .shared
                .features
                .tsc_aux
                .then_some(u64::from(self.tsc_aux));
        }
        msr::get(&self.vmcb.save, msr)
    }

    fn set_msr(&mut self, msr: u32, value: u64) -> Result<(), Gp> {
        if msr == x86::msr::IA32_TSC_AUX {
            let Ok(value) = u32::try_from(value) else {
                return Err(Gp);
            };
            if !self.shared.features.tsc_aux {
                return Err(Gp);
            }
            self.tsc_aux = value;
            if self.loaded.is_some() {
                registers::write_tsc_aux(value);
            }
            return Ok(());
        }
        if msr == x86::msr::IA32_PAT {
            self.clean &= !clean::NESTED;
        }
        msr::set(&mut self.vmcb.save, msr, value)
    }

    fn remember_cpuid(&mut self, leaf: u32, subleaf: u32, regs: [u32; 4]) {
        self.cpuid.put(leaf, subleaf, regs);
    }

    fn forget_cpuid(&mut self) {
        self.cpuid.forget();
    }

    fn set_xcr0(&mut self, value: u64) -> Result<(), Gp> {
        self.fpu.set_xcr0(value)
    }

    fn xcr0(&self) -> u64 {
        self.fpu.xcr0()
    }

    fn set_tsc_offset(&mut self, offset: u64) {
        self.vmcb.control.tsc_offset = offset;
        self.clean &= !clean::INTERCEPTS;
    }

    fn load(&mut self, cpu: CpuId) {
        debug_assert!(self.loaded.is_none(), "vCPU is loaded on {:?}", self.loaded);
        self.fpu.load();
        if self.shared.features.tsc_aux {
            registers::write_tsc_aux(self.tsc_aux);
        }
        self.loaded = Some(cpu);
        // The processor keeps the groups by VMCB address and CPU; another vCPU's entries in between may have replaced them, and
        // this CPU may hold an old copy.
        self.clean = 0;
        self.kept.forget();
    }

    fn unload(&mut self) {
        self.fpu.unload();
        self.loaded = None;
    }

    fn enter(&mut self, word: &WakeWord, gate: &mut dyn Gate) -> Exit {
        if self.events.is_shutdown() {
            return Exit::TripleFault;
        }
        let Some(cpu) = self.loaded else {
            return Exit::Invalid {
                reason: "the vCPU is not loaded on any CPU".into(),
            };
        };
        match self.pass_gate(cpu, word, gate) {
            Ok(None) => self.after_exit(),
            Ok(Some(exit)) | Err(exit) => exit,
        }
    }
}
