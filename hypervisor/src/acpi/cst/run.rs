//! Running the firmware's code on this machine, in the cage.
#![expect(
    unsafe_code,
    reason = "work that is thrown out must leave nothing behind"
)]
use alloc::vec::Vec;

use lull_core::platform::OneShot;
use lull_core::units::Micros;

use super::evaluate::{evaluate_all, refused, worthwhile};
use super::{FirmwareStates, State};
use crate::acpi::FirmwareInfo;
use crate::acpi::aml::capabilities::Capabilities;
use crate::acpi::aml::evaluate;
use crate::acpi::aml::handler::ThisMachine;
use crate::acpi::aml::rules::{Refusals, Rules};
use crate::boot::{BootInfo, MemoryKind};
use crate::cage::{self, Limits};

/// Large machines have some 500 KiB of AML, which becomes ten times as much. Its parsers nest deeply.
const LIMITS: Limits = Limits {
    stack: 1 << 20,
    heap: 16 << 20,
    time: Micros::new(1_000_000),
};

static REFUSALS: Refusals = Refusals::none();

fn rules(info: &FirmwareInfo, loader: &BootInfo, exit_port: Option<u16>) -> Rules {
    let ram = loader
        .memory
        .iter()
        .filter(|part| part.kind == MemoryKind::Usable)
        .map(|part| part.range);
    let registers = info
        .local_apic
        .into_iter()
        .chain([0xFEE0_0000])
        .chain(info.io_apics.iter().map(|io_apic| io_apic.address))
        .chain(info.hpet.map(|hpet| hpet.address));
    let power = info.power_off.iter().flat_map(|off| {
        [Some(off.control_a), off.control_b]
            .into_iter()
            .flatten()
            .flat_map(|port| [port, port.saturating_add(1)])
    });
    let reset = info.reset.and_then(|reset| match reset.register {
        crate::acpi::power::Register::Port(port) => Some(port),
        crate::acpi::power::Register::Memory(_) => None,
    });
    Rules::new(ram, registers, power.chain(reset).chain(exit_port))
}

/// Reads all that the firmware says about C-states, and takes the AML out of `info`: it is run here or never.
///
/// On the boot CPU, before the others start, with its timer working and not armed. `mwait`: see
/// [`offers_mwait`](super::offers_mwait).
pub fn read(
    info: &mut FirmwareInfo,
    loader: &BootInfo,
    options: &lull_core::options::Options,
    mwait: bool,
    timer: &impl OneShot,
) -> FirmwareStates {
    let worthwhile = worthwhile(info);
    let tables = core::mem::take(&mut info.aml);
    if !options.cstates.acpi_cst {
        return FirmwareStates {
            state: State::Off,
            ..FirmwareStates::default()
        };
    }
    if !worthwhile {
        return FirmwareStates::default();
    }
    let enabled: Vec<u32> = info.cpus.iter().map(|cpu| cpu.processor).collect();
    let rules = rules(
        info,
        loader,
        options.exit_port.map(lull_core::options::ExitPort::port),
    );
    REFUSALS.clear();
    let capabilities = Capabilities::of_lull(mwait);
    let mut states = evaluate_all(&tables, &enabled, capabilities, &rules, |job, findings| {
        let mut work = || evaluate(ThisMachine, rules.clone(), &REFUSALS, job, findings);
        // SAFETY: `work` writes to `findings` only, which is plain bytes but for a list that has its room already (it
        // is not pushed to when full); what it takes of locks it takes undisturbed; other CPUs have not started.
        unsafe { cage::run(&LIMITS, timer, &mut work) }
    });
    if REFUSALS.count() > 0 {
        states.problems.push(refused(&REFUSALS));
    }
    states
}
