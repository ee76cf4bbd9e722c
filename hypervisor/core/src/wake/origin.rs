//! On whose behalf an event is posted: kept in the wake word itself, so that whoever is woken knows whom to thank.
//!
//! The first post to a word without events leaves its origin there, in the same read-modify-write; later ones ride
//! along and leave it alone. So the origin that a taker finds is that of the one post that owns the wake.

use crate::units::{CpuId, VcpuId};
use core::fmt;

/// Who acts on the CPU that posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The hypervisor itself.
    Hypervisor,
    /// This vCPU, by an exit of its.
    Vcpu(VcpuId),
    /// The timer of this vCPU.
    VcpuTimer(VcpuId),
    /// A timer of the hypervisor: the end of a slice, of the run, or the console's.
    Timer,
    /// The handler of this interrupt vector.
    Vector(u8),
    /// An NMI or machine-check handler.
    Nmi,
}

/// A cause, and the CPU on which it acts; 44 bits, as it stands in the wake word.
///
/// CPU numbers above 4095 and vCPU numbers above 2²⁹ − 1 do not fit, and are cut off: attribution is for people, and no
/// decision hangs on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Origin(u64);

const CPU_BITS: u32 = 12;
const KIND_BITS: u32 = 3;
const ID_BITS: u32 = 29;
const SHIFT: u32 = 20;
/// The bits of the wake word that hold an origin.
pub(super) const ORIGIN_MASK: u64 = !0 << SHIFT;

const _: () = assert!(SHIFT + CPU_BITS + KIND_BITS + ID_BITS == u64::BITS);

impl Origin {
    /// The hypervisor on CPU 0: all bits clear.
    pub const NOBODY: Self = Self(0);

    /// What acts on this CPU.
    pub const fn new(cpu: CpuId, cause: Cause) -> Self {
        let (kind, id) = match cause {
            Cause::Hypervisor => (0, 0),
            Cause::Vcpu(v) => (1, v.get()),
            Cause::VcpuTimer(v) => (2, v.get()),
            Cause::Timer => (3, 0),
            Cause::Vector(vector) => (4, vector as u32),
            Cause::Nmi => (5, 0),
        };
        let cpu = cpu.get() as u64 & ((1 << CPU_BITS) - 1);
        let id = id as u64 & ((1 << ID_BITS) - 1);
        Self((cpu | (kind as u64) << CPU_BITS | id << (CPU_BITS + KIND_BITS)) << SHIFT)
    }

    pub(super) const fn from_word(word: u64) -> Self {
        Self(word & ORIGIN_MASK)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// The bare value, to be kept in an atomic.
    pub const fn to_raw(self) -> u64 {
        self.0
    }

    /// From [`to_raw`](Self::to_raw).
    pub const fn from_raw(raw: u64) -> Self {
        Self::from_word(raw)
    }

    /// The CPU on which it acts.
    pub const fn cpu(self) -> CpuId {
        CpuId::new((self.0 >> SHIFT) as u32 & ((1 << CPU_BITS) - 1))
    }

    /// What acts there.
    pub const fn cause(self) -> Cause {
        let id = (self.0 >> (SHIFT + CPU_BITS + KIND_BITS)) as u32;
        match (self.0 >> (SHIFT + CPU_BITS)) & ((1 << KIND_BITS) - 1) {
            1 => Cause::Vcpu(VcpuId::new(id)),
            2 => Cause::VcpuTimer(VcpuId::new(id)),
            3 => Cause::Timer,
            4 => Cause::Vector(id as u8),
            5 => Cause::Nmi,
            _ => Cause::Hypervisor,
        }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.cpu(), self.cause())
    }
}

/// As the console has it: `cpu3 v7`, `cpu3 timer of v7`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.cpu())?;
        match self.cause() {
            Cause::Hypervisor => f.write_str("hypervisor"),
            Cause::Vcpu(v) => write!(f, "{v}"),
            Cause::VcpuTimer(v) => write!(f, "timer of {v}"),
            Cause::Timer => f.write_str("timer"),
            Cause::Vector(vector) => write!(f, "vector {vector:#x}"),
            Cause::Nmi => f.write_str("NMI"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_says_what_it_was_made_of() {
        let v = VcpuId::new(0x1234_5678);
        for cause in [
            Cause::Hypervisor,
            Cause::Vcpu(v),
            Cause::VcpuTimer(v),
            Cause::Timer,
            Cause::Vector(0xEF),
            Cause::Nmi,
        ] {
            for cpu in [0, 1, 255, 4095].map(CpuId::new) {
                let origin = Origin::new(cpu, cause);
                assert_eq!((origin.cpu(), origin.cause()), (cpu, cause));
                assert_eq!(Origin::from_raw(origin.to_raw()), origin);
                assert_eq!(origin.bits() & !ORIGIN_MASK, 0);
            }
        }
        assert_eq!(
            std::format!("{}", Origin::new(CpuId::new(3), Cause::Vector(0xEF))),
            "cpu3 vector 0xef"
        );
    }
}
