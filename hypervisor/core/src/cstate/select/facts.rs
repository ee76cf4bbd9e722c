//! What is known about a CPU when its C-states are chosen.

use crate::idle::MonitorTrust;
use core::fmt;

/// CPUID leaf 5, MONITOR/MWAIT. Source: Intel SDM, volume 2, CPUID; AMD APM, volume 3, CPUID Fn0000_0005.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MwaitLeaf {
    /// EAX bits 15:0: the smallest monitored line, in bytes.
    pub smallest_line: u16,
    /// EBX bits 15:0: the largest monitored line, in bytes.
    pub largest_line: u16,
    /// ECX bit 0: the extensions are enumerated; without it ECX and EDX say nothing.
    pub extensions: bool,
    /// ECX bit 1: MWAIT with ECX bit 0 set treats a masked interrupt as a break event.
    pub interrupt_break: bool,
    /// EDX: the number of sub-states, four bits a C-state, C0 first.
    pub substates: u32,
}

impl MwaitLeaf {
    /// The leaf, from its registers.
    pub const fn from_registers(eax: u32, ebx: u32, ecx: u32, edx: u32) -> Self {
        Self {
            smallest_line: eax as u16,
            largest_line: ebx as u16,
            extensions: ecx & 1 != 0,
            interrupt_break: ecx & 2 != 0,
            substates: edx,
        }
    }
}

/// What the self-test found about one way of using MWAIT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MwaitVerdict {
    /// It was not tried, since CPUID does not offer it.
    #[default]
    Untested,
    /// It slept, and a due timer ended it.
    Works,
    /// #UD: there is no such instruction.
    InvalidOpcode,
    /// #GP: the instruction refuses these operands.
    GeneralProtection,
    /// It returned at once, every time: a busy loop that calls itself a sleep.
    NeverSleeps,
    /// A timer was due, and its interrupt was not taken.
    MissesTimer,
}

impl fmt::Display for MwaitVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MwaitVerdict::Untested => "was not tested",
            MwaitVerdict::Works => "works",
            MwaitVerdict::InvalidOpcode => "raises #UD",
            MwaitVerdict::GeneralProtection => "raises #GP",
            MwaitVerdict::NeverSleeps => "never sleeps",
            MwaitVerdict::MissesTimer => "does not take a due timer's interrupt",
        })
    }
}

/// What the self-test found at boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MwaitTest {
    /// `sti; mwait; cli` with ECX = 0.
    pub open: MwaitVerdict,
    /// MWAIT with ECX = 1 and interrupts off.
    pub masked: MwaitVerdict,
    /// Another CPU's store ended a sleep. `None` if there was no other CPU to try it with.
    pub store_wakes: Option<bool>,
}

impl MwaitTest {
    /// Whether wakers may leave the interrupt out. Only on proof, and never on a CPU whose monitor is known to miss stores.
    ///
    /// `erratum`: the CPU is on the list of those (such as APL30, ICX143, LNL030).
    pub fn trust(&self, erratum: bool) -> MonitorTrust {
        match self.store_wakes {
            Some(true) if !erratum => MonitorTrust::SeesStores,
            _ => MonitorTrust::MissesStores,
        }
    }
}

/// What is known about a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFacts {
    /// CPUID leaf 1 ECX bit 3: MONITOR and MWAIT exist.
    pub monitor: bool,
    /// CPUID leaf 5.
    pub mwait: MwaitLeaf,
    /// The self-test.
    pub test: MwaitTest,
    /// CPUID leaf 8000_0007h EDX bit 8: the TSC counts on in every C-state.
    pub nonstop_tsc: bool,
    /// CPUID leaf 6 EAX bit 2: the local APIC timer runs on in every C-state.
    pub arat: bool,
}
