//! vCPUs on this machine: what the dispatch loop asks of domains, and what domains ask of the machine.

use core::sync::atomic::{AtomicBool, Ordering};

use lull_core::dispatch::{CpuChange, RunOutcome, Runner};
use lull_core::platform::Clock;
use lull_core::sched::SchedError;
use lull_core::units::{CpuId, DomId, TickRate, Ticks, VcpuId};
use lull_core::wake::Events;

use super::start::Running;
use super::{guests, hardware, msr_writes, probes, wake_tests};
use crate::console::machine_channel;
use crate::console::records::Figure;
use crate::domain::VcpuHost;
use crate::machine::BareMetal;
use crate::virt::{GateEvent, barriers};
use crate::{console, keys, smp, time};

/// The CPU that takes debug keys, and reports guests that have ended.
pub(super) const CONSOLE_CPU: CpuId = CpuId::new(0);

/// Some domain has ended and was not reported yet.
static UNREPORTED: AtomicBool = AtomicBool::new(false);

/// One CPU's view of the running machine.
#[derive(Clone, Copy)]
pub struct Hosting {
    running: &'static Running,
    cpu: CpuId,
}

impl Hosting {
    /// The view of `cpu`, which runs this.
    pub const fn new(running: &'static Running, cpu: CpuId) -> Self {
        Self { running, cpu }
    }
}

impl Runner for Hosting {
    fn enter(&self, v: VcpuId) -> RunOutcome {
        let machine = &self.running.machine;
        let Some(pcpu) = machine.pcpu(self.cpu) else {
            return RunOutcome::Gone;
        };
        self.running
            .domains
            .enter(v, self, self.cpu, &pcpu.word, &mut |gate| match gate {
                GateEvent::Entering => {
                    machine.guest_entering(v, BareMetal.now());
                    barriers::before_entry(self.cpu);
                }
                GateEvent::Left => machine.guest_left(v, BareMetal.now()),
            })
    }

    fn timer_expired(&self, v: VcpuId) {
        self.running.domains.timer_expired(v, self);
    }

    fn console(&self) {
        while let Some(byte) = console::read_byte() {
            keys::press(self.running, byte);
        }
        if UNREPORTED.swap(false, Ordering::AcqRel) {
            guests::report_ended(self.running);
        }
    }

    fn call(&self) {
        smp::calls::serve();
        msr_writes::catch_up(self.running, self.cpu);
    }

    fn idle_changed(&self) {
        // What it has counted so far belongs to the time before.
        hardware::sample(self.running, self.cpu, BareMetal.now());
    }

    fn late_writes(&self) {
        msr_writes::time_has_come(self.running, self.cpu);
    }

    fn timer(&self) {
        time::broadcast::wake_due(|cpu| self.running.machine.post(cpu, Events::TIMER));
    }

    fn probe(&self, deadline: Ticks) {
        if !wake_tests::latency::came(self.running, deadline) {
            probes::came(self.running, self.cpu, deadline);
        }
    }

    fn woken(&self, now: Ticks) {
        hardware::sample_if_old(self.running, self.cpu, now);
    }

    fn parks(&self) {
        smp::calls::close();
        hardware::sample(self.running, self.cpu, BareMetal.now());
        log::info!("{}: offline", self.cpu);
    }

    fn unparks(&self) {
        smp::calls::open();
        log::info!("{}: online", self.cpu);
    }

    fn refused(&self, change: CpuChange, why: SchedError) {
        log::warn!("{}: {change:?} is refused: {why}", self.cpu);
    }

    fn load(&self, v: VcpuId) {
        if let Some((domain, _)) = self.running.domains.vcpu(v) {
            barriers::guest_comes(self.cpu, domain.id());
        }
        self.running.domains.load(v, self.cpu);
    }

    fn save(&self, v: VcpuId) {
        self.running.domains.save(v);
    }
}

impl VcpuHost for Hosting {
    fn now(&self) -> Ticks {
        BareMetal.now()
    }

    fn tsc_rate(&self) -> TickRate {
        BareMetal.rate()
    }

    fn consume_kick(&self, v: VcpuId) {
        if let Some(unit) = lull_core::sched::Scheduler::units(self.running.machine.sched()).get(v)
        {
            unit.state.consume_kick();
        }
    }

    fn kick(&self, v: VcpuId) {
        self.running.machine.kick(v);
    }

    fn notify(&self, v: VcpuId) -> bool {
        self.running.machine.notify(v)
    }

    fn set_timer(&self, v: VcpuId, deadline: Option<Ticks>) {
        let set = self.running.machine.set_vcpu_timer(v, deadline);
        debug_assert!(set.is_ok(), "{v} has a slot");
    }

    fn deadline(&self) -> Option<Ticks> {
        self.running.machine.pcpu(self.cpu)?.next_deadline()
    }

    fn online_vcpu(&self, v: VcpuId) {
        self.running.machine.online_vcpu(v);
    }

    fn domain_ended(&self, _: DomId) {
        UNREPORTED.store(true, Ordering::Release);
        self.running.machine.post(CONSOLE_CPU, Events::CONSOLE);
    }

    fn guest_line(&self, domain: DomId, line: &str) {
        console::guest_line(domain, line);
    }

    fn figure(&self, domain: DomId, name: &str, value: &str, unit: &str) {
        machine_channel::figure(&Figure {
            guest: domain,
            name,
            value,
            unit,
        });
    }
}
