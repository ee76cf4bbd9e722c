//! The end of a domain: one reason, and the moment when the last vCPU has left.
//!
//! Joining and ending exclude each other under one lock, so that a start-up IPI sent by a guest in its last breath
//! cannot bring in a vCPU that nobody waits for.

use alloc::string::{String, ToString};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Mutex;

/// Why a guest is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It wrote this to its exit port.
    Port(u8),
    /// Triple fault.
    TripleFault,
    /// It did something from which there is no way on.
    Crash(String),
    /// Lull ended it.
    Killed(String),
}

/// The code by which a guest says that all went well.
pub const EXIT_OK: u8 = 0x10;

impl EndReason {
    /// A crash.
    pub fn crash(reason: &str) -> Self {
        Self::Crash(reason.to_string())
    }

    /// Word of the machine channel.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Port(_) => "port",
            Self::TripleFault => "triple-fault",
            Self::Crash(_) => "crash",
            Self::Killed(_) => "killed",
        }
    }

    /// The exit port's code, else 0.
    pub fn code(&self) -> u8 {
        match self {
            Self::Port(code) => *code,
            _ => 0,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(EXIT_OK) => write!(f, "ended by its exit port with code 0x10 (success)"),
            Self::Port(code) => write!(
                f,
                "ended by its exit port with code {code:#x} (expected 0x10)"
            ),
            Self::TripleFault => write!(f, "triple fault"),
            Self::Crash(reason) => write!(f, "crashed: {reason}"),
            Self::Killed(reason) => write!(f, "killed: {reason}"),
        }
    }
}

/// A guest that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndReport {
    /// Why.
    pub reason: EndReason,
    /// Whether every vCPU has left.
    pub all_left: bool,
}

#[derive(Debug, Default)]
struct Inner {
    reason: Option<EndReason>,
    present: u32,
}

/// State of a domain's life.
#[derive(Debug, Default)]
pub struct Life {
    ending: AtomicBool,
    inner: Mutex<Inner>,
}

impl Life {
    /// Whether there is a reason.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Counts a vCPU in, if the domain goes on and `first` says that it is not in yet.
    pub fn join(&self, first: impl FnOnce() -> bool) -> bool {
        let mut inner = self.inner.lock();
        let joins = inner.reason.is_none() && first();
        inner.present += u32::from(joins);
        joins
    }

    /// Sets the reason; `false` if there was one.
    pub fn end(&self, reason: EndReason) -> bool {
        let mut inner = self.inner.lock();
        let first = inner.reason.is_none();
        if first {
            inner.reason = Some(reason);
            self.ending.store(true, Ordering::SeqCst);
        }
        first
    }

    /// Counts a vCPU out; says whether it was the last.
    pub fn leave(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.present = inner.present.saturating_sub(1);
        inner.present == 0
    }

    /// Whether it is over and empty.
    pub fn all_left(&self) -> bool {
        self.report().is_some_and(|report| report.all_left)
    }

    /// The reason.
    pub fn report(&self) -> Option<EndReport> {
        let inner = self.inner.lock();
        let reason = inner.reason.clone()?;
        Some(EndReport {
            reason,
            all_left: inner.present == 0,
        })
    }
}
