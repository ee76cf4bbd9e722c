//! A promise that was not kept.

use std::fmt;

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A unit that may run, and a CPU that is idle and may run it, coexist for no longer than an IPI, the way out of the
    /// deepest C-state and one pass take.
    WorkConserving,
    /// Whatever is posted to a CPU or a vCPU is looked at, and no deadline passes unnoticed.
    NoLostWakeup,
    /// A vCPU is blocked, waits in one queue, or runs on one CPU.
    OnePlace,
    /// Each CPU's times add up to the time that has passed, and guest time is the same from both sides.
    TimeConserved,
    /// vCPUs that never halt get time by their weights.
    Weights,
    /// Each cross-CPU call runs once on each CPU that its caller was told of, and before the caller goes on, if it waits;
    /// each event that is taken is handled, and none that was not posted; each wake is on both sides' books.
    EachOnce,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::WorkConserving,
        Self::NoLostWakeup,
        Self::OnePlace,
        Self::TimeConserved,
        Self::Weights,
        Self::EachOnce,
    ];

    /// As reports name it.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::WorkConserving => "work-conserving",
            Rule::NoLostWakeup => "no-lost-wakeup",
            Rule::OnePlace => "one-place",
            Rule::TimeConserved => "time-conserved",
            Rule::Weights => "weights",
            Rule::EachOnce => "each-once",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which promise was broken, when, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When it was noticed, in ns.
    pub at: u64,
    /// Which promise.
    pub rule: Rule,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ns: {}", self.rule, self.at, self.text)
    }
}
