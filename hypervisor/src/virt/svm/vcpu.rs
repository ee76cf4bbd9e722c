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
    AddressSize, Exit, GateEvent, Gp, Gpr, GuestCpuState, Injection, Segment, SegmentAttributes,
    StartState, VirtCpu,
};

use super::asid::AsidTag;
use super::event::{EventQueue, encode, interrupted_delivery};
use super::exit::{Decoded, decode};
use super::features::SvmFlags;
use super::npt::Npt;
use super::page::{physical, zeroed};
use super::vmcb::{INTERCEPT_CR8_WRITE, SegmentReg, Vmcb, clean, misc1, misc2, misc3, vintr};
use super::{Shared, check, entry, msr, registers, reset};

const RFLAGS_IF: u64 = 1 << 9;
const NESTED_PAGING: u64 = 1 << 0;
const INTERRUPT_SHADOW: u64 = 1 << 0;
const DB: u32 = 1;
const AC: u32 = 17;
const MC: u32 = 18;
/// PAUSE instructions in one spin loop before an exit, and the ticks that end such a loop, where the processor counts.
const PAUSE_COUNT: u16 = 3000;
const PAUSE_THRESHOLD: u16 = 128;

/// A vCPU.
pub struct SvmVcpu {
    vmcb: Box<Vmcb>,
    /// In encoding order; RAX and RSP live in the VMCB.
    gprs: [u64; 16],
    fpu: FpuState,
    tsc_aux: u32,
    events: EventQueue,
    /// An NMI handler runs in the guest.
    nmi_masked: bool,
    /// The event of this entry went in as a virtual interrupt.
    virtual_interrupt: bool,
    asid: AsidTag,
    loaded: Option<CpuId>,
    /// Groups of the VMCB unchanged since the last entry.
    clean: u32,
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
            tsc_aux: 0,
            events: EventQueue::default(),
            nmi_masked: false,
            virtual_interrupt: false,
            asid: AsidTag::default(),
            loaded: None,
            clean: 0,
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

    fn in_shadow(&self) -> bool {
        self.vmcb.control.interrupt_shadow & INTERRUPT_SHADOW != 0
    }

    /// Runs the guest once, with the gate closed. False if `word` had events.
    fn pass_gate(
        &mut self,
        cpu: CpuId,
        word: &WakeWord,
        on_gate: &mut dyn FnMut(GateEvent),
    ) -> Result<bool, Exit> {
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
        control.clean = self.clean;
        self.place_event();

        entry::close();
        if word.publish(SleepState::Guest).is_err() {
            entry::reopen();
            return Ok(false);
        }
        on_gate(GateEvent::Entering);
        host.run(&mut self.gprs, &mut self.vmcb);
        on_gate(GateEvent::Left);
        awake_with_events(word);
        entry::open();

        host.asids.lock().entered(&mut self.asid);
        if shared.features.flags.contains(SvmFlags::CLEAN_BITS) {
            self.clean = clean::INTERCEPTS | clean::PERMISSION_MAPS | clean::NESTED;
        }
        Ok(true)
    }

    /// Puts the event that comes first where the processor delivers it from: EVENTINJ.
    ///
    /// Where that may deliver an interrupt twice, the virtual interrupt does as well: it is taken at once, since an interrupt
    /// is queued only when the guest can take it. Not while a window is asked for, which needs the same fields.
    fn place_event(&mut self) {
        let event = self.events.first();
        let takes_it = self.vmcb.save.rflags & RFLAGS_IF != 0 && !self.in_shadow();
        let windowed = self.vmcb.control.intercept_misc1 & misc1::VINTR != 0;
        let by_virtual_interrupt = self.shared.features.doubles_injections && takes_it && !windowed;
        self.virtual_interrupt = false;
        self.vmcb.control.event_inj = match event {
            Some(Injection::Interrupt(vector)) if by_virtual_interrupt => {
                self.virtual_interrupt = true;
                self.vmcb.control.vintr |= vintr::IRQ
                    | vintr::PRIORITY
                    | vintr::IGNORE_TPR
                    | u64::from(vector) << vintr::VECTOR_SHIFT;
                0
            }
            event => event.map_or(0, encode),
        };
    }

    /// What the exit says about the event that was placed: delivered, or still to be.
    fn book_event(&mut self) {
        let waits = self.vmcb.control.vintr & vintr::IRQ != 0;
        if core::mem::take(&mut self.virtual_interrupt) {
            self.window(None);
            if waits {
                return;
            }
        }
        self.events
            .entered(interrupted_delivery(self.vmcb.control.exit_int_info));
    }

    /// Books what the exit says about events on their way, and translates it.
    fn after_exit(&mut self) -> Exit {
        let decoded = decode(&self.vmcb.control, self.default_size());
        if decoded == Decoded::Invalid {
            return Exit::Invalid {
                reason: check::why_invalid(&self.vmcb, self.shared.features.physical_bits),
            };
        }
        self.book_event();
        match decoded {
            Decoded::Exit(Exit::InterruptWindow) => {
                self.window(None);
                Exit::InterruptWindow
            }
            Decoded::Exit(exit) => exit,
            // The handler ends with the IRET that runs next; the shadow keeps the next NMI away for that one instruction.
            Decoded::Iret | Decoded::Invalid => {
                self.intercept(misc1::IRET, false);
                self.nmi_masked = false;
                self.vmcb.control.interrupt_shadow |= INTERRUPT_SHADOW;
                Exit::Handled
            }
        }
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

/// Back to AWAKE without losing an event: what the swap takes is posted again at once. A poster in between sees AWAKE, and an event
/// posted before the swap had its interrupt sent, which is taken when the gate opens, and finds nothing new to do.
fn awake_with_events(word: &WakeWord) {
    let events = word.take();
    if !events.is_empty() {
        word.post_local(events);
    }
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
        self.events.clear();
        self.fpu.reset();
        // A failed write leaves the register as it was, which only this vCPU can see.
        let _ = self.set_msr(x86::msr::IA32_TSC_AUX, 0);
        self.asid.drop_translations();
        self.clean = 0;
    }

    fn next_rip(&self) -> Option<u64> {
        let control = &self.vmcb.control;
        if let Decoded::Exit(Exit::Io(io)) = decode(control, self.default_size()) {
            return io.next_rip;
        }
        // Saved for intercepted instructions only; zero where it was not.
        let saved = self.shared.features.flags.contains(SvmFlags::NRIPS) && control.next_rip != 0;
        saved.then_some(control.next_rip)
    }

    fn advance(&mut self, to_rip: u64) {
        self.vmcb.save.rip = to_rip;
        self.vmcb.control.interrupt_shadow &= !INTERRUPT_SHADOW;
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
    }

    fn unload(&mut self) {
        self.fpu.unload();
        self.loaded = None;
    }

    fn enter(&mut self, word: &WakeWord, on_gate: &mut dyn FnMut(GateEvent)) -> Exit {
        if self.events.is_shutdown() {
            return Exit::TripleFault;
        }
        let Some(cpu) = self.loaded else {
            return Exit::Invalid {
                reason: "the vCPU is not loaded on any CPU".into(),
            };
        };
        match self.pass_gate(cpu, word, on_gate) {
            Ok(true) => self.after_exit(),
            Ok(false) => Exit::Event,
            Err(exit) => exit,
        }
    }
}

#[cfg(test)]
mod tests;
