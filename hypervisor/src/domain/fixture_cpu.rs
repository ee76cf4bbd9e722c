//! A vCPU whose guest is a script: what it exits for, and what was done to it.
use std::boxed::Box;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;

use lull_core::units::CpuId;
use lull_core::wake::WakeWord;

use crate::virt::{
    Answer, ApicMode, ApicState, Exit, Gate, GateEvent, Gp, Gpr, GuestCpuState, Injection,
    ShownRegister, StartState, VirtCpu, fast,
};

/// Runs at an entry and says why the guest leaves.
pub type Step = Box<dyn FnMut(&mut MockState) -> Exit + Send>;

/// Everything that a test may look at or set.
#[derive(Default)]
pub struct MockState {
    /// General registers.
    pub gpr: [u64; 16],
    /// Control state.
    pub cpu: GuestCpuState,
    /// What hardware says of the next instruction.
    pub next_rip: Option<u64>,
    /// Injections that the guest has taken at an entry.
    pub taken: Vec<Injection>,
    /// What waits for the next entry.
    pub pending: Vec<Injection>,
    /// Window asked for: class below which CR8 must be, 16 for any.
    pub window: Option<u8>,
    /// Interrupt shadow.
    pub shadow: bool,
    /// CR8.
    pub cr8: u8,
    /// MSRs of the backend.
    pub msrs: BTreeMap<u32, u64>,
    /// XCR0.
    pub xcr0: u64,
    /// TSC offset.
    pub offset: u64,
    /// Resets, in order.
    pub resets: Vec<StartState>,
    /// Entries so far.
    pub entries: usize,
    /// Exits are offered to the gate.
    pub fast: bool,
    /// What CPUID has told.
    pub cpuid: fast::Remembered,
    /// It virtualizes an APIC in x2APIC mode, and has been shown one.
    pub virtualizes: bool,
    /// What it was lent, as the guest has left it.
    pub apic: ApicState,
    /// Loaded on a pCPU.
    pub loaded: bool,
    /// What the guest does, one step an entry. When it ends, physical interrupts keep arriving.
    pub script: VecDeque<Step>,
}

impl MockState {
    /// Lets the gate answer an exit, if this vCPU does that.
    fn offer(&mut self, exit: &Exit, gate: &mut dyn Gate) -> Answer {
        if !self.fast || !gate.answers() {
            return Answer::Leave;
        }
        let (rip, cr3) = (self.cpu.rip, self.cpu.cr3);
        let memory = gate.memory();
        let next = |opcode| {
            let memory = memory.as_ref()?;
            self.next_rip
                .or_else(|| fast::next(memory, cr3, rip, opcode))
        };
        let (next, answer) = match exit {
            Exit::Cpuid => {
                let [rax, rcx] = [Gpr::Rax, Gpr::Rcx].map(|r| self.gpr[r.index()] as u32);
                let told = self.cpuid.get(rax, rcx, self.cpu.cr4);
                let (Some(regs), Some(next)) = (told, next(fast::opcode::CPUID)) else {
                    return Answer::Leave;
                };
                let order = [Gpr::Rax, Gpr::Rbx, Gpr::Rcx, Gpr::Rdx];
                for (register, value) in order.into_iter().zip(regs) {
                    self.gpr[register.index()] = value.into();
                }
                gate.told_cpuid(1);
                (next, Answer::Enter)
            }
            Exit::Rdmsr => match next(fast::opcode::RDMSR) {
                Some(next) => (next, gate.read_msr(&mut self.gpr, self.cr8)),
                None => return Answer::Leave,
            },
            Exit::Wrmsr => match next(fast::opcode::WRMSR) {
                Some(next) => (next, gate.write_msr(&self.gpr, &mut self.cr8)),
                None => return Answer::Leave,
            },
            Exit::Hypercall => (rip, gate.hypercall()),
            _ => return Answer::Leave,
        };
        if matches!(answer, Answer::Enter | Answer::Look) {
            self.cpu.rip = next;
        }
        self.shadow &= !matches!(answer, Answer::Enter | Answer::Look);
        answer
    }
}

/// Handle to a scripted vCPU; clones are the same vCPU.
#[derive(Clone, Default)]
pub struct MockCpu(Arc<Mutex<MockState>>);

impl MockCpu {
    /// In flat 64-bit mode at RIP 0, with interrupts on.
    pub fn new() -> Self {
        let cpu = Self::default();
        {
            let mut s = cpu.state();
            s.cpu.cr0 = 1;
            s.cpu.efer = 1 << 10;
            s.cpu.cs.attributes = crate::virt::SegmentAttributes::LONG;
            s.cpu.rflags = 1 << 9 | 2;
            s.next_rip = Some(0x100);
            s.msrs.insert(0xc000_0080, 0);
        }
        cpu
    }

    /// Its state.
    pub fn state(&self) -> MutexGuard<'_, MockState> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The guest exits for `exit` at its next entry.
    pub fn exits(&self, exit: Exit) -> &Self {
        self.does(move |_| exit.clone())
    }

    /// The guest does this at its next entry.
    pub fn does(&self, step: impl FnMut(&mut MockState) -> Exit + Send + 'static) -> &Self {
        self.state().script.push_back(Box::new(step));
        self
    }
}

impl VirtCpu for MockCpu {
    fn gpr(&self, r: Gpr) -> u64 {
        self.state().gpr[r.index()]
    }
    fn set_gpr(&mut self, r: Gpr, value: u64) {
        self.state().gpr[r.index()] = value;
    }
    fn rip(&self) -> u64 {
        self.state().cpu.rip
    }
    fn rflags(&self) -> u64 {
        self.state().cpu.rflags
    }
    fn set_rflags(&mut self, value: u64) {
        self.state().cpu.rflags = value;
    }
    fn cpu_state(&self) -> GuestCpuState {
        self.state().cpu
    }
    fn reset(&mut self, start: StartState) {
        let mut s = self.state();
        s.pending.clear();
        s.resets.push(start);
        s.cpu.rflags = 2;
    }
    fn next_rip(&self) -> Option<u64> {
        self.state().next_rip
    }
    fn advance(&mut self, to_rip: u64) {
        let mut s = self.state();
        s.cpu.rip = to_rip;
        s.shadow = false;
    }
    fn interruptible(&self) -> bool {
        let s = self.state();
        s.cpu.rflags & 1 << 9 != 0 && !s.shadow && s.pending.is_empty()
    }
    fn nmi_ready(&self) -> bool {
        let s = self.state();
        !s.shadow && s.pending.is_empty()
    }
    fn inject(&mut self, event: Injection) {
        self.state().pending.push(event);
    }
    fn injection_pending(&self) -> bool {
        !self.state().pending.is_empty()
    }
    fn want_window(&mut self, on: bool) {
        self.state().window = on.then_some(16);
    }
    fn want_window_below(&mut self, class: u8) {
        self.state().window = Some(class);
    }
    fn cr8(&self) -> u8 {
        self.state().cr8
    }
    fn set_cr8(&mut self, class: u8) {
        self.state().cr8 = class;
    }
    fn get_msr(&self, msr: u32) -> Option<u64> {
        self.state().msrs.get(&msr).copied()
    }
    fn set_msr(&mut self, msr: u32, value: u64) -> Result<(), Gp> {
        let mut s = self.state();
        *s.msrs.get_mut(&msr).ok_or(Gp)? = value;
        Ok(())
    }
    fn remember_cpuid(&mut self, leaf: u32, subleaf: u32, regs: [u32; 4]) {
        self.state().cpuid.put(leaf, subleaf, regs);
    }
    fn forget_cpuid(&mut self) {
        self.state().cpuid.forget();
    }
    fn set_xcr0(&mut self, value: u64) -> Result<(), Gp> {
        if value & 1 == 0 {
            return Err(Gp);
        }
        self.state().xcr0 = value;
        Ok(())
    }
    fn xcr0(&self) -> u64 {
        self.state().xcr0
    }
    fn set_tsc_offset(&mut self, offset: u64) {
        self.state().offset = offset;
    }
    fn load(&mut self, _: CpuId) {
        assert!(!self.state().loaded, "loaded twice");
        self.state().loaded = true;
    }
    fn unload(&mut self) {
        assert!(self.state().loaded, "unloaded twice");
        self.state().loaded = false;
    }
    fn virtualizes_apic(&self) -> bool {
        self.state().virtualizes
    }
    fn show_apic(&mut self, mode: ApicMode, _: &[ShownRegister]) -> bool {
        mode == ApicMode::X2Apic
    }
    fn lend_apic(&mut self, apic: &ApicState) {
        self.state().apic = *apic;
    }
    fn take_apic_back(&mut self) -> ApicState {
        let mut s = self.state();
        let apic = core::mem::take(&mut s.apic);
        s.cr8 = apic.tpr >> 4;
        apic
    }

    fn enter(&mut self, word: &WakeWord, gate: &mut dyn Gate) -> Exit {
        assert!(self.state().loaded, "entered without load");
        if word.is_pending() {
            return Exit::Event;
        }
        gate.pass(GateEvent::Entering);
        let exit = loop {
            let mut s = self.state();
            s.entries += 1;
            let pending = core::mem::take(&mut s.pending);
            s.taken.extend(pending);
            let step = s.script.pop_front();
            let exit = step.map_or(Exit::Event, |mut step| step(&mut s));
            match s.offer(&exit, gate) {
                Answer::Leave => break exit,
                Answer::Undefined => s.pending.push(Injection::UD),
                Answer::Enter => {}
                Answer::Look => break Exit::Answered,
            }
            if word.is_pending() {
                break Exit::Answered;
            }
        };
        gate.pass(GateEvent::Left);
        exit
    }
}
