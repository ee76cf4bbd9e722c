//! What the model asks of a wake protocol, so that the real one and its mutants run on the same machine.

use lull_core::wake::{Events, SleepState, Wake, WakeWord};

/// A wake protocol.
pub trait Protocol: Send + Sync + 'static {
    /// A CPU that is awake.
    fn new() -> Self;
    /// A waker's side.
    fn post(&self, events: Events) -> Wake;
    /// The last check. `false` if the CPU must not sleep.
    fn publish(&self, state: SleepState) -> bool;
    /// The look after the monitor was armed.
    fn is_pending(&self) -> bool;
    /// Back to AWAKE.
    fn take(&self) -> Events;
    /// What the monitor hardware sees.
    fn value(&self) -> u64;
}

impl Protocol for WakeWord {
    fn new() -> Self {
        WakeWord::new()
    }

    fn post(&self, events: Events) -> Wake {
        WakeWord::post(self, events)
    }

    fn publish(&self, state: SleepState) -> bool {
        WakeWord::publish(self, state).is_ok()
    }

    fn is_pending(&self) -> bool {
        WakeWord::is_pending(self)
    }

    fn take(&self) -> Events {
        WakeWord::take(self)
    }

    fn value(&self) -> u64 {
        WakeWord::value(self)
    }
}
