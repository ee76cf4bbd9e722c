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
    let Some(octave) = (time / EDGES[1]).checked_ilog2() else {
        return 0;
    };
    // The upper half of the octave, or the lower one.
    let lower = 2 * octave as usize + 1;
    let upper = EDGES.get(lower + 1).is_some_and(|&edge| edge <= time);
    (lower + usize::from(upper)).min(BINS - 1)
}

/// What ended a sleep, as far as learning goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Something that nobody had announced.
    Event,
    /// The deadline: no event had come so far.
    Timer,
}

#[cfg(test)]
#[test]
fn a_bin_is_found_by_its_edges() {
    let around = |edge: u64| [edge.saturating_sub(1), edge, edge + 1];
    let times = EDGES.into_iter().flat_map(around).chain([u64::MAX]);
    for time in times {
        let by_search = EDGES[1..BINS].partition_point(|&edge| edge <= time);
        assert_eq!(bin_of(time), by_search, "{time}");
    }
}

/// Ageing counts of sleeps, by length.
///
/// Only ratios of counts mean anything. So older sleeps are not made lighter with each new one, which would take a pass
/// over all bins; each new one is a little heavier instead, and now and then all are scaled down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrivals {
    events: [u32; BINS],
    timers: [u32; BINS],
    /// The bins in which there is anything, a bit for each.
    used: u64,
    total: u32,
    /// What the next sleep weighs.
    step: u32,
}

/// What the first sleep weighs. A part in 2^8 of it must be a number.
const FIRST_STEP: u32 = 1 << 12;
/// At this weight everything is scaled down. With a memory of 2^8 the total stays below 2^29.
const SCALED_BITS: u32 = 8;

impl Arrivals {
    pub const NONE: Self = Self {
        events: [0; BINS],
        timers: [0; BINS],
        used: 0,
        total: 0,
        step: FIRST_STEP,
    };

    /// What is assumed before anything is known: about as much comes in each bin as in any other. Worth four sleeps.
    pub const UNKNOWN: Self = Self {
        events: [FIRST_STEP / 8; BINS],
        used: (1 << BINS) - 1,
        total: FIRST_STEP / 8 * BINS as u32,
        ..Self::NONE
    };

    /// Adds a sleep; against it older ones lose one part in 2^`memory`.
    pub fn add(&mut self, bin: usize, ended: Ended, memory: u32) {
        let counts = match ended {
            Ended::Event => &mut self.events,
            Ended::Timer => &mut self.timers,
        };
        let Some(count) = counts.get_mut(bin) else {
            return;
        };
        *count += self.step;
        self.total += self.step;
        self.used |= 1 << bin;
        self.step += self.step >> memory;
        if self.step >= FIRST_STEP << SCALED_BITS {
            self.scale_down();
        }
    }

    fn scale_down(&mut self) {
        self.step >>= SCALED_BITS;
        self.used = 0;
        self.total = 0;
        let bins = self.events.iter_mut().zip(&mut self.timers);
        for (bin, (events, timers)) in bins.enumerate() {
            *events >>= SCALED_BITS;
            *timers >>= SCALED_BITS;
            self.total += *events + *timers;
            self.used |= u64::from(*events + *timers > 0) << bin;
        }
    }

    /// How likely it is that nothing has come yet, from `from` on.
    #[cfg(test)]
    pub fn survival(&self, from: u64) -> Survival {
        let mut survival = Survival::NONE;
        survival.work_out(self, from, 16);
        survival
    }
}

/// The numbers of the bits that are set, in order.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let next = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(next)
    })
}

/// A bin in which events came: what is left behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drop {
    /// The expected time slept until its end, in ns.
    pub slept: u64,
    /// The probability, in units of [`ONE`], that a sleep goes on.
    pub after: u32,
    pub bin: u8,
}

impl Drop {
    const NONE: Self = Self {
        slept: 0,
        after: 0,
        bin: 0,
    };

    /// When it begins, in ns.
    pub fn begin(&self) -> u64 {
        EDGES[usize::from(self.bin)]
    }

    /// A time by which something has happened, in ns.
    pub fn end(&self) -> u64 {
        EDGES[usize::from(self.bin) + 1]
    }

    /// The probability that a sleep goes on, as a number to calculate with.
    pub fn left(&self) -> u64 {
        u64::from(self.after)
    }
}

/// How likely a sleep is to go on, given that it has lasted until `from`. Between drops it is as likely as after the
/// last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Survival {
    pub from: u64,
    drops: [Drop; BINS],
    count: usize,
}

impl Survival {
    /// Nothing ever comes.
    pub const NONE: Self = Self {
        from: 0,
        drops: [Drop::NONE; BINS],
        count: 0,
    };

    /// Makes this what `arrivals` say. Events that are fewer than one part in two to the power of `few` of all count in a
    /// later bin.
    pub fn work_out(&mut self, arrivals: &Arrivals, from: u64, few: u32) {
        let first = bin_of(from);
        let bins = || ones(arrivals.used & (u64::MAX << first));
        let in_bin = |bin: usize| (arrivals.events[bin], arrivals.timers[bin]);
        let mut at_risk = match first {
            0 => arrivals.total,
            _ => bins().map(|bin| in_bin(bin).0 + in_bin(bin).1).sum(),
        };
        self.from = from;
        self.count = 0;
        let few = at_risk >> few;
        let (mut left, mut at, mut slept) = (ONE, from, 0);
        let mut waiting = 0;
        for bin in bins() {
            let (events, timers) = in_bin(bin);
            // Those that the timer cut off inside the bin were exposed to half of it.
            let exposed = at_risk - timers / 2;
            at_risk -= events + timers;
            waiting += events;
            let end = EDGES[bin + 1];
            // Behind the last bin nothing is known.
            if waiting <= few && (waiting == 0 || at_risk > 0) || end <= from {
                continue;
            }
            let exposed = exposed.max(events) + (waiting - events);
            let before = left;
            left -= left * u64::from(waiting) / u64::from(exposed);
            waiting = 0;
            let begin = EDGES[bin].max(at);
            slept += (begin - at) * before / ONE + (end - begin) * (before + left) / (2 * ONE);
            at = end;
            self.drops[self.count] = Drop {
                slept,
                after: left as u32,
                bin: bin as u8,
            };
            self.count += 1;
            if left == 0 {
                break;
            }
        }
    }

    /// In order.
    pub fn drops(&self) -> &[Drop] {
        self.drops.get(..self.count).unwrap_or(&[])
    }

    /// How long a sleep is expected to go on, in ns, if it ends at `end` at the latest.
    pub fn until(&self, end: u64) -> u64 {
        let drops = self.drops();
        let usable = match drops.last() {
            Some(last) if last.end() >= end => drops.partition_point(|drop| drop.end() < end),
            _ => drops.len(),
        };
        let (slept, at, left) = usable
            .checked_sub(1)
            .and_then(|last| drops.get(last))
            .map_or((0, self.from, ONE), |drop| {
                (drop.slept, drop.end(), drop.left())
            });
        let more = match drops
            .get(usable)
            .map(|drop| (drop.begin().max(at), drop.left()))
        {
            Some((begin, after)) if begin < end => {
                (begin - at) * left / ONE + (end - begin) * (left + after) / (2 * ONE)
            }
            _ => (end - at) * left / ONE,
        };
        slept + more
    }

    /// The time that hardly any sleep has outlasted lately; the end of time if there is none.
    pub fn horizon(&self) -> u64 {
        let outlasted = self.drops().iter().find(|drop| drop.left() <= ONE / 64);
        outlasted.map_or(u64::MAX, Drop::end)
    }
}
