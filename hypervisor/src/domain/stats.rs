//! Exits of a vCPU, counted by kind. Read by debug keys while the vCPU runs.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::virt::Exit;

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
    /// RDMSR and WRMSR.
    Msr,
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
    pub const ALL: [Self; 9] = [
        Self::Event,
        Self::Hlt,
        Self::Pause,
        Self::Cpuid,
        Self::Msr,
        Self::Io,
        Self::Mmio,
        Self::Window,
        Self::Other,
    ];

    /// Of an exit.
    pub fn of(exit: &Exit) -> Self {
        match exit {
            Exit::Event => Self::Event,
            Exit::Hlt => Self::Hlt,
            Exit::Pause => Self::Pause,
            Exit::Cpuid => Self::Cpuid,
            Exit::Rdmsr | Exit::Wrmsr => Self::Msr,
            Exit::Io(_) => Self::Io,
            Exit::NestedFault { .. } => Self::Mmio,
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
