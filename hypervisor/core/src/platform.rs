//! What the core asks of a machine, split by what is asked and not by who answers.
//!
//! The image implements these traits over the TSC, the local APIC and the sleep instructions; the simulator over an
//! event queue; tests over a script. They are generic parameters, never `dyn`: the idle path has no indirect call.
//!
//! Contract that every implementation keeps:
//! - All calls are made **on** the CPU they are about, with interrupts off, and return with interrupts off.
//! - [`Sleeper::mwait`] with [`IrqGate::Open`], [`Sleeper::halt`] and [`Sleeper::poll`] contain
//!   both the STI and the closing CLI. The core never opens interrupts around a sleep by itself, so no window can exist
//!   between the last check for work and the sleep.
//! - Any sleep may end early, without a reason. None may outlast an interrupt, an expired one-shot, or (while the
//!   monitor is armed) a store to the monitored word.
//! - Interrupt handlers only stamp the time of the first of them, count, post an event to their own CPU's
//!   [`WakeWord`], and acknowledge. They take no lock, and switch to nothing.

use crate::cstate::{CStateFlags, MwaitHint};
use crate::units::{CpuId, CpuSet, Nanos, TickRate, Ticks};
use crate::wake::WakeWord;

/// The time stamp counter of this CPU, the same on all CPUs.
pub trait Clock {
    /// The time now. Never earlier than an earlier answer on the same CPU.
    fn now(&self) -> Ticks;

    /// How fast it counts.
    fn rate(&self) -> TickRate;
}

/// The one-shot timer of this CPU.
pub trait OneShot {
    /// Interrupt at `deadline`, in place of whatever was armed. A deadline in the past interrupts at once.
    fn arm(&self, deadline: Ticks);

    /// No interrupt until the next [`arm`](Self::arm). One that is on its way already may still come.
    fn cancel(&self);
}

/// Whether interrupts are taken while the CPU is in a C-state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IrqGate {
    /// Interrupts stay off; a pending one ends the sleep untaken (MWAIT with ECX bit 0, "break on masked interrupt").
    Masked,
    /// STI directly before the sleep, CLI directly after it: the handler runs inside the state (MWAIT with ECX = 0).
    Open,
}

/// The ways into a C-state.
pub trait Sleeper {
    /// Is an interrupt in service at this CPU's interrupt controller? Asked where an erratum makes deep states lose it.
    fn interrupt_in_service(&self) -> bool;

    /// Has a bus master been active since the last call? Also `true` where nobody can tell.
    fn bus_master_active(&self) -> bool;

    /// The longest stay in a state with these flags after which the clocks can still be put right; `None` for any.
    fn longest_stay(&self, flags: CStateFlags) -> Option<Nanos> {
        let _ = flags;
        None
    }

    /// Does what a state's flags and the CPU itself need before the sleep: tiles, caches and SPEC_CTRL, and for
    /// `TIMER_STOPS` and `TSC_STOPS` handing the deadline over, and noting the time by a clock that runs on.
    /// Comes before [`arm_monitor`](Self::arm_monitor), which it may disarm on some CPUs.
    fn prepare(&self, flags: CStateFlags);

    /// Undoes what [`prepare`](Self::prepare) changed, and puts a TSC right that has stopped: before anything reads it. Once for each call of it, whether the CPU slept or not.
    fn recover(&self, flags: CStateFlags);

    /// Arms the monitor hardware on a wake word: the next [`mwait`](Self::mwait) ends when somebody stores to it.
    fn arm_monitor(&self, word: &WakeWord);

    /// Sleeps by MWAIT until a store to the armed word or an interrupt.
    fn mwait(&self, hint: MwaitHint, gate: IrqGate);

    /// Sleeps by `sti; hlt; cli` until an interrupt, which is taken inside.
    fn halt(&self);

    /// Sleeps by a read from an ACPI `P_LVLx` port, with interrupts off, until one is pending. It is not taken.
    ///
    /// `settle`: read the PM timer directly after it, for chipsets that stop the CPU late.
    fn io_read(&self, port: u16, settle: bool);

    /// One step of a short wait, with interrupts off.
    #[inline]
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// One step of a poll: opens interrupts for a moment and relaxes. The caller looks at its wake word between steps.
    fn poll(&self);

    /// Opens interrupts for one instruction (`sti; nop; cli`), so that what is pending is taken.
    ///
    /// After a sleep with [`IrqGate::Masked`], the exit stamp comes first and the handler of what ended the sleep here.
    fn interrupt_window(&self);

    /// When the first interrupt handler since the last call began, if any did. Clears the stamp.
    ///
    /// The idle path calls it once before it sleeps, to forget older handlers, and once after, to split the sleep into
    /// residency and interrupt time.
    fn take_first_irq(&self) -> Option<Ticks>;
}

/// Interrupting another CPU.
pub trait Ipi {
    /// Sends the event-check interrupt, which makes the target look at its wake word. Every store made before is
    /// visible to the handler (fenced where the interrupt controller needs it).
    fn send(&self, target: CpuId);

    /// Sends an interrupt that a processor which runs a guest may take by itself, to deliver what was posted for that guest. It ends
    /// any other guest and any sleep, and says nothing there. Stores are visible as with [`send`](Self::send).
    fn notify(&self, target: CpuId) {
        self.send(target);
    }

    /// [`send`](Self::send) for several CPUs, none of which is the sender, by as few commands as the interrupt controller takes.
    fn send_many(&self, targets: &CpuSet) {
        for target in targets.iter() {
            self.send(target);
        }
    }
}

/// A whole machine, as seen from the CPU that asks.
pub trait Platform: Clock + OneShot + Sleeper + Ipi {
    /// The CPU this runs on.
    fn cpu(&self) -> CpuId;
}
