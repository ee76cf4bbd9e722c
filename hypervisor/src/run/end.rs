//! The end of a run: the last reading, the check of the books, one status.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use lull_core::cstate::select::MwaitVerdict;
use lull_core::cstate::{CState, CStateFlags, EntryMethod};
use lull_core::platform::{Clock, IrqGate, OneShot, Platform, Sleeper};
use lull_core::trace::IdlePeriod;
use lull_core::units::{CpuId, Nanos, Ticks};
use lull_core::wake::WakeWord;

use super::counters::Reading;
use super::guests::{self, Outcome};
use super::probes;
use super::start::Running;
use super::wakes;
use crate::acpi::power;
use crate::console::machine_channel;
use crate::console::records::{ClockRow, End, IdleTrace};
use crate::cpu;
use crate::keys;
use crate::machine::BareMetal;
use crate::panic::EndCode;
use crate::time;

/// CPUs that have left their dispatch loops.
static PARKED: AtomicUsize = AtomicUsize::new(0);

/// How many idle periods stand in one line of the machine channel.
const PERIODS_A_LINE: usize = 64;

/// How long the end waits for them. A guest is left at once; an emulator may need its time to get round to all CPUs.
const PARKING_PATIENCE: Nanos = Nanos::new(2_000_000_000);

/// Reports and leaves. On the boot CPU, when its dispatch loop has ended.
pub fn finish(running: &Running) -> ! {
    time::stopped::close(BareMetal.cpu());
    wait_for_others(running);
    // First of all, and both at once: what follows takes time of its own, and a CPU that would not stop runs on.
    let reading = Reading::of(running.rows());
    let of_vcpus = run_time_of_all(running, BareMetal.now());
    guests::report_rest(running);
    keys::cstates::print(&reading, time::rate());
    reading.emit("end", BareMetal.now());
    wakes::emit(running);
    probes::report(running);
    compare_clocks(running);
    emit_traces(running);
    let code = judge(running, &reading, of_vcpus);
    leave(running, code)
}

/// Says how far each CPU's TSC is from the platform timer, if it had to be restored.
fn compare_clocks(running: &Running) {
    let compared: Vec<ClockRow> = running
        .online
        .iter()
        .filter_map(|&cpu| {
            let (tsc, platform) = time::stopped::compare(cpu)?;
            Some(ClockRow { cpu, tsc, platform })
        })
        .collect();
    if compared.is_empty() {
        return;
    }
    let source = time::stopped::source().unwrap_or("nothing");
    for row in &compared {
        log::info!(
            "{}: since start {} us by the TSC, restored from {source}, and {} us by the platform timer",
            row.cpu,
            time::rate().to_micros(row.tsc).get(),
            time::rate().to_micros(row.platform).get()
        );
    }
    machine_channel::clocks(source, &compared);
}

/// Writes the recordings of idle periods to the machine channel, if there are any.
fn emit_traces(running: &Running) {
    for &cpu in &running.online {
        let (Some(trace), Some(choice)) = (running.trace(cpu), running.choice(cpu)) else {
            continue;
        };
        trace.read(|periods| {
            // At least one record, so that a CPU that never slept is not taken for one that was not recorded.
            let none: &[IdlePeriod] = &[];
            let parts = periods.chunks(PERIODS_A_LINE);
            for (index, periods) in parts.chain(periods.is_empty().then_some(none)).enumerate() {
                machine_channel::idle_trace(&IdleTrace {
                    cpu,
                    first: index * PERIODS_A_LINE,
                    dropped: trace.dropped(),
                    table: &choice.usable,
                    periods,
                });
            }
        });
    }
}

/// Waits until every other CPU has left its dispatch loop, so that no guest runs on while the books are closed.
fn wait_for_others(running: &Running) {
    let until = time::now() + time::rate().ticks(PARKING_PATIENCE);
    let others = running.online.len().saturating_sub(1);
    while PARKED.load(Ordering::Acquire) < others {
        if time::now() >= until {
            log::warn!(
                "some CPUs have not stopped: the last reading may be off by what they still do"
            );
            return;
        }
        core::hint::spin_loop();
    }
}

/// Have all other CPUs left their dispatch loops?
fn all_parked(running: &Running) -> bool {
    PARKED.load(Ordering::Acquire) >= running.online.len().saturating_sub(1)
}

/// The first thing that is wrong decides.
fn judge(running: &Running, reading: &Reading, of_vcpus: Ticks) -> EndCode {
    if let Some((cpu, why)) = reading.imbalance() {
        log::error!("{cpu}: {why}");
        return EndCode::Accounting;
    }
    if let Some((row, own, all)) = all_parked(running)
        .then(|| wakes::imbalance(running))
        .flatten()
    {
        log::error!(
            "{} was woken {own} times, but all CPUs have woken it {all} times",
            row.id()
        );
        return EndCode::Accounting;
    }
    if let Err(in_guests) = guests_and_cpus_agree(reading, of_vcpus) {
        log::error!(
            "CPUs were in guests for {} ticks, but vCPUs ran for {}",
            in_guests.get(),
            of_vcpus.get()
        );
        return EndCode::Accounting;
    }
    if guests::any_failed() {
        return EndCode::GuestFailed;
    }
    match running.outcome {
        Outcome::Complete => EndCode::Ok,
        Outcome::Refused => EndCode::BadInput,
    }
}

/// Time that vCPUs have spent in their guests, as each vCPU has it.
fn run_time_of_all(running: &Running, now: Ticks) -> Ticks {
    running
        .domains
        .iter()
        .flat_map(|domain| domain.vcpus())
        .map(|vcpu| guests::run_time(running, vcpu.id(), now))
        .sum()
}

/// The CPUs' guest time is the vCPUs' run time, which is summed elsewhere: to one part in a thousand of all time.
///
/// # Errors
/// They differ by more; gives the CPUs' guest time.
fn guests_and_cpus_agree(reading: &Reading, of_vcpus: Ticks) -> Result<(), Ticks> {
    let in_guests: Ticks = reading.total.iter().map(|row| row.times.guest).sum();
    let elapsed: Ticks = reading.total.iter().map(|row| row.times.elapsed).sum();
    if in_guests.abs_diff(of_vcpus) > Ticks::new(elapsed.get() / 1000) {
        return Err(in_guests);
    }
    Ok(())
}

/// Says how it ended and leaves: through the exit port, by ACPI, or by halting.
pub fn leave(running: &Running, code: EndCode) -> ! {
    log::info!("end: {}", code.status());
    machine_channel::end(&End {
        status: code.status(),
        code: code as u8,
    });
    power::power_off(code as u8, running.firmware.power_off.as_ref())
}

/// Key `R`.
pub fn reboot(running: &Running) -> ! {
    log::info!("rebooting");
    power::reboot(running.firmware.reset.as_ref())
}

/// So often a parked CPU may wake before it is taken that its state does not hold.
const PARKED_WAKES: u32 = 10_000;

/// Where a CPU other than the boot CPU stays when its dispatch loop has ended, or it never had one.
///
/// In the deepest state that it proved at boot, since a thread that waits in less keeps its core and the package from it;
/// else in HLT.
pub fn parked(running: &Running, cpu: CpuId) -> ! {
    time::stopped::close(cpu);
    PARKED.fetch_add(1, Ordering::AcqRel);
    park(running, cpu)
}

/// The same, for a CPU that nobody waits for.
pub fn park(running: &Running, cpu: CpuId) -> ! {
    let own = || running.choice(cpu);
    // A CPU that was left out has chosen nothing: the others' choice holds for it, as far as its own test bears it out.
    let choice = own().or_else(|| {
        running
            .online
            .iter()
            .find_map(|&other| running.choice(other))
    });
    let proven = cpu::this().mwait_test().masked == MwaitVerdict::Works;
    let place = choice.map_or(CState::C1_HALT, |choice| choice.parking);
    // What stops clocks matters to nobody here.
    let flags = place.flags & (CStateFlags::INIT_XSTATE | CStateFlags::FLUSH_CACHES);
    let sleeps = match place.method {
        EntryMethod::Mwait { .. } => proven,
        EntryMethod::IoRead(_) => true,
        EntryMethod::Halt | EntryMethod::Poll => false,
    };
    if sleeps {
        log::debug!("{cpu}: parked by {}", place.method);
        BareMetal.cancel();
        let nobody_posts = WakeWord::new();
        for _ in 0..PARKED_WAKES {
            BareMetal.prepare(flags);
            match place.method {
                EntryMethod::Mwait { hint, .. } => {
                    BareMetal.arm_monitor(&nobody_posts);
                    BareMetal.mwait(hint, IrqGate::Masked);
                }
                EntryMethod::IoRead(port) => {
                    let settle = place.flags.contains(CStateFlags::READ_PM_TIMER);
                    BareMetal.io_read(port, settle);
                }
                EntryMethod::Halt | EntryMethod::Poll => {}
            }
            // Whatever ended it must not stay pending, or it would end the next one at once.
            BareMetal.interrupt_window();
        }
    }
    log::debug!("{cpu}: parked by HLT");
    cpu::sleep::stop_for_ever()
}
