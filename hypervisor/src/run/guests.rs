//! Guests of the boot bundle: made before anything runs, started, reported when they end.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use lull_core::guests_txt::{GuestConfig, GuestList, LineProblem};
use lull_core::options::Options;
use lull_core::platform::Clock;
use lull_core::sched::unit::HaltPollCounts;
use lull_core::sched::{Scheduler, Unit, UnitParams};
use lull_core::units::{CpuId, CpuSet, DomId, Micros, Ticks, VcpuId};
use spin::mutex::SpinMutex;

use super::host_memory;
use super::hosting::Hosting;
use super::start::Running;
use crate::boot::BootInfo;
use crate::console::machine_channel;
use crate::console::records::{Guest, GuestEnd, Where};
use crate::domain::bundle::Bundle;
use crate::domain::devices::Verdict;
use crate::domain::{Domain, DomainTable, ExitKind, Machinery, Vcpu};
use crate::init::tell;
use crate::machine::BareMetal;
use crate::virt::{Backend, GuestMemory, VirtCpu};

/// Whether all guests that were asked for could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of them.
    Complete,
    /// Something was refused, and named.
    Refused,
}

/// Makes the domains of the bundle; none, if so asked for. What cannot be made is named and left out; the others are not affected.
pub fn create(
    loader: &BootInfo,
    backend: Option<&Backend>,
    online: &[CpuId],
    options: &Options,
) -> (DomainTable, Outcome) {
    let mut table = DomainTable::new();
    if options.no_guests {
        log::info!("no guests, as asked for");
        return (table, Outcome::Complete);
    }
    let Some(bundle) = open_bundle(loader) else {
        return (table, Outcome::Refused);
    };
    let list = match bundle.guest_list() {
        Ok(list) => GuestList::parse(list.as_bytes()),
        Err(problem) => {
            tell(Where::Bundle, "guests.txt", &problem, problem.expected());
            return (table, Outcome::Refused);
        }
    };
    let mut outcome = Outcome::Complete;
    for LineProblem { line, problem } in &list.problems {
        tell(
            Where::Guest,
            format_args!("guests.txt line {line}: {}", problem.word),
            &problem.why,
            &problem.expected,
        );
        outcome = Outcome::Refused;
    }
    if list.guests.is_empty() && list.problems.is_empty() {
        tell(
            Where::Bundle,
            "guests.txt",
            "it lists no guest",
            "at least one guest",
        );
        outcome = Outcome::Refused;
    }
    let Some(backend) = backend else {
        return (table, Outcome::Refused);
    };
    let online: CpuSet = online.iter().copied().collect();
    for (number, config) in (1..).zip(list.guests) {
        let made = create_one(
            DomId::new(number),
            config,
            &bundle,
            backend,
            online,
            table.next_slot(),
        );
        match made {
            Some(domain) => table.push(domain),
            None => outcome = Outcome::Refused,
        }
    }
    (table, outcome)
}

fn open_bundle(loader: &BootInfo) -> Option<Bundle<'static>> {
    let Some(module) = loader.modules.first() else {
        tell(
            Where::Bundle,
            "boot bundle",
            "the boot loader gave none",
            "one module: a newc cpio with guests.txt and kernels",
        );
        return None;
    };
    match Bundle::parse(host_memory::module_bytes(module)) {
        Ok(bundle) => Some(bundle),
        Err(problem) => {
            tell(Where::Bundle, "boot bundle", &problem, problem.expected());
            None
        }
    }
}

fn create_one(
    id: DomId,
    config: GuestConfig,
    bundle: &Bundle<'_>,
    backend: &Backend,
    online: CpuSet,
    first: VcpuId,
) -> Option<Domain> {
    let name = config.name.clone();
    let refuse = |why: String, expected: &str| {
        tell(Where::Guest, &name, why, expected);
        None
    };
    if config.pin.affinity().intersection(&online).is_empty() {
        return refuse(
            format!("pin={}: no such CPU is online", config.pin),
            "a CPU that is online",
        );
    }
    let kernel = match bundle.kernel(&config.kernel) {
        Ok(kernel) => kernel,
        Err(problem) => return refuse(problem.to_string(), problem.expected()),
    };
    match Domain::create(
        id,
        config,
        kernel,
        first,
        &mut Hardware { backend },
        BareMetal.now(),
    ) {
        Ok(domain) => {
            log::info!("{id}: {}", domain.config());
            Some(domain)
        }
        Err(problem) => refuse(problem.to_string(), problem.expected()),
    }
}

/// Frames of the machine and the backend's vCPUs.
struct Hardware<'a> {
    backend: &'a Backend,
}

impl Machinery for Hardware<'_> {
    fn memory(&mut self, bytes: u64) -> Result<GuestMemory, String> {
        GuestMemory::allocate(bytes).map_err(|why| why.to_string())
    }

    fn vcpus(&mut self, memory: &GuestMemory, count: u32) -> Vec<Box<dyn VirtCpu>> {
        let stage2 = self.backend.new_stage2(memory);
        (0..count).map(|_| self.backend.new_vcpu(&stage2)).collect()
    }

    fn release(&mut self, memory: GuestMemory) {
        host_memory::release(memory);
    }
}

/// Tells the scheduler of all vCPUs. None is started.
pub fn add_to_scheduler(running: &Running) {
    for domain in running.domains.iter() {
        let params = UnitParams {
            domain: domain.id(),
            weight: domain.config().weight,
            cap: domain.config().cap,
            affinity: domain.config().pin.affinity(),
            soft: domain.config().soft.affinity(),
            rt: domain.config().rt,
            latency: domain.config().latency.map(Micros::to_nanos),
        };
        for vcpu in domain.vcpus() {
            if let Err(why) = running.machine.add_vcpu(vcpu.id(), params) {
                tell(
                    Where::Guest,
                    &domain.config().name,
                    why,
                    "a vCPU that the scheduler takes",
                );
            }
            let limit = domain.config().latency.map(Micros::to_nanos);
            let set = running.machine.set_vcpu_latency(vcpu.id(), limit);
            debug_assert!(set.is_ok(), "it has a slot");
            let look = domain.config().halt_poll.to_nanos();
            let set = running.machine.set_vcpu_halt_poll(vcpu.id(), look);
            debug_assert!(set.is_ok(), "it has a slot");
        }
    }
}

/// Starts all guests, in the order of the list.
pub fn start(running: &'static Running) {
    let host = Hosting::new(running, lull_core::platform::Platform::cpu(&BareMetal));
    for domain in running.domains.iter() {
        machine_channel::guest(&record(domain, None));
        domain.start(&host);
    }
    REPORTED
        .lock()
        .resize(running.domains.iter().count(), false);
}

/// Which domains have been reported as ended, by position in the table.
static REPORTED: SpinMutex<Vec<bool>> = SpinMutex::new(Vec::new());

/// A guest has failed.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Whether any guest that was reported has failed.
pub fn any_failed() -> bool {
    FAILED.load(Ordering::Acquire)
}

/// Reports the guests that have ended since the last call, gives their memory back, and stops the machine after the last.
pub fn report_ended(running: &Running) {
    let ended = |domain: &Domain| domain.end_report().is_some_and(|report| report.all_left);
    for domain in take_unreported(running, ended) {
        report_one(running, domain, None);
        if let Some(memory) = domain.reap() {
            host_memory::release(memory);
        }
    }
    if running.domains.all_ended() && !running.options.keep {
        running.machine.stop();
    }
}

/// The machine stops: the guests that are still there are reported as they are.
pub fn report_rest(running: &Running) {
    for domain in take_unreported(running, |_| true) {
        report_one(running, domain, Some("the machine stopped"));
    }
}

fn take_unreported(running: &Running, which: impl Fn(&Domain) -> bool) -> Vec<&Domain> {
    let mut reported = REPORTED.lock();
    running
        .domains
        .iter()
        .zip(reported.iter_mut())
        .filter(|(domain, reported)| !**reported && which(domain))
        .map(|(domain, reported)| {
            *reported = true;
            domain
        })
        .collect()
}

fn report_one(running: &Running, domain: &Domain, cut_off: Option<&str>) {
    let report = domain.end_report();
    let verdict = domain.verdict();
    let (how, code, death) = match (&report, cut_off) {
        (Some(report), _) => (
            report.reason.word(),
            report.reason.code(),
            report.reason.to_string(),
        ),
        (None, why) => ("killed", 0, why.unwrap_or("it did not end").to_string()),
    };
    // A guest that the machine's end cuts off has not failed by that.
    let failed = match verdict {
        Verdict::Pass => false,
        Verdict::Fail(_) => true,
        Verdict::None => report.is_some(),
    };
    if failed {
        FAILED.store(true, Ordering::Release);
    }
    let (word, reason) = match &verdict {
        Verdict::Pass => ("pass", death.as_str()),
        Verdict::Fail(reason) => ("fail", reason.as_str()),
        Verdict::None => ("none", death.as_str()),
    };
    let now = BareMetal.now();
    let run: Vec<Ticks> = domain
        .vcpus()
        .iter()
        .map(|vcpu| run_time(running, vcpu.id(), now))
        .collect();
    let looks: Vec<HaltPollCounts> = domain
        .vcpus()
        .iter()
        .map(|vcpu| halt_polls(running, vcpu.id()))
        .collect();
    let directed_yields: Vec<u64> = domain
        .vcpus()
        .iter()
        .filter_map(|vcpu| running.machine.sched().units().get(vcpu.id()))
        .map(Unit::directed_yields)
        .collect();
    log::info!("{} {}: {word}; {death}", domain.id(), domain.config().name);
    machine_channel::guest(&record(
        domain,
        Some(GuestEnd {
            verdict: word,
            how,
            code: code.into(),
            reason,
            run: &run,
            looks: &looks,
            directed_yields: &directed_yields,
            posted: posted_to(domain),
            exits: &exits_of(domain),
        }),
    ));
}

/// Notifications of posted interrupts of all its vCPUs.
fn posted_to(domain: &Domain) -> u64 {
    let of = |vcpu: &Vcpu| vcpu.lapic().interrupts().sent();
    domain.vcpus().iter().map(of).sum()
}

/// Exits of all its vCPUs, by kind.
fn exits_of(domain: &Domain) -> Vec<(&'static str, u64)> {
    let of_all = |kind| domain.vcpus().iter().map(|v| v.exits().get(kind)).sum();
    ExitKind::ALL
        .into_iter()
        .map(|kind| (kind.name(), of_all(kind)))
        .filter(|&(_, times)| times > 0)
        .collect()
}

/// The time that a vCPU has spent in its guest.
pub fn run_time(running: &Running, v: VcpuId, now: Ticks) -> Ticks {
    running
        .machine
        .sched()
        .units()
        .get(v)
        .map_or(Ticks::ZERO, |unit| unit.run_time(now))
}

/// What came of looking for kicks before a vCPU was blocked.
pub fn halt_polls(running: &Running, v: VcpuId) -> HaltPollCounts {
    let unit = running.machine.sched().units().get(v);
    unit.map_or(HaltPollCounts::default(), |unit| unit.halt_poll.counts())
}

fn record<'a>(domain: &'a Domain, end: Option<GuestEnd<'a>>) -> Guest<'a> {
    Guest {
        id: domain.id(),
        name: &domain.config().name,
        vcpus: domain.vcpu_count().into(),
        end,
    }
}

/// A vCPU as people know it: `d1v0`.
pub fn vcpu_name(running: &Running, v: VcpuId) -> arrayvec::ArrayString<24> {
    match running.domains.vcpu(v) {
        Some((domain, vcpu)) => {
            let first = domain.vcpus().first().map_or(0, |first| first.id().get());
            super::counters::text(format_args!("{}v{}", domain.id(), vcpu.id().get() - first))
        }
        None => super::counters::text(format_args!("{v}")),
    }
}
