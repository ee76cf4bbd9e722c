//! Why a scheduler refuses.

use crate::units::{CpuId, CpuSet, DomId, VcpuId};
use core::fmt;

/// Why a scheduler refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedError {
    /// The slot number is beyond the capacity.
    NoSuchSlot {
        /// The slot asked for.
        unit: VcpuId,
        /// How many slots there are.
        capacity: usize,
    },
    /// The slot has a unit already.
    SlotTaken(VcpuId),
    /// The slot has no unit.
    NoUnit(VcpuId),
    /// The affinity holds no pCPU that is online.
    NoOnlineCpu(CpuSet),
    /// The pCPU is beyond the capacity.
    NoSuchCpu(CpuId),
    /// The pCPU has a unit running: it cannot go offline before that has left.
    CpuBusy(CpuId),
    /// The pCPU is the last that is online.
    LastCpu(CpuId),
    /// The domain is beyond the capacity.
    NoSuchDomain(DomId),
    /// The scheduler has no such parameter.
    NotKnown(&'static str),
    /// All reservations together are more than the pCPUs can serve; in millionths of a pCPU.
    Overbooked {
        /// What would be reserved.
        asked: u64,
        /// What there is.
        there: u64,
    },
}

impl fmt::Display for SchedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchedError::NoSuchSlot { unit, capacity } => {
                write!(f, "no slot for {unit}: expected less than {capacity}")
            }
            SchedError::SlotTaken(unit) => write!(f, "{unit} exists already"),
            SchedError::NoUnit(unit) => write!(f, "{unit} does not exist"),
            SchedError::NoOnlineCpu(affinity) => write!(
                f,
                "no CPU of {affinity} is online: expected at least one that is"
            ),
            SchedError::NoSuchCpu(cpu) => write!(f, "{cpu} does not exist"),
            SchedError::CpuBusy(cpu) => write!(f, "{cpu} runs a vCPU"),
            SchedError::LastCpu(cpu) => write!(f, "{cpu} is the last CPU that is online"),
            SchedError::NoSuchDomain(domain) => write!(f, "no room for {domain}"),
            SchedError::NotKnown(what) => write!(f, "the scheduler has no {what}"),
            SchedError::Overbooked { asked, there } => write!(
                f,
                "all budgets together need {}.{:03} CPUs: expected at most {}",
                asked / 1_000_000,
                asked / 1000 % 1000,
                there / 1_000_000
            ),
        }
    }
}

impl core::error::Error for SchedError {}
