//! Key `q`: guests and their vCPUs.

use lull_core::platform::Clock;
use lull_core::sched::Scheduler;

use crate::domain::{Domain, ExitKind};
use crate::dumpln;
use crate::machine::BareMetal;
use crate::run::Running;
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
        "{}: {}; {:?}; {state}",
        domain.id(),
        domain.config(),
        domain.verdict()
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
            "   {} {:?}, {:?}; run {} us; exits {}: {}",
            vcpu_name(running, vcpu.id()),
            vcpu.activity(),
            phase,
            crate::time::rate()
                .to_micros(run_time(running, vcpu.id(), now))
                .get(),
            exits.total(),
            Kinds(exits),
        );
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
