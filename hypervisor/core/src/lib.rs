//! The idle and scheduling core of Lull: no hardware, no `unsafe`.
//!
//! Everything here is generic over [`platform`], so that the very same code runs on bare metal, in the simulator, under
//! the model checker, and in these tests. If a thing cannot be tested without a machine, it does not belong here.
//!
//! Follow one wakeup to read it: a vCPU's run state ([`sched`]) decides which pCPU must look, [`wake`] decides whether
//! that costs an interrupt, [`idle`] is where the pCPU comes back, [`residency`] writes down where the time went, and
//! [`dispatch`] chooses what runs next.
//!
//! House rules: units and identities are types ([`units`]); outcomes are `#[must_use]` values; state that must agree
//! lives in one atomic word or under one lock; bad input is an error, never a panic.
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(
    feature = "many-cpus",
    expect(
        clippy::large_enum_variant,
        clippy::result_large_err,
        reason = "a set of 4096 CPUs is half a kilobyte, and only simulations have them"
    )
)]

extern crate alloc;

pub mod call;
pub mod command;
pub mod cstate;
pub mod dispatch;
pub mod governor;
pub mod guests_txt;
pub mod idle;
pub mod mitigation;
#[cfg(loom)]
pub mod mutant;
#[cfg(not(loom))]
mod mutant;
pub mod options;
pub mod platform;
pub mod residency;
pub mod sched;
pub mod sync;
pub mod timer;
pub mod trace;
pub mod units;
pub mod wake;
