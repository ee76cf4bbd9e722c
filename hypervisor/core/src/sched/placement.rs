//! Which of several idle CPUs a unit wakes on: the one where it is expected to run soonest.
//!
//! Every CPU says what it does in one word, its account's [`Activity`], which it writes anyway whenever that changes:
//! in the hypervisor, in a guest, or in which C-state. A waker reads that word once per candidate, takes no lock, and
//! knows the exit latency that is ahead. The word may be stale by the time that it is acted on: that costs time, never
//! a wake.
//!
//! [`expected_delay`] is pure: what it is given decides. Only idle CPUs are ranked by it, so nobody ever queues behind a
//! runner for the sake of a deep sleeper. Since a deep sleeper costs its exit latency, work gathers on the CPUs that are
//! awake or in C1 anyway, and under light load the others stay deep.

use crate::cstate::{CStateTable, EntryMethod, MAX_STATES};
use crate::residency::{Activity, CpuAccount};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{CpuId, Nanos};
use alloc::boxed::Box;
use alloc::sync::Arc;

/// Sending an interrupt, and taking it: an x2APIC write, the trip through the fabric, and the handler.
pub const IPI: Nanos = Nanos::new(1_000);
/// A store that ends MWAIT or a poll: one cache line changes hands.
pub const STORE: Nanos = Nanos::new(100);
/// Taking up what waits, on a CPU that is awake: a pass, and a world switch.
pub const SWITCH: Nanos = Nanos::new(1_000);
/// What a unit loses on another CPU than its last: half a megabyte of second-level cache at some 50 GB/s, and its
/// translations.
pub const COLD_CACHE: Nanos = Nanos::new(10_000);
/// What a unit loses beside a busy thread of the same core: two fifths of its speed, over the 12 µs or so that it runs after a
/// wake.
pub const BUSY_SIBLING: Nanos = Nanos::new(5_000);
/// The same, of a unit that runs most of the time: it has an idle core for itself if there is any that does not sleep deeply.
pub const BUSY_SIBLING_FOR_LONG: Nanos = Nanos::new(50_000);
/// So many times counts the latency that is beyond what the guest was promised.
pub const OVER_LIMIT: u64 = 16;

/// How a scheduler that ranks idle CPUs chooses among them. All but the first are there to be compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// By [`expected_delay`].
    #[default]
    SleepDepth,
    /// The unit's last one, else the next behind it; one whose core is idle before all others. How deep they sleep is not known.
    FirstIdle,
    /// The unit's last one, else the next behind it.
    Previous,
}

impl Placement {
    /// The names that [`by_name`](Self::by_name) knows, the default first.
    pub const NAMES: [&'static str; 3] = ["sleep-depth", "first-idle", "previous"];

    /// The policy of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        let all = [Self::SleepDepth, Self::FirstIdle, Self::Previous];
        let at = Self::NAMES.iter().position(|&known| known == name)?;
        all.get(at).copied()
    }
}

/// What a CPU is doing, as far as it matters to a waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// It has not come up.
    Nothing,
    /// It is awake: it runs hypervisor code, and looks at its wake word before it sleeps.
    Awake,
    /// It runs a guest.
    Guest,
    /// It is in a C-state.
    Asleep {
        /// How long it takes to come back.
        exit_latency: Nanos,
        /// A store to its wake word is enough.
        watching: bool,
    },
}

/// One CPU that could take a unit, as a waker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What it is doing.
    pub doing: Doing,
    /// The unit ran there last.
    pub warm: bool,
    /// Another thread of its core is busy.
    pub sibling_busy: bool,
    /// The unit will run for long.
    pub lasting: bool,
    /// The exit latency that the unit's guest was promised at most, if it was.
    pub limit: Option<Nanos>,
}

/// How long it takes until the unit runs there, and how much longer it then needs for being there.
pub fn expected_delay(candidate: &Candidate) -> Nanos {
    let mut delay = match candidate.doing {
        Doing::Nothing => return Nanos::MAX,
        Doing::Awake => STORE,
        Doing::Guest => IPI,
        Doing::Asleep {
            exit_latency,
            watching,
        } => {
            let signal = if watching { STORE } else { IPI };
            let over = candidate
                .limit
                .map_or(Nanos::ZERO, |limit| exit_latency - limit);
            signal + exit_latency + Nanos::new(over.get().saturating_mul(OVER_LIMIT))
        }
    };
    if !candidate.warm {
        delay += COLD_CACHE;
    }
    if candidate.sibling_busy {
        delay += if candidate.lasting {
            BUSY_SIBLING_FOR_LONG
        } else {
            BUSY_SIBLING
        };
    }
    delay
}

/// What all CPUs are doing. Belongs to the scheduler; the dispatch loops write it.
#[derive(Debug)]
pub struct CpuTable {
    rows: Box<[Row]>,
}

#[derive(Debug)]
struct Row {
    account: Arc<CpuAccount>,
    /// The exit latency of each C-state in ns; the top bit is set if a store ends it.
    states: [AtomicU64; MAX_STATES],
}

const WATCHING: u64 = 1 << 63;

impl CpuTable {
    /// For CPUs 0 to `cpus - 1`.
    pub fn new(cpus: usize) -> Self {
        let row = |_| Row {
            account: Arc::new(CpuAccount::new()),
            states: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self {
            rows: (0..cpus).map(row).collect(),
        }
    }

    /// How many CPUs there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Where a CPU writes what it does.
    pub fn account(&self, cpu: CpuId) -> Option<&Arc<CpuAccount>> {
        self.rows.get(cpu.index()).map(|row| &row.account)
    }

    /// The C-states of a CPU, once they are chosen. `sees_stores`: its monitor can be trusted.
    pub fn set_states(&self, cpu: CpuId, table: &CStateTable, sees_stores: bool) {
        let Some(row) = self.rows.get(cpu.index()) else {
            return;
        };
        for ((_, state), cell) in table.iter().zip(&row.states) {
            let watching = state.method == EntryMethod::Poll
                || (sees_stores && matches!(state.method, EntryMethod::Mwait { .. }));
            let latency = state.exit_latency.to_nanos().get() & !WATCHING;
            let flag = if watching { WATCHING } else { 0 };
            cell.store(latency | flag, Ordering::Relaxed);
        }
    }

    /// What a CPU is doing, or was doing a moment ago.
    pub fn doing(&self, cpu: CpuId) -> Doing {
        let Some(row) = self.rows.get(cpu.index()) else {
            return Doing::Nothing;
        };
        match row.account.activity() {
            Activity::NotStarted => Doing::Nothing,
            Activity::Hypervisor => Doing::Awake,
            Activity::Guest => Doing::Guest,
            Activity::Idle(state) => {
                let bits = row
                    .states
                    .get(state.index())
                    .map_or(0, |cell| cell.load(Ordering::Relaxed));
                Doing::Asleep {
                    exit_latency: Nanos::new(bits & !WATCHING),
                    watching: bits & WATCHING != 0,
                }
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
