//! Carries out commands of the console on the running machine.
//!
//! A command changes what was asked of CPUs ([`IdleControl`]) and posts CALL to those that
//! may be asleep by the old. It waits for nobody. What cannot be done anywhere is refused, and then nothing is changed.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use lull_core::command::{COMMANDS, Command, LatencyOf, StateRef};
use lull_core::cstate::{CState, EntryMethod, StateId};
use lull_core::dispatch::Pcpu;
use lull_core::governor::StateSet;
use lull_core::idle::IdleControl;
use lull_core::options::{MaxCState, Problem};
use lull_core::units::{CpuId, CpuSet, Micros, Nanos};

use super::{Running, cpu_command, guest_command};

/// Carries it out.
///
/// # Errors
/// Why it cannot be done, and what could be.
pub fn run(running: &Running, command: &Command) -> Result<Vec<String>, Problem> {
    match command {
        Command::Help(None) => Ok(COMMANDS
            .iter()
            .map(|spec| format!("{}: {}", spec.usage(), spec.help))
            .collect()),
        Command::Help(Some(spec)) => Ok(Vec::from([spec.usage(), spec.help.to_string()])),
        Command::Show(cpus) => Ok(chosen(running, *cpus)?
            .into_iter()
            .map(|cpu| describe(running, cpu))
            .collect()),
        Command::State { state, on, cpus } => switch(running, state, *on, *cpus),
        Command::MaxCState { limit, cpus } => limit_depth(running, *limit, *cpus),
        Command::Governor { name, cpus } => {
            let chosen = chosen(running, *cpus)?;
            for &cpu in &chosen {
                if let Some(control) = control(running, cpu) {
                    control.set_governor(name);
                    running.machine.idle_changed(cpu);
                }
            }
            Ok(Vec::from([format!("{name} chooses on {}", on(&chosen))]))
        }
        Command::Latency {
            limit,
            of: LatencyOf::Cpus(cpus),
        } => {
            let chosen = chosen(running, *cpus)?;
            for &cpu in &chosen {
                running
                    .machine
                    .set_cpu_latency(cpu, limit.map(Micros::to_nanos));
            }
            Ok(Vec::from([format!(
                "{} on {}",
                limit_words(*limit),
                on(&chosen)
            )]))
        }
        Command::Latency {
            limit,
            of: LatencyOf::Guest { guest, vcpu },
        } => guest_command::latency(running, *limit, guest, *vcpu),
        Command::Online { on, cpus } => cpu_command::switch(running, *on, *cpus),
        Command::Guest {
            change,
            guest,
            vcpu,
        } => guest_command::change(running, *change, guest, *vcpu),
    }
}

/// The CPUs of the set that run: at least one.
fn chosen(running: &Running, cpus: CpuSet) -> Result<Vec<CpuId>, Problem> {
    let online: CpuSet = running.online.iter().copied().collect();
    if cpus != CpuSet::ALL && !cpus.is_subset(&online) {
        let missing = cpus.difference(&online);
        return Err(Problem::new(
            &format!("cpu={cpus}"),
            format!("{missing} not online"),
            format!("CPUs of {online}"),
        ));
    }
    // A CPU that has not chosen its states yet has nothing to be changed.
    let chosen = running
        .online
        .iter()
        .copied()
        .filter(|&cpu| cpus.contains(cpu) && running.choice(cpu).is_some());
    let chosen: Vec<CpuId> = chosen.collect();
    if chosen.is_empty() {
        let why = "none of them has chosen its C-states yet";
        return Err(Problem::new(&format!("cpu={cpus}"), why, "a CPU that runs"));
    }
    Ok(chosen)
}

fn control(running: &Running, cpu: CpuId) -> Option<&IdleControl> {
    Some(&running.machine.pcpu(cpu)?.idle)
}

fn on(cpus: &[CpuId]) -> String {
    let set: CpuSet = cpus.iter().copied().collect();
    format!("cpu {set}")
}

pub(super) fn limit_words(limit: Option<Micros>) -> String {
    match limit {
        None => "no limit on exit latency".to_string(),
        Some(limit) => format!("exit latency at most {} us", limit.get()),
    }
}

/// The states of a CPU with their classes, as `max_cstate=` counts.
fn classes(running: &Running, cpu: CpuId) -> Vec<(StateId, u32, lull_core::cstate::CState)> {
    let Some(choice) = running.choice(cpu) else {
        return Vec::new();
    };
    let usable = choice
        .considered
        .iter()
        .filter(|one| one.verdict.is_usable());
    let ids = choice.usable.iter().map(|(id, _)| id);
    ids.zip(usable)
        .map(|(id, one)| (id, one.class, one.state))
        .collect()
}

fn switch(
    running: &Running,
    state: &StateRef,
    is_on: bool,
    cpus: CpuSet,
) -> Result<Vec<String>, Problem> {
    let chosen = chosen(running, cpus)?;
    let mut changes = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for cpu in chosen {
        let states = classes(running, cpu);
        let found = states.iter().find(|(id, _, one)| match state {
            StateRef::Name(name) => one.name == name,
            StateRef::Index(index) => id.index() == usize::from(*index),
        });
        for (_, _, one) in &states {
            if !names.contains(&one.name) {
                names.push(one.name);
            }
        }
        let (Some(&(id, _, one)), Some(control)) = (found, control(running, cpu)) else {
            continue;
        };
        let off = control.off().with(id, !is_on);
        // A CPU that only polls is not idle, but with `idle=poll`.
        let sleeps = |one: &CState| one.method != EntryMethod::Poll;
        let polls = !states.iter().any(|(_, _, one)| sleeps(one));
        let left = states.iter().any(|(id, _, one)| {
            !off.contains(*id) && !control.too_deep().contains(*id) && (polls || sleeps(one))
        });
        if !left {
            let why = format!("{cpu} would have no sleep left");
            return Err(Problem::new(&state.to_string(), why, "one that stays on"));
        }
        changes.push((cpu, off, one.name));
    }
    let Some(&(_, _, name)) = changes.first() else {
        return Err(Problem::new(
            &state.to_string(),
            "no such state on these CPUs",
            format!("one of {}", names.join(", ")),
        ));
    };
    let mut changed = Vec::new();
    for (cpu, off, _) in changes {
        if let Some(control) = control(running, cpu) {
            control.set_off(off);
            running.machine.idle_changed(cpu);
            changed.push(cpu);
        }
    }
    let word = if is_on { "on" } else { "off" };
    Ok(Vec::from([format!("{name} is {word} on {}", on(&changed))]))
}

fn limit_depth(
    running: &Running,
    limit: Option<MaxCState>,
    cpus: CpuSet,
) -> Result<Vec<String>, Problem> {
    let chosen = chosen(running, cpus)?;
    let mut changes = Vec::new();
    let mut kept = None;
    for &cpu in &chosen {
        let Some(control) = control(running, cpu) else {
            continue;
        };
        let states = classes(running, cpu);
        let mut too_deep = StateSet::NONE;
        for (id, class, one) in &states {
            let excluded = limit.is_some_and(|limit| limit.excludes(*class, one.method));
            too_deep = too_deep.with(*id, excluded);
        }
        // As `max_cstate=0` leaves HLT: a CPU that only polls is not idle.
        let off = control.off();
        let mut sleeps = states
            .iter()
            .filter(|(id, _, one)| one.method != EntryMethod::Poll && !off.contains(*id));
        let shallowest = sleeps.clone().next();
        if sleeps.all(|(id, ..)| too_deep.contains(*id))
            && let Some((id, _, one)) = shallowest
        {
            too_deep = too_deep.with(*id, false);
            kept = Some(one.name);
        }
        changes.push((control, cpu, too_deep));
    }
    for (control, cpu, too_deep) in changes {
        control.set_too_deep(too_deep);
        running.machine.idle_changed(cpu);
    }
    let said = match limit {
        None => "no limit on depth".to_string(),
        Some(MaxCState {
            class,
            substate: None,
        }) => format!("nothing deeper than class {class}"),
        Some(MaxCState {
            class,
            substate: Some(sub),
        }) => format!("nothing deeper than class {class}, sub-state {sub}"),
    };
    let but = kept.map_or_else(String::new, |name| {
        format!("; {name} stays, since some sleep must")
    });
    Ok(Vec::from([format!("{said} on {}{but}", on(&chosen))]))
}

/// One line: what is set for a CPU.
pub fn describe(running: &Running, cpu: CpuId) -> String {
    let Some(control) = control(running, cpu) else {
        return format!("{cpu}: there is none");
    };
    let governor = control.governor().unwrap_or("none");
    let micros = |limit: Option<Nanos>| match limit {
        None => "none".to_string(),
        Some(limit) => format!("{} us", limit.get() / 1000),
    };
    let mut line = format!(
        "{cpu}: governor {governor}; latency limit {}, own {}, of vCPUs {};",
        micros(control.latency_limit()),
        micros(control.own_limit()),
        micros(control.claimed_limit()),
    );
    if running.machine.pcpu(cpu).is_some_and(Pcpu::is_parked) {
        line += " offline;";
    }
    for (id, _, one) in classes(running, cpu) {
        let word = if control.off().contains(id) {
            "off"
        } else if control.too_deep().contains(id) {
            "too deep"
        } else {
            "on"
        };
        line += &format!(" {} {word}", one.name);
    }
    line
}
