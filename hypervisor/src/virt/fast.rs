//! Frequent exits, answered between two entries: the guest is not left.
//!
//! What a guest asks for most often (CPUID, an MSR of its local APIC) changes nothing of what an entry depends on. So the backend
//! offers such an exit to the caller right behind it, with nothing accounted, nothing looked at again and the wake word still in
//! the state GUEST, and enters again after a plain look at the word.
//!
//! Why that loses no wake: whoever posts to this CPU sees GUEST, and sends an interrupt; that one stays pending until the next
//! entry, which it ends at once. What this CPU posts to itself meanwhile sends none: that is what the plain look is for.

use super::GateEvent;

/// An exit that may be answered so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastExit {
    /// CPUID.
    Cpuid,
    /// RDMSR of an MSR that is not let through.
    Rdmsr,
    /// WRMSR of an MSR that is not let through.
    Wrmsr,
    /// VMMCALL or VMCALL.
    Hypercall,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    /// Nothing was done: it is an exit like any other.
    Leave,
    /// Done, and RIP is to be moved: enter again.
    Enter,
    /// Done, and RIP is to be moved; what the vCPU waits for, or its timer, has changed: [`Exit::Answered`](super::Exit::Answered).
    Look,
    /// The guest has no such instruction: #UD.
    Undefined,
}

/// Where the intercepted instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The next one is here.
    Next(u64),
    /// Here, in 64-bit code under four levels of paging; how long it is has to be found out.
    At {
        /// RIP.
        rip: u64,
        /// CR3.
        cr3: u64,
    },
}

/// What of a vCPU an answer reads and writes.
#[derive(Debug)]
pub struct FastCpu<'a> {
    /// In encoding order. RSP is not valid.
    pub gprs: &'a mut [u64; 16],
    /// Where the instruction is.
    pub place: Place,
    /// CR4.
    pub cr4: u64,
    /// CR8. May be changed.
    pub cr8: u8,
    /// Out: where the guest goes on, with [`Answer::Enter`] and [`Answer::Look`].
    pub next: u64,
}

/// Who stands at the gate: is told of entries, and may answer exits.
///
/// Called with interrupts held off. While a guest has not been left, the registers that every exit puts back are the
/// hypervisor's, but FPU and debug registers are the guest's, as they are from load to unload.
pub trait Gate {
    /// The guest is about to run, or was left for good. Once each an entry, whatever was answered in between.
    fn pass(&mut self, event: GateEvent);

    /// Answers an exit, or lets it be.
    fn answer(&mut self, exit: FastExit, cpu: &mut FastCpu<'_>) -> Answer {
        let _ = (exit, cpu);
        Answer::Leave
    }
}

impl<F: FnMut(GateEvent)> Gate for F {
    fn pass(&mut self, event: GateEvent) {
        self(event);
    }
}
