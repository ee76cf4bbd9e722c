//! Every scheduler there is, chosen by name at run time without dynamic dispatch.

use super::arinc653::Arinc653;
use super::credit2::{Config, Credit2};
use super::fair::Fair;
use super::null::Null;
use super::rtds::Rtds;
use super::unit::UnitTable;
use super::{
    Cap, CpuTable, Decision, DumpRow, Prev, Removal, RtParams, SchedError, Scheduler, Topology,
    UnitParams, WakeBy, Weight,
};
use crate::units::{CpuId, CpuSet, DomId, Micros, TickRate, Ticks, VcpuId};

macro_rules! each {
    ($any:expr, $sched:ident => $call:expr) => {
        match $any {
            AnyScheduler::Credit2($sched) => $call,
            AnyScheduler::Fair($sched) => $call,
            AnyScheduler::Null($sched) => $call,
            AnyScheduler::Rtds($sched) => $call,
            AnyScheduler::Arinc653($sched) => $call,
        }
    };
}

/// What any scheduler is made for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The CPUs, and where they are.
    pub topology: Topology,
    /// How many units there can be.
    pub units: usize,
    /// Domains are numbered below this.
    pub domains: usize,
    /// How fast the clock counts.
    pub rate: TickRate,
    /// What can be chosen of credit2.
    pub credit2: Config,
}

/// One of the schedulers.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one value in the machine"
)]
pub enum AnyScheduler {
    /// `credit2`, the default.
    Credit2(Credit2),
    /// `fair`.
    Fair(Fair),
    /// `null`.
    Null(Null),
    /// `rtds`.
    Rtds(Rtds),
    /// `arinc653`.
    Arinc653(Arinc653),
}

/// How long a unit runs under `fair` before others come up.
const FAIR_SLICE: Micros = Micros::new(10_000);

impl AnyScheduler {
    /// The names that [`AnyScheduler::by_name`] knows, the default first.
    pub const NAMES: [&'static str; 5] = ["credit2", "fair", "null", "rtds", "arinc653"];

    /// A scheduler without units, all of whose CPUs are offline; the default one for a name that is none of
    /// [`AnyScheduler::NAMES`].
    pub fn by_name(name: &str, setup: Setup) -> Self {
        let Setup {
            topology,
            units,
            domains,
            rate,
            credit2,
        } = setup;
        match name {
            "fair" => Self::Fair(Fair::new(
                topology.cpus(),
                units,
                rate.ticks(FAIR_SLICE.to_nanos()),
            )),
            "null" => Self::Null(Null::new(topology.cpus(), units)),
            "rtds" => Self::Rtds(Rtds::new(topology.cpus(), units, rate)),
            "arinc653" => Self::Arinc653(Arinc653::new(topology.cpus(), units, rate)),
            _ => Self::Credit2(Credit2::new(topology, units, domains, rate, &credit2)),
        }
    }

    /// The CPUs that run nothing and take work at once.
    pub fn idle_cpus(&self) -> CpuSet {
        each!(self, sched => sched.idle_cpus())
    }
}

impl Scheduler for AnyScheduler {
    fn name(&self) -> &'static str {
        each!(self, sched => sched.name())
    }

    fn units(&self) -> &UnitTable {
        each!(self, sched => sched.units())
    }

    fn cpus(&self) -> &CpuTable {
        each!(self, sched => sched.cpus())
    }

    fn add(&self, v: VcpuId, params: UnitParams) -> Result<(), SchedError> {
        each!(self, sched => sched.add(v, params))
    }

    fn remove(&self, v: VcpuId) -> Result<Removal, SchedError> {
        each!(self, sched => sched.remove(v))
    }

    fn wake(&self, v: VcpuId, now: Ticks, by: WakeBy) -> CpuSet {
        each!(self, sched => sched.wake(v, now, by))
    }

    fn schedule(&self, cpu: CpuId, now: Ticks, prev: Option<Prev>) -> Decision {
        each!(self, sched => sched.schedule(cpu, now, prev))
    }

    fn give_up(&self, cpu: CpuId, prev: Prev, now: Ticks) {
        each!(self, sched => sched.give_up(cpu, prev, now));
    }

    fn context_saved(&self, cpu: CpuId, prev: Prev, now: Ticks) -> CpuSet {
        each!(self, sched => sched.context_saved(cpu, prev, now))
    }

    #[inline]
    fn others_wait(&self, cpu: CpuId) -> bool {
        each!(self, sched => sched.others_wait(cpu))
    }

    fn set_weight(&self, v: VcpuId, weight: Weight, now: Ticks) -> Result<(), SchedError> {
        each!(self, sched => sched.set_weight(v, weight, now))
    }

    fn set_affinity(&self, v: VcpuId, affinity: CpuSet, now: Ticks) -> Result<CpuSet, SchedError> {
        each!(self, sched => sched.set_affinity(v, affinity, now))
    }

    fn set_soft_affinity(&self, v: VcpuId, soft: CpuSet, now: Ticks) -> Result<CpuSet, SchedError> {
        each!(self, sched => sched.set_soft_affinity(v, soft, now))
    }

    fn set_cap(&self, domain: DomId, cap: Option<Cap>, now: Ticks) -> Result<CpuSet, SchedError> {
        each!(self, sched => sched.set_cap(domain, cap, now))
    }

    fn set_rt(&self, v: VcpuId, params: RtParams, now: Ticks) -> Result<(), SchedError> {
        each!(self, sched => sched.set_rt(v, params, now))
    }

    fn cpu_online(&self, cpu: CpuId) -> Result<(), SchedError> {
        each!(self, sched => sched.cpu_online(cpu))
    }

    fn cpu_offline(&self, cpu: CpuId, now: Ticks) -> Result<CpuSet, SchedError> {
        each!(self, sched => sched.cpu_offline(cpu, now))
    }

    fn dump(&self, now: Ticks, show: impl FnMut(DumpRow)) {
        each!(self, sched => sched.dump(now, show));
    }
}
