//! Bringing up the application processors: INIT, SIPI, SIPI, all of them at once.
//!
//! The boot CPU calls [`start`]; each AP calls [`answer`] and then [`wait_for_release`], where it halts until the boot CPU
//! calls [`release`]. Boot CPU and AP agree through one atomic state per CPU, which both move by compare-and-swap: an AP
//! that answers after it was given up sees that and stops for ever, so a late CPU can disturb nothing.
pub mod rendezvous;

#[cfg(target_os = "none")]
mod bring_up;
#[cfg(target_os = "none")]
pub mod calls;

#[cfg(target_os = "none")]
pub use bring_up::{Failed, SmpReport, answer, release, start, wait_for_release};
