//! The end of the machine: registers, backtrace, all CPUs stopped.
//!
//! The first CPU that comes here owns the end; the others are stopped by NMI, or stop by themselves when they
//! come here too. The owner takes the console away from whoever held it, prints, and leaves through the exit
//! port or stops. Nothing here allocates, takes a lock that a stopped CPU may hold, or trusts memory it walks.

pub mod backtrace;
pub mod exit_port;
pub mod symbols;

#[cfg(target_os = "none")]
mod end;

#[cfg(target_os = "none")]
pub use self::end::{
    dump_backtrace, dump_frame, exception, fatal_boot, in_progress, leave, online, set_stop_others,
};

/// Why the machine ends: what is written to the exit port. QEMU's exit status is `code << 1 | 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndCode {
    /// All guests ended well.
    Ok = 0x10,
    /// A guest failed.
    GuestFailed = 0x11,
    /// The accounting of time was wrong.
    Accounting = 0x12,
    /// Lull itself failed.
    Panic = 0x13,
    /// The firmware or the loader gave something to boot with that cannot be used.
    BadInput = 0x14,
}

impl EndCode {
    /// The word for it on the machine channel.
    #[must_use]
    pub const fn status(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::GuestFailed => "guest-failed",
            Self::Accounting => "accounting",
            Self::Panic => "panic",
            Self::BadInput => "bad-input",
        }
    }
}
