//! Why memory could not be set up or mapped.

use core::fmt;

use super::frames::{FrameError, Range};

/// Less than this is not enough to run on.
pub const LEAST_MEMORY: u64 = 32 << 20;

/// Why memory could not be set up or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmError {
    /// Less usable memory than Lull needs.
    TooLittle {
        /// Usable bytes found.
        found: u64,
    },
    /// The image does not lie in memory that the memory map calls usable.
    ImageNotInMemory(Range),
    /// A boot module does not lie in memory that the memory map calls usable.
    ModuleNotInMemory(Range),
    /// A boot module overlaps the image.
    ModuleOverImage(Range),
    /// A device or firmware range that is empty, above what can be mapped, or in memory that Lull uses otherwise.
    BadRange(Range),
    /// No frames.
    Frames(FrameError),
}

impl fmt::Display for MmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLittle { found } => write!(
                f,
                "too little memory: {} KiB usable, at least {} MiB are needed",
                found / 1024,
                LEAST_MEMORY >> 20
            ),
            Self::ImageNotInMemory(r) => {
                write!(
                    f,
                    "the image at {r} is not inside usable memory: the memory map of the loader is wrong"
                )
            }
            Self::ModuleNotInMemory(r) => {
                write!(
                    f,
                    "the boot module at {r} is not inside usable memory: the memory map of the loader is wrong"
                )
            }
            Self::ModuleOverImage(r) => write!(
                f,
                "the boot module at {r} overlaps the image at {}",
                super::image()
            ),
            Self::BadRange(r) => write!(
                f,
                "{r} cannot be mapped: it is empty, too high, or memory in use"
            ),
            Self::Frames(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for MmError {}

impl From<MmError> for alloc::string::String {
    fn from(e: MmError) -> Self {
        alloc::string::ToString::to_string(&e)
    }
}

impl From<FrameError> for MmError {
    fn from(e: FrameError) -> Self {
        Self::Frames(e)
    }
}
