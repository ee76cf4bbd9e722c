//! The machine, as `lull-core` asks for it: clock, one-shot, sleeps and IPIs of the CPU that asks.
//!
//! Every method is called on the CPU it is about, with interrupts off, and returns with interrupts off.
//! Also here: the interrupt handlers that a running machine has. They stamp (the entry stub did), count, post to
//! their own CPU's wake word, and end the interrupt; they take no lock.
#![cfg(target_os = "none")]

use lull_core::cstate::{CStateFlags, MwaitHint};
use lull_core::platform::{Clock, Ipi, IrqGate, OneShot, Platform, Sleeper};
use lull_core::units::{CpuId, CpuSet, Nanos, TickRate, Ticks};
use lull_core::wake::{Cause, Events, WakeWord};

use crate::apic::{self, ipi, timer, vector};
use crate::console::port::MachinePorts;
use crate::cpu::around::Around;
use crate::cpu::interrupts::{self, IrqContext, RegisterError};
use crate::cpu::{self, sleep};
use crate::run::bus_masters::{self, Arbiter};
use crate::{console, run, time};

/// How long a poll waits between two looks at its wake word: it notices nothing by itself, and POLL has no latency to speak of.
const LOOK_EVERY: Nanos = Nanos::new(500);

static ARBITER: Arbiter = Arbiter::new();

/// The bare machine, seen from whichever CPU asks: it finds its own area through GS.
#[derive(Clone, Copy, Debug, Default)]
pub struct BareMetal;

impl Clock for BareMetal {
    #[inline]
    fn now(&self) -> Ticks {
        time::now()
    }

    #[inline]
    fn rate(&self) -> TickRate {
        time::rate()
    }
}

impl OneShot for BareMetal {
    fn arm(&self, deadline: Ticks) {
        timer::arm(self.cpu(), deadline);
    }

    fn cancel(&self) {
        timer::cancel(self.cpu());
    }
}

impl Sleeper for BareMetal {
    fn interrupt_in_service(&self) -> bool {
        apic::local::get().is_some_and(apic::local::LocalApic::is_in_service)
    }

    fn bus_master_active(&self) -> bool {
        run::running().is_none_or(|running| {
            bus_masters::active(&running.firmware.c_states.bus_masters, &MachinePorts)
        })
    }

    fn longest_stay(&self, flags: CStateFlags) -> Option<Nanos> {
        let stops = flags.contains(CStateFlags::TSC_STOPS);
        time::stopped::longest().filter(|_| stops)
    }

    #[inline]
    fn prepare(&self, flags: CStateFlags) {
        if flags.intersects(PREPARED) || Around::required().contains(Around::CLEAR_BUFFERS) {
            self.prepare_all(flags);
        }
    }

    #[inline]
    fn recover(&self, flags: CStateFlags) {
        if flags.intersects(PREPARED) {
            self.recover_all(flags);
        }
    }

    #[inline]
    fn arm_monitor(&self, word: &WakeWord) {
        if Around::required().contains(Around::FLUSH_LINE) {
            sleep::flush_line(word);
        }
        sleep::monitor(word);
    }

    #[inline]
    fn mwait(&self, hint: MwaitHint, gate: IrqGate) {
        match gate {
            IrqGate::Masked => sleep::mwait_masked(hint),
            IrqGate::Open => sleep::sti_mwait_cli(hint),
        }
    }

    #[inline]
    fn halt(&self) {
        sleep::sti_hlt_cli();
    }

    fn io_read(&self, port: u16, settle: bool) {
        let pm_timer = run::running().and_then(|running| running.firmware.pm_timer);
        let settle = pm_timer.filter(|_| settle).map(|timer| timer.port);
        sleep::io_read(port, settle);
    }

    #[inline]
    fn poll(&self) {
        sleep::open_window();
        if Around::required().contains(Around::TPAUSE) {
            sleep::tpause((time::now() + time::rate().ticks(LOOK_EVERY)).get());
        } else {
            core::hint::spin_loop();
        }
    }

    #[inline]
    fn interrupt_window(&self) {
        sleep::open_window();
    }

    #[inline]
    fn take_first_irq(&self) -> Option<Ticks> {
        cpu::this().take_first_irq()
    }
}

/// The flags for which there is something to do before or after a sleep.
const PREPARED: CStateFlags = CStateFlags::TIMER_STOPS
    .union(CStateFlags::INIT_XSTATE)
    .union(CStateFlags::DISABLE_ARBITRATION)
    .union(CStateFlags::FLUSH_CACHES)
    .union(CStateFlags::CLEAR_SPEC_CTRL)
    .union(CStateFlags::TSC_STOPS);

impl BareMetal {
    fn prepare_all(&self, flags: CStateFlags) {
        if flags.contains(CStateFlags::TIMER_STOPS) {
            time::broadcast::hand_over(self.cpu());
        }
        let around = Around::required();
        if flags.contains(CStateFlags::INIT_XSTATE) {
            cpu::this().release_tiles();
        }
        if flags.contains(CStateFlags::DISABLE_ARBITRATION)
            && let Some(running) = run::running()
        {
            let masters = &running.firmware.c_states.bus_masters;
            ARBITER.enter(masters, &MachinePorts, running.online.len());
        }
        if flags.contains(CStateFlags::FLUSH_CACHES) {
            sleep::flush_caches();
        }
        if flags.contains(CStateFlags::CLEAR_SPEC_CTRL) && around.contains(Around::SPEC_CTRL) {
            cpu::this().lay_down_spec_ctrl();
        }
        if flags.contains(CStateFlags::TSC_STOPS) {
            time::stopped::note(self.cpu());
        }
        if around.contains(Around::CLEAR_BUFFERS) {
            sleep::clear_buffers();
        }
    }

    fn recover_all(&self, flags: CStateFlags) {
        if flags.contains(CStateFlags::TSC_STOPS) {
            time::stopped::restore(self.cpu());
        }
        if flags.contains(CStateFlags::TIMER_STOPS) {
            time::broadcast::take_back(self.cpu());
        }
        if flags.contains(CStateFlags::CLEAR_SPEC_CTRL) {
            cpu::this().take_up_spec_ctrl();
        }
        if flags.contains(CStateFlags::DISABLE_ARBITRATION)
            && let Some(running) = run::running()
        {
            let masters = &running.firmware.c_states.bus_masters;
            ARBITER.leave(masters, &MachinePorts, running.online.len());
        }
    }
}

impl Ipi for BareMetal {
    fn send(&self, target: CpuId) {
        ipi::send(target, vector::EVENT_CHECK);
    }

    fn notify(&self, target: CpuId) {
        ipi::send(target, vector::POSTED);
    }

    fn send_many(&self, targets: &CpuSet) {
        ipi::send_many(targets, vector::EVENT_CHECK);
    }
}

impl Platform for BareMetal {
    fn cpu(&self) -> CpuId {
        cpu::this().id()
    }
}

/// Registers the handlers. Once, before any interrupt can be taken.
///
/// # Errors
/// Somebody else has one of the vectors: a mistake of ours.
pub fn register_interrupts() -> Result<(), RegisterError> {
    interrupts::register(vector::TIMER, on_timer)?;
    interrupts::register(vector::BROADCAST, on_broadcast)?;
    interrupts::register(vector::EVENT_CHECK, on_event_check)?;
    interrupts::register(vector::POSTED, on_posted)?;
    interrupts::register(vector::CONSOLE, on_console)
}

fn on_timer(_: &mut IrqContext) {
    let cpu = cpu::this().id();
    // An early or a stray one is a spurious wake: the loop re-checks, and nobody asked for a pass.
    if timer::on_interrupt(cpu) == timer::Fired::Due {
        post_to_own(Events::TIMER, Cause::OwnTimer);
    }
    apic::eoi();
}

/// The timer that stands in for others: the dispatch loop looks for whom.
fn on_broadcast(_: &mut IrqContext) {
    time::broadcast::on_interrupt();
    post_to_own(Events::TIMER, Cause::Vector(vector::BROADCAST));
    apic::eoi();
}

/// Says nothing: whoever sent it has posted the event, and the way back looks at the word.
fn on_event_check(_: &mut IrqContext) {
    apic::eoi();
}

/// Comes here only if the guest that was meant has just been left: whoever left it looks at what was posted.
fn on_posted(_: &mut IrqContext) {
    apic::eoi();
}

/// COM1 has input. The hook given to the console posts the event.
fn on_console(_: &mut IrqContext) {
    console::handle_rx();
    apic::eoi();
}

/// Posts to the CPU that runs this, from its own interrupt handler.
pub fn post_to_own(events: Events, cause: Cause) {
    if let Some(running) = run::running() {
        running.machine.post_from_handler(events, cause);
    }
}
