//! Commands of the console that are about a guest. What cannot be done is refused, and then nothing is changed.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use lull_core::command::{GuestChange, GuestRef};
use lull_core::options::Problem;
use lull_core::platform::Clock;
use lull_core::sched::{SchedError, Scheduler};
use lull_core::units::{CpuSet, Micros};
use lull_core::wake::Events;

use super::Running;
use super::command::limit_words;
use crate::domain::{Domain, Vcpu};
use crate::machine::BareMetal;

/// Limits the exit latency of the CPUs that a guest's vCPUs last ran on.
pub(super) fn latency(
    running: &Running,
    limit: Option<Micros>,
    guest: &GuestRef,
    vcpu: Option<u32>,
) -> Result<Vec<String>, Problem> {
    let whose = Whose::of(running, guest, vcpu)?;
    for vcpu in whose.vcpus {
        let set = running
            .machine
            .set_vcpu_latency(vcpu.id(), limit.map(Micros::to_nanos));
        debug_assert!(set.is_ok(), "it has a slot");
    }
    Ok(Vec::from([format!(
        "{} on the CPUs that {} last ran on",
        limit_words(limit),
        whose.name()
    )]))
}

/// Gives a guest's vCPUs something else from now on.
pub(super) fn change(
    running: &Running,
    change: GuestChange,
    guest: &GuestRef,
    vcpu: Option<u32>,
) -> Result<Vec<String>, Problem> {
    let whose = Whose::of(running, guest, vcpu)?;
    let word = change.to_string();
    for (index, vcpu) in whose.vcpus.iter().enumerate() {
        let done = match change {
            // It is the domain's.
            GuestChange::Cap(_) if index > 0 => continue,
            _ => apply(running, change, whose.domain, vcpu),
        };
        // The first is refused, or none: what can be wrong is the same for all of them.
        done.map_err(|why| Problem::new(&word, why, "what the scheduler can do"))?;
    }
    let name = whose.name();
    Ok(Vec::from([match change {
        GuestChange::Weight(weight) => format!("weight {weight} for {name}"),
        GuestChange::Cap(None) => format!("no cap for {name}"),
        GuestChange::Cap(Some(cap)) => format!("at most {cap} % of a CPU for {name}"),
        GuestChange::Pin(cpus) => format!("{name} may run on cpu {cpus}"),
        GuestChange::Soft(cpus) => format!("{name} prefers cpu {cpus}"),
        GuestChange::HaltPoll(Micros::ZERO) => format!("{name} blocks without a look"),
        GuestChange::HaltPoll(limit) => {
            format!("looks of up to {} us before {name} blocks", limit.get())
        }
    }]))
}

fn apply(
    running: &Running,
    change: GuestChange,
    domain: &Domain,
    vcpu: &Vcpu,
) -> Result<(), SchedError> {
    let (machine, v) = (&running.machine, vcpu.id());
    let tell = |cpus: CpuSet| machine.post_many(&cpus, Events::RESCHED);
    match change {
        GuestChange::Weight(weight) => machine.set_weight(v, weight)?,
        GuestChange::Cap(cap) => {
            tell(machine.sched().set_cap(domain.id(), cap, BareMetal.now())?);
        }
        GuestChange::Pin(cpus) => machine.set_affinity(v, cpus)?,
        GuestChange::Soft(cpus) => {
            tell(
                machine
                    .sched()
                    .set_soft_affinity(v, cpus, BareMetal.now())?,
            );
        }
        GuestChange::HaltPoll(limit) => {
            let set = machine.set_vcpu_halt_poll(v, limit.to_nanos());
            debug_assert!(set.is_ok(), "it has a slot");
        }
    }
    Ok(())
}

/// A guest that runs, and those of its vCPUs that are meant.
pub(super) struct Whose<'a> {
    pub domain: &'a Domain,
    pub vcpus: &'a [Vcpu],
    one: Option<u32>,
}

impl<'a> Whose<'a> {
    pub(super) fn of(
        running: &'a Running,
        guest: &GuestRef,
        one: Option<u32>,
    ) -> Result<Self, Problem> {
        let is_meant = |domain: &&Domain| match guest {
            GuestRef::Id(id) => domain.id() == *id,
            GuestRef::Name(name) => domain.config().name == *name,
        };
        let word = format!("guest={guest}");
        let Some(domain) = running.domains.iter().find(is_meant) else {
            let names: Vec<String> = running
                .domains
                .iter()
                .map(|domain| format!("{} {}", domain.id(), domain.config().name))
                .collect();
            let expected = if names.is_empty() {
                "there are no guests".to_string()
            } else {
                format!("one of {}", names.join(", "))
            };
            return Err(Problem::new(&word, "no such guest", expected));
        };
        if domain.end_report().is_some() {
            return Err(Problem::new(&word, "it has ended", "a guest that runs"));
        }
        let all = domain.vcpus();
        let vcpus = match one {
            None => all,
            Some(index) => match all.get(index as usize..=index as usize) {
                Some(one) => one,
                None => {
                    return Err(Problem::new(
                        &format!("vcpu={index}"),
                        "no such vCPU",
                        format!("one below {}", all.len()),
                    ));
                }
            },
        };
        Ok(Self { domain, vcpus, one })
    }

    pub(super) fn name(&self) -> String {
        match self.one {
            None => format!("{}", self.domain.id()),
            Some(index) => format!("{}v{index}", self.domain.id()),
        }
    }
}
