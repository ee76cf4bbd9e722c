//! The emulator: its version, its command line as a pure function, and what it can do here.

mod kvm;
mod machine;
mod version;

pub use kvm::choose as choose_accel;
pub use machine::{Accel, BOARD, Console, Cpu, Machine};
pub use version::Version;

/// What the image writes to the debug-exit port, as exit codes of QEMU: `(value << 1) | 1`.
pub mod exit {
    /// Everything ended well (0x10).
    pub const OK: i32 = 33;
    /// A guest failed (0x11).
    pub const GUEST_FAILED: i32 = 35;
    /// The accounting of time does not add up (0x12).
    pub const ACCOUNTING: i32 = 37;
    /// The hypervisor stopped by a panic or an exception (0x13).
    pub const PANIC: i32 = 39;
    /// What was given at boot cannot be used (0x14).
    pub const BAD_INPUT: i32 = 41;

    /// In words, for people.
    pub fn meaning(code: i32) -> &'static str {
        match code {
            OK => "ok",
            GUEST_FAILED => "a guest failed",
            ACCOUNTING => "the accounting of time does not add up",
            PANIC => "the hypervisor panicked",
            BAD_INPUT => "bad boot input",
            _ => "not a code of Lull",
        }
    }
}
