//! What happened, in the order in which it did: as text to compare, and as a number to compare quickly.

use std::fmt::Write as _;

/// What a CPU does from some moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Hypervisor code.
    Hypervisor,
    /// A guest's vCPU.
    Guest(u32),
    /// A C-state, by its index.
    Sleep(u8),
    /// On the way out of one.
    Waking(u8),
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A CPU does something else.
    Cpu {
        /// Which.
        cpu: u32,
        /// What.
        doing: Doing,
    },
    /// An interrupt was sent.
    Ipi {
        /// By whom; `u32::MAX` for the world outside.
        from: u32,
        /// To whom.
        to: u32,
    },
    /// A one-shot has fired.
    OneShot {
        /// Whose.
        cpu: u32,
    },
    /// A blocked vCPU was kicked.
    Kick {
        /// Which.
        vcpu: u32,
    },
}

/// The lines of a run, if they are kept, and a digest of them in any case.
#[derive(Debug, Default)]
pub struct Trace {
    /// Keep lines up to this time; none are kept if it is zero.
    pub keep_until: u64,
    /// What was kept.
    pub lines: Vec<(u64, Line)>,
    count: u64,
    digest: u64,
}

impl Trace {
    /// A trace that keeps lines up to a time, in ns.
    pub fn new(keep_until: u64) -> Self {
        Self {
            keep_until,
            digest: 0xcbf2_9ce4_8422_2325,
            ..Self::default()
        }
    }

    /// Something happened.
    pub fn add(&mut self, at: u64, line: Line) {
        let (kind, first, second) = match line {
            Line::Cpu { cpu, doing } => match doing {
                Doing::Hypervisor => (1, cpu, 0),
                Doing::Guest(v) => (2, cpu, v),
                Doing::Sleep(state) => (3, cpu, state.into()),
                Doing::Waking(state) => (4, cpu, state.into()),
            },
            Line::Ipi { from, to } => (5, from, to),
            Line::OneShot { cpu } => (6, cpu, 0),
            Line::Kick { vcpu } => (7, vcpu, 0),
        };
        for word in [at, kind << 32 | u64::from(first), second.into()] {
            // FNV-1a, a word at a time.
            self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            self.digest ^= self.digest >> 29;
        }
        self.count += 1;
        if at < self.keep_until {
            self.lines.push((at, line));
        }
    }

    /// A number that two runs share if all their lines are the same.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// How many lines there were, kept or not.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What was kept, a line each: time in ns, who, what.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (at, line) in &self.lines {
            let _ = match line {
                Line::Cpu { cpu, doing } => match doing {
                    Doing::Hypervisor => writeln!(text, "{at} cpu{cpu} hypervisor"),
                    Doing::Guest(v) => writeln!(text, "{at} cpu{cpu} guest v{v}"),
                    Doing::Sleep(state) => writeln!(text, "{at} cpu{cpu} sleep {state}"),
                    Doing::Waking(state) => writeln!(text, "{at} cpu{cpu} waking {state}"),
                },
                Line::Ipi { from, to } if *from == u32::MAX => {
                    writeln!(text, "{at} outside ipi cpu{to}")
                }
                Line::Ipi { from, to } => writeln!(text, "{at} cpu{from} ipi cpu{to}"),
                Line::OneShot { cpu } => writeln!(text, "{at} cpu{cpu} one-shot"),
                Line::Kick { vcpu } => writeln!(text, "{at} v{vcpu} kicked"),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_sees_every_difference_and_the_text_what_was_kept() {
        let digest = |lines: &[(u64, Line)]| {
            let mut trace = Trace::new(0);
            lines.iter().for_each(|&(at, line)| trace.add(at, line));
            trace.digest()
        };
        let base = [(1, Line::Kick { vcpu: 1 }), (2, Line::OneShot { cpu: 0 })];
        let (mut later, mut other) = (base, base);
        later[1].0 = 3;
        other[0].1 = Line::Kick { vcpu: 2 };
        let digests = [
            digest(&base),
            digest(&later),
            digest(&other),
            digest(&base[..1]),
        ];
        for (index, one) in digests.iter().enumerate() {
            assert!(!digests[..index].contains(one));
        }
        let mut trace = Trace::new(2);
        base.iter().for_each(|&(at, line)| trace.add(at, line));
        assert_eq!((trace.text().as_str(), trace.count()), ("1 v1 kicked\n", 2));
    }
}
