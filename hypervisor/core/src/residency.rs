//! Where a CPU's time went: C-state residency, interrupt time, guest and hypervisor time, exact to the tick.
//!
//! Each CPU owns one [`CpuAccount`]. Only that CPU writes it, at the moments where it changes what it does; anybody reads
//! it, at any time, without waking it or making it wait.
//!
//! Invariants:
//! - Every kind of time is summed from **its own** intervals. C0 runs from the exit stamp of one sleep to the entry
//!   stamp of the next, guest and hypervisor time each from their own stamps, and elapsed time from the first stamp to
//!   the reading. None is computed as the rest of another, so [`Snapshot::check`] can fail, and does if one interval is
//!   lost or counted twice (see [`Fault`]).
//! - What the CPU is doing right now is an open interval, which the reader adds: a CPU that has slept for an hour shows
//!   an hour, and a row adds up at any moment.
//! - A row is one consistent copy, taken under a [`SeqCount`](crate::sync::SeqCount).
//! - Residency is the time from the entry stamp to the first interrupt handler, or to the exit stamp if none ran inside
//!   the state. From the first handler to the exit stamp it is interrupt time, so that a C1 figure means C1.
//!
//! Called by: the idle path and the VM-entry path of the own CPU (writers), the console and the machine channel
//! (readers). No lock.

mod account;
mod fault;
mod hardware;
mod snapshot;
#[cfg(test)]
mod tests;

pub use account::CpuAccount;
pub use fault::{Fault, Interval};
pub use hardware::{HwAccount, HwCounter, HwRegister, HwSnapshot, HwValue, registers};
pub use snapshot::{Activity, Identity, Imbalance, Snapshot, StateTimes};
