//! The running machine: one dispatch loop per CPU over the bare metal, until there is nothing left to do.
//!
//! [`start`] is where boot hands over. [`guests`] makes domains from the boot bundle, [`hosting`] runs their vCPUs for the
//! dispatch loops, [`counters`] reads where the time went, and [`end`] ends the run with the last reading and a status.
//!
//! Everything here is made once, before the first guest starts, and read without a lock from then on.

pub mod bus_masters;
pub mod counters;
pub mod msr_writes;

#[cfg(target_os = "none")]
mod choose;
#[cfg(target_os = "none")]
pub mod command;
#[cfg(target_os = "none")]
mod cpu_command;
#[cfg(target_os = "none")]
pub mod end;
#[cfg(target_os = "none")]
mod guest_command;
#[cfg(target_os = "none")]
pub mod guests;
#[cfg(target_os = "none")]
mod hardware;
#[cfg(target_os = "none")]
mod host_memory;
#[cfg(target_os = "none")]
pub mod hosting;
#[cfg(target_os = "none")]
mod probes;
#[cfg(target_os = "none")]
mod scheduler;
#[cfg(target_os = "none")]
mod start;
#[cfg(target_os = "none")]
mod wake_growth;
#[cfg(target_os = "none")]
mod wake_tests;
#[cfg(target_os = "none")]
pub mod wakes;

#[cfg(target_os = "none")]
pub use start::{Running, running, start, wake_word};
