//! Debug keys: one byte on COM1, one dump.
//!
//! Keys are handled by the boot CPU in its dispatch loop, between two turns: a dump delays what that CPU would run, and
//! nothing else. No dump wakes another CPU, but `d`, which asks all of them by NMI.

pub mod cstates;

#[cfg(target_os = "none")]
mod barriers;
#[cfg(target_os = "none")]
mod choice;
#[cfg(target_os = "none")]
mod clocks;
#[cfg(target_os = "none")]
mod guests;
#[cfg(target_os = "none")]
mod prompt;
#[cfg(target_os = "none")]
mod runqueues;
#[cfg(target_os = "none")]
mod table;
#[cfg(target_os = "none")]
mod timers;
#[cfg(target_os = "none")]
mod wakes;
#[cfg(target_os = "none")]
mod who;

#[cfg(target_os = "none")]
pub use table::press;
