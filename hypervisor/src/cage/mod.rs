//! The cage: runs code that may panic, loop for ever, recurse without end or eat all memory, and comes back.
//!
//! For the interpreter of the firmware's AML, which is not ours, and the AML itself, which nobody checked. The work runs
//! once, on the boot CPU, during boot:
//! - on a stack of its own above a guard page;
//! - with an arena of its own as its heap: whatever it allocates is in there, and the arena is given back as a whole;
//! - with the one-shot timer set to its time limit, and interrupts open so that it can strike. This is the one place in
//!   Lull where code other than a sleep runs with interrupts open; nothing but the timer is unmasked then;
//! - with logging off, since a log line holds the console's lock.
//!
//! A panic, an exception, an overflow of the stack and the end of its time all throw it out: the context of [`run`] is
//! restored, and everything on the cage's stack and in its arena is forgotten without being dropped. What must not be cut
//! in two (a page table being changed, a result being written down) is wrapped in [`undisturbed`]. An exception or a panic
//! in there is a mistake of ours, and ends the machine as anywhere else.
//!
//! Locks: the work holds none when it is thrown out, since those that it takes, it takes in [`undisturbed`].

use core::fmt;

use arrayvec::ArrayString;
use lull_core::units::Micros;

#[cfg(target_os = "none")]
pub mod arena;
#[cfg(target_os = "none")]
mod hardware;

#[cfg(target_os = "none")]
pub use self::hardware::{catch, is_inside, out_of_time, panicked, run, undisturbed};

/// A text of an escape. What is longer is cut.
pub type Text = ArrayString<112>;

/// What the work may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its stack, in bytes.
    pub stack: u64,
    /// Its heap, in bytes.
    pub heap: u64,
    /// Its time.
    pub time: Micros,
}

/// Why the work did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Escape {
    /// There is no memory for its stack or its heap: it was not started.
    NotStarted,
    /// It panicked: where, and what it said.
    Panic(Text),
    /// It raised an exception that is no overflow of its stack.
    Exception {
        /// The vector.
        vector: u8,
        /// Where.
        rip: u64,
    },
    /// It ran into the guard page below its stack.
    StackOverflow,
    /// It used up its heap, of this many bytes.
    HeapUsedUp(u64),
    /// It was not ready within this time.
    OutOfTime(Micros),
}

impl fmt::Display for Escape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => f.write_str("no memory for its stack and heap"),
            Self::Panic(what) => write!(f, "panic: {what}"),
            Self::Exception { vector, rip } => {
                let name = crate::cpu::trap::exception_name(*vector).unwrap_or("exception");
                write!(f, "{name} at {rip:#x}")
            }
            Self::StackOverflow => f.write_str("it overflowed its stack"),
            Self::HeapUsedUp(bytes) => {
                write!(f, "it used up its {} KiB of memory", bytes >> 10)
            }
            Self::OutOfTime(limit) => {
                write!(f, "it was not ready within {} ms", limit.get() / 1000)
            }
        }
    }
}

/// The end of a path: file names in panics carry the folders of the machine that built the image.
pub fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Runs `step` without being thrown out in the middle.
#[cfg(not(target_os = "none"))]
pub fn undisturbed<R>(step: impl FnOnce() -> R) -> R {
    step()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_say_what_happened() {
        let text = |escape: Escape| escape.to_string();
        assert_eq!(
            text(Escape::OutOfTime(Micros::new(1_500_000))),
            "it was not ready within 1500 ms"
        );
        assert_eq!(
            text(Escape::Exception {
                vector: 6,
                rip: 0x1234
            }),
            "#UD invalid opcode at 0x1234"
        );
        assert_eq!(
            text(Escape::HeapUsedUp(1 << 20)),
            "it used up its 1024 KiB of memory"
        );
    }

    #[test]
    fn paths_of_the_build_machine_are_cut() {
        assert_eq!(file_name("/somewhere/src/value.rs"), "value.rs");
        assert_eq!(file_name("value.rs"), "value.rs");
    }
}
