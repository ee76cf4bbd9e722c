//! The CPU: features, tables, exceptions, per-CPU areas, sleep instructions.
//!
//! Order of one CPU's life: [`init_boot_cpu`] or [`init_this_cpu`] load its tables and GS base; from then on
//! [`this`] works and every exception prints. Interrupts are off from the first instruction on and open only
//! inside [`sleep`].

pub mod around;
pub mod descriptors;
#[cfg(target_os = "none")]
pub mod dump;
pub mod features;
pub mod fixup;
pub mod interrupts;
pub mod mwait;
#[cfg(any(target_os = "none", test))]
pub mod nmi;
#[cfg(target_os = "none")]
pub mod percpu;
pub mod regs;
pub mod safe;
pub mod sleep;
#[cfg(target_os = "none")]
pub mod tables;
pub mod trap;

#[cfg(target_os = "none")]
mod start;

#[cfg(target_os = "none")]
pub use self::percpu::{all, get, this};
#[cfg(target_os = "none")]
pub use self::start::{features, init_boot_cpu, init_this_cpu, protect, use_stacks};
