//! One virtual CPU: its registers, its APIC, and the loop around a VM entry.
//!
//! A turn of the loop: take the kick; take what was requested (INIT, start-up, NMI, timer); decide whether the vCPU
//! runs at all; hand the highest interrupt over or ask for a window; arm the timer; enter; deal with the exit.
//!
//! Invariants:
//! * The lock of a vCPU is held by the pCPU that runs it, for as long as it does. Others reach a vCPU only through
//!   [`LapicShared`] and a kick; nobody waits for the lock while a guest runs.
//! * The kick is consumed **before** requests and interrupts are looked at, and so is a notification of posted interrupts. A sender
//!   sets its bit before it kicks or notifies. So a vCPU that blocks or enters has seen the bit, or finds the kick (the scheduler
//!   refuses to block it, the wake word refuses the entry), or its guest is notified.
//! * A halted vCPU executes no instruction before something wakes it: a kick alone does not.
//!
//! Lock order: vCPU, then devices of its domain, then the domain's life. Called by the dispatch loop through
//! [`Domain::enter`](super::Domain::enter).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, Ordering};

use iced_x86::Mnemonic;
use lull_core::dispatch::RunOutcome;
use lull_core::units::{CpuId, Ticks, VcpuId};
use lull_core::wake::WakeWord;
use spin::Mutex;

use super::exit::{self, Next};
use super::fast::FastPath;
use super::host::VcpuHost;
use super::insn;
use super::msr::Msrs;
use super::stats::{ExitCounts, ExitKind};
use super::vlapic::{Lapic, LapicShared, Requests};
use super::{Domain, EndReason};
use crate::virt::barriers;
use crate::virt::{Exit, GateEvent, GuestMemory, Injection, StartState, VirtCpu};

const RFLAGS_IF: u64 = 1 << 9;

/// What a vCPU is doing, for debug keys and for finding out that a guest is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Activity {
    /// Waits for a start-up IPI.
    WaitForSipi = 0,
    /// Runs, or would.
    Active = 1,
    /// Halted, and interruptible.
    Halted = 2,
    /// Halted with interrupts off: only NMI or INIT can wake it.
    HaltedForGood = 3,
    /// Has left its guest, which is over.
    Gone = 4,
}

/// A vCPU of a domain.
pub struct Vcpu {
    id: VcpuId,
    shared: Arc<LapicShared>,
    activity: AtomicU8,
    exits: ExitCounts,
    owned: Mutex<Option<Owned>>,
}

/// What only the pCPU that runs the vCPU touches.
pub(super) struct Owned {
    pub virt: Box<dyn VirtCpu>,
    pub lapic: Lapic,
    pub msrs: Msrs,
    pub memory: Arc<GuestMemory>,
    pub run: Run,
    loaded: bool,
    /// The processor keeps the APIC's priorities and delivers its interrupts; the APIC is lent to it for each entry.
    lends_apic: bool,
    nmi: bool,
    /// Where an exit found the vCPU in an interrupt shadow, as long as it has not moved on. See
    /// [`Owned::leave_hlt`].
    shadow_at: Option<u64>,
    armed: Option<Ticks>,
}

/// Whether instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    WaitForSipi,
    Running,
    Halted,
}

impl Vcpu {
    /// A vCPU with APIC id `index`. With a `start` it is the boot CPU; else it waits for a start-up IPI.
    pub(super) fn new(
        id: VcpuId,
        index: u32,
        mut virt: Box<dyn VirtCpu>,
        memory: Arc<GuestMemory>,
        start: Option<StartState>,
        tsc_offset: u64,
    ) -> Self {
        let shared = Arc::new(LapicShared::new(index));
        virt.reset(start.unwrap_or(StartState::WaitForSipi));
        virt.set_tsc_offset(tsc_offset);
        virt.take_requests_from(shared.interrupts());
        let (run, activity) = match start {
            Some(_) => (Run::Running, Activity::Active),
            None => (Run::WaitForSipi, Activity::WaitForSipi),
        };
        let lapic = Lapic::new(shared.clone());
        let msrs = Msrs::new(tsc_offset);
        let owned = Owned {
            virt,
            lapic,
            msrs,
            memory,
            run,
            loaded: false,
            lends_apic: false,
            nmi: false,
            shadow_at: None,
            armed: None,
        };
        Self {
            id,
            shared,
            activity: AtomicU8::new(activity as u8),
            exits: ExitCounts::default(),
            owned: Mutex::new(Some(owned)),
        }
    }

    /// Its slot in the machine.
    pub fn id(&self) -> VcpuId {
        self.id
    }

    /// Its APIC as others reach it.
    pub fn lapic(&self) -> &LapicShared {
        &self.shared
    }

    /// Exits by kind.
    pub fn exits(&self) -> &ExitCounts {
        &self.exits
    }

    /// What it does now; may be out of date when it is looked at.
    pub fn activity(&self) -> Activity {
        match self.activity.load(Ordering::SeqCst) {
            0 => Activity::WaitForSipi,
            1 => Activity::Active,
            2 => Activity::Halted,
            3 => Activity::HaltedForGood,
            _ => Activity::Gone,
        }
    }

    fn set_activity(&self, activity: Activity) {
        self.activity.store(activity as u8, Ordering::SeqCst);
    }

    /// Runs it until the dispatch loop is needed. See [`Domain::enter`].
    pub(super) fn enter(
        &self,
        domain: &Domain,
        host: &impl VcpuHost,
        cpu: CpuId,
        word: &WakeWord,
        on_gate: &mut dyn FnMut(GateEvent),
    ) -> RunOutcome {
        let mut guard = self.owned.lock();
        let Some(owned) = guard.as_mut() else {
            return RunOutcome::Gone;
        };
        owned.load(cpu);
        let outcome = loop {
            match self.turn(owned, domain, host, word, on_gate) {
                // The entry would refuse, and only then look.
                Next::Resume if word.is_pending() => break RunOutcome::Events,
                Next::Resume => {}
                Next::Events => break RunOutcome::Events,
                Next::Block => break RunOutcome::Block,
                Next::Yield => break RunOutcome::Yield,
                Next::End(reason) => {
                    domain.end(self, reason, host);
                    break RunOutcome::Gone;
                }
                Next::Leave => break RunOutcome::Gone,
            }
        };
        if outcome == RunOutcome::Gone {
            owned.unload();
            if owned.armed.take().is_some() {
                host.set_timer(self.id, None);
            }
            // Registers and the share of the memory go now; the rest of the domain may still run.
            *guard = None;
            drop(guard);
            self.set_activity(Activity::Gone);
            domain.leave(host);
        }
        outcome
    }

    /// It is about to run on this pCPU: its registers go in.
    pub(super) fn load(&self, cpu: CpuId) {
        if let Some(owned) = self.owned.lock().as_mut() {
            owned.load(cpu);
        }
    }

    /// It leaves this pCPU: its registers are in memory when this returns.
    pub(super) fn save(&self) {
        if let Some(owned) = self.owned.lock().as_mut() {
            owned.unload();
        }
    }

    /// The domain is over and this vCPU was never started, or has left: gives up what it holds.
    pub(super) fn release(&self) {
        *self.owned.lock() = None;
        self.set_activity(Activity::Gone);
    }

    fn turn(
        &self,
        owned: &mut Owned,
        domain: &Domain,
        host: &impl VcpuHost,
        word: &WakeWord,
        on_gate: &mut dyn FnMut(GateEvent),
    ) -> Next {
        host.consume_kick(self.id);
        if domain.is_ending() {
            return Next::Leave;
        }
        // Before requests are taken: whoever finds us halted for good must also find what we have not taken yet.
        self.set_activity(Activity::Active);
        self.shared.interrupts().take_notification();
        self.take_requests(owned);
        owned.lapic.poll_timer(host.now());
        match owned.run {
            Run::WaitForSipi => return self.block(owned, domain, host, Activity::WaitForSipi),
            Run::Halted if !owned.awakened() => {
                let interruptible = owned.virt.rflags() & RFLAGS_IF != 0;
                let how = if interruptible {
                    Activity::Halted
                } else {
                    Activity::HaltedForGood
                };
                return self.block(owned, domain, host, how);
            }
            Run::Halted | Run::Running => owned.run = Run::Running,
        }
        let new_deadline = self.arm_timer(owned, host);
        if !owned.virt.leave_by(host.deadline()) && new_deadline {
            // The physical timer is armed by the dispatch loop, before it calls us: it has to see the new deadline.
            return Next::Events;
        }
        owned.show_apic();
        let answers = owned.offer_interrupts() && !barriers::at_entry();
        let exit = self.pass(owned, answers, domain, host, word, on_gate);
        owned.take_apic_back();
        let kind = ExitKind::of(&exit, owned.virt.as_ref());
        if exit != Exit::Answered {
            self.exits.count(kind);
        }
        owned.lapic.set_cr8(owned.virt.cr8());
        owned.note_shadow(kind);
        let next = exit::handle(exit, owned, self, domain, host);
        if owned.lapic.cr8() != owned.virt.cr8() {
            owned.virt.set_cr8(owned.lapic.cr8());
        }
        next
    }

    /// Enters the guest, with somebody at the gate who `answers` what can be answered there.
    fn pass(
        &self,
        owned: &mut Owned,
        answers: bool,
        domain: &Domain,
        host: &impl VcpuHost,
        word: &WakeWord,
        on_gate: &mut dyn FnMut(GateEvent),
    ) -> Exit {
        let mut gate = FastPath {
            on_gate,
            vcpu: self,
            domain,
            host,
            memory: &owned.memory,
            lapic: &mut owned.lapic,
            msrs: &owned.msrs,
            answers,
            moved: false,
        };
        let exit = owned.virt.enter(word, &mut gate);
        if gate.moved {
            owned.shadow_at = None;
        }
        exit
    }

    fn take_requests(&self, owned: &mut Owned) {
        let (requests, vector) = self.shared.take_requests();
        if requests.is_empty() {
            return;
        }
        if requests.contains(Requests::TIMER) {
            owned.armed = None;
        }
        if requests.contains(Requests::INIT) {
            owned.lapic.init();
            owned.virt.reset(StartState::WaitForSipi);
            owned.run = Run::WaitForSipi;
            owned.nmi = false;
        }
        if requests.contains(Requests::SIPI) && owned.run == Run::WaitForSipi {
            owned.virt.reset(StartState::Sipi { vector });
            owned.run = Run::Running;
        }
        // One that waits for its start-up keeps no NMI: there is no table yet to take it by.
        if requests.contains(Requests::NMI) && owned.run != Run::WaitForSipi {
            owned.nmi = true;
        }
    }

    fn block(
        &self,
        owned: &mut Owned,
        domain: &Domain,
        host: &impl VcpuHost,
        how: Activity,
    ) -> Next {
        self.arm_timer(owned, host);
        self.set_activity(how);
        if domain.is_dead() {
            return Next::End(EndReason::crash(
                "all its vCPUs are halted with interrupts off",
            ));
        }
        Next::Block
    }

    /// Tells the host when the timer is due. `true`: there is a new deadline.
    fn arm_timer(&self, owned: &mut Owned, host: &impl VcpuHost) -> bool {
        let deadline = owned.lapic.timer_deadline();
        if deadline == owned.armed {
            return false;
        }
        owned.armed = deadline;
        host.set_timer(self.id, deadline);
        deadline.is_some()
    }
}

impl Owned {
    fn load(&mut self, cpu: CpuId) {
        if !core::mem::replace(&mut self.loaded, true) {
            self.virt.load(cpu);
        }
    }

    fn unload(&mut self) {
        if core::mem::replace(&mut self.loaded, false) {
            self.virt.unload();
        }
    }

    /// Whether a halted vCPU goes on.
    fn awakened(&self) -> bool {
        let interrupts = self.virt.rflags() & RFLAGS_IF != 0;
        self.nmi
            || self.virt.injection_pending()
            || (interrupts && self.lapic.deliverable().is_some())
    }

    /// Remembers an interrupt shadow over exits that follow before the guest has moved on.
    fn note_shadow(&mut self, kind: ExitKind) {
        let virt = &self.virt;
        let rip = Some(virt.rip());
        let interrupts = virt.rflags() & RFLAGS_IF != 0;
        let shadow = interrupts && !virt.interruptible() && !virt.injection_pending();
        // Nor does every machine keep the window closed in a shadow: Bochs' VMX opens it right behind STI.
        let window = kind == ExitKind::Window && interrupts;
        let unmoved = self.shadow_at == rip;
        self.shadow_at = rip.filter(|_| shadow || unmoved || window);
    }

    /// Executes the HLT of an `sti; hlt` between which a physical interrupt has come.
    ///
    /// STI keeps interrupts away until HLT is done, so that what is pending ends the HLT. Not every machine puts the
    /// shadow back at the next entry (QEMU does not): the interrupt would be taken before the HLT, and the guest would
    /// then sleep over it for ever. With something to deliver, HLT does nothing but end the shadow, so it can be done here.
    /// That is right even if there was no shadow: the interrupt might as well have come one instruction later.
    fn leave_hlt(&mut self) {
        if self.shadow_at.is_none() || self.shadow_at != Some(self.virt.rip()) {
            return;
        }
        let cpu = self.virt.cpu_state();
        let instruction = insn::fetch(&self.memory, &cpu, &[]);
        if let Some(hlt) = instruction.filter(|i| i.mnemonic() == Mnemonic::Hlt && cpu.cpl == 0) {
            self.virt.advance(insn::after(&cpu, &hlt));
        }
    }

    /// Tells a processor that virtualizes APICs what has changed.
    fn show_apic(&mut self) {
        if self.virt.virtualizes_apic() && self.lapic.take_changed() {
            let (mode, registers) = (self.lapic.lent_mode(), self.lapic.shown());
            self.lends_apic = self.virt.show_apic(mode, &registers);
        }
    }

    fn take_apic_back(&mut self) {
        if self.lends_apic {
            let state = self.virt.take_apic_back();
            self.lapic.take_back(&state);
        }
    }

    /// Hands an NMI over, or asks to be told when the guest can take it.
    fn offer_nmi(&mut self) {
        if self.nmi {
            if self.virt.nmi_ready() {
                self.virt.inject(Injection::Nmi);
                self.nmi = false;
            } else {
                self.virt.want_nmi_window();
            }
        }
    }

    /// Hands over what is most urgent, or asks to be told when the guest can take it. `false`: something waits, and not every machine
    /// keeps a window for it over the delivery of something else: it must be offered again at the next exit, whatever that is.
    fn offer_interrupts(&mut self) -> bool {
        if self.lends_apic {
            return self.lend_apic();
        }
        if !self.nmi && self.lapic.nothing_requested() {
            self.virt.want_window(false);
            return true;
        }
        if self.nmi || self.lapic.deliverable().is_some() {
            self.leave_hlt();
        }
        self.offer_nmi();
        if let Some(vector) = self.lapic.deliverable()
            && self.virt.interruptible()
            && self.lapic.accept(vector)
        {
            self.virt.inject(Injection::Interrupt(vector));
        }
        if self.lapic.deliverable().is_some() {
            self.virt.want_window(true);
        } else if let Some(class) = self.lapic.held_back_by_tpr() {
            // CR8 can go down without an exit.
            self.virt.want_window_below(class);
        } else {
            self.virt.want_window(false);
        }
        !self.nmi && self.lapic.nothing_requested()
    }

    /// Where the processor delivers interrupts, it is given all there are; no window is needed for them.
    fn lend_apic(&mut self) -> bool {
        if self.nmi || self.lapic.deliverable().is_some() {
            self.leave_hlt();
        }
        self.offer_nmi();
        self.virt.want_window(false);
        let state = self.lapic.lend();
        self.virt.lend_apic(&state);
        !self.nmi
    }
}

impl core::fmt::Debug for Vcpu {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({:?})", self.id, self.activity())
    }
}

#[cfg(test)]
#[path = "vcpu_tests.rs"]
mod tests;
