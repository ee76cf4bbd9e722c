//! Which traces Lull's own constants were chosen on, and which they are judged on.
//!
//! The two sets share neither a seed, nor the figures that traces are made with, nor a part of a recording. Two of the machines that
//! governors are judged on are in the held-out set only. What is now [`Set::Training`] contains three earlier held-out sets, which had
//! been looked at. Constants and rules of [`lull_core::governor::Lull`] were chosen on [`Set::Training`]; then they and both sets
//! were committed, and only then anything of [`Set::HeldOut`] was replayed, once.

use crate::cost::Machine;
use crate::machines;
use crate::synthetic::{Figures, Kind};
use crate::trace::Trace;
use std::path::Path;
use std::{fs, io};

/// One of the two sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// What constants are chosen on.
    Training,
    /// What they are judged on.
    HeldOut,
}

/// Seeds of the training set from which figures are drawn, too.
const DRAWN_FOR_TRAINING: [u64; 11] = [
    303,
    404,
    505,
    0x5EED_0001,
    0x5EED_0002,
    0x5EED_0003,
    0x5EED_0004,
    0xF12E_0015,
    0xF12E_0016,
    0xF12E_0017,
    0xF12E_0018,
];
/// Rows of a synthetic trace.
const ROWS: usize = 4_000;

macro_rules! recordings {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../traces/", $name, ".tsv")))),*]
    };
}

/// Recordings that constants were chosen on: of a Linux guest of two vCPUs under load, one CPU each, and of guests on Lull.
const TRAINING: [(&str, &str); 28] = recordings![
    "01_idle",
    "02_pgbench_rate",
    "03_pgbench_full",
    "04_nginx_rate",
    "05_redis_p1",
    "06a_cyclictest_1ms",
    "06b_cyclictest_250us",
    "07_compile",
    "08_media",
    "09_stress_bursts",
    "10a_hackbench",
    "10b_sched_pipe",
    "11_interactive",
    "12_mixed",
    "lull_busy",
    "lull_idle_timer",
    "lull_ipi_pair",
    "lull_mixed",
    "lull_smp",
    "lull_storm",
    "02_pgbench_rate_later",
    "04_nginx_rate_later",
    "05_redis_p1_later",
    "06a_cyclictest_1ms_later",
    "08_media_later",
    "09_stress_bursts_later",
    "10a_hackbench_later",
    "12_mixed_later",
];

/// Recordings that they are judged on: what the same Linux guest did last, at the end of longer recordings, and guests on Lull under
/// other loads.
const HELD_OUT: [(&str, &str); 14] = recordings![
    "02_pgbench_rate_last",
    "03_pgbench_full_last",
    "04_nginx_rate_last",
    "05_redis_p1_last",
    "06b_cyclictest_250us_last",
    "08_media_last",
    "09_stress_bursts_last",
    "10a_hackbench_last",
    "10b_sched_pipe_last",
    "12_mixed_last",
    "lull_ipi_pair_last",
    "lull_smp_last",
    "lull_storm_last",
    "lull_timers_last",
];

/// All traces of a directory, in the order of their names.
fn read_all(directory: &Path) -> io::Result<Vec<Trace>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "tsv") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        let why = format!("{} has no trace (.tsv)", directory.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    paths.sort();
    paths.iter().map(|path| Trace::read(path)).collect()
}

impl Set {
    /// The figures that its synthetic traces are made with, and their seeds.
    fn seeds(self) -> Vec<(Figures, u64)> {
        match self {
            Set::Training => [101, 202, 90_001, 90_002]
                .map(|seed| (Figures::FIRST, seed))
                .into_iter()
                .chain(DRAWN_FOR_TRAINING.map(|seed| (Figures::drawn(seed), seed)))
                .collect(),
            Set::HeldOut => [0x0D1E_0021, 0x0D1E_0022, 0x0D1E_0023, 0x0D1E_0024]
                .map(|seed| (Figures::drawn(seed), seed))
                .to_vec(),
        }
    }

    /// Its synthetic traces.
    pub fn synthetic(self) -> Vec<Trace> {
        let mut traces = Vec::new();
        for kind in Kind::ALL {
            for (figures, seed) in self.seeds() {
                let mut trace = kind.trace(&figures, seed, ROWS);
                trace.name = format!("{}#{:x}", trace.name, seed & 0xFFFF);
                traces.push(trace);
            }
        }
        traces
    }

    /// Its recordings; or all traces that are in a directory (`.tsv`), in their place.
    ///
    /// # Errors
    /// A file that cannot be read, or is no trace; a directory without any.
    pub fn recorded(self, directory: Option<&Path>) -> io::Result<Vec<Trace>> {
        let built_in: &[(&str, &str)] = match self {
            Set::Training => &TRAINING,
            Set::HeldOut => &HELD_OUT,
        };
        if let Some(directory) = directory {
            return read_all(directory);
        }
        let one = |&(name, text): &(&str, &str)| {
            Trace::parse(name, text)
                .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {why}")))
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
