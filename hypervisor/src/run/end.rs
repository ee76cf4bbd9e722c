//! The end of a run: the last reading, the check of the books, one status.

use lull_core::platform::Clock;
use lull_core::units::Ticks;

use super::counters::Reading;
use super::guests::{self, Outcome};
use super::start::Running;
use crate::acpi::power;
use crate::console::machine_channel;
use crate::console::records::End;
use crate::cpu;
use crate::keys;
use crate::machine::BareMetal;
use crate::panic::EndCode;
use crate::time;

/// Reports and leaves. On the boot CPU, when its dispatch loop has ended.
pub fn finish(running: &Running) -> ! {
    // First of all: what follows takes time of its own.
    let reading = Reading::of(running.rows());
    guests::report_rest(running);
    keys::cstates::print(&reading, time::rate());
    reading.emit("end", BareMetal.now());
    let code = judge(running, &reading);
    leave(running, code)
}

/// The first thing that is wrong decides.
fn judge(running: &Running, reading: &Reading) -> EndCode {
    if let Some((cpu, why)) = reading.imbalance() {
        log::error!("{cpu}: {why}");
        return EndCode::Accounting;
    }
    if let Err((in_guests, of_vcpus)) = guests_and_cpus_agree(running, reading) {
        log::error!("CPUs were in guests for {in_guests} ticks, but vCPUs ran for {of_vcpus}");
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

/// The CPUs' guest time is the vCPUs' run time, which is summed elsewhere: to one part in a thousand of all time.
fn guests_and_cpus_agree(running: &Running, reading: &Reading) -> Result<(), (Ticks, Ticks)> {
    let in_guests: Ticks = reading.total.iter().map(|row| row.times.guest).sum();
    let elapsed: Ticks = reading.total.iter().map(|row| row.times.elapsed).sum();
    let now = BareMetal.now();
    let of_vcpus: Ticks = running
        .domains
        .iter()
        .flat_map(|domain| domain.vcpus())
        .map(|vcpu| guests::run_time(running, vcpu.id(), now))
        .sum();
    if in_guests.abs_diff(of_vcpus) > Ticks::new(elapsed.get() / 1000) {
        return Err((in_guests, of_vcpus));
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

/// Where a CPU other than the boot CPU stays when its dispatch loop has ended.
pub fn parked() -> ! {
    cpu::sleep::stop_for_ever()
}
