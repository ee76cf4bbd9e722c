//! What the guests of a run do, as a list that a command line can hold.

use lull_core::sched::Weight;
use std::fmt;
use std::str::FromStr;

/// What one vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Halts, and is never woken.
    Idle,
    /// Computes without end.
    Batch,
    /// Computes a little at each tick of a timer of its own.
    Periodic,
    /// Serves requests that come at random (Poisson), each of random length.
    Server,
    /// Two that wake each other in turn.
    PingPong,
    /// Four that compete for one lock: they spin for a little, then halt until it is handed over.
    Lock,
    /// Eight that interrupt each other as fast as they can, in bursts.
    Storm,
    /// Computes a little and lets others go first, again and again.
    Yield,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Idle,
        Self::Batch,
        Self::Periodic,
        Self::Server,
        Self::PingPong,
        Self::Lock,
        Self::Storm,
        Self::Yield,
    ];

    /// As the command line names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Batch => "batch",
            Self::Periodic => "periodic",
            Self::Server => "server",
            Self::PingPong => "pingpong",
            Self::Lock => "lock",
            Self::Storm => "storm",
            Self::Yield => "yield",
        }
    }

    /// How many of them belong together.
    pub const fn group(self) -> usize {
        match self {
            Self::PingPong => 2,
            Self::Lock => 4,
            Self::Storm => 8,
            _ => 1,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Some vCPUs that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What they do.
    pub kind: Kind,
    /// How many.
    pub count: u32,
    /// Their weight.
    pub weight: Weight,
    /// The CPUs that they may run on, both included; none for all.
    pub cpus: Option<(u32, u32)>,
}

/// The most vCPUs of a run.
pub const MAX_VCPUS: u32 = 1 << 20;

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if self.count != 1 {
            write!(f, "*{}", self.count)?;
        }
        if self.weight != Weight::DEFAULT {
            write!(f, ":{}", self.weight)?;
        }
        if let Some((low, high)) = self.cpus {
            write!(f, "@{low}-{high}")?;
        }
        Ok(())
    }
}

fn number<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no {what} (expected a whole number)"))
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, cpus) = match text.split_once('@') {
            Some((rest, cpus)) => (rest, Some(cpus)),
            None => (text, None),
        };
        let cpus = cpus
            .map(|cpus| -> Result<(u32, u32), String> {
                let (low, high) = cpus.split_once('-').unwrap_or((cpus, cpus));
                let range: (u32, u32) = (number(low, "CPU")?, number(high, "CPU")?);
                if range.0 > range.1 {
                    return Err(format!("`{cpus}`: {} is above {}", range.0, range.1));
                }
                Ok(range)
            })
            .transpose()?;
        let (rest, weight) = match rest.split_once(':') {
            Some((rest, weight)) => {
                let none = || format!("`{weight}` is no weight (expected 1 to 65535)");
                (
                    rest,
                    weight.parse().ok().and_then(Weight::new).ok_or_else(none)?,
                )
            }
            None => (rest, Weight::DEFAULT),
        };
        let (name, count) = match rest.split_once('*') {
            Some((name, count)) => (name, number(count, "number of vCPUs")?),
            None => (rest, 1),
        };
        if !(1..=MAX_VCPUS).contains(&count) {
            return Err(format!("{count} vCPUs: expected 1 to {MAX_VCPUS}"));
        }
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let names = Kind::ALL.map(Kind::name).join(", ");
        Ok(Self {
            kind: kind.ok_or_else(|| format!("`{name}` is none of {names}"))?,
            count,
            weight,
            cpus,
        })
    }
}

/// All vCPUs of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load(pub Vec<Part>);

impl Load {
    /// A mix of everything, of so many vCPUs. The same, for the same number.
    pub fn mixed(vcpus: u32) -> Self {
        // Of forty: those that belong together are together.
        const SHARES: [(Kind, u32); 8] = [
            (Kind::Server, 10),
            (Kind::Periodic, 8),
            (Kind::Lock, 4),
            (Kind::PingPong, 4),
            (Kind::Batch, 2),
            (Kind::Yield, 1),
            (Kind::Storm, 2),
            (Kind::Idle, 9),
        ];
        let mut left = vcpus;
        let mut parts = Vec::new();
        for (kind, share) in SHARES {
            let wanted = (u64::from(vcpus) * u64::from(share)).div_ceil(40) as u32;
            let count = wanted.min(left);
            left -= count;
            if count > 0 {
                parts.push(Part {
                    kind,
                    count,
                    weight: Weight::DEFAULT,
                    cpus: None,
                });
            }
        }
        Self(parts)
    }

    /// How many vCPUs.
    pub fn vcpus(&self) -> u32 {
        self.0.iter().map(|part| part.count).sum()
    }

    /// The part of each vCPU, and its place in it.
    pub fn each(&self) -> impl Iterator<Item = (u32, &Part)> {
        self.0
            .iter()
            .flat_map(|part| (0..part.count).map(move |index| (index, part)))
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.0.iter().map(Part::to_string).collect();
        f.write_str(&parts.join(","))
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<Part> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let vcpus: u64 = parts.iter().map(|part| u64::from(part.count)).sum();
        if vcpus > u64::from(MAX_VCPUS) {
            return Err(format!("{vcpus} vCPUs: expected at most {MAX_VCPUS}"));
        }
        Ok(Self(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_read_as_it_is_written() {
        for text in ["batch", "periodic*3,batch:512@0-1,server*7@2-5", "lock*4:1"] {
            let load: Load = text.parse().unwrap();
            assert_eq!(load.to_string(), text);
        }
        let load: Load = "storm*8,idle@3".parse().unwrap();
        assert_eq!(load.vcpus(), 9);
        assert_eq!(load.0[1].cpus, Some((3, 3)));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, why) in [
            (
                "fly",
                "`fly` is none of idle, batch, periodic, server, pingpong, lock, storm, yield",
            ),
            ("batch*0", "0 vCPUs: expected 1 to 1048576"),
            (
                "batch*x",
                "`x` is no number of vCPUs (expected a whole number)",
            ),
            ("batch:0", "`0` is no weight (expected 1 to 65535)"),
            ("batch@3-1", "`3-1`: 3 is above 1"),
            (
                "batch*1000000,idle*1000000",
                "2000000 vCPUs: expected at most 1048576",
            ),
        ] {
            assert_eq!(text.parse::<Load>(), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_mix_has_as_many_as_it_should() {
        for vcpus in [1, 7, 40, 41, 40_000] {
            assert_eq!(Load::mixed(vcpus).vcpus(), vcpus);
        }
        assert_eq!(Load::mixed(40_000).0.len(), 8);
    }
}
