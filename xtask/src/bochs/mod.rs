//! Bochs: the emulator on which MONITOR and MWAIT are real, and whose CPU models are those of Lull's tables.
//!
//! [`Release`] says which Bochs, [`find()`] gets it, [`Machine`] is its configuration, [`Line`] its console.

mod find;
mod line;
mod machine;
mod private;

pub use find::{Bochs, Release, find};
pub use line::Line;
pub use machine::{MAX_CPUS, MODELS, Machine};

/// The exit code of Bochs when the machine has used its shutdown port; it has no other for a good end.
pub const SHUTDOWN: i32 = 1;
