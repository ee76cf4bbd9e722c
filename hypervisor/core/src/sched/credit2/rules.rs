//! The constants, and what can be chosen.

use crate::sched::placement::Placement;
use crate::units::{Micros, Nanos, TickRate, Ticks};

/// Which CPUs share a runqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// Each has its own.
    Cpu,
    /// The threads of a core.
    Core,
    /// Those of a socket.
    #[default]
    Socket,
    /// Those of a NUMA node.
    Node,
    /// All.
    All,
}

impl Arrangement {
    /// The names that [`by_name`](Self::by_name) knows.
    pub const NAMES: [&'static str; 5] = ["cpu", "core", "socket", "node", "all"];

    /// The arrangement of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        let all = [Self::Cpu, Self::Core, Self::Socket, Self::Node, Self::All];
        let at = Self::NAMES.iter().position(|&known| known == name)?;
        all.get(at).copied()
    }
}

/// What can be chosen when the scheduler is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// A unit that has not run for so long is not preempted, unless by what it woke itself; zero: always.
    pub ratelimit: Micros,
    /// So much more credit a unit of another CPU must have to be taken.
    pub migrate_resist: Micros,
    /// How often a capped domain gets its budget. At least [`MIN_TIMER`].
    pub cap_period: Micros,
    /// Which CPUs share a runqueue.
    pub arrangement: Arrangement,
    /// So many CPUs share one at most.
    pub max_cpus: usize,
    /// How an idle CPU is chosen.
    pub placement: Placement,
    /// Below capacity, a difference of load of 2^this units is worth a move.
    pub balance_under: i32,
    /// At or above capacity, the same.
    pub balance_over: i32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ratelimit: Micros::new(1_000),
            migrate_resist: Micros::new(500),
            cap_period: Micros::new(10_000),
            arrangement: Arrangement::Socket,
            max_cpus: 16,
            placement: Placement::SleepDepth,
            balance_under: 0,
            balance_over: -3,
        }
    }
}

/// The shortest slice.
pub const MIN_TIMER: Micros = Micros::new(500);
/// The longest slice.
pub const MAX_TIMER: Micros = Micros::new(10_000);
/// What a reset adds.
pub const CREDIT_INIT: Micros = Micros::new(10_000);
/// What a unit that was blocked may keep beyond that.
pub const CARRYOVER_MAX: Micros = Micros::new(500);
/// So many resets a unit may keep that did not block: more than it can use, since it has one CPU at most. If others run for longer
/// than was meant, as when an interrupt or a machine below this one holds them up, it need not wait for that.
pub const SURPLUS_RESETS: i64 = 3;
/// So many resets a unit may be in debt. More than that is forgotten, so nobody waits longer for having once run alone;
/// less would forgive what a light unit uses in one slice: exact for weights up to 640 times apart.
pub const DEBT_RESETS: i64 = 64;
/// What a unit is lent for having been moved, until after the next reset.
pub const MIGRATE_COMPENSATION: Micros = Micros::new(50);
/// A runner so near to the end of its rate limit counts as one that can be preempted.
pub const RATELIMIT_TOLERANCE: Micros = Micros::new(50);
/// What a runner woke itself may lag behind it by so much, and still go first.
pub const SELF_WAKE_GRACE: Micros = Micros::new(1_000);
/// The smallest part of a domain's budget that a unit takes.
pub const MIN_QUOTA: Micros = Micros::new(500);
/// The shortest slice of a unit whose budget ends: overruns of a cap are no longer than this, and paid back.
pub const CAP_GRAIN: Micros = Micros::new(50);

/// All of it in ticks. Credits are ticks as well.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub ratelimit: Ticks,
    pub migrate_resist: i64,
    pub cap_period: Ticks,
    pub arrangement: Arrangement,
    pub max_cpus: usize,
    pub placement: Placement,
    pub balance_under: i32,
    pub balance_over: i32,
    pub min_timer: Ticks,
    pub max_timer: Ticks,
    pub credit_init: i64,
    pub credit_clip: i64,
    pub woken_clip: i64,
    pub credit_min: i64,
    pub compensation: i64,
    pub tolerance: Ticks,
    pub grace: i64,
    pub min_quota: i64,
    pub cap_grain: Ticks,
    /// A tick counter shifted right by this counts in about microseconds.
    pub load_shift: u32,
}

impl Rules {
    pub fn new(config: &Config, rate: TickRate) -> Self {
        let ticks = |micros: Micros| rate.ticks(micros.to_nanos());
        let credit = |micros: Micros| i64::try_from(ticks(micros).get()).unwrap_or(i64::MAX >> 16);
        let init = credit(CREDIT_INIT).max(1);
        Self {
            ratelimit: ticks(config.ratelimit),
            migrate_resist: credit(config.migrate_resist),
            cap_period: ticks(config.cap_period.max(MIN_TIMER)),
            arrangement: config.arrangement,
            max_cpus: config.max_cpus.max(1),
            placement: config.placement,
            balance_under: config.balance_under.clamp(-16, 16),
            balance_over: config.balance_over.clamp(-16, 16),
            min_timer: ticks(MIN_TIMER),
            max_timer: ticks(MAX_TIMER),
            credit_init: init,
            credit_clip: init.saturating_mul(SURPLUS_RESETS),
            woken_clip: init.saturating_add(credit(CARRYOVER_MAX)),
            credit_min: init.saturating_mul(-DEBT_RESETS),
            compensation: credit(MIGRATE_COMPENSATION),
            tolerance: ticks(RATELIMIT_TOLERANCE),
            grace: credit(SELF_WAKE_GRACE),
            min_quota: credit(MIN_QUOTA),
            cap_grain: ticks(CAP_GRAIN),
            load_shift: ticks(Micros::new(1)).get().max(1).ilog2(),
        }
    }

    /// A latency limit as ticks, zero for none: see [`limit`](Self::limit).
    pub fn pack_limit(limit: Option<Nanos>) -> u64 {
        limit.map_or(u64::MAX, Nanos::get)
    }

    pub fn limit(packed: u64) -> Option<Nanos> {
        (packed != u64::MAX).then(|| Nanos::new(packed))
    }
}
