//! What a domain asks of a vCPU.

use alloc::sync::Arc;

use lull_core::units::{CpuId, Ticks};
use lull_core::wake::WakeWord;

use crate::virt::{
    ApicMode, ApicState, Exit, Gate, Gp, Gpr, GuestCpuState, Injection, InterruptRequests,
    ShownRegister, StartState, VirtCpu,
};

use super::super::exit::has_length;
use super::super::field::{Field, SegmentSlot};
use super::super::msr;
use super::{ANY_PRIORITY, BLOCKED_BY_NMI, NEVER_DELIVERED, RFLAGS_IF, RFLAGS_TF, SHADOW, VmxVcpu};

impl VirtCpu for VmxVcpu {
    fn gpr(&self, register: Gpr) -> u64 {
        match register {
            Gpr::Rsp => self.vmcs.read(Field::RSP),
            _ => self.gprs[register.index()],
        }
    }

    fn set_gpr(&mut self, register: Gpr, value: u64) {
        match register {
            Gpr::Rsp => self.vmcs.write(Field::RSP, value),
            _ => self.gprs[register.index()] = value,
        }
    }

    fn rip(&self) -> u64 {
        self.vmcs.read(Field::RIP)
    }

    fn rflags(&self) -> u64 {
        self.vmcs.read(Field::RFLAGS)
    }

    fn set_rflags(&mut self, value: u64) {
        self.vmcs.write(Field::RFLAGS, value);
    }

    fn cpu_state(&self) -> GuestCpuState {
        let ss = self.segment(SegmentSlot::Ss);
        GuestCpuState {
            cr0: self.guest_cr0(),
            cr2: self.cr2,
            cr3: self.vmcs.read(Field::CR3),
            cr4: self.guest_cr4(),
            efer: self.vmcs.read(Field::EFER),
            rflags: self.rflags(),
            rip: self.rip(),
            cpl: (ss.attributes.bits() >> 5 & 0b11) as u8,
            cs: self.segment(SegmentSlot::Cs),
            ss,
            ds: self.segment(SegmentSlot::Ds),
            es: self.segment(SegmentSlot::Es),
            fs: self.segment(SegmentSlot::Fs),
            gs: self.segment(SegmentSlot::Gs),
        }
    }

    fn cr4(&self) -> u64 {
        self.guest_cr4()
    }

    fn reset(&mut self, start: StartState) {
        self.cr2 = 0;
        self.events.clear();
        self.window = None;
        self.nmi_window = false;
        self.set_cr8(0);
        self.fpu.reset();
        self.msrs.reset();
        self.dr6.reset(self.loaded.is_some());
        if self.loaded.is_some() {
            self.apply_reset(start);
        } else {
            self.reset = Some(start);
        }
    }

    fn next_rip(&self) -> Option<u64> {
        if !has_length(self.last_exit) {
            return None;
        }
        let next = self
            .rip()
            .wrapping_add(self.vmcs.read(Field::INSTRUCTION_LENGTH));
        let wide = self.vmcs.read(Field::EFER) & (1 << 10) != 0
            && self.vmcs.read(SegmentSlot::Cs.rights()) & (1 << 13) != 0;
        Some(if wide { next } else { next & 0xffff_ffff })
    }

    fn advance(&mut self, to_rip: u64) {
        self.move_to(to_rip);
        if self.rflags() & RFLAGS_TF != 0 {
            // The trap of the instruction that was emulated (SDM vol. 3, 20.3.1.4).
            self.dr6.add_step();
            self.events.push(Injection::Exception {
                vector: 1,
                error: None,
            });
        }
    }

    fn interruptible(&self) -> bool {
        !self.injection_pending() && self.rflags() & RFLAGS_IF != 0 && self.blocked() & SHADOW == 0
    }

    fn nmi_ready(&self) -> bool {
        !self.injection_pending() && self.blocked() & (SHADOW | BLOCKED_BY_NMI) == 0
    }

    fn inject(&mut self, event: Injection) {
        if event == Injection::Nmi {
            // The caller looks for the next one when the handler of this one is done.
            self.nmi_window = true;
        }
        self.events.push(event);
    }

    fn injection_pending(&self) -> bool {
        self.events.is_pending()
    }

    fn want_window(&mut self, on: bool) {
        self.window = on.then_some(ANY_PRIORITY);
    }

    fn want_window_below(&mut self, class: u8) {
        self.window = Some(class);
    }

    fn want_nmi_window(&mut self) {
        self.nmi_window = true;
    }

    fn cr8(&self) -> u8 {
        if self.shared.capabilities.tpr_shadow() {
            self.apic.tpr() >> 4
        } else {
            self.cr8
        }
    }

    fn set_cr8(&mut self, class: u8) {
        self.cr8 = class & 0xf;
        self.apic.set_tpr(self.cr8 << 4);
    }

    fn take_requests_from(&mut self, requests: &Arc<InterruptRequests>) {
        self.requests = Some(requests.clone());
    }

    fn virtualizes_apic(&self) -> bool {
        self.shared.capabilities.apic.any()
    }

    fn show_apic(&mut self, mode: ApicMode, registers: &[ShownRegister]) -> bool {
        let controls = self.shared.capabilities.apic.of(mode);
        let same = controls == self.apic.controls();
        self.apic.show(controls, registers);
        if !same {
            self.vmcs.write(Field::PIN, self.pin());
            self.vmcs.write(Field::SECONDARY, self.secondary());
            self.vmcs.write(Field::MSR_BITMAP, self.msr_map());
        }
        if let Some(requests) = self.posts_from() {
            requests.set_posting(controls != 0);
        }
        controls != 0
    }

    fn lend_apic(&mut self, state: &ApicState) {
        let mut lent = *state;
        let faulty = self.shared.ignores_if.get() == Some(&true);
        if faulty && self.shared.posting() != 0 {
            lent.requested.insert(NEVER_DELIVERED);
        }
        self.apic.lend(&self.vmcs, &lent);
        if faulty && state.deliverable().is_some() && !self.interruptible() {
            self.window = Some(ANY_PRIORITY);
        }
    }

    fn take_apic_back(&mut self) -> ApicState {
        let mut state = self.apic.take_back(&self.vmcs);
        state.requested.remove(NEVER_DELIVERED);
        state
    }

    fn get_msr(&self, msr: u32) -> Option<u64> {
        msr::get(&self.vmcs, &self.msrs, msr)
    }

    fn set_msr(&mut self, msr: u32, value: u64) -> Result<(), Gp> {
        msr::set(&self.vmcs, &mut self.msrs, msr, value)
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
        self.tsc_offset = offset;
        if self.loaded.is_some() {
            self.vmcs.write(Field::TSC_OFFSET, offset);
        }
    }

    fn leave_by(&mut self, deadline: Option<Ticks>) -> bool {
        self.deadline = deadline;
        self.shared.capabilities.timer_shift.is_some()
    }

    fn load(&mut self, cpu: CpuId) {
        debug_assert!(self.loaded.is_none(), "vCPU is loaded on {:?}", self.loaded);
        self.fpu.load();
        self.attach(cpu);
    }

    fn unload(&mut self) {
        self.detach();
        self.fpu.unload();
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
