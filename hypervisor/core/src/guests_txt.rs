//! The guest list of a boot bundle, `guests.txt`, and the `--guest` form of the same.
//!
//! ```text
//! # NAME [kernel=FILE] [vcpus=N] [mem=SIZE] [weight=N] [pin=CPU|LO-HI|all] [latency=MICROSECONDS]
//!      [soft=CPU|LO-HI|all] [cap=PERCENT] [halt-poll=MICROSECONDS] [period-us=N] [budget-us=N] [extratime=on|off]
//!      [cmdline="..."]
//! idle-timer pin=1
//! heavy kernel=busy vcpus=2 mem=64M weight=1024 pin=0-1 cmdline="seconds=10 say=\"hi\""
//! ```
//!
//! One guest a line. `#` starts a comment, blank lines do not count. `--guest` has commas in place of the blanks
//! (`heavy,kernel=busy,vcpus=2`). A line that has anything wrong is left out as a whole, since a guest that runs
//! otherwise than asked would be worse than none; all that is wrong with it is reported; the other lines count.
//! Nothing here panics, whatever the file holds.

use crate::options::Problem;
use crate::units::{CpuId, CpuSet, IMAGE_CPUS, Micros};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

mod parse;
mod words;

pub use crate::sched::{Cap, RtParams, Weight};

/// The largest number of guests in a list.
pub const MAX_GUESTS: usize = 256;
/// The largest number of vCPUs of a guest.
pub const MAX_VCPUS: u32 = 64;
/// The longest name of a guest or of a kernel file, in bytes.
pub const MAX_NAME: usize = 31;
/// The largest limit on exit latency: a second, which no C-state takes.
pub const MAX_LATENCY: Micros = Micros::new(1_000_000);
/// The longest look for a kick before a vCPU blocks: what lasts longer is worth a sleep anywhere.
pub const MAX_HALT_POLL: Micros = Micros::new(10_000);
/// The longest command line of a guest, in bytes.
pub const MAX_CMDLINE: usize = 1024;

/// The size of a guest's memory: a multiple of 4 KiB, from 2 MiB to 3 GiB (above that is the guest's device window).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemSize(u64);

impl MemSize {
    /// What a guest has that is not given another: 32 MiB.
    pub const DEFAULT: Self = Self(32 << 20);
    /// The smallest: one large page.
    pub const MIN: Self = Self(2 << 20);
    /// The largest.
    pub const MAX: Self = Self(3 << 30);
    const PAGE: u64 = 4096;

    /// A size in bytes; `None` if it is out of bounds or no whole number of pages.
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        if bytes >= Self::MIN.0 && bytes <= Self::MAX.0 && bytes.is_multiple_of(Self::PAGE) {
            Some(Self(bytes))
        } else {
            None
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// In the largest unit that divides it: `64M`, `2052K`.
impl fmt::Display for MemSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, 'G'), (20, 'M'), (10, 'K')] {
            if self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// Which pCPUs the vCPUs of a guest may run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Pin {
    /// All.
    #[default]
    All,
    /// Those from `low` to `high`, both included.
    Cpus {
        /// The first.
        low: CpuId,
        /// The last, not before the first.
        high: CpuId,
    },
}

impl Pin {
    /// Just one pCPU.
    pub const fn one(cpu: CpuId) -> Self {
        Pin::Cpus {
            low: cpu,
            high: cpu,
        }
    }

    /// As a set, for the scheduler.
    pub fn affinity(self) -> CpuSet {
        match self {
            Pin::All => CpuSet::ALL,
            Pin::Cpus { low, high } => CpuSet::inclusive(low.index(), high.index()),
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pin::All => f.write_str("all"),
            Pin::Cpus { low, high } if low == high => write!(f, "{}", low.get()),
            Pin::Cpus { low, high } => write!(f, "{}-{}", low.get(), high.get()),
        }
    }
}

/// One guest, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestConfig {
    /// Its name: letters, digits, `.`, `_`, `-`, beginning with a letter or a digit, at most [`MAX_NAME`] bytes.
    pub name: String,
    /// The file of the bundle that holds its kernel. Same form as the name.
    pub kernel: String,
    /// How many vCPUs it has: 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// How much memory it has.
    pub mem: MemSize,
    /// The share of each of its vCPUs.
    pub weight: Weight,
    /// Where its vCPUs may run.
    pub pin: Pin,
    /// The longest exit latency that its vCPUs accept, each of the pCPU that it last ran on. `None`: any.
    pub latency: Option<Micros>,
    /// For how long at most the pCPU of one looks for a kick before it blocks; zero: not at all.
    pub halt_poll: Micros,
    /// Where they prefer to run, among where they may.
    pub soft: Pin,
    /// The most that all of them may have together.
    pub cap: Option<Cap>,
    /// The reservation of each of them.
    pub rt: RtParams,
    /// What it finds as its command line: no control characters, at most [`MAX_CMDLINE`] bytes.
    pub cmdline: String,
}

impl GuestConfig {
    /// A guest with this name, whose kernel has the same one, and with defaults for the rest.
    ///
    /// # Errors
    /// It is no name.
    pub fn new(name: &str) -> Result<Self, Problem> {
        parse::check_name(name, name)?;
        Ok(Self {
            name: name.to_string(),
            kernel: name.to_string(),
            vcpus: 1,
            mem: MemSize::DEFAULT,
            weight: Weight::DEFAULT,
            pin: Pin::All,
            latency: None,
            halt_poll: Micros::ZERO,
            soft: Pin::All,
            cap: None,
            rt: RtParams::DEFAULT,
            cmdline: String::new(),
        })
    }

    /// Reads one line of a list, without a comment.
    ///
    /// # Errors
    /// All that is wrong with it: at least one problem.
    pub fn from_line(line: &str) -> Result<Self, Vec<Problem>> {
        parse::guest(line, words::Separator::Blanks)
    }

    /// Reads the form with commas, as `cargo xtask run --guest` takes it.
    ///
    /// # Errors
    /// All that is wrong with it: at least one problem.
    pub fn from_commas(spec: &str) -> Result<Self, Vec<Problem>> {
        parse::guest(spec, words::Separator::Commas)
    }

    /// The line of a list that says this. What has its default value is left out.
    pub fn to_line(&self) -> String {
        self.to_string()
    }
}

/// As [`GuestConfig::to_line`].
impl fmt::Display for GuestConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.kernel != self.name {
            write!(f, " kernel={}", self.kernel)?;
        }
        if self.vcpus != 1 {
            write!(f, " vcpus={}", self.vcpus)?;
        }
        if self.mem != MemSize::DEFAULT {
            write!(f, " mem={}", self.mem)?;
        }
        if self.weight != Weight::DEFAULT {
            write!(f, " weight={}", self.weight)?;
        }
        if self.pin != Pin::All {
            write!(f, " pin={}", self.pin)?;
        }
        if let Some(latency) = self.latency {
            write!(f, " latency={}", latency.get())?;
        }
        if self.soft != Pin::All {
            write!(f, " soft={}", self.soft)?;
        }
        if let Some(cap) = self.cap {
            write!(f, " cap={cap}")?;
        }
        if self.halt_poll != Micros::ZERO {
            write!(f, " halt-poll={}", self.halt_poll.get())?;
        }
        if self.rt.period() != RtParams::DEFAULT.period() {
            write!(f, " period-us={}", self.rt.period().get())?;
        }
        if self.rt.budget() != RtParams::DEFAULT.budget() {
            write!(f, " budget-us={}", self.rt.budget().get())?;
        }
        if !self.rt.extratime {
            write!(f, " extratime=off")?;
        }
        if !self.cmdline.is_empty() {
            write!(f, " cmdline={}", words::Quoted(&self.cmdline))?;
        }
        Ok(())
    }
}

/// A problem, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineProblem {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

impl fmt::Display for LineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl core::error::Error for LineProblem {}

/// What a guest list says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestList {
    /// The guests of all good lines, in order.
    pub guests: Vec<GuestConfig>,
    /// What is wrong with the others.
    pub problems: Vec<LineProblem>,
}

impl GuestList {
    /// Reads a list. Bytes, since nobody promises that the file is text.
    pub fn parse(file: &[u8]) -> Self {
        let mut list = Self::default();
        for (index, line) in file.split(|&byte| byte == b'\n').enumerate() {
            let guest = match core::str::from_utf8(line) {
                Ok(line) if words::is_blank(line) => continue,
                Ok(line) => GuestConfig::from_line(line),
                Err(_) => {
                    let shown = String::from_utf8_lossy(line);
                    Err([Problem::new(&shown, "not UTF-8", "text")].into())
                }
            };
            match guest {
                Ok(guest) if list.guests.len() < MAX_GUESTS => list.guests.push(guest),
                Ok(guest) => list.complain(
                    index,
                    [Problem::new(&guest.name, "too many guests", "at most 256")],
                ),
                Err(problems) => list.complain(index, problems),
            }
        }
        list
    }

    fn complain(&mut self, index: usize, problems: impl IntoIterator<Item = Problem>) {
        let line = index + 1;
        self.problems.extend(
            problems
                .into_iter()
                .map(|problem| LineProblem { line, problem }),
        );
    }
}

const _: () = assert!(MAX_GUESTS == 256 && IMAGE_CPUS == 256, "texts above say so");

#[cfg(test)]
mod tests;
