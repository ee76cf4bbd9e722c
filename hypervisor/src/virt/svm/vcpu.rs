//! One vCPU on AMD-V.
//!
//! Invariants:
//! * The VMCB is touched only through `&mut self`, so never while the guest runs.
//! * `clean` names a group only if nothing in it was written since the last entry on the same pCPU. Only groups that are written
//!   in few places are ever named.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;

use lull_core::units::CpuId;
use lull_core::wake::{SleepState, WakeWord};

use crate::virt::fpu::FpuState;
use crate::virt::{
    AddressSize, Answer, Exit, Gate, GateEvent, Gp, Gpr, GuestCpuState, GuestMemory, Injection,
    Segment, SegmentAttributes, StartState, VirtCpu, fast,
};

use super::asid::AsidTag;
use super::clean::Kept;
use super::event::{
    EventQueue, encode, encode_software, interrupted_delivery, interrupted_software, is_valid,
};
use super::exit::{CPUID, Decoded, MSR, VMMCALL, decode};
use super::features::SvmFlags;
use super::host::HostCpu;
use super::npt::Npt;
use super::page::{physical, zeroed};
use super::vmcb::{
    INTERCEPT_CR8_WRITE, Save, SegmentReg, TlbControl, Vmcb, clean, misc1, misc2, misc3, vintr,
};
use super::{Shared, check, entry, msr, registers, reset};

const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_IF: u64 = 1 << 9;
/// DR6: a single step; a breakpoint.
const DR6_BS: u64 = 1 << 14;
const DR6_BREAKPOINTS: u64 = 0b1111;
const NESTED_PAGING: u64 = 1 << 0;
const INTERRUPT_SHADOW: u64 = 1 << 0;
const DB: u32 = 1;
const AC: u32 = 17;
const MC: u32 = 18;
/// PAUSE instructions in one spin loop before an exit, and the ticks that end such a loop, where the processor counts.
const PAUSE_COUNT: u16 = 3000;
const PAUSE_THRESHOLD: u16 = 128;

/// One step of the guest by RFLAGS.TF: what was there before.
#[derive(Clone, Copy)]
struct Step {
    rip: u64,
    dr6: u64,
    /// The guest steps itself.
    own: bool,
}

/// How the event of an entry goes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Placed {
    /// By EVENTINJ, as what it is.
    #[default]
    Exactly,
    /// An interrupt, by EVENTINJ as a software interrupt.
    Software,
    /// An interrupt, as the virtual interrupt.
    Virtual,
}

/// A vCPU.
pub struct SvmVcpu {
    vmcb: Box<Vmcb>,
    /// In encoding order; RAX and RSP live in the VMCB.
    gprs: [u64; 16],
    fpu: FpuState,
    cpuid: fast::Remembered,
    tsc_aux: u32,
    events: EventQueue,
    /// An NMI handler runs in the guest.
    nmi_masked: bool,
    /// Where the IRET is that ends the handler: it has been reached, and was not seen to be done.
    iret_at: Option<u64>,
    /// The guest makes one step for us, so that an NMI finds it where it can be taken.
    step: Option<Step>,
    placed: Placed,
    /// What the last exit says about events was booked already.
    booked: bool,
    asid: AsidTag,
    loaded: Option<CpuId>,
    /// Groups of the VMCB unchanged since the last entry.
    clean: u32,
    kept: Kept,
    shared: Arc<Shared>,
    /// Keeps the tables alive that the VMCB points to.
    _npt: Npt,
}

impl SvmVcpu {
    pub(super) fn new(shared: &Arc<Shared>, npt: &Npt) -> Self {
        let mut vcpu = Self {
            vmcb: zeroed(),
            gprs: [0; 16],
            fpu: FpuState::new(shared.fpu),
            cpuid: fast::Remembered::new(),
            tsc_aux: 0,
            events: EventQueue::default(),
            nmi_masked: false,
            iret_at: None,
            step: None,
            placed: Placed::Exactly,
            booked: false,
            asid: AsidTag::default(),
            loaded: None,
            clean: 0,
            kept: Kept::default(),
            shared: shared.clone(),
            _npt: npt.clone(),
        };
        vcpu.set_controls(npt.root());
        vcpu.reset(StartState::WaitForSipi);
        vcpu
    }

    /// Everything in the control area that does not change with the guest's state.
    fn set_controls(&mut self, nested_root: u64) {
        let features = &self.shared.features;
        let control = &mut self.vmcb.control;
        // Without these two a guest whose handler for them raises them again would never be left. A machine check is the host's.
        control.intercept_exceptions = 1 << DB | 1 << AC | 1 << MC;
        control.intercept_misc1 = misc1::INTR
            | misc1::NMI
            | misc1::INIT
            | misc1::RDPMC
            | misc1::CPUID
            | misc1::INVD
            | misc1::PAUSE
            | misc1::HLT
            | misc1::INVLPGA
            | misc1::IO
            | misc1::MSR
            | misc1::SHUTDOWN;
        control.intercept_misc2 = misc2::VMRUN
            | misc2::VMMCALL
            | misc2::VMLOAD
            | misc2::VMSAVE
            | misc2::STGI
            | misc2::CLGI
            | misc2::SKINIT
            | misc2::WBINVD
            | misc2::MONITOR
            | misc2::MWAIT
            | misc2::XSETBV
            | if features.rdpru { misc2::RDPRU } else { 0 };
        control.intercept_misc3 = if features.invlpgb {
            misc3::INVLPGB | misc3::INVLPGB_ILLEGAL | misc3::TLBSYNC
        } else {
            0
        } | if features.mcommit { misc3::MCOMMIT } else { 0 };
        if features.flags.contains(SvmFlags::PAUSE_FILTER) {
            control.pause_filter_count = PAUSE_COUNT;
            if features.flags.contains(SvmFlags::PAUSE_THRESHOLD) {
                control.pause_filter_threshold = PAUSE_THRESHOLD;
            }
        }
        control.iopm_base = physical(&*self.shared.io_map);
        control.msrpm_base = physical(&*self.shared.msr_map);
        control.nested_control = NESTED_PAGING;
        control.nested_cr3 = nested_root;
        control.vintr = vintr::MASKING;
    }

    fn intercept(&mut self, bit: u32, on: bool) {
        let word = &mut self.vmcb.control.intercept_misc1;
        let wanted = if on { *word | bit } else { *word & !bit };
        if *word != wanted {
            *word = wanted;
            self.clean &= !clean::INTERCEPTS;
        }
    }

    fn window(&mut self, request: Option<u64>) {
        let field = &mut self.vmcb.control.vintr;
        *field &= !(vintr::IRQ | vintr::PRIORITY | vintr::IGNORE_TPR | vintr::VECTOR);
        *field |= request.map_or(0, |bits| vintr::IRQ | bits);
        self.intercept(misc1::VINTR, request.is_some());
        // QEMU aborts when CR8 is written while a virtual interrupt waits: then the write exits instead.
        self.intercept_cr8(request.is_some());
    }

    fn intercept_cr8(&mut self, on: bool) {
        let word = &mut self.vmcb.control.intercept_cr;
        let wanted = if on {
            *word | INTERCEPT_CR8_WRITE
        } else {
            *word & !INTERCEPT_CR8_WRITE
        };
        if *word != wanted {
            *word = wanted;
            self.clean &= !clean::INTERCEPTS;
        }
    }

    fn default_size(&self) -> AddressSize {
        match self.cpu_state().code_bits() {
            16 => AddressSize::Bits16,
            32 => AddressSize::Bits32,
            _ => AddressSize::Bits64,
        }
    }

    /// The exit. The address size is looked for where it counts.
    fn decoded(&self) -> Decoded {
        let control = &self.vmcb.control;
        let size = if control.exit_code == super::exit::IO {
            self.default_size()
        } else {
            AddressSize::Bits64
        };
        decode(control, size)
    }

    fn in_shadow(&self) -> bool {
        self.vmcb.control.interrupt_shadow & INTERRUPT_SHADOW != 0
    }

    /// Runs the guest, with the gate closed, until there is an exit that nobody answers at the gate; `Some` if one was answered that
    /// ends the run all the same. An error if the guest did not run.
    fn pass_gate(
        &mut self,
        cpu: CpuId,
        word: &WakeWord,
        gate: &mut dyn Gate,
    ) -> Result<Option<Exit>, Exit> {
        let shared = self.shared.clone();
        let Some(host) = shared.cpu(cpu) else {
            return Err(Exit::Invalid {
                reason: format!("virtualization is not enabled on CPU {}", cpu.index()),
            });
        };
        let (asid, flush) = host.asids.lock().assign(&mut self.asid);
        let control = &mut self.vmcb.control;
        control.asid = asid;
        control.tlb_control = flush as u8;
        // Placing an event may change what is clean.
        self.place_event();
        self.vmcb.control.clean = self.clean;
        self.check_entry(host);

        entry::close();
        if word.publish(SleepState::Guest).is_err() {
            entry::reopen();
            self.take_back_event();
            return Err(Exit::Event);
        }
        gate.pass(GateEvent::Entering);
        let entered_clean = if shared.features.flags.contains(SvmFlags::CLEAN_BITS) {
            clean::INTERCEPTS | clean::PERMISSION_MAPS | clean::NESTED
        } else {
            0
        };
        self.clean = entered_clean;
        self.booked = false;
        let mut rounds = Rounds {
            settled: false,
            plain: self.step.is_none() && self.iret_at.is_none() && gate.answers(),
            tells_next: shared.features.saves_next_rip(),
            answered: None,
            cpuids: 0,
            memory: gate.memory(),
            vcpu: self,
            gate,
            word,
        };
        host.run(&mut rounds);
        let answered = rounds.answered.take();
        if rounds.cpuids > 0 {
            rounds.gate.told_cpuid(rounds.cpuids);
        }
        gate.pass(GateEvent::Left);
        word.leave_guest();
        entry::open();
        host.asids.lock().entered(&mut self.asid, flush);
        Ok(answered)
    }

    /// In debug builds: nothing that was due may have been left out. No emulator would notice.
    fn check_entry(&self, host: &HostCpu) {
        if cfg!(debug_assertions) {
            let control = &self.vmcb.control;
            let asids = host.asids.lock();
            asids.check(&self.asid, control.asid, control.tlb_control);
            self.kept.check(&self.vmcb);
        }
    }

    /// Puts the event that comes first where the processor delivers it from.
    fn place_event(&mut self) {
        let event = self.events.first();
        let doubles = self.shared.features.doubles_injections;
        self.placed = match event {
            Some(Injection::Interrupt(_)) if doubles => self.undoubled(),
            _ => Placed::Exactly,
        };
        self.vmcb.control.event_inj = match (event, self.placed) {
            (Some(Injection::Interrupt(vector)), Placed::Software) => encode_software(vector),
            (Some(Injection::Interrupt(vector)), Placed::Virtual) => {
                let vector = u64::from(vector) << vintr::VECTOR_SHIFT;
                self.window(Some(vintr::PRIORITY | vintr::IGNORE_TPR | vector));
                self.intercept(misc1::VINTR, false);
                0
            }
            (event, _) => event.map_or(0, encode),
        };
    }

    /// How an interrupt goes in where injected ones may come twice.
    ///
    /// As a software interrupt where the guest's gate cannot refuse one (CPL 0) and where it is taken at once. Else as a virtual
    /// interrupt, which waits for RFLAGS.IF by itself. That takes the place of a window, and so another interrupt may wait for
    /// the next exit: at the latest the guest's EOI or HLT.
    fn undoubled(&self) -> Placed {
        let save = &self.vmcb.save;
        let at_once = save.rflags & RFLAGS_IF != 0 && !self.in_shadow();
        if at_once && save.cpl == 0 {
            Placed::Software
        } else {
            Placed::Virtual
        }
    }

    /// What was placed was not tried: the guest did not run.
    fn take_back_event(&mut self) {
        if core::mem::take(&mut self.placed) == Placed::Virtual {
            self.window(None);
        }
    }

    /// What the exit says about the event that was placed: delivered, or still to be.
    fn book_event(&mut self) {
        let info = self.vmcb.control.exit_int_info;
        let interrupted = match (core::mem::take(&mut self.placed), self.events.first()) {
            (Placed::Virtual, _) => {
                let waits = self.vmcb.control.vintr & vintr::IRQ != 0;
                self.window(None);
                if waits {
                    self.book_exception_alone(interrupted_delivery(info));
                    return;
                }
                interrupted_delivery(info)
            }
            (Placed::Software, Some(Injection::Interrupt(vector))) => {
                interrupted_software(vector, info)
            }
            _ => interrupted_delivery(info),
        };
        self.events.entered(interrupted);
    }

    /// Where the virtual interrupt still waits, an exit in the midst of its delivery reports it as an exception of that vector.
    fn book_exception_alone(&mut self, interrupted: Option<Injection>) {
        if let Some(event @ Injection::Exception { vector: 0..32, .. }) = interrupted {
            self.events.push(event);
        }
    }

    /// Books what the exit says about events on their way, and translates it.
    fn after_exit(&mut self) -> Exit {
        let decoded = self.decoded();
        if decoded == Decoded::Invalid {
            return Exit::Invalid {
                reason: check::why_invalid(&self.vmcb, self.shared.features.physical_bits),
            };
        }
        if !core::mem::take(&mut self.booked) {
            self.book_event();
        }
        let iret = self.iret_at.is_some();
        if self.iret_at.is_some_and(|at| at != self.vmcb.save.rip) {
            self.iret_at = None;
            self.nmi_masked = false;
        }
        let ours = self.end_step(iret, &decoded);
        match decoded {
            _ if ours => Exit::Handled,
            Decoded::Exit(Exit::InterruptWindow) => {
                self.window(None);
                Exit::InterruptWindow
            }
            Decoded::Exit(exit) => exit,
            // The handler ends with the IRET that runs next, and NMIs stay masked until it is done.
            Decoded::Iret | Decoded::Invalid => {
                self.intercept(misc1::IRET, false);
                self.iret_at = Some(self.vmcb.save.rip);
                Exit::Handled
            }
        }
    }

    /// Puts back what [`VirtCpu::want_nmi_window`] has changed. `true`: the exit was a #DB for nobody but us.
    fn end_step(&mut self, iret: bool, decoded: &Decoded) -> bool {
        let Some(step) = self.step.take() else {
            return false;
        };
        let save = &mut self.vmcb.save;
        let moved = save.rip != step.rip;
        // IRET has loaded all of RFLAGS anew.
        if !(step.own || iret && moved) {
            save.rflags &= !RFLAGS_TF;
        }
        let stepped = matches!(decoded, Decoded::Exit(Exit::Exception { vector: 1, .. }));
        if !stepped || step.own {
            return false;
        }
        save.dr6 = save.dr6 & !DR6_BS | step.dr6 & DR6_BS;
        save.dr6 & DR6_BREAKPOINTS == step.dr6 & DR6_BREAKPOINTS
    }

    #[cfg(test)]
    pub(super) fn vmcb(&mut self) -> &mut Vmcb {
        &mut self.vmcb
    }

    #[cfg(test)]
    pub(super) fn exit_for_test(&mut self) -> Exit {
        self.after_exit()
    }
}

/// The exits of one passage of the gate.
pub(super) struct Rounds<'a> {
    vcpu: &'a mut SvmVcpu,
    gate: &'a mut dyn Gate,
    word: &'a WakeWord,
    /// The last entry was not the first, and had no event to deliver: the control area is as it has to be.
    settled: bool,
    /// Nobody steps through the guest, and exits are answered at all.
    plain: bool,
    /// The processor tells where the next instruction is.
    tells_next: bool,
    /// How the run ended, if by an exit that was answered.
    answered: Option<Exit>,
    /// CPUIDs that were answered.
    cpuids: u64,
    memory: Option<Arc<GuestMemory>>,
}

impl Rounds<'_> {
    /// What the entry needs.
    pub(super) fn registers(&mut self) -> (&mut [u64; 16], &mut Vmcb) {
        (&mut self.vcpu.gprs, &mut self.vcpu.vmcb)
    }

    /// There was an exit. `true`: it was answered, enter again.
    ///
    /// Asked is who stands at the gate, if the exit is one of those that may be answered there, and nothing is out of the ordinary:
    /// no delivery was interrupted, nobody steps. Each kind is a function of its own, so that none pays for another's registers.
    #[inline(always)]
    pub(super) fn exited(&mut self) -> bool {
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
fn in_64_bit_code(save: &Save) -> bool {
    const EFER_LMA: u64 = 1 << 10;
    const CR4_LA57: u64 = 1 << 12;
    save.efer & EFER_LMA != 0
        && save.cr4 & CR4_LA57 == 0
        && save.cs.attributes & SegmentAttributes::LONG.bits() != 0
}

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
        if control.exit_code == super::exit::IO
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

#[cfg(test)]
mod tests;
