//! Key `q`: guests and their vCPUs.

use arrayvec::ArrayString;
use lull_core::platform::Clock;
use lull_core::sched::unit::Phase;
use lull_core::sched::{Scheduler, Unit};
use lull_core::units::Nanos;

use crate::domain::devices::Verdict;
use crate::domain::{Activity, Domain, ExitKind, Vcpu};
use crate::dumpln;
use crate::machine::BareMetal;
use crate::run::Running;
use crate::run::counters::text;
use crate::run::guests::{run_time, vcpu_name};

/// Prints all guests.
pub fn print(running: &'static Running) {
    if running.domains.iter().next().is_none() {
        dumpln!("no guests");
    }
    for domain in running.domains.iter() {
        print_domain(running, domain);
    }
}

fn print_domain(running: &Running, domain: &Domain) {
    let state = match domain.end_report() {
        None => alloc::string::String::from("runs"),
        Some(report) => alloc::format!("{}", report.reason),
    };
    dumpln!(
        "{}: {}; {}; {state}",
        domain.id(),
        domain.config(),
        verdict_word(&domain.verdict())
    );
    let now = BareMetal.now();
    for vcpu in domain.vcpus() {
        let phase = running
            .machine
            .sched()
            .units()
            .get(vcpu.id())
            .map(|unit| unit.state.phase());
        let exits = vcpu.exits();
        dumpln!(
            "   {} {}, {}; run {} us{}{}; exits {}: {}",
            vcpu_name(running, vcpu.id()),
            activity_word(vcpu.activity()),
            phase_word(phase),
            crate::time::rate()
                .to_micros(run_time(running, vcpu.id(), now))
                .get(),
            looks(running, vcpu),
            yields(running, vcpu),
            exits.total(),
            Kinds(exits),
        );
    }
}

/// What looking for kicks came to, if the vCPU is allowed to, or was.
fn looks(running: &Running, vcpu: &Vcpu) -> ArrayString<128> {
    let Some(unit) = running.machine.sched().units().get(vcpu.id()) else {
        return ArrayString::new();
    };
    let (poll, counts) = (&unit.halt_poll, unit.halt_poll.counts());
    if poll.limit() == Nanos::ZERO && counts.successes + counts.failures == 0 {
        return ArrayString::new();
    }
    text(format_args!(
        "; halt-poll {} of {} us: {} kicked, {} in vain, {} us",
        poll.window().get() / 1000,
        poll.limit().get() / 1000,
        counts.successes,
        counts.failures,
        crate::time::rate().to_micros(counts.polled).get(),
    ))
}

/// How often it gave its time to another vCPU of its guest while it spun, if it did.
fn yields(running: &Running, vcpu: &Vcpu) -> ArrayString<48> {
    let unit = running.machine.sched().units().get(vcpu.id());
    match unit.map_or(0, Unit::directed_yields) {
        0 => ArrayString::new(),
        count => text(format_args!("; {count} directed yields")),
    }
}

fn verdict_word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::None => "no verdict yet",
        Verdict::Pass => "passed",
        Verdict::Fail(_) => "failed",
    }
}

fn activity_word(activity: Activity) -> &'static str {
    match activity {
        Activity::WaitForSipi => "waits for its start-up",
        Activity::Active => "active",
        Activity::Halted => "halted",
        Activity::HaltedForGood => "halted with interrupts off",
        Activity::Gone => "gone",
    }
}

fn phase_word(phase: Option<Phase>) -> ArrayString<24> {
    match phase {
        Some(Phase::Running(cpu)) => text(format_args!("on {cpu}")),
        Some(Phase::Queued) => text(format_args!("waits for a CPU")),
        Some(Phase::Blocked) => text(format_args!("blocked")),
        Some(Phase::Offline) | None => text(format_args!("offline")),
    }
}

/// Counts of the kinds of exits that there were.
struct Kinds<'a>(&'a crate::domain::ExitCounts);

impl core::fmt::Display for Kinds<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let seen = ExitKind::ALL
            .into_iter()
            .map(|kind| (kind, self.0.get(kind)))
            .filter(|(_, count)| *count > 0);
        for (index, (kind, count)) in seen.enumerate() {
            let space = if index == 0 { "" } else { ", " };
            write!(f, "{space}{} {count}", kind.name())?;
        }
        Ok(())
    }
}
