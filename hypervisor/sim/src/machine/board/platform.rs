//! The hardware behind the core's platform traits.

use super::{Board, Handle, cost};
use lull_core::cstate::{CStateFlags, MwaitHint};
use lull_core::platform::{Clock, Ipi, IrqGate, OneShot, Platform, Sleeper};
use lull_core::sched::Scheduler;
use lull_core::units::{CpuId, CpuSet, TickRate, Ticks};
use lull_core::wake::WakeWord;

/// A tick is a nanosecond.
pub const RATE: TickRate = match TickRate::from_hz(1_000_000_000) {
    Some(rate) => rate,
    None => unreachable!(),
};

impl<S: Scheduler> Handle<S> {
    fn board(&self) -> &Board<S> {
        &self.0
    }
}

impl<S: Scheduler> Clock for Handle<S> {
    fn now(&self) -> Ticks {
        self.board().spend(cost::CLOCK);
        Ticks::new(self.board().now())
    }

    fn rate(&self) -> TickRate {
        RATE
    }
}

impl<S: Scheduler> OneShot for Handle<S> {
    fn arm(&self, deadline: Ticks) {
        self.board().spend(cost::ONE_SHOT);
        self.board().arm(deadline.get());
    }

    fn cancel(&self) {
        self.board().spend(cost::ONE_SHOT);
        let board = self.board();
        if let Some(own) = board.state().cpus.get_mut(board.cpu() as usize) {
            own.armed = None;
        }
    }
}

impl<S: Scheduler> Sleeper for Handle<S> {
    fn interrupt_in_service(&self) -> bool {
        self.board().spend(cost::LOOK);
        false
    }

    fn bus_master_active(&self) -> bool {
        self.board().spend(cost::LOOK);
        false
    }

    fn prepare(&self, _flags: CStateFlags) {
        self.board().spend(cost::LOOK);
    }

    fn recover(&self, _flags: CStateFlags) {
        self.board().spend(cost::LOOK);
    }

    fn arm_monitor(&self, word: &WakeWord) {
        // The value of the moment at which the monitor is armed, not of the one at which the call is done.
        let board = self.board();
        if let Some(own) = board.state().cpus.get_mut(board.cpu() as usize) {
            own.monitor = Some(super::by_hardware(|| word.value()));
        }
        board.spend(cost::MONITOR);
    }

    fn mwait(&self, hint: MwaitHint, gate: IrqGate) {
        let board = self.board();
        board.sleep(board.states.of_hint(hint), true, false);
        if gate == IrqGate::Open {
            board.take_interrupts();
        }
    }

    fn halt(&self) {
        let board = self.board();
        board.sleep(board.states.of_halt(), false, false);
        board.take_interrupts();
    }

    fn io_read(&self, port: u16, _settle: bool) {
        let board = self.board();
        board.sleep(board.states.of_port(port), false, false);
        board.take_interrupts();
    }

    fn relax(&self) {
        self.board().spend(cost::RELAX);
    }

    fn poll(&self) {
        self.board().sleep(0, true, true);
        self.board().take_interrupts();
    }

    fn interrupt_window(&self) {
        self.board().spend(cost::LOOK);
        self.board().take_interrupts();
    }

    fn take_first_irq(&self) -> Option<Ticks> {
        let board = self.board();
        board.spend(cost::LOOK);
        let mut state = board.state();
        let own = state.cpus.get_mut(board.cpu() as usize)?;
        own.first_irq.take().map(Ticks::new)
    }
}

impl<S: Scheduler> Ipi for Handle<S> {
    fn send(&self, target: CpuId) {
        self.board().sends(target.get());
        self.board().spend(cost::SEND);
        self.board().send(target.get());
    }

    /// One command for every sixteen CPUs, as for the clusters of an x2APIC.
    fn send_many(&self, targets: &CpuSet) {
        let mut cluster = None;
        targets.iter().for_each(|cpu| self.board().sends(cpu.get()));
        for cpu in targets.iter() {
            if cluster.replace(cpu.get() / 16) != Some(cpu.get() / 16) {
                self.board().spend(cost::SEND);
            }
            self.board().send(cpu.get());
        }
    }
}

impl<S: Scheduler> Platform for Handle<S> {
    fn cpu(&self) -> CpuId {
        CpuId::new(self.board().cpu())
    }
}
