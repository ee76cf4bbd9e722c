//! One CPU that sleeps, as a small machine that orders no memory: an interrupt line, a monitor, and HLT and MWAIT.
//!
//! The interrupt flag needs no variable: the sleeper's interrupts are off everywhere but inside the sleep, and the STI
//! shadow makes "open" and "asleep" one step. So an interrupt that comes earlier is pending, and ends the sleep at once.

use super::protocol::Protocol;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use lull_core::wake::{Events, SleepState, Wake};

/// How the CPU sleeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Halt,
    Mwait,
    Guest,
    /// The first sleep by MWAIT, the others by HLT.
    MwaitThenHalt,
}

/// One CPU and its wake protocol.
pub struct Machine<P> {
    protocol: P,
    /// The event-check interrupt, pending.
    interrupt: AtomicBool,
    /// What the wakers of event bits 0 and 1 have to say: written before the post, read after the take.
    data: [AtomicUsize; 2],
}

impl<P: Protocol> Machine<P> {
    pub fn new() -> Self {
        Self {
            protocol: P::new(),
            interrupt: AtomicBool::new(false),
            data: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    /// Another CPU's side: data, post, and the interrupt if it is owed.
    pub fn wake(&self, event: Events) {
        self.data[event.bits().trailing_zeros() as usize].store(1, Ordering::Relaxed);
        if self.protocol.post(event) == Wake::SendIpi {
            self.interrupt.swap(true, Ordering::Relaxed);
        }
    }

    /// The CPU's own side: sleep, as often as it takes, until all of `wanted` has come.
    pub fn sleep_until(&self, method: Method, wanted: Events) {
        let mut taken = Events::empty();
        let mut sleeps = 0;
        while !taken.contains(wanted) {
            match method {
                Method::Halt => self.halt(SleepState::Halted),
                Method::Guest => self.halt(SleepState::Guest),
                Method::Mwait => self.mwait(),
                Method::MwaitThenHalt if sleeps == 0 => self.mwait(),
                Method::MwaitThenHalt => self.halt(SleepState::Halted),
            }
            sleeps += 1;
            let events = self.protocol.take();
            for event in events.iter() {
                let data = &self.data[event.bits().trailing_zeros() as usize];
                assert_eq!(
                    data.load(Ordering::Relaxed),
                    1,
                    "the event came without its data"
                );
            }
            taken |= events;
        }
    }

    fn halt(&self, state: SleepState) {
        if self.protocol.publish(state) {
            while !self.take_interrupt() {
                thread::yield_now();
            }
        }
    }

    fn mwait(&self) {
        if !self.protocol.publish(SleepState::Watching) {
            return;
        }
        let armed = self.protocol.value();
        if self.protocol.is_pending() {
            return;
        }
        while self.protocol.value() == armed && !self.take_interrupt() {
            thread::yield_now();
        }
    }

    /// The interrupt line is the hardware's, not memory: both ends use read-modify-writes, which see the newest value
    /// and, being relaxed, order nothing else.
    fn take_interrupt(&self) -> bool {
        self.interrupt.swap(false, Ordering::Relaxed)
    }
}
