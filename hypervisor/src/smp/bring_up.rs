//! The sequence itself, on the machine.
use super::rendezvous::{ApState, Rendezvous};
use crate::acpi::CpuEntry;
use crate::apic::{Mode, eoi, ipi, vector};
use crate::boot::ap;
use crate::cpu::interrupts::{self, IrqContext};
use crate::cpu::sleep;
use crate::{apic, time};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use lull_core::options::Options;
use lull_core::units::{CpuId, MAX_CPUS, Micros, Nanos, Ticks};

/// By CPU index.
static CPUS: [Rendezvous; MAX_CPUS] = [const { Rendezvous::new() }; MAX_CPUS];

/// A CPU that firmware lists and that does not run.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The index that it would have had.
    pub cpu: CpuId,
    /// Its APIC id.
    pub apic_id: u32,
    /// Why it does not run.
    pub why: String,
}

/// What became of the CPUs.
#[derive(Debug, Default)]
pub struct SmpReport {
    /// CPUs that run, in order of index; the boot CPU, index 0, first. A CPU that failed leaves a hole.
    pub online: Vec<CpuId>,
    /// CPUs that were to be started, and failed.
    pub failed: Vec<Failed>,
    /// CPUs that run nothing because of `maxcpus`. They are started all the same, to be parked: one that the firmware has left
    /// waiting would keep its core, and the whole package, out of deep states.
    pub parked: Vec<CpuId>,
    /// Other things that are wrong, one line each.
    pub problems: Vec<String>,
}

/// INIT to first SIPI, and first to second SIPI (Intel SDM vol. 3, 11.4.4.1).
const AFTER_INIT: Nanos = Nanos::new(10_000_000);
const BETWEEN_SIPIS: Nanos = Nanos::new(200_000);
/// Under another hypervisor all CPUs may share one of the host's.
const EMULATED_FACTOR: u64 = 5;

/// Starts the CPUs that `listed` names, up to `options.max_cpus`, and waits for their answers. The time limit counts from
/// the last answer of any CPU, so one that is absent costs it once, and a slow machine is not given up while it moves.
///
/// Called once, by the boot CPU, after [`apic::init`].
pub fn start(listed: &[CpuEntry], options: &Options) -> SmpReport {
    let mut report = SmpReport {
        online: alloc::vec![CpuId::new(0)],
        ..SmpReport::default()
    };
    let me = apic::id();
    let others: Vec<u32> = listed
        .iter()
        .map(|c| c.apic_id)
        .filter(|id| Some(*id) != me)
        .collect();
    if !listed.is_empty() && others.len() == listed.len() {
        report.problems.push(alloc::format!(
            "the MADT does not list the boot CPU, APIC id {}",
            me.unwrap_or(0)
        ));
    }
    if others.is_empty() {
        return report;
    }
    if let Err(why) = interrupts::register(vector::RELEASE, released) {
        report.problems.push(why.to_string());
    }

    let page = match ap::install() {
        Ok(page) => page,
        Err(why) => {
            report
                .problems
                .push(alloc::format!("running on one CPU: {why}"));
            return report;
        }
    };
    let started = prepare(others.into_iter(), options.test_absent_ap, &mut report);
    send_all(&started, page);
    wait(&started, page, limit(options.ap_timeout));
    collect(&started, &mut report);
    let room = options.max_cpus.map_or(usize::MAX, |max| max.max(1));
    if report.online.len() > room {
        report.parked = report.online.split_off(room);
    }
    report
}

/// One AP between its preparation and its answer.
#[derive(Clone, Copy)]
struct Ap {
    cpu: CpuId,
    apic_id: u32,
    /// Test: it is sent nothing.
    absent: bool,
}

impl Ap {
    fn state(&self) -> ApState {
        CPUS.get(self.cpu.index())
            .map_or(ApState::Absent, Rendezvous::state)
    }
    fn is_silent(&self) -> bool {
        self.state() == ApState::Starting
    }
}

fn prepare(
    ids: impl Iterator<Item = u32>,
    absent: Option<CpuId>,
    report: &mut SmpReport,
) -> Vec<Ap> {
    let reachable = match apic::mode() {
        Some(Mode::X2Apic) => u32::MAX - 1,
        // 255 is all CPUs.
        _ => 254,
    };
    let mut started = Vec::new();
    for (cpu, apic_id) in (1..).map(CpuId::new).zip(ids) {
        let Some(rendezvous) = CPUS.get(cpu.index()) else {
            break;
        };
        let prepared = if apic_id <= reachable {
            ap::prepare(cpu, apic_id)
                .map(|_| ())
                .map_err(|why| why.to_string())
        } else {
            Err(alloc::format!(
                "an APIC id above {reachable} cannot be reached in this mode"
            ))
        };
        match prepared {
            Ok(()) => {
                ipi::set_apic_id(cpu, apic_id);
                rendezvous.expect();
                started.push(Ap {
                    cpu,
                    apic_id,
                    absent: absent == Some(cpu),
                });
            }
            Err(why) => report.failed.push(Failed { cpu, apic_id, why }),
        }
    }
    started
}

fn send_all(aps: &[Ap], page: u8) {
    let present = || aps.iter().filter(|ap| !ap.absent);
    present().for_each(|ap| ipi::send_init(ap.apic_id));
    time::spin_for(AFTER_INIT);
    present().for_each(|ap| ipi::send_start_up(ap.apic_id, page));
    time::spin_for(BETWEEN_SIPIS);
    // For CPUs that missed the first one; it means nothing to those that run.
    present()
        .filter(|ap| ap.is_silent())
        .for_each(|ap| ipi::send_start_up(ap.apic_id, page));
}

fn limit(asked: Micros) -> Ticks {
    let default = Options::default().ap_timeout;
    let emulated = raw_cpuid::CpuId::new()
        .get_feature_info()
        .is_some_and(|f| f.has_hypervisor());
    let span = if emulated && asked == default {
        Nanos::new(asked.to_nanos().get().saturating_mul(EMULATED_FACTOR))
    } else {
        asked.to_nanos()
    };
    time::rate().ticks(span)
}

fn wait(aps: &[Ap], page: u8, limit: Ticks) {
    let mut silent = usize::MAX;
    let mut last_answer = time::now();
    let mut asked_again = false;
    loop {
        let still = aps.iter().filter(|ap| ap.is_silent()).count();
        if still == 0 {
            return;
        }
        let waited = time::now() - last_answer;
        if still != silent {
            silent = still;
            last_answer = time::now();
        } else if waited > limit {
            return;
        } else if !asked_again && waited.get() > limit.get() / 2 {
            asked_again = true;
            aps.iter()
                .filter(|ap| !ap.absent && ap.is_silent())
                .for_each(|ap| ipi::send_start_up(ap.apic_id, page));
        }
        core::hint::spin_loop();
    }
}

fn collect(aps: &[Ap], report: &mut SmpReport) {
    for ap in aps {
        let silent = ap.is_silent() && {
            // First the trampoline is closed, then the state is settled: a CPU past the trampoline still finds the
            // state, and one before it never gets its area.
            ap::withdraw(ap.apic_id);
            CPUS.get(ap.cpu.index()).is_some_and(Rendezvous::give_up)
        };
        if silent {
            report.failed.push(Failed {
                cpu: ap.cpu,
                apic_id: ap.apic_id,
                why: "did not answer INIT-SIPI-SIPI".to_string(),
            });
        } else {
            report.online.push(ap.cpu);
        }
    }
}

/// Tells the boot CPU that `cpu` is here; called by that CPU when its tables and its local APIC are set up. Does not
/// return if the CPU has been given up.
pub fn answer(cpu: CpuId) {
    if !CPUS.get(cpu.index()).is_some_and(Rendezvous::answer) {
        sleep::stop_for_ever();
    }
}

/// Where the released CPUs go: 0, or the address of a `fn(CpuId) -> !`.
static RELEASED: AtomicUsize = AtomicUsize::new(0);

/// Halts until [`release`], and goes where it says. Called by an AP after [`answer`], with interrupts off. `errand` is
/// called whenever the CPU has been interrupted: the boot CPU may have given it something to do meanwhile.
pub fn wait_for_release(cpu: CpuId, errand: impl Fn()) -> ! {
    loop {
        if let Some(entry) = entry_point() {
            entry(cpu)
        }
        errand();
        // The checks were made with interrupts off: an IPI sent since then ends this halt.
        sleep::sti_hlt_cli();
    }
}

fn entry_point() -> Option<fn(CpuId) -> !> {
    #![expect(
        unsafe_code,
        reason = "a function is kept as its address, to be read without a lock"
    )]
    match RELEASED.load(Ordering::Acquire) {
        0 => None,
        // SAFETY: only `release` writes it, and only the address of such a function.
        address => Some(unsafe { core::mem::transmute::<usize, fn(CpuId) -> !>(address) }),
    }
}

/// Lets all waiting CPUs go to `entry`. Called once, by the boot CPU, when the machine is set up.
pub fn release(online: &[CpuId], entry: fn(CpuId) -> !) {
    RELEASED.store(entry as usize, Ordering::Release);
    for &cpu in online.iter().filter(|cpu| cpu.index() != 0) {
        ipi::send(cpu, vector::RELEASE);
    }
}

/// The IPI of [`release`] has nothing to do but to end a halt.
fn released(_: &mut IrqContext) {
    eoi();
}
