//! One vCPU on VMX.
//!
//! Invariants:
//! * Guest registers that the VMCS holds are read and written there, and only while the vCPU is loaded: its VMCS is then the current
//!   one of this CPU. A reset of a vCPU that is not loaded is remembered, and done when it is.
//! * `launched` is true only if the VMCS was entered since it was last cleared. Unloading clears it, so that it is active on no
//!   CPU when it moves to another.
//! * Fields that seldom change are written when they change; what is written at every entry is named in [`VmxVcpu::pass_gate`].

use alloc::sync::Arc;

use lull_core::units::{CpuId, Ticks};

use crate::apic::vector;
use crate::cpu::regs;
use crate::virt::events::EventQueue;
use crate::virt::fpu::FpuState;
use crate::virt::page::physical;
use crate::virt::{AddressSize, Injection, InterruptRequests, Segment, StartState, VirtCpu, fast};

use super::apic::VirtualApic;
use super::controls::{PrimaryControls, SecondaryControls};
use super::ept::Ept;
use super::field::{Field, SegmentSlot};
use super::msr::SwitchedMsrs;
use super::vmcs::Vmcs;
use super::{Shared, debug, event, reset, segment, vpid};

mod exits;
mod gate;
mod virt_cpu;

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
        use super::entry;
        use super::exit::{Decoded, decode};

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
}

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "runs guests")]

    use super::super::entry;
    use super::{VmxVcpu, regs};

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
