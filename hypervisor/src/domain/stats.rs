//! Exits of a vCPU, counted by kind. Read by debug keys while the vCPU runs.

use core::sync::atomic::{AtomicU64, Ordering};

use super::layout::LAPIC_PAGE;
use crate::virt::{Exit, Gpr, VirtCpu};

const TPR_MSR: u32 = 0x808;
const EOI_MSR: u32 = 0x80b;
const TPR_ADDRESS: u64 = LAPIC_PAGE + 0x80;
const EOI_ADDRESS: u64 = LAPIC_PAGE + 0xb0;

/// Kinds of exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitKind {
    /// Physical interrupt, or an event on the wake word.
    Event,
    /// HLT.
    Hlt,
    /// PAUSE.
    Pause,
    /// CPUID.
    Cpuid,
    /// RDMSR and WRMSR, but for the next two.
    Msr,
    /// End of an interrupt, by whatever instruction.
    Eoi,
    /// Task priority, written by whatever instruction.
    Tpr,
    /// Port I/O.
    Io,
    /// Device memory.
    Mmio,
    /// Interrupt window.
    Window,
    /// Everything else.
    Other,
}

impl ExitKind {
    /// All kinds, in the order of their counters.
    pub const ALL: [Self; 11] = [
        Self::Event,
        Self::Hlt,
        Self::Pause,
        Self::Cpuid,
        Self::Msr,
        Self::Eoi,
        Self::Tpr,
        Self::Io,
        Self::Mmio,
        Self::Window,
        Self::Other,
    ];

    /// Of an exit. Which MSR is meant, the registers say.
    pub fn of(exit: &Exit, virt: &dyn VirtCpu) -> Self {
        match exit {
            Exit::Event => Self::Event,
            Exit::Hlt => Self::Hlt,
            Exit::Pause => Self::Pause,
            Exit::Cpuid => Self::Cpuid,
            Exit::Wrmsr => match virt.gpr(Gpr::Rcx) as u32 {
                EOI_MSR => Self::Eoi,
                TPR_MSR => Self::Tpr,
                _ => Self::Msr,
            },
            Exit::Rdmsr => Self::Msr,
            Exit::Cr8Write => Self::Tpr,
            &Exit::NestedFault {
                gpa, write: true, ..
            } if gpa == EOI_ADDRESS => Self::Eoi,
            &Exit::NestedFault {
                gpa, write: true, ..
            } if gpa == TPR_ADDRESS => Self::Tpr,
            Exit::Io(_) => Self::Io,
            Exit::NestedFault { .. } | Exit::ApicWrite { .. } => Self::Mmio,
            Exit::InterruptWindow => Self::Window,
            _ => Self::Other,
        }
    }

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Hlt => "hlt",
            Self::Pause => "pause",
            Self::Cpuid => "cpuid",
            Self::Msr => "msr",
            Self::Eoi => "eoi",
            Self::Tpr => "tpr",
            Self::Io => "io",
            Self::Mmio => "mmio",
            Self::Window => "window",
            Self::Other => "other",
        }
    }
}

/// One counter a kind.
#[derive(Debug, Default)]
pub struct ExitCounts([AtomicU64; ExitKind::ALL.len()]);

impl ExitCounts {
    /// Counts one; only the pCPU that runs the vCPU does.
    #[inline]
    pub fn count(&self, kind: ExitKind) {
        self.add(kind, 1);
    }

    /// Counts several.
    #[inline]
    pub fn add(&self, kind: ExitKind, times: u64) {
        if let Some(counter) = self.0.get(kind as usize) {
            counter.fetch_add(times, Ordering::Relaxed);
        }
    }

    /// How many there were.
    pub fn get(&self, kind: ExitKind) -> u64 {
        self.0
            .get(kind as usize)
            .map_or(0, |c| c.load(Ordering::Relaxed))
    }

    /// Of all kinds.
    pub fn total(&self) -> u64 {
        ExitKind::ALL.iter().map(|kind| self.get(*kind)).sum()
    }
}
