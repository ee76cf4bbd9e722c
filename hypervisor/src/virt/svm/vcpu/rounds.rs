//! The exits of one passage of the gate, answered between two entries where they can be.

use alloc::sync::Arc;

use lull_core::wake::WakeWord;

use crate::virt::{Answer, Exit, Gate, Gpr, GuestMemory, Injection, SegmentAttributes, fast};

use super::super::event::is_valid;
use super::super::exit::{CPUID, MSR, VMMCALL};
use super::super::vmcb::{Save, TlbControl, Vmcb, vintr};
use super::{RFLAGS_TF, SvmVcpu};

/// The exits of one passage of the gate.
pub(in super::super) struct Rounds<'a> {
    pub(super) vcpu: &'a mut SvmVcpu,
    pub(super) gate: &'a mut dyn Gate,
    pub(super) word: &'a WakeWord,
    /// The last entry was not the first, and had no event to deliver: the control area is as it has to be.
    pub(super) settled: bool,
    /// Nobody steps through the guest, and exits are answered at all.
    pub(super) plain: bool,
    /// The processor tells where the next instruction is.
    pub(super) tells_next: bool,
    /// How the run ended, if by an exit that was answered.
    pub(super) answered: Option<Exit>,
    /// CPUIDs that were answered.
    pub(super) cpuids: u64,
    pub(super) memory: Option<Arc<GuestMemory>>,
}

impl Rounds<'_> {
    /// What the entry needs.
    pub(in super::super) fn registers(&mut self) -> (&mut [u64; 16], &mut Vmcb) {
        (&mut self.vcpu.gprs, &mut self.vcpu.vmcb)
    }

    /// There was an exit. `true`: it was answered, enter again.
    ///
    /// Asked is who stands at the gate, if the exit is one of those that may be answered there, and nothing is out of the ordinary:
    /// no delivery was interrupted, nobody steps. Each kind is a function of its own, so that none pays for another's registers.
    #[inline(always)]
    pub(in super::super) fn exited(&mut self) -> bool {
        self.vcpu.kept.entered(&self.vcpu.vmcb);
        let again = match self.vcpu.vmcb.control.exit_code {
            CPUID => self.cpuid(),
            MSR if self.vcpu.vmcb.control.exit_info1 & 1 == 0 => self.read_msr(),
            MSR => self.write_msr(),
            VMMCALL => self.hypercall(),
            _ => false,
        };
        if again {
            self.vcpu.kept.check(&self.vcpu.vmcb);
        }
        again
    }

    #[inline(always)]
    fn cpuid(&mut self) -> bool {
        let Some(next) = self.ordinary(fast::opcode::CPUID) else {
            return false;
        };
        let SvmVcpu {
            vmcb, gprs, cpuid, ..
        } = &mut *self.vcpu;
        let (leaf, subleaf) = (vmcb.save.rax as u32, gprs[Gpr::Rcx.index()] as u32);
        let Some(regs) = cpuid.get(leaf, subleaf, vmcb.save.cr4) else {
            return false;
        };
        fast::set_cpuid(gprs, regs);
        self.cpuids += 1;
        self.enter_again(Answer::Enter, next)
    }

    #[inline(never)]
    fn read_msr(&mut self) -> bool {
        let Some(next) = self.ordinary(fast::opcode::RDMSR) else {
            return false;
        };
        let SvmVcpu { vmcb, gprs, .. } = &mut *self.vcpu;
        let tpr = vmcb.control.vintr & vintr::TPR;
        gprs[Gpr::Rax.index()] = vmcb.save.rax;
        let answer = self.gate.read_msr(gprs, tpr as u8);
        self.enter_again(answer, next)
    }

    #[inline(never)]
    fn write_msr(&mut self) -> bool {
        let Some(next) = self.ordinary(fast::opcode::WRMSR) else {
            return false;
        };
        let SvmVcpu { vmcb, gprs, .. } = &mut *self.vcpu;
        let tpr = (vmcb.control.vintr & vintr::TPR) as u8;
        let mut cr8 = tpr;
        gprs[Gpr::Rax.index()] = vmcb.save.rax;
        let answer = self.gate.write_msr(gprs, &mut cr8);
        vmcb.control.vintr ^= u64::from(tpr ^ cr8) & vintr::TPR;
        self.enter_again(answer, next)
    }

    #[inline(never)]
    fn hypercall(&mut self) -> bool {
        if !self.is_ordinary() {
            return false;
        }
        let answer = self.gate.hypercall();
        self.settle(answer, 0)
    }

    /// Whether an answer needs nothing but registers. What the exit says about events is booked then.
    #[inline(always)]
    fn is_ordinary(&mut self) -> bool {
        let Vmcb { control, save } = &*self.vcpu.vmcb;
        if !self.plain || is_valid(control.exit_int_info) || save.rflags & RFLAGS_TF != 0 {
            return false;
        }
        if !self.settled {
            self.book();
        }
        true
    }

    /// Where the instruction ends, if it can be answered.
    #[inline(always)]
    fn ordinary(&mut self, opcode: u8) -> Option<u64> {
        if !self.is_ordinary() {
            return None;
        }
        let Vmcb { control, save } = &*self.vcpu.vmcb;
        if self.tells_next && control.next_rip != 0 {
            return Some(control.next_rip);
        }
        let memory = self.memory.as_ref()?;
        if !in_64_bit_code(save) {
            return None;
        }
        fast::next(memory, save.cr3, save.rip, opcode)
    }

    #[cold]
    fn book(&mut self) {
        self.vcpu.book_event();
        self.vcpu.booked = true;
    }

    /// Makes an answer what the guest finds. `true`: it is to be entered again.
    #[inline(always)]
    fn enter_again(&mut self, answer: Answer, next: u64) -> bool {
        if answer != Answer::Enter {
            return self.settle(answer, next);
        }
        let SvmVcpu { vmcb, gprs, .. } = &mut *self.vcpu;
        vmcb.save.rax = gprs[Gpr::Rax.index()];
        vmcb.save.rip = next;
        vmcb.control.interrupt_shadow = 0;
        if self.settled && !self.word.is_pending() {
            return true;
        }
        self.settle(Answer::Enter, next)
    }

    /// The rarer ends of an answer: the entry was the first or has delivered an event, there is one to deliver, or something to look
    /// at.
    #[cold]
    #[inline(never)]
    fn settle(&mut self, answer: Answer, next: u64) -> bool {
        let vcpu = &mut *self.vcpu;
        match answer {
            Answer::Leave => return false,
            Answer::Enter | Answer::Look => {
                vcpu.vmcb.save.rax = vcpu.gprs[Gpr::Rax.index()];
                vcpu.vmcb.save.rip = next;
                vcpu.vmcb.control.interrupt_shadow = 0;
            }
            Answer::Undefined => {}
        }
        // What was queued behind the event that was delivered has to be looked at first.
        let waits = vcpu.events.is_pending();
        let undefined = answer == Answer::Undefined;
        if undefined {
            vcpu.events.push(Injection::UD);
        }
        if waits || answer == Answer::Look || self.word.is_pending() {
            self.answered = Some(Exit::Answered);
            return false;
        }
        vcpu.booked = false;
        self.settled = !undefined;
        vcpu.vmcb.control.event_inj = 0;
        if undefined {
            vcpu.place_event();
        }
        let control = &mut vcpu.vmcb.control;
        control.tlb_control = TlbControl::Keep as u8;
        control.clean = vcpu.clean;
        true
    }
}

/// In 64-bit code, under four levels of paging.
#[inline]
pub(super) fn in_64_bit_code(save: &Save) -> bool {
    const EFER_LMA: u64 = 1 << 10;
    const CR4_LA57: u64 = 1 << 12;
    save.efer & EFER_LMA != 0
        && save.cr4 & CR4_LA57 == 0
        && save.cs.attributes & SegmentAttributes::LONG.bits() != 0
}
