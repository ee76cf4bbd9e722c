//! Which traces Lull's own constants were chosen on, and which they are judged on.
//!
//! The two sets share neither a seed nor a recording. The constants of [`lull_core::governor::Lull`] were chosen on
//! [`Set::Training`] alone, and frozen before the first run on [`Set::HeldOut`]. Two changes came after that run, neither
//! because of it: the way out of a state that turns out too shallow, since a unit test showed a sleep that never ended,
//! and comparing two views a period in place of all, and using plans again, for the time it takes. Their constants, too, were chosen on
//! [`Set::Training`].

use crate::cost::Machine;
use crate::machines;
use crate::synthetic::Kind;
use crate::trace::Trace;
use std::io;
use std::path::Path;

/// One of the two sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// What constants are chosen on.
    Training,
    /// What they are judged on.
    HeldOut,
}

/// Rows of a synthetic trace.
const ROWS: usize = 4_000;

macro_rules! recordings {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../traces/", $name, ".tsv")))),+]
    };
}

/// Recordings that constants were chosen on: of a Linux guest of two vCPUs under load, one CPU each.
const TRAINING: [(&str, &str); 6] = recordings![
    "02_pgbench_rate",
    "04_nginx_rate",
    "06a_cyclictest_1ms",
    "07_compile",
    "09_stress_bursts",
    "10a_hackbench",
];

/// Recordings that they are judged on.
const HELD_OUT: [(&str, &str); 8] = recordings![
    "01_idle",
    "03_pgbench_full",
    "05_redis_p1",
    "06b_cyclictest_250us",
    "08_media",
    "10b_sched_pipe",
    "11_interactive",
    "12_mixed",
];

impl Set {
    fn seeds(self) -> [u64; 2] {
        match self {
            Set::Training => [101, 202],
            Set::HeldOut => [90_001, 90_002],
        }
    }

    /// Its synthetic traces.
    pub fn synthetic(self) -> Vec<Trace> {
        let mut traces = Vec::new();
        for kind in Kind::ALL {
            for seed in self.seeds() {
                let mut trace = kind.trace(seed, ROWS);
                trace.name = format!("{}#{seed}", trace.name);
                traces.push(trace);
            }
        }
        traces
    }

    /// Its recordings, the parts of them that are built in; or whole, from a directory.
    ///
    /// # Errors
    /// A file that cannot be read, or is no trace.
    pub fn recorded(self, directory: Option<&Path>) -> io::Result<Vec<Trace>> {
        let built_in: &[(&str, &str)] = match self {
            Set::Training => &TRAINING,
            Set::HeldOut => &HELD_OUT,
        };
        let one = |&(name, text): &(&str, &str)| match directory {
            Some(directory) => Trace::read(&directory.join(format!("{name}.cpu0.tsv"))),
            None => Trace::parse(name, text).map_err(|why| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {why}"))
            }),
        };
        built_in.iter().map(one).collect()
    }

    /// The machines that it is replayed on.
    pub fn machines(self) -> &'static [Machine] {
        match self {
            Set::Training => &machines::TRAINING,
            Set::HeldOut => &machines::HELD_OUT,
        }
    }

    /// All its traces.
    ///
    /// # Errors
    /// As [`Set::recorded`].
    pub fn traces(self, directory: Option<&Path>) -> io::Result<Vec<Trace>> {
        let mut traces = self.synthetic();
        traces.extend(self.recorded(directory)?);
        Ok(traces)
    }
}
