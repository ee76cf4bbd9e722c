//! What a machine may do to the core, and what it must not.
//!
//! A [`Fault`] is allowed by the contract of [`lull_core::platform`]: under any of them all promises hold. A [`Broken`]
//! machine or scheduler violates a contract, to show that the checks notice.

use crate::rng::Rng;
use std::fmt;
use std::str::FromStr;

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// As the command line names it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().copied().find(|one| one.name() == text);
                let names: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
                found.ok_or_else(|| format!("`{text}` is none of {}", names.join(", ")))
            }
        }
    };
}

named! {
    /// What hardware is allowed to do.
    Fault {
        /// One-shots fire up to [`LATE_TIMER`] late, or early.
        Timer = "timer",
        /// Sleeping CPUs wake for no reason.
        Spurious = "spurious",
        /// Interrupts travel up to [`SLOW_IPI`] longer.
        Ipi = "ipi",
        /// CPUs leave their C-states sooner than the table says.
        Exit = "exit",
    }
}

named! {
    /// What must not happen, and must be noticed.
    Broken {
        /// One interrupt in eight between CPUs is lost.
        DropIpi = "drop-ipi",
        /// One store in eight does not end a sleep that watches for it.
        IgnoreStore = "ignore-store",
        /// One one-shot in eight never fires.
        LoseTimer = "lose-timer",
        /// The scheduler forgets, one time in eight, to say which CPU must be told.
        ForgetTickle = "forget-tickle",
        /// In the place of one vCPU runs another.
        WrongUnit = "wrong-unit",
        /// The account of CPU 0 drops an interval of guest time.
        DropTime = "drop-time",
        /// All vCPUs have the same weight for the scheduler.
        IgnoreWeight = "ignore-weight",
        /// One cross-CPU call in 64 is taken and not run.
        SkipCall = "skip-call",
    }
}

/// How late a one-shot may be, in ns, with [`Fault::Timer`].
pub const LATE_TIMER: u64 = 50_000;
/// How much longer an interrupt may travel, in ns, with [`Fault::Ipi`].
pub const SLOW_IPI: u64 = 100_000;

/// A set of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Faults(u8);

impl Faults {
    /// None.
    pub const NONE: Self = Self(0);

    /// With this one, or without.
    #[must_use]
    pub fn with(self, fault: Fault, present: bool) -> Self {
        let bit = 1 << fault as u8;
        Self(if present { self.0 | bit } else { self.0 & !bit })
    }

    /// Is it in the set?
    pub fn has(self, fault: Fault) -> bool {
        self.0 & (1 << fault as u8) != 0
    }

    /// Those that are in the set.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL
            .iter()
            .copied()
            .filter(move |&fault| self.has(fault))
    }

    /// A random set.
    pub fn random(rng: &mut Rng) -> Self {
        Fault::ALL
            .iter()
            .fold(Self::NONE, |set, &fault| set.with(fault, rng.one_in(2)))
    }
}

impl FromIterator<Fault> for Faults {
    fn from_iter<I: IntoIterator<Item = Fault>>(faults: I) -> Self {
        faults
            .into_iter()
            .fold(Self::NONE, |set, fault| set.with(fault, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for &fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        for &broken in Broken::ALL {
            assert_eq!(broken.name().parse(), Ok(broken));
        }
        assert_eq!(
            "fire".parse::<Fault>(),
            Err("`fire` is none of timer, spurious, ipi, exit".into())
        );
    }

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let set: Faults = [Fault::Ipi, Fault::Timer].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [Fault::Timer, Fault::Ipi]);
        assert!(!set.with(Fault::Ipi, false).has(Fault::Ipi));
    }
}
