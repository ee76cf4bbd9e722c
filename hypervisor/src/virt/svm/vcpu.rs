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
use crate::virt::{AddressSize, Exit, Gate, GateEvent, Injection, StartState, VirtCpu, fast};

use super::asid::AsidTag;
use super::clean::Kept;
use super::event::{
    EventQueue, encode, encode_software, interrupted_delivery, interrupted_software,
};
use super::exit::{Decoded, decode};
use super::features::SvmFlags;
use super::host::HostCpu;
use super::npt::Npt;
use super::page::{physical, zeroed};
use super::vmcb::{INTERCEPT_CR8_WRITE, Vmcb, clean, misc1, misc2, misc3, vintr};
use super::{Shared, check, entry};

mod rounds;
mod virt_cpu;

pub(super) use rounds::Rounds;

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

#[cfg(test)]
mod tests;
