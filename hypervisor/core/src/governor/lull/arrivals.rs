//! When events come: a hazard by the time slept, from sleeps of which some were cut off by the timer.

/// Time is cut into bins that grow by half an octave.
pub(super) const BINS: usize = 34;
/// The unit of probability.
pub(super) const ONE: u64 = 1 << 16;

/// The lower edges of the bins, in ns: 0, 2 us, and from there two a doubling.
pub(super) const EDGES: [u64; BINS + 1] = {
    let mut edges = [0; BINS + 1];
    let mut bin = 1;
    while bin <= BINS {
        let octave = 2_000_u64 << ((bin - 1) / 2);
        // The square root of two, for the odd ones.
        edges[bin] = if bin % 2 == 1 {
            octave
        } else {
            octave * 1414 / 1000
        };
        bin += 1;
    }
    edges
};

/// The bin that a time falls into.
pub(super) fn bin_of(time: u64) -> usize {
    EDGES[1..BINS].partition_point(|&edge| edge <= time)
}

/// What ended a sleep, as far as learning goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Something that nobody had announced.
    Event,
    /// The deadline: no event had come so far.
    Timer,
}

/// Ageing counts of sleeps, by length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrivals {
    events: [u16; BINS],
    timers: [u16; BINS],
}

impl Arrivals {
    pub const NONE: Self = Self {
        events: [0; BINS],
        timers: [0; BINS],
    };

    /// What is assumed before anything is known: about as much comes in each bin as in any other. Worth four sleeps.
    pub const fn unknown(memory: u32) -> Self {
        Self {
            events: [step(memory) / 8; BINS],
            timers: [0; BINS],
        }
    }

    /// Adds a sleep; older ones lose one part in 2^`memory`.
    pub fn add(&mut self, bin: usize, ended: Ended, memory: u32) {
        for count in self.events.iter_mut().chain(&mut self.timers) {
            *count -= (*count >> memory) + u16::from(*count != 0 && *count >> memory == 0);
        }
        let counts = match ended {
            Ended::Event => &mut self.events,
            Ended::Timer => &mut self.timers,
        };
        // With the ageing, the sum of all stays below 65 536.
        if let Some(count) = counts.get_mut(bin) {
            *count = count.saturating_add(step(memory));
        }
    }

    /// Is there anything that says what comes after so long a sleep?
    pub fn weight(&self) -> u32 {
        let all = self.events.iter().chain(&self.timers);
        all.map(|&count| u32::from(count)).sum()
    }

    /// How likely it is that nothing has come yet, from `from` on, by bin edge.
    pub fn survival(&self, from: u64) -> Survival {
        let first = bin_of(from);
        let mut at_risk: u32 = (first..BINS)
            .map(|bin| u32::from(self.events[bin]) + u32::from(self.timers[bin]))
            .sum();
        let mut survival = Survival {
            from,
            first,
            at_edge: [ONE as u32; BINS + 1],
            known: 0,
        };
        let mut left = ONE as u32;
        for bin in first..BINS {
            let (events, timers) = (u32::from(self.events[bin]), u32::from(self.timers[bin]));
            if events > 0 {
                // Those that the timer cut off inside the bin were exposed to half of it.
                let exposed = at_risk - timers / 2;
                // `left` is at most 2^16, `events` below that: their product fits, save for both at their largest.
                left -= left.saturating_mul(events) / exposed.max(events);
                survival.known |= 1 << (bin + 1);
            }
            at_risk -= events + timers;
            survival.at_edge[bin + 1] = left;
        }
        survival
    }
}

/// What one sleep adds.
const fn step(memory: u32) -> u16 {
    1 << (15 - memory)
}

/// How likely a sleep is to go on, given that it has lasted until `from`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Survival {
    pub from: u64,
    /// The bin that `from` is in.
    pub first: usize,
    /// At the lower edge of each bin, in units of [`ONE`].
    pub at_edge: [u32; BINS + 1],
    /// The upper edges of bins in which events came, a bit for each: times by which something has happened.
    pub known: u64,
}

impl Survival {
    /// The time that hardly any sleep has outlasted lately; the end of time if there is none.
    pub fn horizon(&self) -> u64 {
        let edges = self.at_edge.iter().zip(EDGES).skip(self.first + 1);
        edges
            .filter(|(left, _)| u64::from(**left) <= ONE / 64)
            .map(|(_, edge)| edge)
            .next()
            .unwrap_or(u64::MAX)
    }
}
