//! The boot sequence, in order: read [`boot_cpu`] from top to bottom.
//!
//! Everything that can be wrong with the machine, the loader or the command line is told in one line each, on the
//! console and as a `problem` on the machine channel. What cannot be lived with ends in [`panic::fatal_boot`].
#![cfg(target_os = "none")]

use core::fmt::Display;

use lull_core::cstate::select::{CpuFacts, Registers};
use lull_core::options::{Crash, Options};
use lull_core::platform::OneShot;
use lull_core::units::Ticks;
use raw_cpuid::{CpuIdReader, CpuIdReaderNative};

use crate::acpi::cst::{self, FirmwareStates};
use crate::acpi::{FirmwareInfo, physmem::IdentityMap};
use crate::apic::timer::Fired;
use crate::apic::{ApicInfo, vector};
use crate::boot::{BootInfo, LoaderData};
use crate::console::machine_channel;
use crate::console::records::{self, Where};
use crate::cpu::interrupts::{self, IrqContext};
use crate::cpu::mwait::stores;
use crate::cpu::percpu::PerCpu;
use crate::smp::SmpReport;
use crate::time::TscInfo;
use crate::{acpi, apic, boot, cage, console, cpu, mm, panic, smp, time};

/// The machine as boot found it: what [`crate::run`] starts from.
pub struct Booted {
    /// What the loader told.
    pub loader: BootInfo,
    /// The command line.
    pub options: Options,
    /// What the firmware told.
    pub firmware: FirmwareInfo,
    /// What the firmware's own code told about C-states.
    pub firmware_states: FirmwareStates,
    /// The TSC.
    pub tsc: TscInfo,
    /// Interrupt delivery.
    pub apic: ApicInfo,
    /// Which CPUs run, and wait in [`smp::wait_for_release`]; which do not.
    pub smp: SmpReport,
}

/// Where the boot CPU arrives from the entry code.
pub fn boot_cpu(loader_data: LoaderData) -> ! {
    cpu::init_boot_cpu();
    console::init();
    log::info!("Lull {}", env!("CARGO_PKG_VERSION"));
    log::info!("{}", cpu::features());

    let loader =
        boot::read(loader_data).unwrap_or_else(|why| panic::fatal_boot(format_args!("{why}")));
    // Even the shortest way out needs these two, and the parser needs a heap: look for them by hand.
    panic::exit_port::set(panic::exit_port::from_cmdline(&loader.cmdline));
    machine_channel::init(
        !loader
            .cmdline
            .split_whitespace()
            .any(|word| word == "machine-channel=off"),
    );
    take_memory(&loader);
    let options = read_options(&loader);

    let mut firmware = acpi::read(&IdentityMap, loader.rsdp);
    for problem in &firmware.problems {
        tell(
            Where::Firmware,
            &problem.name,
            &problem.why,
            &problem.expected,
        );
    }
    let tsc = time::calibrate(&firmware, options.tsc_rate);
    for problem in &tsc.problems {
        tell(Where::Firmware, "TSC", problem, "clocks that agree");
    }
    log::info!(
        "time: TSC {} kHz by {}{}",
        tsc.rate.hz() / 1000,
        tsc.source,
        if tsc.nonstop { ", nonstop" } else { "" }
    );

    let apic = apic::init(&firmware, options.wakes.fence)
        .unwrap_or_else(|why| panic::fatal_boot(format_args!("{why}")));
    for problem in &apic.problems {
        tell(
            Where::Firmware,
            "APIC",
            problem,
            "interrupt controllers as the tables describe them",
        );
    }
    panic::set_stop_others(apic::ipi::broadcast_nmi);
    interrupts::register_provisional(vector::TIMER, early_timer);
    interrupts::register_provisional(vector::EVENT_CHECK, early_event_check);
    test_mwait();
    let firmware_states = read_firmware_states(&mut firmware, &loader, &options);

    let smp = smp::start(&firmware.cpus, &options);
    for failed in &smp.failed {
        tell(
            Where::Cpu,
            failed.cpu,
            format_args!("APIC id {}: {}", failed.apic_id, failed.why),
            "a CPU that answers",
        );
    }
    for problem in &smp.problems {
        tell(Where::Cpu, "start", problem, "CPUs that can be started");
    }
    log::info!(
        "smp: {} CPUs online, {} failed, {} left out",
        smp.online.len(),
        smp.failed.len(),
        smp.left_out
    );

    test_stores(&smp);

    if let Some(crash) = options.test_crash {
        crash_on_purpose(crash);
    }
    hand_over(Booted {
        loader,
        options,
        firmware,
        firmware_states,
        tsc,
        apic,
        smp,
    })
}

/// From here on the machine runs.
fn hand_over(booted: Booted) -> ! {
    crate::run::start(booted)
}

/// Names a problem for people and for tools.
pub fn tell(place: Where, name: impl Display, why: impl Display, expected: impl Display) {
    log::warn!("{}: {name}: {why} (expected {expected})", place.word());
    machine_channel::problem(&records::Problem {
        place,
        name,
        why,
        expected,
    });
}

/// Memory, page tables, the stacks of this CPU, and what protects them.
fn take_memory(loader: &BootInfo) {
    let features = cpu::features();
    if !features.nx {
        panic::fatal_boot(format_args!(
            "this CPU cannot make pages not executable (NX): one that can is needed"
        ));
    }
    if let Err(why) = mm::init(loader, features.giant_pages) {
        panic::fatal_boot(format_args!("{why}"));
    }
    match boot::ap::make_stacks(mm::boot_stack()) {
        Ok(stacks) => cpu::use_stacks(stacks),
        Err(why) => panic::fatal_boot(format_args!(
            "no memory for the stacks of the first CPU: {why}"
        )),
    }
    cpu::protect();
    let report = mm::check_wx();
    assert!(report.holds(), "{report}");
    log::info!(
        "memory: {} MiB, {} MiB free; {report}",
        mm::total_bytes() >> 20,
        mm::free_bytes() >> 20
    );
}

fn read_options(loader: &BootInfo) -> Options {
    let (options, problems) = Options::parse(&loader.cmdline);
    console::set_level(options.log_level);
    panic::exit_port::set(options.exit_port);
    machine_channel::init(options.machine_channel);
    for problem in &loader.problems {
        tell(
            Where::Firmware,
            "boot",
            problem,
            "what the boot protocol says",
        );
    }
    for problem in &problems {
        tell(
            Where::Cmdline,
            &problem.word,
            &problem.why,
            &problem.expected,
        );
    }
    options
}

/// The timer's handler until the machine is up: the stamp that the entry made is all that the self-test needs.
///
/// What runs in the cage is thrown out when its time is up.
fn early_timer(context: &mut IrqContext) {
    let fired = apic::timer::on_interrupt(cpu::this().id());
    apic::eoi();
    if fired == Fired::Due {
        cage::out_of_time(context);
    }
}

fn early_event_check(_: &mut IrqContext) {
    apic::eoi();
}

/// The one-shot timer of this CPU, for the self-test.
struct BootTimer;

impl OneShot for BootTimer {
    fn arm(&self, deadline: Ticks) {
        apic::timer::arm(cpu::this().id(), deadline);
    }
    fn cancel(&self) {
        apic::timer::cancel(cpu::this().id());
    }
}

/// Tries MWAIT on this CPU and keeps the result in its area.
fn test_mwait() {
    let found = cpu::mwait::self_test(&BootTimer, time::rate());
    cpu::this().set_mwait_test(found);
    log::debug!(
        "{}: MWAIT with interrupts open {}, masked {}",
        cpu::this().id(),
        found.open,
        found.masked
    );
}

/// Asks the firmware for its C-states, which is the last thing for which its code is run, and says what came out.
fn read_firmware_states(
    firmware: &mut FirmwareInfo,
    loader: &BootInfo,
    options: &Options,
) -> FirmwareStates {
    let leaves = |leaf, sub| {
        let said = CpuIdReaderNative.cpuid2(leaf, sub);
        let said = Registers {
            eax: said.eax,
            ebx: said.ebx,
            ecx: said.ecx,
            edx: said.edx,
        };
        options.cstates.override_leaf(leaf, said)
    };
    let facts = CpuFacts::from_cpuid(leaves, cpu::this().mwait_test());
    let mwait = cst::offers_mwait(&facts, options);
    let states = cst::read(firmware, loader, options, mwait, &BootTimer);
    for problem in &states.problems {
        tell(
            Where::Firmware,
            &problem.name,
            &problem.why,
            &problem.expected,
        );
    }
    cst::log(&states);
    machine_channel::acpi_cst(&records::AcpiCst(&states));
    states
}

/// Lets the CPUs find out whether their stores end each other's MWAIT, and says so if they do not.
fn test_stores(smp: &SmpReport) {
    let tested = stores::test(&BootTimer, &smp.online);
    log::debug!(
        "MONITOR: {} rounds between CPUs, stores wake: {:?}",
        tested.rounds,
        tested.store_wakes
    );
    if let Some((cpu, lost)) = tested.lost {
        tell(
            Where::Cpu,
            "MONITOR",
            format_args!(
                "{cpu} slept on over {lost} stores by another CPU: no sleeper counts as watching, every wake is an IPI"
            ),
            "a store to the monitored line that ends MWAIT",
        );
    }
}

/// Where a CPU that the trampoline started arrives, on its own stack.
pub extern "C" fn ap_entry(area: &'static PerCpu) -> ! {
    cpu::init_this_cpu(area);
    apic::init_this_cpu();
    smp::answer(area.id());
    area.set_online();
    test_mwait();
    smp::wait_for_release(area.id(), || stores::take_part(&BootTimer))
}

/// Ends the machine in the way that is asked for (option `test.crash`).
fn crash_on_purpose(crash: Crash) {
    #![expect(unsafe_code, reason = "faults have to be made")]
    match crash {
        // SAFETY: it faults: page 0 is never mapped. That is what is asked for.
        Crash::PageFault => unsafe {
            core::ptr::with_exposed_provenance_mut::<u8>(core::hint::black_box(8))
                .write_volatile(1);
        },
        // SAFETY: as above.
        Crash::InvalidOpcode => unsafe { core::arch::asm!("ud2") },
        Crash::StackOverflow => {
            core::hint::black_box(overflow(1));
        }
        Crash::Panic => panic!("asked for by test.crash=panic"),
    }
}

/// Fills the stack until it meets its guard page.
#[inline(never)]
#[expect(unconditional_recursion, reason = "that is what is asked for")]
fn overflow(depth: u64) -> u64 {
    let frame = core::hint::black_box([depth; 64]);
    overflow(depth + 1) + frame[7]
}
