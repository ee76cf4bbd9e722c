//! The reader's side: one row of a CPU's account, the change between two, and the check that a row adds up.

use crate::cstate::{CStateTable, MAX_STATES, StateId};
use crate::units::Ticks;
use core::fmt;

/// What a CPU is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    /// It has not come up.
    NotStarted,
    /// It runs hypervisor code.
    Hypervisor,
    /// It runs a guest.
    Guest,
    /// It is in a C-state.
    Idle(StateId),
}

impl Activity {
    pub(super) const fn to_bits(self) -> u64 {
        match self {
            Activity::NotStarted => 0,
            Activity::Hypervisor => 1,
            Activity::Guest => 2,
            Activity::Idle(state) => 3 + state.index() as u64,
        }
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        match bits {
            0 => Activity::NotStarted,
            1 => Activity::Hypervisor,
            2 => Activity::Guest,
            state => Activity::Idle(StateId::from_index((state - 3) as u8)),
        }
    }
}

/// What one C-state was used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateTimes {
    /// Entries, the present one included.
    pub usage: u64,
    /// Time in the state, without handlers.
    pub residency: Ticks,
    /// From the first handler inside the state to the exit.
    pub irq: Ticks,
    /// Entries that were too deep: the sleep was shorter than the state's target residency.
    pub above: u64,
    /// Entries that were too shallow: a deeper state would have paid off.
    pub below: u64,
    /// Selections that must not be entered when they were to be (an interrupt in service, an active bus master): another
    /// state was.
    pub rejected: u64,
    /// The shortest stay that has ended, since the CPU came up; `None` if there was none.
    pub shortest: Option<Ticks>,
    /// The longest stay that has ended, since the CPU came up.
    pub longest: Ticks,
}

/// One CPU's account at one moment; or, from [`since`](Self::since), the change between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// When it was taken.
    pub now: Ticks,
    /// From the CPU's first stamp to now.
    pub elapsed: Ticks,
    /// Time outside of C-states.
    pub c0: Ticks,
    /// Of that, in guests.
    pub guest: Ticks,
    /// Of that, in the hypervisor.
    pub hypervisor: Ticks,
    /// Attempts to sleep that met a pending event and never slept.
    pub aborted: u64,
    /// Sleeps that ended without an event.
    pub spurious: u64,
    /// What the CPU was doing.
    pub activity: Activity,
    /// By state index. Use [`states`](Self::states) for those that the CPU has.
    pub(super) states: [StateTimes; MAX_STATES],
}

impl Snapshot {
    /// What each state of the CPU's table was used for, shallow to deep.
    pub fn states(&self, table: &CStateTable) -> impl Iterator<Item = &StateTimes> {
        self.states.iter().take(table.count())
    }

    /// Time in C-states, without handlers.
    pub fn residency(&self) -> Ticks {
        self.states.iter().map(|state| state.residency).sum()
    }

    /// Time of handlers inside C-states.
    pub fn irq(&self) -> Ticks {
        self.states.iter().map(|state| state.irq).sum()
    }

    /// One part in a thousand of the elapsed time: what the books must balance to.
    pub const fn per_mille(&self) -> Ticks {
        Ticks::new(self.elapsed.get() / 1000)
    }

    /// The change since an earlier row of the same CPU. `now` and `activity` stay this row's.
    pub fn since(&self, earlier: &Self) -> Self {
        let change = |of: fn(&Self) -> Ticks| of(self) - of(earlier);
        Self {
            now: self.now,
            elapsed: change(|row| row.elapsed),
            c0: change(|row| row.c0),
            guest: change(|row| row.guest),
            hypervisor: change(|row| row.hypervisor),
            aborted: self.aborted.saturating_sub(earlier.aborted),
            spurious: self.spurious.saturating_sub(earlier.spurious),
            activity: self.activity,
            states: core::array::from_fn(|index| self.states[index].since(&earlier.states[index])),
        }
    }

    /// Do the books balance? Both identities, each to `tolerance`.
    ///
    /// On one clock they hold to the tick, so a tolerance is only needed for clocks that differ between CPUs.
    ///
    /// # Errors
    /// The first identity that does not hold.
    pub fn check(&self, tolerance: Ticks) -> Result<(), Imbalance> {
        let identities = [
            (
                Identity::Elapsed,
                self.c0 + self.residency() + self.irq(),
                self.elapsed,
            ),
            (Identity::C0, self.guest + self.hypervisor, self.c0),
        ];
        match identities
            .into_iter()
            .find(|(_, sum, expected)| sum.abs_diff(*expected) > tolerance)
        {
            None => Ok(()),
            Some((identity, sum, expected)) => Err(Imbalance {
                identity,
                sum,
                expected,
            }),
        }
    }

    /// Adds what the CPU has been doing since its last stamp. `left`: when it has left the state that it is said to be in.
    pub(super) fn add_open_interval(
        &mut self,
        first: Ticks,
        since: Ticks,
        c0_since: Ticks,
        left: Option<Ticks>,
    ) {
        let open = self.now - since;
        match self.activity {
            Activity::NotStarted => return,
            Activity::Hypervisor => self.hypervisor += open,
            Activity::Guest => self.guest += open,
            Activity::Idle(state) => {
                // Another CPU's clock may be a few ticks ahead of this one's.
                let left = left.unwrap_or(self.now).clamp(since, self.now);
                if let Some(times) = self.states.get_mut(state.index()) {
                    times.residency += left - since;
                }
                self.hypervisor += self.now - left;
                self.c0 += self.now - left;
            }
        }
        if !matches!(self.activity, Activity::Idle(_)) {
            self.c0 += self.now - c0_since;
        }
        self.elapsed = self.now - first;
    }
}

impl StateTimes {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            usage: self.usage.saturating_sub(earlier.usage),
            residency: self.residency - earlier.residency,
            irq: self.irq - earlier.irq,
            above: self.above.saturating_sub(earlier.above),
            below: self.below.saturating_sub(earlier.below),
            rejected: self.rejected.saturating_sub(earlier.rejected),
            shortest: self.shortest,
            longest: self.longest,
        }
    }
}

/// What must add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// C0 + residency of all states + interrupt time of all states = elapsed time.
    Elapsed,
    /// Guest time + hypervisor time = C0.
    C0,
}

/// An identity that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imbalance {
    /// Which one.
    pub identity: Identity,
    /// What the parts add up to.
    pub sum: Ticks,
    /// What they should.
    pub expected: Ticks,
}

impl fmt::Display for Imbalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parts, whole) = match self.identity {
            Identity::Elapsed => ("C0 + residency + interrupt time", "elapsed time"),
            Identity::C0 => ("guest + hypervisor time", "C0"),
        };
        let off = self.sum.abs_diff(self.expected);
        write!(
            f,
            "{parts} is {}, but {whole} is {}: {off} apart",
            self.sum, self.expected
        )
    }
}

impl core::error::Error for Imbalance {}
