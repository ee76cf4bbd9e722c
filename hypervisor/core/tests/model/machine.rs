//! CPUs that sleep: interrupt lines, monitors, MWAIT, HLT, the STI shadow and guests, none of which orders memory.
//!
//! Interrupts are off in hypervisor code, so they can be taken inside of a sleep and in a window only: that is where lines are
//! looked at. NMIs come wherever [`point`] is called: at every access of the code under test, and at each step here.

use super::check::{nmi, property};
use super::wrong::{MachineMutant, is_wrong};
use lull_core::cstate::{CStateFlags, MwaitHint};
use lull_core::platform::{IrqGate, Sleeper};
use lull_core::sync::watched::point;
use lull_core::sync::watched::{AtomicU32, Ordering, fence};
use lull_core::units::Ticks;
use lull_core::wake::{Events, Origin, SleepState, WakeWord};
use std::cell::Cell;

/// The interrupt lines of a CPU.
pub const EVENT_CHECK: u32 = 1;
pub const TIMER: u32 = 2;
/// A posted interrupt: a guest is not left for it.
pub const NOTIFICATION: u32 = 4;

/// How a CPU sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// MWAIT with interrupts off: one that is pending ends it untaken.
    Masked,
    /// `sti; mwait; cli`.
    Open,
    /// `sti; hlt; cli`.
    Halt,
    /// In a guest.
    Guest,
}

impl How {
    pub const ALL: [Self; 4] = [Self::Masked, Self::Open, Self::Halt, Self::Guest];

    pub const fn state(self) -> SleepState {
        match self {
            Self::Masked | Self::Open => SleepState::Watching,
            Self::Halt => SleepState::Halted,
            Self::Guest => SleepState::Guest,
        }
    }

    pub const fn monitored(self) -> bool {
        matches!(self, Self::Masked | Self::Open)
    }
}

/// One CPU.
pub struct Cpu {
    pub word: WakeWord,
    lines: AtomicU32,
    own: Own,
}

/// What only the CPU itself knows, and whoever looks after all have ended. All threads of a model are coroutines of one thread of
/// the host: so plain cells will do, and order nothing.
#[derive(Default)]
struct Own {
    armed: Cell<Option<u64>>,
    asleep: Cell<Option<How>>,
    /// Sleeps that end for nothing, from now on.
    spurious: Cell<u32>,
}

#[expect(unsafe_code, reason = "coroutines of one thread share it")]
// SAFETY: loom runs all threads of a model on one thread of the host.
unsafe impl Sync for Own {}

impl Cpu {
    pub fn new() -> Self {
        Self {
            word: WakeWord::new(),
            lines: AtomicU32::new(0),
            own: Own::default(),
        }
    }

    /// So many sleeps end for nothing.
    pub fn wakes_for_nothing(self, times: u32) -> Self {
        self.own.spurious.set(times);
        self
    }

    /// An interrupt for this CPU. The command is a store like any other, unless it is fenced.
    pub fn interrupt(&self, line: u32) {
        point();
        if !is_wrong(MachineMutant::FenceMissing) {
            fence(Ordering::SeqCst);
        }
        self.lines.fetch_or(line, Ordering::Relaxed);
    }

    /// A waker: what it has to say has been written.
    pub fn wake(&self, events: Events) {
        if !self.word.post_if_watched(events, Origin::NOBODY)
            && self.word.post_as(events, Origin::NOBODY).needs_ipi()
        {
            self.interrupt(EVENT_CHECK);
        }
    }

    /// An NMI handler posts to this CPU, its own or another.
    pub fn wake_from_nmi(&self, events: Events) {
        if self.word.post_from_nmi(events, Origin::NOBODY).needs_ipi() {
            self.interrupt(EVENT_CHECK);
        }
    }

    /// Takes what is pending, and runs the handlers. `true` if there was anything.
    pub fn take_interrupts(&self) -> bool {
        let lines = self.lines.swap(0, Ordering::Relaxed);
        if lines != 0 {
            // No later load of the CPU overtakes its being interrupted.
            fence(Ordering::Acquire);
        }
        if lines & TIMER != 0 {
            self.word.post_from_handler(Events::TIMER, Origin::NOBODY);
        }
        lines != 0
    }

    /// Has somebody stored to the armed line?
    fn is_triggered(&self, how: How) -> bool {
        // A monitor that is not armed does not hold.
        how.monitored()
            && self
                .own
                .armed
                .get()
                .is_none_or(|armed| self.word.value() != armed)
    }

    /// Goes to sleep, or into the guest. `false` if nothing has woken it yet: then its run ends here.
    pub fn sleep(&self, how: How) -> bool {
        point();
        if matches!(how, How::Open | How::Halt) {
            if is_wrong(MachineMutant::StiNotAdjacent) {
                self.take_interrupts();
            }
            let before = nmi::is_over();
            // Between STI and the sleep.
            point();
            if nmi::is_over() != before {
                // The IRET has ended the shadow.
                self.take_interrupts();
                if !is_wrong(MachineMutant::RipNotMoved) {
                    return true;
                }
            }
        }
        let left = self.own.spurious.get();
        self.own.spurious.set(left.saturating_sub(1));
        if left > 0 || self.is_woken(how) {
            return true;
        }
        self.own.asleep.set(Some(how));
        false
    }

    /// Does the sleep end? Takes the interrupt that ends it, where they are open.
    fn is_woken(&self, how: How) -> bool {
        let interrupted = match how {
            How::Masked => self.lines.load(Ordering::Relaxed) != 0,
            How::Open | How::Halt | How::Guest => self.take_interrupts(),
        };
        interrupted || self.is_triggered(how)
    }

    /// One idle entry, or one entry into the guest, as the core makes it. Gives the events, or nothing if it sleeps on.
    pub fn idle_once(&self, how: How) -> Option<Events> {
        let committed = self
            .word
            .commit(self, how.state(), CStateFlags::empty(), how.monitored());
        if committed.is_ok() && !self.sleep(how) {
            return None;
        }
        self.wake_up(how, committed.is_ok());
        Some(self.word.take())
    }

    /// One entry into the guest, which exits at once for something that is answered without leaving it: `answer`. It is entered
    /// again, unless the word has an event.
    pub fn enter_and_answer(&self, answer: impl FnOnce()) -> Option<Events> {
        if self.word.publish(SleepState::Guest).is_ok() {
            point();
            answer();
            let look = !is_wrong(MachineMutant::AnswerUnchecked);
            if !(look && self.word.is_pending()) && !self.sleep(How::Guest) {
                return None;
            }
            // What it leaves the guest by has models of its own: here it would only multiply the orders.
            self.wake_up(How::Guest, false);
        }
        Some(self.word.take())
    }

    /// One entry into a guest whose processor takes what was posted by itself when it is notified: by `take`.
    pub fn enter_posted(&self, take: impl FnOnce()) -> Option<Events> {
        if self.word.publish(SleepState::Guest).is_ok() {
            point();
            let notified = self.lines.load(Ordering::Relaxed) & NOTIFICATION != 0;
            if notified {
                self.lines.fetch_and(!NOTIFICATION, Ordering::Relaxed);
                fence(Ordering::Acquire);
                take();
            }
            if !self.sleep(How::Guest) {
                return None;
            }
            self.wake_up(How::Guest, true);
        }
        Some(self.word.take())
    }

    fn wake_up(&self, how: How, entered: bool) {
        self.own.armed.set(None);
        if how == How::Masked {
            self.take_interrupts();
        }
        if how == How::Guest && entered {
            self.word.leave_guest();
        }
    }

    /// After all threads have ended: goes on if something is on its way. Gives the events that it woke to.
    pub fn settle(&self) -> Option<Events> {
        if let Some(how) = self.own.asleep.get() {
            if !self.is_woken(how) {
                let pending = self.word.pending();
                property!(
                    pending.is_empty(),
                    "lost wakeup",
                    "a CPU sleeps ({how:?}) on {pending:?}, and nothing is on its way"
                );
                return None;
            }
            self.own.asleep.set(None);
            self.wake_up(how, true);
        }
        Some(self.word.take())
    }

    /// A CPU whose run has not ended with its sleep: has something woken it now? Gives the events.
    pub fn try_wake(&self, how: How) -> Option<Events> {
        self.is_woken(how).then(|| {
            self.own.asleep.set(None);
            self.wake_up(how, true);
            self.word.take()
        })
    }

    /// Whether its run has ended in a sleep.
    pub fn is_asleep(&self) -> bool {
        self.own.asleep.get().is_some()
    }
}

impl Sleeper for Cpu {
    fn interrupt_in_service(&self) -> bool {
        false
    }
    fn bus_master_active(&self) -> bool {
        false
    }
    fn prepare(&self, _flags: CStateFlags) {
        point();
    }
    fn recover(&self, _flags: CStateFlags) {}
    fn arm_monitor(&self, word: &WakeWord) {
        point();
        self.own.armed.set(Some(word.value()));
    }
    fn mwait(&self, _hint: MwaitHint, _gate: IrqGate) {}
    fn halt(&self) {}
    fn io_read(&self, _port: u16, _settle: bool) {}
    fn poll(&self) {}
    fn interrupt_window(&self) {
        self.take_interrupts();
    }
    fn take_first_irq(&self) -> Option<Ticks> {
        None
    }
}
