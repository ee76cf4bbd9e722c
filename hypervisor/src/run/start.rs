//! From "the machine is booted" to one dispatch loop on every CPU.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use lull_core::cstate::select::{Firmware, Selected};
use lull_core::cstate::{CState, CStateFlags};
use lull_core::dispatch::Machine;
use lull_core::governor::{AnyGovernor, Governor, StateSet};
use lull_core::idle::CpuIdle;
use lull_core::options::{AccountFault, Options};
use lull_core::platform::Platform;
use lull_core::residency::{Fault, Interval};
use lull_core::sched::{AnyScheduler, Scheduler};
use lull_core::trace::{IdleTrace, Recorder};
use lull_core::units::{CpuId, CpuSet, Micros, Nanos};
use lull_core::wake::{Cause, Events, WakeWord};
use spin::Once;

use super::counters::{Asked, Row, StandIns};
use super::guests::{self, Outcome};
use super::msr_writes::Moment;
use super::{
    bus_masters, choose, end, hardware, hosting, msr_writes, probes, scheduler, wake_tests,
};
use crate::acpi::FirmwareInfo;
use crate::acpi::cst::FirmwareStates;
use crate::apic::{self, vector};
use crate::console::port::MachinePorts;
use crate::console::records::{Boot, Where};
use crate::console::{self, machine_channel};
use crate::domain::DomainTable;
use crate::init::{Booted, tell};
use crate::machine::{self, BareMetal};
use crate::virt::vmx::ApicWanted;
use crate::virt::{self, Backend};
use crate::{cpu, mm, smp, time};

/// An interval that a test drops or doubles is at least this long, so that the books are off by more than their tolerance.
const SPOILED_INTERVAL: Nanos = Nanos::new(5_000_000);

/// The whole machine, once it runs.
pub struct Running {
    /// The CPUs and the scheduler.
    pub machine: Machine<BareMetal, AnyScheduler>,
    /// The guests.
    pub domains: DomainTable,
    /// What the firmware told.
    pub firmware: FirmwareInfo,
    /// What the firmware's own code told about C-states.
    pub firmware_states: FirmwareStates,
    /// The command line.
    pub options: Options,
    /// The hardware that runs guests, if there is any.
    pub backend: Option<Backend>,
    /// The CPUs that run a dispatch loop, in order.
    pub online: Vec<CpuId>,
    /// Whether everything that was asked for could be started.
    pub outcome: Outcome,
    choices: Vec<Once<Selected>>,
    traces: Vec<Once<IdleTrace>>,
}

static RUNNING: Once<Running> = Once::new();

/// The machine, once it runs.
pub fn running() -> Option<&'static Running> {
    RUNNING.get()
}

/// The wake word of a CPU, once the machine runs.
pub fn wake_word(cpu: CpuId) -> Option<&'static WakeWord> {
    Some(&running()?.machine.pcpu(cpu)?.word)
}

impl Running {
    /// Which C-states a CPU has, and why, once it has come to choose them.
    pub fn choice(&self, cpu: CpuId) -> Option<&Selected> {
        self.choices.get(cpu.index())?.get()
    }

    /// What a CPU has recorded of its idle periods, if it was to.
    pub fn trace(&self, cpu: CpuId) -> Option<&IdleTrace> {
        self.traces.get(cpu.index())?.get()
    }

    /// What the firmware says about C-states, for the choice of them.
    fn firmware_says(&self) -> Firmware<'_> {
        Firmware {
            cst: self.firmware_states.cst.as_ref(),
            fadt: Some(self.firmware.c_states.fadt),
            p_blk: self.firmware_states.p_blk,
        }
    }

    /// One row of counters for each CPU that is online. Wakes none of them.
    pub fn rows(&self) -> Vec<Row> {
        self.online
            .iter()
            .filter_map(|&cpu| {
                let pcpu = self.machine.pcpu(cpu)?;
                Some(Row {
                    cpu,
                    table: self.choice(cpu)?.usable,
                    asked: Asked::of(&pcpu.idle),
                    times: pcpu.account.snapshot(&BareMetal),
                    hardware: pcpu.hardware.snapshot(),
                    stand_ins: StandIns {
                        handed_over: time::broadcast::counts(cpu).0,
                        timer_wakes: time::broadcast::counts(cpu).1,
                        tsc_restored: time::stopped::count(cpu),
                        ..cpu::percpu::get(cpu)
                            .map_or(StandIns::default(), |area| area.around_sleeps())
                    },
                    dispatch: pcpu.stats.counts(),
                    posts: pcpu.wakes.counts(),
                })
            })
            .collect()
    }
}

/// Where boot hands over, on the boot CPU.
pub fn start(booted: Booted) -> ! {
    if let Err(why) = machine::register_interrupts() {
        crate::panic::fatal_boot(format_args!("{why}"));
    }
    let backend = detect(&booted.options);
    report_boot(&booted, &backend);
    if backend.is_ok() {
        virt::barriers::set_up(booted.options.mitigations);
    }
    let Booted {
        loader,
        options,
        firmware,
        firmware_states,
        mut apic,
        smp,
        ..
    } = booted;

    let (domains, outcome) = guests::create(&loader, backend.as_ref().ok(), &smp.online, &options);
    let cpus = smp
        .online
        .iter()
        .map(|cpu| cpu.index() + 1)
        .max()
        .unwrap_or(1);
    let parked = smp.parked;
    tell_of_absent_cpus(&options, &smp.online);
    prepare_clocks(&options, &firmware, &mut apic, cpus);
    let sched = scheduler::make(&options, cpus, domains.slots());
    let machine = Machine::new(BareMetal, sched, cpus);
    for &cpu in &smp.online {
        if let Err(why) = machine.cpu_online(cpu) {
            tell(Where::Cpu, cpu, why, "a CPU that the scheduler knows");
        }
    }
    smp::calls::init(cpus);
    let running = RUNNING.call_once(|| Running {
        machine,
        domains,
        firmware,
        firmware_states,
        options,
        backend: backend.ok(),
        online: smp.online,
        outcome,
        choices: (0..cpus).map(|_| Once::new()).collect(),
        traces: (0..cpus).map(|_| Once::new()).collect(),
    });
    running
        .machine
        .set_passes_for_all(!running.options.wakes.notify);
    guests::add_to_scheduler(running);
    scheduler::complete(running);
    spoil_accounting(running);
    open_console(running, apic.io_apics);

    let boot_cpu = BareMetal.cpu();
    let all = running.online.iter().chain(&parked).copied();
    let others: Vec<CpuId> = all.filter(|&cpu| cpu != boot_cpu).collect();
    smp::release(&others, other_cpu);
    wake_tests::run(running);
    guests::start(running);
    if let Some(seconds) = running.options.run_for {
        let span = time::rate().ticks(Nanos::new(u64::from(seconds.0) * 1_000_000_000));
        running.machine.end_at(time::now() + span);
    } else if running.domains.iter().next().is_none() && !running.options.keep {
        log::info!("no guest to run: ending (`keep` or `for=SECONDS` would go on)");
        running.machine.stop();
    }
    turn(running, boot_cpu);
    end::finish(running)
}

/// Names what `latency=` says of CPUs that do not run.
fn tell_of_absent_cpus(options: &Options, online: &[CpuId]) {
    let mut here = CpuSet::EMPTY;
    for &cpu in online {
        here.insert(cpu);
    }
    for (limit, absent) in options.absent_cpus(&here) {
        let why = format_args!("{limit} for CPUs {absent}, which do not run");
        tell(
            Where::Cmdline,
            "latency",
            why,
            format_args!("CPUs of {here}"),
        );
    }
}

/// Readies what stands in for clocks that stop in deep states, if any does; says what there is, or is not.
fn prepare_clocks(
    options: &Options,
    firmware: &FirmwareInfo,
    apic: &mut apic::ApicInfo,
    cpus: usize,
) {
    let stops = choose::stops(options);
    if stops.timer {
        let ready = match apic::id() {
            None => Err(String::from("this CPU has no APIC id")),
            Some(_) if stops.hpet => Err(String::from("the HPET stops there too")),
            Some(id) => time::broadcast::init(firmware, &mut apic.io_apics, id, cpus, options.hpet),
        };
        match ready {
            Ok(delivery) => log::info!(
                "no ARAT: the HPET stands in for timers that stop in deep states, by {delivery}"
            ),
            Err(why) => tell(
                Where::Cpu,
                "ARAT",
                format_args!(
                    "timers stop in deep states, and nothing stands in: {why}; those states are not used"
                ),
                "ARAT, or an HPET whose interrupt arrives",
            ),
        }
    }
    if stops.tsc {
        time::stopped::init(firmware, stops.hpet, options.test_tsc_stops);
        match time::stopped::source() {
            Some(source) => log::info!(
                "no nonstop TSC: restored from the {source} after states in which it may stop"
            ),
            None => log::info!(
                "no nonstop TSC, and it cannot be restored: states in which it may stop are not used"
            ),
        }
    }
}

/// Where the other CPUs come when the machine is ready.
fn other_cpu(cpu: CpuId) -> ! {
    if let Some(running) = running() {
        if !running.online.contains(&cpu) {
            park_unused(running, cpu);
        }
        let enabled = running
            .backend
            .as_ref()
            .map_or(Ok(()), |backend| backend.enable_on_this_cpu(cpu));
        match enabled {
            Ok(()) => turn(running, cpu),
            Err(why) => leave_out(running, cpu, &why),
        }
        end::parked(running, cpu);
    }
    cpu::sleep::stop_for_ever()
}

/// A CPU that runs nothing goes as deep as the boot CPU's choice of C-states allows, once that is made.
fn park_unused(running: &Running, cpu: CpuId) -> ! {
    while running.choice(CpuId::new(0)).is_none() {
        core::hint::spin_loop();
    }
    end::park(running, cpu)
}

/// A CPU on which virtualization cannot be switched on runs nothing.
fn leave_out(running: &Running, cpu: CpuId, why: &str) {
    tell(Where::Cpu, cpu, why, "virtualization on every CPU");
    let machine = &running.machine;
    match machine.sched().cpu_offline(cpu, time::now()) {
        Ok(moved) => moved
            .iter()
            .for_each(|to| machine.post(to, Events::RESCHED)),
        Err(why) => log::warn!("{cpu}: {why}"),
    }
}

/// Turns this CPU's dispatch loop until the machine stops.
fn turn(running: &'static Running, cpu: CpuId) {
    let selected = choose::states(
        cpu,
        &running.online,
        &running.options,
        running.firmware_says(),
    );
    msr_writes::perform_here(cpu, &selected.msr_writes, Moment::Start);
    if cpu.index() == 0 {
        msr_writes::wait_for_the_next(running, &selected.msr_writes);
        take_cst(running, &selected);
    }
    let c3 = |state: &CState| state.flags.contains(CStateFlags::CHECK_BUS_MASTER);
    if cpu.index() == 0 && selected.usable.states().iter().any(c3) {
        bus_masters::wake_on_request(&running.firmware.c_states.bus_masters, &MachinePorts);
    }
    let governor = governor(&running.options);
    if cpu.index() == 0 {
        log::info!("governor: {}", governor.name());
    }
    if let Some(pcpu) = running.machine.pcpu(cpu) {
        let off = selected.off.iter();
        pcpu.idle
            .set_off(off.fold(StateSet::NONE, |set, &id| set.with(id, true)));
        pcpu.idle.set_governor(governor.name());
        let limit = running.options.latency_of(cpu).map(Micros::to_nanos);
        pcpu.idle.set_own_limit(limit);
    }
    let mut idle = CpuIdle::new(selected.usable, governor, selected.monitor);
    idle.set_store_wakes(running.options.wakes.ipiless);
    record(running, cpu, &mut idle);
    if let Some(choice) = running.choices.get(cpu.index()) {
        choice.call_once(|| selected);
    }
    probes::start(running, cpu);
    hardware::sample(running, cpu, time::now());
    smp::calls::open();
    running
        .machine
        .run(&mut idle, &hosting::Hosting::new(running, cpu));
    smp::calls::close();
    hardware::sample(running, cpu, time::now());
}

/// Tells the firmware, once, that its C-states are taken over (ACPI specification 6.5, 5.2.9, CST_CNT).
fn take_cst(running: &Running, selected: &Selected) {
    let fadt = &running.firmware.c_states;
    if let Some(port) = fadt.take_over(selected.take_cst, &MachinePorts) {
        log::info!("_CST: taken over (CST_CNT to port {port:#x})");
    }
}

/// Records this CPU's idle periods, if that is asked for and there is memory.
fn record(running: &'static Running, cpu: CpuId, idle: &mut CpuIdle<AnyGovernor>) {
    let (Some(room), Some(place)) = (running.options.trace_idle, running.traces.get(cpu.index()))
    else {
        return;
    };
    match IdleTrace::with_room(room) {
        Some(trace) => idle.record(Recorder::new(place.call_once(|| trace))),
        None => tell(
            Where::Cmdline,
            "trace.idle",
            format_args!("no memory for {room} idle periods of {cpu}"),
            "less",
        ),
    }
}

/// The governor that is asked for. The parser has refused names of which there is none.
fn governor(options: &Options) -> AnyGovernor {
    let asked = options.governor.as_deref();
    let governor = asked.and_then(AnyGovernor::by_name).unwrap_or_default();
    governor.at_price(options.latency_price)
}

fn detect(options: &Options) -> Result<Backend, String> {
    let apic = ApicWanted {
        virtualized: options.vmx_apicv,
        posting: options.vmx_posted,
    };
    let backend = virt::detect(apic).and_then(|backend| {
        backend
            .enable_on_this_cpu(BareMetal.cpu())
            .map(|()| backend)
    });
    match &backend {
        Ok(backend) => log::info!(
            "virtualization: {} ({})",
            backend.name(),
            backend.describe()
        ),
        Err(why) => tell(
            Where::Cpu,
            "virtualization",
            format_args!("{why}: guests cannot run"),
            "a CPU with SVM, or with VMX, EPT and unrestricted guest",
        ),
    }
    backend
}

fn report_boot(booted: &Booted, backend: &Result<Backend, String>) {
    let features = cpu::features();
    let hidden = features.hidden();
    let outer = features.hypervisor.as_deref().unwrap_or("none");
    for (has, name) in [
        (features.monitor, "MWAIT"),
        (features.nonstop_tsc, "nonstop TSC"),
        (features.arat, "ARAT"),
        (features.tsc_deadline, "TSC-deadline"),
    ] {
        let how = if has {
            "there"
        } else {
            "hidden, or not in the hardware"
        };
        log::info!("{name}: {how} (outer hypervisor: {outer})");
    }
    let test = cpu::mwait::found();
    let mwait = if features.monitor {
        let stores = match test.store_wakes {
            None => "",
            Some(true) => ", stores by other CPUs wake",
            Some(false) => ", stores by other CPUs get lost",
        };
        format!(
            "with interrupts open {}, masked {}{stores}",
            test.open, test.masked
        )
    } else {
        String::from("CPUID does not report it")
    };
    log::info!("MWAIT: {mwait}");
    let failed: Vec<u32> = booted
        .smp
        .failed
        .iter()
        .map(|failed| failed.cpu.get())
        .collect();
    let why = match backend {
        Ok(backend) => backend.describe(),
        Err(why) => why.clone(),
    };
    machine_channel::boot(&Boot {
        cpus: booted.smp.online.len(),
        cpus_failed: &failed,
        tsc: booted.tsc.rate,
        tsc_source: booted.tsc.source.word(),
        nonstop_tsc: features.nonstop_tsc,
        arat: features.arat,
        tsc_deadline: features.tsc_deadline,
        mwait: &mwait,
        store_wakes: test.store_wakes,
        x2apic: apic::mode() == Some(apic::local::Mode::X2Apic),
        virt: backend.as_ref().ok().map(Backend::name),
        virt_why: &why,
        hypervisor: features.hypervisor.as_deref(),
        hidden: &hidden,
        cmdline: &booted.loader.cmdline,
        mem_mib: mm::total_bytes() >> 20,
        timer: apic::timer::kind().word(),
    });
}

fn spoil_accounting(running: &Running) {
    let fault = match running.options.test_account {
        None => return,
        Some(AccountFault::Drop) => Fault::Drop,
        Some(AccountFault::Double) => Fault::Double,
    };
    let at_least = time::rate().ticks(SPOILED_INTERVAL);
    if let Some((cpu, pcpu)) = running.machine.pcpus().next() {
        log::warn!(
            "{cpu}: the next residency of at least 5 ms is miscounted on purpose (test.account)"
        );
        pcpu.account.inject(fault, Interval::Residency, at_least);
    }
}

/// Keys are taken by the boot CPU.
fn open_console(running: &Running, io_apics: Vec<apic::ioapic::IoApic>) {
    let wiring = running.firmware.isa_wiring(console::COM1_ISA_IRQ);
    let Some(id) = apic::id() else { return };
    let routed = io_apics
        .into_iter()
        .any(|mut io_apic| io_apic.route(wiring, vector::CONSOLE, id));
    if routed {
        // This runs on the CPU that the interrupt is routed to: the boot CPU.
        console::set_rx_hook(
            || machine::post_to_own(Events::CONSOLE, Cause::Vector(vector::CONSOLE)),
            || BareMetal.cpu().index() == 0,
        );
        console::enable_rx_interrupt();
        log::info!("debug keys: press h for help");
    } else {
        log::warn!(
            "no IOAPIC takes interrupt {} of COM1: debug keys do not work",
            wiring.gsi
        );
    }
}
