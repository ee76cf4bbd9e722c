//! Hardware virtualization behind one trait: what a domain asks of a virtual CPU, whichever vendor made the real one.
//!
//! Invariants:
//! * A vCPU is `load`ed on at most one pCPU at a time, and only that pCPU calls [`VirtCpu::enter`].
//! * `enter` is called, and returns, with interrupts off. It opens them only where a physical interrupt ended the guest, so that
//!   its handler runs before `enter` returns.
//! * `enter` returns with the wake word in the state AWAKE and every event still in it: the next attempt to enter, or to sleep,
//!   fails until the dispatch loop has taken them. Whoever posts meanwhile is told that this CPU will look, and sends no IPI.
//! * What the guest can do wrong is an [`Exit`], never a panic.
//! * Nothing of another vCPU or of the hypervisor is readable by a guest: every register that it can name is loaded before entry.
//!
//! Called by `domain` (exit handling), which owns the vCPUs, and once per CPU at boot ([`Backend::enable_on_this_cpu`]).
//! Takes no lock that is held across an entry.

mod apic;
pub mod barriers;
mod detect;
mod events;
pub mod fast;
pub mod fpu;
mod memory;
mod page;
mod posted;
mod rules;
mod stage2;
pub mod svm;
mod types;
mod vectors;
pub mod vmx;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;

use lull_core::units::{CpuId, Ticks};
use lull_core::wake::WakeWord;

pub use apic::{ApicMode, ApicState, ShownRegister};
pub use detect::detect;
pub use fast::{Answer, Gate};
pub use memory::{GuestMemory, OutOfRange};
pub use posted::InterruptRequests;
pub use types::{
    AddressSize, Exit, GateEvent, Gp, Gpr, GuestCpuState, Injection, IoExit, Segment,
    SegmentAttributes, SegmentRegister, StartState,
};
pub use vectors::{AtomicVectorSet, VectorSet};

/// One virtual CPU as the hardware knows it.
///
/// Register values read after an exit are those of the guest at the exit; values written are in force at the next entry.
pub trait VirtCpu: Send {
    /// A general register. `Rsp` is included.
    fn gpr(&self, register: Gpr) -> u64;
    /// Sets all 64 bits of a general register.
    fn set_gpr(&mut self, register: Gpr, value: u64);
    /// The instruction pointer (an offset into CS outside 64-bit mode).
    fn rip(&self) -> u64;
    /// RFLAGS.
    fn rflags(&self) -> u64;
    /// Sets RFLAGS. Bits that software cannot change are left to the caller.
    fn set_rflags(&mut self, value: u64);
    /// Control registers and segments: what an instruction decoder or a page walker needs.
    fn cpu_state(&self) -> GuestCpuState;
    /// CR4, where nothing else of [`cpu_state`](Self::cpu_state) is needed.
    fn cr4(&self) -> u64 {
        self.cpu_state().cr4
    }
    /// CR3 and RIP where the guest is in 64-bit code under four levels of paging: all that finding its code takes there.
    fn plain_code(&self) -> Option<(u64, u64)> {
        None
    }
    /// The bytes of the intercepted instruction where hardware delivers them (AMD decode assists, nested faults only), else
    /// empty: then the caller fetches them through the guest's page tables.
    fn instruction_bytes(&self) -> &[u8] {
        &[]
    }

    /// Puts all registers to a start state. Drops pending injections, FPU contents, and cached translations.
    ///
    /// With [`StartState::WaitForSipi`] the registers are those after INIT; the caller must not enter before a `Sipi`.
    fn reset(&mut self, start: StartState);

    /// Address of the instruction after the intercepted one, where hardware gives it (NRIP save; port I/O always).
    fn next_rip(&self) -> Option<u64>;
    /// Moves RIP past an emulated instruction. Ends the interrupt shadow, as executing it would have.
    fn advance(&mut self, to_rip: u64);

    /// Whether an external interrupt injected now would be taken at once: IF is set, there is no shadow, and nothing else waits
    /// to be injected.
    fn interruptible(&self) -> bool;
    /// Whether an NMI injected now would be taken at once: no earlier one is being handled, there is no shadow, and nothing else
    /// waits to be injected.
    fn nmi_ready(&self) -> bool;
    /// Queues an event for the next entry.
    ///
    /// An external interrupt or an NMI may only be queued if [`interruptible`](Self::interruptible) or
    /// [`nmi_ready`](Self::nmi_ready) says so. An exception may be queued at any time: if another exception was being delivered,
    /// the two combine as in hardware (AMD APM vol. 2 table 8-4): second one, double fault, or [`Exit::TripleFault`] at the next
    /// `enter`.
    fn inject(&mut self, event: Injection);
    /// Whether an event waits for the next entry: one just injected, or one whose delivery the last exit interrupted. Injecting
    /// such an event again is done by the backend and needs nothing from the caller.
    fn injection_pending(&self) -> bool;
    /// Asks for [`Exit::InterruptWindow`] as soon as the guest can take an external interrupt, whatever its task priority.
    /// Stays until turned off, or until that exit. Ask only when `interruptible` is false.
    fn want_window(&mut self, on: bool);
    /// As [`want_window`](Self::want_window), but the guest must also have a task priority (CR8) below `class` (1..=15, the upper
    /// half of the waiting vector).
    fn want_window_below(&mut self, class: u8);
    /// Asks for an exit as soon as the guest can take an NMI. Ask only when `nmi_ready` is false. Where hardware has no such window,
    /// the NMI waits for the next exit after its masking has ended, or the shadow.
    fn want_nmi_window(&mut self) {}

    /// CR8: the upper half of the task priority. The guest reads and writes it without exits, so the virtual local APIC copies
    /// it after an exit, and sets it when its TPR register was written.
    fn cr8(&self) -> u8;
    /// Sets CR8 (0..=15).
    fn set_cr8(&mut self, class: u8);

    /// Where interrupts are requested of it, so that a processor that can may take them from there by itself. Before it is first loaded.
    fn take_requests_from(&mut self, requests: &Arc<InterruptRequests>) {
        let _ = requests;
    }
    /// Whether [`show_apic`](Self::show_apic) leads to anything.
    fn virtualizes_apic(&self) -> bool {
        false
    }
    /// Shows the processor the guest's APIC: its mode, and registers that only the guest's own writes change.
    ///
    /// `true`: for an APIC in this mode, the processor keeps the priorities and delivers interrupts by itself. Until told otherwise,
    /// the caller then [lends](Self::lend_apic) it the rest before each entry, takes it back after each exit, and injects no external
    /// interrupt. Else it does nothing with it.
    fn show_apic(&mut self, mode: ApicMode, registers: &[ShownRegister]) -> bool {
        let _ = (mode, registers);
        false
    }
    /// The APIC's state at the next entry. Only after [`show_apic`](Self::show_apic) said so.
    fn lend_apic(&mut self, state: &ApicState) {
        let _ = state;
    }
    /// What has become of it since it was lent.
    fn take_apic_back(&mut self) -> ApicState {
        ApicState::default()
    }

    /// Reads an MSR that lives in the virtual CPU: EFER, PAT, FS/GS/KERNEL_GS base, STAR, LSTAR, CSTAR, SFMASK, SYSENTER_CS/ESP/EIP,
    /// TSC_AUX, DEBUGCTL (always 0). `None`: not one of these.
    fn get_msr(&self, msr: u32) -> Option<u64>;
    /// Writes an MSR of the same list. `Err` means that the guest gets #GP(0): not on the list, or a value that the processor
    /// would refuse.
    fn set_msr(&mut self, msr: u32, value: u64) -> Result<(), Gp>;
    /// From now on CPUID may be answered so, for this leaf (and subleaf, where that counts), without an exit to the caller.
    fn remember_cpuid(&mut self, leaf: u32, subleaf: u32, regs: [u32; 4]) {
        let _ = (leaf, subleaf, regs);
    }
    /// Something that answers to CPUID are made of has changed, and it was neither CR4 nor XCR0.
    fn forget_cpuid(&mut self) {}
    /// Sets XCR0 after the checks of XSETBV. `Err` means #GP(0).
    fn set_xcr0(&mut self, value: u64) -> Result<(), Gp>;
    /// XCR0.
    fn xcr0(&self) -> u64;
    /// What is added to the TSC when the guest reads it.
    fn set_tsc_offset(&mut self, offset: u64);

    /// From the next entry on, the guest is left at this time of the TSC, by [`Exit::Event`], whatever it does; `None`: never for
    /// this reason.
    ///
    /// `false`: this hardware cannot, and only a physical timer interrupt ends the guest.
    fn leave_by(&mut self, deadline: Option<Ticks>) -> bool {
        let _ = deadline;
        false
    }

    /// This vCPU is now on this pCPU: loads FPU and vector state, XCR0, DR0 to DR3, TSC_AUX.
    ///
    /// `cpu` is the pCPU that runs this code and on which [`Backend::enable_on_this_cpu`] has succeeded.
    fn load(&mut self, cpu: CpuId);
    /// This vCPU leaves the pCPU on which it was loaded: saves what `load` loads.
    fn unload(&mut self);

    /// One VM entry, from the last check for events to the first instruction after the exit.
    ///
    /// `word` is the wake word of this pCPU, AWAKE on entry and on return; events stay in it. `gate` is told with
    /// interrupts held off right before and right after the guest runs (not at all if the gate was closed), so that the caller
    /// can stamp guest time, and is offered exits that may be answered without leaving the guest. The vCPU must be loaded.
    fn enter(&mut self, word: &WakeWord, gate: &mut dyn Gate) -> Exit;
}

/// The virtualization hardware of this machine.
#[derive(Clone)]
pub enum Backend {
    /// AMD-V.
    Svm(svm::Svm),
    /// Intel's VMX.
    Vmx(vmx::Vmx),
}

/// Translation from guest-physical to host-physical memory of one domain; shared by its vCPUs.
#[derive(Clone)]
pub enum Stage2 {
    /// AMD nested page tables.
    Svm(svm::Npt),
    /// Intel's extended page tables.
    Vmx(vmx::Ept),
}

impl Backend {
    /// Short name for logs and the machine channel: `svm`, `vmx`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Svm(_) => "svm",
            Self::Vmx(_) => "vmx",
        }
    }

    /// What of the hardware is used and what is not offered, for one log line.
    pub fn describe(&self) -> String {
        match self {
            Self::Svm(svm) => svm.describe(),
            Self::Vmx(vmx) => vmx.describe(),
        }
    }

    /// Turns virtualization on for the CPU that runs this code; `cpu` is its index.
    ///
    /// Call once per CPU, after its descriptor tables, TSS and per-CPU area (GS base) are in their final place: they are
    /// recorded here and put back after every exit.
    ///
    /// # Errors
    /// A sentence that says why this CPU cannot run guests (for instance: switched off by firmware).
    pub fn enable_on_this_cpu(&self, cpu: CpuId) -> Result<(), String> {
        match self {
            Self::Svm(svm) => svm.enable_on_this_cpu(cpu),
            Self::Vmx(vmx) => vmx.enable_on_this_cpu(cpu),
        }
    }

    /// A new vCPU of the domain that `stage2` belongs to, in the state [`StartState::WaitForSipi`].
    ///
    /// # Panics
    /// If `stage2` was made by another backend: a mistake of ours.
    pub fn new_vcpu(&self, stage2: &Stage2) -> Box<dyn VirtCpu> {
        match (self, stage2) {
            (Self::Svm(svm), Stage2::Svm(npt)) => Box::new(svm.new_vcpu(npt)),
            (Self::Vmx(vmx), Stage2::Vmx(ept)) => Box::new(vmx.new_vcpu(ept)),
            (Self::Svm(_), Stage2::Vmx(_)) | (Self::Vmx(_), Stage2::Svm(_)) => {
                panic!("guest memory of one backend, vCPU of another")
            }
        }
    }

    /// Maps the domain's memory at guest-physical 0; everything else faults to [`Exit::NestedFault`].
    pub fn new_stage2(&self, memory: &GuestMemory) -> Stage2 {
        match self {
            Self::Svm(svm) => Stage2::Svm(svm.new_npt(memory)),
            Self::Vmx(vmx) => Stage2::Vmx(vmx.new_ept(memory)),
        }
    }
}
