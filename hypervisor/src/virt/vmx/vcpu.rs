//! One vCPU on VMX.
//!
//! Invariants:
//! * Guest registers that the VMCS holds are read and written there, and only while the vCPU is loaded: its VMCS is then the current
//!   one of this CPU. A reset of a vCPU that is not loaded is remembered, and done when it is.
//! * `launched` is true only if the VMCS was entered since it was last cleared. Unloading clears it, so that it is active on no
//!   CPU when it moves to another.
//! * Fields that seldom change are written when they change; what is written at every entry is named in [`VmxVcpu::pass_gate`].

use alloc::format;
use alloc::sync::Arc;

use lull_core::units::{CpuId, Ticks};
use lull_core::wake::{SleepState, WakeWord};

use crate::apic::vector;
use crate::cpu::regs;
use crate::virt::events::EventQueue;
use crate::virt::fpu::FpuState;
use crate::virt::page::physical;
use crate::virt::{
    AddressSize, Answer, ApicMode, ApicState, Exit, Gate, GateEvent, Gp, Gpr, GuestCpuState,
    Injection, InterruptRequests, Segment, ShownRegister, StartState, VirtCpu, fast,
};

use super::apic::VirtualApic;
use super::controls::{PrimaryControls, SecondaryControls};
use super::entry::Physical;
use super::ept::Ept;
use super::exit::{CrAccess, Decoded, ENTRY_FAILURE, decode, has_length, reason};
use super::field::{Field, SegmentSlot};
use super::msr::{self, SwitchedMsrs};
use super::vmcs::Vmcs;
use super::{Shared, check, debug, entry, event, reset, segment, vpid};

const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_IF: u64 = 1 << 9;
const CR4_VMXE: u64 = 1 << 13;
const BLOCKED_BY_STI: u64 = 1 << 0;
const BLOCKED_BY_MOV_SS: u64 = 1 << 1;
const SHADOW: u64 = BLOCKED_BY_STI | BLOCKED_BY_MOV_SS;
const BLOCKED_BY_NMI: u64 = 1 << 3;
/// #DB, #AC, #MC. Without the first two, a guest whose handler for them raises them again would never be left. A machine check is
/// the host's.
const EXCEPTIONS: u64 = 1 << 1 | 1 << 17 | 1 << 18;
/// All that are not instructions' own purpose (INT3, INTO), and NMI.
const ALL_EXCEPTIONS: u64 = 0xffff_ffff & !(1 << 2 | 1 << 3 | 1 << 4);
/// Ticks between two PAUSEs that count as one loop, and the ticks that such a loop may last.
const PLE_GAP: u64 = 128;
const PLE_WINDOW: u64 = 4096;
/// A vector that no priority lets through. It is always requested where interrupts are posted on a machine that ignores IF: Bochs takes a notification for which
/// there is nothing to take, as there may be, for vector 255.
const NEVER_DELIVERED: u8 = 1;
/// A window whatever the task priority.
const ANY_PRIORITY: u8 = 16;

/// A vCPU.
pub struct VmxVcpu {
    vmcs: Vmcs,
    /// In encoding order; RSP lives in the VMCS.
    gprs: [u64; 16],
    cr2: u64,
    fpu: FpuState,
    cpuid: fast::Remembered,
    msrs: SwitchedMsrs,
    dr6: debug::Dr6,
    events: EventQueue,
    /// The VMCS holds an event to be injected.
    placed: bool,
    /// What the last exit says about events was booked already.
    booked: bool,
    /// An interrupt window is asked for, below this class of task priority.
    window: Option<u8>,
    /// Leave as soon as an NMI can be taken.
    nmi_window: bool,
    /// Primary controls as they are in the VMCS.
    primary: u32,
    /// TPR threshold as it is in the VMCS.
    threshold: u8,
    /// Task priority, where the processor does not keep it.
    cr8: u8,
    apic: VirtualApic,
    /// Where the processor takes posted interrupts from.
    requests: Option<Arc<InterruptRequests>>,
    deadline: Option<Ticks>,
    tsc_offset: u64,
    /// The basic reason of the last exit.
    last_exit: u16,
    vpid: u16,
    /// Whose translations are kept under it.
    owner: vpid::Owner,
    /// Where it was last entered, as `owner` knows it.
    entered_on: Option<CpuId>,
    loaded: Option<CpuId>,
    /// The CPU on which it was entered last, or would have been.
    last_cpu: Option<CpuId>,
    launched: bool,
    /// Whether the control fields were ever written.
    set_up: bool,
    /// To be done at the next load.
    reset: Option<StartState>,
    /// HOST_RSP as it is in the VMCS.
    #[cfg_attr(
        not(target_os = "none"),
        expect(dead_code, reason = "used by the entry only")
    )]
    host_rsp: u64,
    shared: Arc<Shared>,
    ept: Ept,
}

impl VmxVcpu {
    pub(super) fn new(shared: &Arc<Shared>, ept: &Ept) -> Self {
        let capabilities = &shared.capabilities;
        let vpid = match capabilities.invvpid {
            Some(_) => shared.vpids.lock().take(),
            None => vpid::NONE,
        };
        Self {
            vmcs: Vmcs::new(capabilities.revision),
            gprs: [0; 16],
            cr2: 0,
            fpu: FpuState::new(shared.fpu),
            cpuid: fast::Remembered::new(),
            msrs: SwitchedMsrs::new(capabilities.tsc_aux),
            dr6: debug::Dr6::default(),
            events: EventQueue::default(),
            placed: false,
            booked: false,
            window: None,
            nmi_window: false,
            primary: capabilities.primary,
            threshold: 0,
            cr8: 0,
            apic: VirtualApic::new(),
            requests: None,
            deadline: None,
            tsc_offset: 0,
            last_exit: 0,
            vpid,
            owner: vpid::Owner::new(),
            entered_on: None,
            loaded: None,
            last_cpu: None,
            launched: false,
            set_up: false,
            reset: Some(StartState::WaitForSipi),
            host_rsp: 0,
            shared: shared.clone(),
            ept: ept.clone(),
        }
    }

    /// Every field that does not change with the guest's state or the CPU.
    fn set_controls(&mut self) {
        let capabilities = &self.shared.capabilities;
        let mut fields = alloc::vec![
            (Field::PIN, self.pin()),
            (Field::PRIMARY, u64::from(self.primary)),
            (Field::SECONDARY, self.secondary()),
            (Field::EXIT, u64::from(capabilities.exit)),
            (Field::ENTRY, u64::from(capabilities.entry)),
            (Field::EXCEPTIONS, self.exceptions()),
            (Field::PAGE_FAULT_MASK, 0),
            (Field::PAGE_FAULT_MATCH, 0),
            (Field::CR3_TARGETS, 0),
            (Field::EXIT_MSR_STORES, 0),
            (Field::EXIT_MSR_LOADS, 0),
            (Field::ENTRY_MSR_LOADS, 0),
            (Field::INJECTION, 0),
            (Field::MSR_BITMAP, self.msr_map()),
            (Field::EPTP, self.ept.pointer()),
            (Field::TSC_OFFSET, self.tsc_offset),
            (Field::LINK_POINTER, u64::MAX),
            (Field::CR0_MASK, reset::cr0_mask(capabilities.cr0)),
            (Field::CR4_MASK, capabilities.cr4.ones | CR4_VMXE),
        ];
        if self.vpid != vpid::NONE {
            fields.push((Field::VPID, u64::from(self.vpid)));
        }
        if capabilities.tpr_shadow() {
            fields.push((Field::VIRTUAL_APIC, self.apic.address()));
            fields.push((Field::TPR_THRESHOLD, u64::from(self.threshold)));
        }
        if capabilities.apic.any() {
            fields.extend(self.apic.fields());
        }
        if let Some(requests) = self.posts_from() {
            fields.push((Field::POSTED_VECTOR, u64::from(vector::POSTED)));
            fields.push((Field::POSTED_DESCRIPTOR, physical(&**requests)));
        }
        if capabilities.counts_pauses() {
            fields.extend([(Field::PLE_GAP, PLE_GAP), (Field::PLE_WINDOW, PLE_WINDOW)]);
        }
        for (field, value) in fields {
            self.vmcs.write(field, value);
        }
    }

    /// Where posted interrupts are taken from, if they are.
    fn posts_from(&self) -> Option<&Arc<InterruptRequests>> {
        self.requests
            .as_ref()
            .filter(|_| self.shared.posting() != 0)
    }

    /// Pin-based controls, for the mode that its APIC is in.
    fn pin(&self) -> u64 {
        let posting = match self.posts_from() {
            Some(_) if self.apic.controls() != 0 => self.shared.posting(),
            _ => 0,
        };
        u64::from(self.shared.capabilities.pin | posting)
    }

    /// Secondary controls, for the mode that its APIC is in.
    fn secondary(&self) -> u64 {
        let mut secondary = self.shared.capabilities.secondary;
        if self.vpid == vpid::NONE {
            secondary &= !SecondaryControls::ENABLE_VPID.bits();
        }
        u64::from(secondary | self.apic.controls())
    }

    /// Address of the MSR bitmap, for the mode that its APIC is in.
    fn msr_map(&self) -> u64 {
        const X2APIC: u32 = SecondaryControls::VIRTUALIZE_X2APIC.bits();
        physical(if self.apic.controls() & X2APIC != 0 {
            &*self.shared.x2apic_msr_map
        } else {
            &*self.shared.msr_map
        })
    }

    /// Which exceptions of the guest exit.
    fn exceptions(&self) -> u64 {
        if self.shared.loses_rip.get() == Some(&true) {
            ALL_EXCEPTIONS
        } else {
            EXCEPTIONS
        }
    }

    fn apply_reset(&mut self, start: StartState) {
        let capabilities = &self.shared.capabilities;
        self.gprs = reset::reset(&self.vmcs, capabilities.cr0, capabilities.cr4, start);
        // Not in 64-bit mode any more.
        self.vmcs.write(Field::ENTRY, u64::from(capabilities.entry));
        self.vmcs.write(Field::INJECTION, 0);
        self.placed = false;
        self.owner.outdate();
        self.drop_translations();
    }

    fn drop_translations(&self) {
        let host = self.loaded.and_then(|cpu| self.shared.cpu(cpu));
        if let (Some(host), Some(how)) = (host, self.shared.capabilities.invvpid)
            && self.vpid != vpid::NONE
        {
            host.drop_translations(how, self.vpid);
        }
    }

    fn blocked(&self) -> u64 {
        self.vmcs.read(Field::INTERRUPTIBILITY)
    }

    fn set_blocked(&self, value: u64) {
        self.vmcs.write(Field::INTERRUPTIBILITY, value);
    }

    fn segment(&self, slot: SegmentSlot) -> Segment {
        let read = |field| self.vmcs.read(field);
        segment::segment(
            read(slot.selector()),
            read(slot.rights()),
            read(slot.limit()),
            read(slot.base()),
        )
    }

    fn default_size(&self) -> AddressSize {
        match self.cpu_state().code_bits() {
            16 => AddressSize::Bits16,
            32 => AddressSize::Bits32,
            _ => AddressSize::Bits64,
        }
    }

    /// CR0 as the guest believes it to be.
    fn guest_cr0(&self) -> u64 {
        let mask = reset::cr0_mask(self.shared.capabilities.cr0);
        self.vmcs.read(Field::CR0) & !mask | self.vmcs.read(Field::CR0_SHADOW) & mask
    }

    /// CR4 as the guest believes it to be.
    fn guest_cr4(&self) -> u64 {
        let mask = self.shared.capabilities.cr4.ones | CR4_VMXE;
        self.vmcs.read(Field::CR4) & !mask | self.vmcs.read(Field::CR4_SHADOW) & mask
    }

    /// Writes the event that comes first to where the processor delivers it from.
    fn place_event(&mut self) {
        match self.events.first() {
            Some(event) => {
                let (info, error) = event::encode(event);
                self.vmcs.write(Field::INJECTION, info);
                if error != 0 || matches!(event, Injection::Exception { error: Some(_), .. }) {
                    self.vmcs.write(Field::INJECTION_ERROR, error);
                }
                self.placed = true;
            }
            None if self.placed => {
                self.vmcs.write(Field::INJECTION, 0);
                self.placed = false;
            }
            None => {}
        }
    }

    /// Makes the controls of windows what is asked for.
    fn place_windows(&mut self) {
        let cr8 = self.cr8();
        let (open, threshold) = match self.window {
            None => (false, 0),
            Some(class) if cr8 < class => (true, 0),
            Some(class) => (false, class),
        };
        let bit = |on: bool, control: PrimaryControls| if on { control.bits() } else { 0 };
        let primary = self.shared.capabilities.primary
            | bit(open, PrimaryControls::INTERRUPT_WINDOW_EXITING)
            | bit(self.nmi_window, PrimaryControls::NMI_WINDOW_EXITING);
        if self.primary != primary {
            self.primary = primary;
            self.vmcs.write(Field::PRIMARY, u64::from(primary));
        }
        if self.threshold != threshold && self.shared.capabilities.tpr_shadow() {
            self.threshold = threshold;
            self.vmcs.write(Field::TPR_THRESHOLD, u64::from(threshold));
        }
    }

    /// The preemption timer runs out at the deadline, or as far before as it can count.
    fn place_timer(&self) {
        if let Some(shift) = self.shared.capabilities.timer_shift {
            let value = self.deadline.map_or(u32::MAX, |deadline| {
                timer_value(deadline, Ticks::new(regs::rdtsc()), shift)
            });
            self.vmcs.write(Field::PREEMPTION_TIMER, u64::from(value));
        }
    }

    /// Runs the guest once, for this count of the preemption timer or until something else ends it, outside of the scheduler: for
    /// [`probe`](super::probe). Interrupts are off. `false`: there is no preemption timer, or the entry failed.
    #[cfg(any(target_os = "none", test))]
    pub(super) fn run_for(&mut self, count: u32) -> bool {
        if self.shared.capabilities.timer_shift.is_none() || !self.vmcs.is_current() {
            return false;
        }
        self.place_event();
        self.place_windows();
        self.vmcs.write(Field::PREEMPTION_TIMER, u64::from(count));
        if let Some(host) = self.loaded.and_then(|cpu| self.shared.cpu(cpu)) {
            host.drop_stale_tables();
        }
        if !self.run() {
            return false;
        }
        self.launched = true;
        match decode(&self.vmcs, true, AddressSize::Bits16) {
            Decoded::Physical(what) => entry::take(what),
            Decoded::EntryFailed(_) => return false,
            _ => {}
        }
        true
    }

    /// The part of loading that is VMX's own: the VMCS, and registers that it does not hold.
    fn attach(&mut self, cpu: CpuId) {
        self.loaded = Some(cpu);
        self.msrs.load();
        self.dr6.load();
        let shared = self.shared.clone();
        let Some(host) = shared.cpu(cpu) else {
            // `enter` will say so.
            return;
        };
        let first = !core::mem::replace(&mut self.set_up, true);
        if first {
            // Makes the processor's own part of the region valid.
            self.vmcs.clear(cpu);
        }
        self.vmcs.make_current(cpu);
        if first {
            self.set_controls();
        }
        if self.last_cpu != Some(cpu) {
            host.write_state(&self.vmcs);
            self.drop_translations();
            self.last_cpu = Some(cpu);
        }
        self.vmcs.write(Field::TSC_OFFSET, self.tsc_offset);
        if let Some(start) = self.reset.take() {
            self.apply_reset(start);
        }
    }

    /// Undoes [`attach`](Self::attach), on the same CPU.
    fn detach(&mut self) {
        self.msrs.unload();
        self.dr6.unload();
        if let Some(cpu) = self.loaded.take()
            && self.vmcs.is_current()
        {
            self.vmcs.clear(cpu);
        }
        self.launched = false;
    }

    /// Runs the guest until there is an exit that nobody answers at the gate; `Some` if one was answered that ends the run all the
    /// same. An error if the guest did not run.
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
        self.place_event();
        self.place_windows();
        self.place_timer();
        host.drop_stale_tables();

        if word.publish(SleepState::Guest).is_err() {
            return Err(Exit::Event);
        }
        host.check_flushed(self.ept.generation());
        if self.entered_on.replace(cpu) != Some(cpu) {
            // What this CPU holds is of an earlier stay.
            self.owner.outdate();
        }
        host.check_dropped(self.vpid, self.owner);
        gate.pass(GateEvent::Entering);
        let answers = gate.answers();
        let answered = loop {
            self.booked = false;
            if !self.run() {
                break Err(());
            }
            self.launched = true;
            let answer = if answers {
                self.answer(gate)
            } else {
                Answer::Leave
            };
            match answer {
                Answer::Leave => break Ok(None),
                Answer::Undefined => self.events.push(Injection::UD),
                Answer::Enter if !self.events.is_pending() => {}
                Answer::Enter | Answer::Look => break Ok(Some(Exit::Answered)),
            }
            if word.is_pending() {
                break Ok(Some(Exit::Answered));
            }
            if self.events.is_pending() {
                self.place_event();
            }
            // It began anew at the exit.
            self.place_timer();
        };
        gate.pass(GateEvent::Left);
        word.leave_guest();
        answered.map_err(|()| {
            let number = self.vmcs.read(Field::INSTRUCTION_ERROR);
            Exit::Invalid {
                reason: format!(
                    "the processor refused the entry: {} (VM-instruction error {number})",
                    check::instruction_error(number)
                ),
            }
        })
    }

    /// Offers the exit to who stands at the gate, if it is one of those that may be answered there, and nothing is out of the
    /// ordinary: no delivery was interrupted, nobody steps.
    fn answer(&mut self, gate: &mut dyn Gate) -> Answer {
        let full = self.vmcs.read(Field::EXIT_REASON);
        let reason = full as u16;
        let answered = matches!(
            reason,
            reason::CPUID | reason::RDMSR | reason::WRMSR | reason::VMCALL
        );
        if !answered || full & ENTRY_FAILURE != 0 {
            return Answer::Leave;
        }
        if event::is_valid(self.vmcs.read(Field::VECTORING)) || self.rflags() & RFLAGS_TF != 0 {
            return Answer::Leave;
        }
        self.last_exit = reason;
        let Some(next) = self.next_rip() else {
            return Answer::Leave;
        };
        self.book_event();
        self.booked = true;
        let class = self.cr8();
        let mut cr8 = class;
        let gprs = &mut self.gprs;
        let answer = match reason {
            reason::CPUID => {
                let leaf = (gprs[Gpr::Rax.index()] as u32, gprs[Gpr::Rcx.index()] as u32);
                match self.cpuid.get(leaf.0, leaf.1, self.vmcs.read(Field::CR4)) {
                    Some(regs) => {
                        fast::set_cpuid(gprs, regs);
                        gate.told_cpuid(1);
                        Answer::Enter
                    }
                    None => Answer::Leave,
                }
            }
            reason::RDMSR => gate.read_msr(gprs, class),
            reason::WRMSR => gate.write_msr(gprs, &mut cr8),
            _ => gate.hypercall(),
        };
        if matches!(answer, Answer::Enter | Answer::Look) {
            self.move_to(next);
            if cr8 != class {
                self.set_cr8(cr8);
            }
        }
        answer
    }

    /// Books what the exit says about events on their way, and translates it.
    fn after_exit(&mut self) -> Exit {
        self.last_exit = self.vmcs.read(Field::EXIT_REASON) as u16;
        let size = if self.last_exit == reason::IO && !self.shared.capabilities.string_io_info {
            self.default_size()
        } else {
            AddressSize::Bits64
        };
        let decoded = decode(&self.vmcs, self.shared.capabilities.string_io_info, size);
        if let Decoded::EntryFailed(basic) = decoded {
            if basic == MACHINE_CHECK_AT_ENTRY {
                entry::take(Physical::MachineCheck);
            }
            return Exit::Invalid {
                reason: check::why_entry_failed(&self.vmcs, basic),
            };
        }
        if !core::mem::take(&mut self.booked) {
            self.book_event();
        }
        match decoded {
            Decoded::Exit(exit) => {
                match &exit {
                    Exit::InterruptWindow => self.window = None,
                    Exit::NestedFault { .. } => {
                        self.mask_nmis_again(self.vmcs.read(Field::QUALIFICATION));
                    }
                    &Exit::Exception { vector, error } => {
                        let info = self.vmcs.read(Field::EXIT_INTERRUPTION);
                        self.mask_nmis_again(info);
                        if EXCEPTIONS & 1 << vector == 0 {
                            return self.deliver(vector, event::has_error(info).then_some(error));
                        }
                    }
                    _ => {}
                }
                exit
            }
            Decoded::Physical(what) => {
                entry::take(what);
                match what {
                    Physical::Interrupt(_) => Exit::Event,
                    Physical::Nmi => Exit::Nmi,
                    Physical::MachineCheck => Exit::Invalid {
                        reason: "a machine check hit the physical CPU while the guest ran".into(),
                    },
                }
            }
            Decoded::Debug {
                causes,
                by_instruction,
            } => self.debug_exception(causes, by_instruction),
            Decoded::NmiWindow => {
                self.nmi_window = false;
                Exit::Handled
            }
            // The interrupt that waited for it is looked at again; until the guest can take it, this is a window like any other.
            Decoded::TaskPriority => {
                self.window = Some(ANY_PRIORITY);
                Exit::Handled
            }
            Decoded::ApicWrite(offset) => Exit::ApicWrite {
                offset,
                value: self.apic.at(offset),
            },
            Decoded::ControlRegister(access) => self.control_register(access),
            Decoded::EntryFailed(_) => Exit::Handled,
        }
    }

    fn book_event(&mut self) {
        let info = self.vmcs.read(Field::VECTORING);
        let interrupted = if event::is_valid(info) {
            event::interrupted_delivery(info, self.vmcs.read(Field::VECTORING_ERROR))
        } else {
            None
        };
        if interrupted == Some(Injection::Nmi) {
            // It was masking others already; injected again, it does so anew.
            self.set_blocked(self.blocked() & !BLOCKED_BY_NMI);
        }
        // The processor has cleared what it took.
        self.placed = false;
        self.events.entered(interrupted);
    }

    /// An IRET that ended an NMI handler has faulted, and will run again: until then NMIs are masked (SDM vol. 3, 29.2.3).
    fn mask_nmis_again(&self, info: u64) {
        if info & event::NMI_UNBLOCKED != 0 && !event::is_valid(self.vmcs.read(Field::VECTORING)) {
            self.set_blocked(self.blocked() | BLOCKED_BY_NMI);
        }
    }

    /// Gives an exception back that exited only because it might have lost RIP.
    fn deliver(&mut self, vector: u8, error: Option<u32>) -> Exit {
        const PAGE_FAULT: u8 = 14;
        if vector == PAGE_FAULT {
            self.cr2 = self.vmcs.read(Field::QUALIFICATION);
        }
        self.inject(Injection::Exception { vector, error });
        Exit::Handled
    }

    /// #DB as the guest is to find it: DR6 and DR7 changed, RIP behind an INT1 (SDM vol. 3, 29.2.1).
    fn debug_exception(&mut self, causes: u64, by_instruction: bool) -> Exit {
        const DR7_GENERAL_DETECT: u64 = 1 << 13;
        self.mask_nmis_again(self.vmcs.read(Field::EXIT_INTERRUPTION));
        self.dr6.add(causes);
        let dr7 = self.vmcs.read(Field::DR7);
        self.vmcs.write(Field::DR7, dr7 & !DR7_GENERAL_DETECT);
        if by_instruction {
            let next = self.rip() + self.vmcs.read(Field::INSTRUCTION_LENGTH);
            self.move_to(next);
        }
        Exit::Exception {
            vector: 1,
            error: 0,
        }
    }

    /// MOV to a control register that the guest cannot change by itself.
    fn control_register(&mut self, access: CrAccess) -> Exit {
        match access {
            CrAccess::Write { register: 0, from } => {
                let value = self.gpr(from);
                if reset::cr0_is_legal(value) {
                    // Executed again, it finds the fixed bits as it wants them, and changes the others by itself.
                    self.vmcs.write(Field::CR0_SHADOW, value);
                } else {
                    self.inject(Injection::GP0);
                }
            }
            CrAccess::Write { register: 8, from } => match u8::try_from(self.gpr(from)) {
                Ok(class @ 0..16) => {
                    self.set_cr8(class);
                    self.step();
                }
                _ => self.inject(Injection::GP0),
            },
            CrAccess::Read { register: 8, to } => {
                self.set_gpr(to, u64::from(self.cr8));
                self.step();
            }
            // CR4.VMXE, which guests do not have.
            _ => self.inject(Injection::GP0),
        }
        Exit::Handled
    }

    /// RIP behind an instruction that is done; its shadow ends.
    fn move_to(&self, rip: u64) {
        self.vmcs.write(Field::RIP, rip);
        let blocked = self.blocked();
        if blocked & SHADOW != 0 {
            self.set_blocked(blocked & !SHADOW);
        }
    }

    fn step(&mut self) {
        if let Some(next) = self.next_rip() {
            self.advance(next);
        }
    }
}

const MACHINE_CHECK_AT_ENTRY: u16 = 41;

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "runs guests")]

    use super::{VmxVcpu, entry, regs};

    impl VmxVcpu {
        /// One guest run; the gate is passed. `false`: the entry instruction failed.
        pub(super) fn run(&mut self) -> bool {
            if regs::cr2() != self.cr2 {
                // SAFETY: CR2 is read by nobody in the hypervisor but by the handler of a page fault, which sets it first.
                unsafe { regs::set_cr2(self.cr2) };
            }
            // SAFETY: `pass_gate`, the only caller, has interrupts off; the VMCS is current (checked by `enter`), was set up with
            // this CPU's host state by `load`, and its tables and maps are kept alive by `ept` and `shared`.
            let entered = unsafe { entry::run(&mut self.gprs, self.launched, &mut self.host_rsp) };
            self.cr2 = regs::cr2();
            entered
        }
    }
}

/// On the host on which tests run: a processor on which every guest is left at once, by what a test has put into the VMCS.
#[cfg(not(target_os = "none"))]
mod hardware {
    impl super::VmxVcpu {
        pub(super) fn run(&mut self) -> bool {
            true
        }
    }
}

/// What the preemption timer starts from. Rounded up: at the deadline, not just before it.
fn timer_value(deadline: Ticks, now: Ticks, shift: u32) -> u32 {
    let ticks = deadline.get().saturating_sub(now.get());
    u32::try_from(ticks.div_ceil(1 << shift)).unwrap_or(u32::MAX)
}

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

impl Drop for VmxVcpu {
    fn drop(&mut self) {
        if let Some(cpu) = self.loaded
            && self.vmcs.is_current()
        {
            // The processor must not write to memory that is about to be somebody else's.
            self.vmcs.clear(cpu);
        }
        self.shared.vpids.lock().give_back(self.vpid);
    }
}

#[cfg(test)]
#[path = "vcpu_tests.rs"]
mod tests;
