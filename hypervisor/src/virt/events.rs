//! Events that wait to be injected into a guest, whichever vendor's processor delivers them.
//!
//! Invariant: an interrupt or NMI that was accepted is never dropped; it leaves the queue when an exit shows that it was
//! delivered. At most one of each kind waits; an exception goes first, as it belongs to the instruction at hand.

use super::Injection;

const DOUBLE_FAULT: u8 = 8;
const PAGE_FAULT: u8 = 14;

/// What becomes of an exception raised while another was being delivered (AMD APM vol. 2, table 8-4; SDM vol. 3, table 7-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combined {
    Second,
    DoubleFault,
    Shutdown,
}

fn combine(first: u8, second: u8) -> Combined {
    let contributory = |vector| matches!(vector, 0 | 10..=13 | 21);
    match (first, second) {
        (DOUBLE_FAULT, second) if contributory(second) || second == PAGE_FAULT => {
            Combined::Shutdown
        }
        (PAGE_FAULT, second) if contributory(second) || second == PAGE_FAULT => {
            Combined::DoubleFault
        }
        (first, second) if contributory(first) && contributory(second) => Combined::DoubleFault,
        _ => Combined::Second,
    }
}

/// Events that wait for the next entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventQueue {
    exception: Option<Injection>,
    /// Interrupt or NMI whose delivery was interrupted, or just queued.
    asynchronous: Option<Injection>,
    shutdown: bool,
}

impl EventQueue {
    /// Whether anything waits.
    pub fn is_pending(&self) -> bool {
        self.exception.is_some() || self.asynchronous.is_some() || self.shutdown
    }

    /// Whether exceptions piled up to a triple fault.
    pub fn is_shutdown(&self) -> bool {
        self.shutdown
    }

    /// Queues an event.
    pub fn push(&mut self, event: Injection) {
        let Injection::Exception { vector, .. } = event else {
            debug_assert!(
                self.asynchronous.is_none(),
                "{event:?} queued over {:?}",
                self.asynchronous
            );
            self.asynchronous = Some(event);
            return;
        };
        let combined = match self.exception {
            Some(Injection::Exception { vector: first, .. }) => combine(first, vector),
            _ => Combined::Second,
        };
        match combined {
            Combined::Second => self.exception = Some(event),
            Combined::DoubleFault => {
                self.exception = Some(Injection::Exception {
                    vector: DOUBLE_FAULT,
                    error: Some(0),
                })
            }
            Combined::Shutdown => self.shutdown = true,
        }
    }

    /// The event to inject at the next entry.
    pub fn first(&self) -> Option<Injection> {
        self.exception.or(self.asynchronous)
    }

    /// An entry with [`first`](Self::first) has taken place; `interrupted` is the event whose delivery the exit interrupted, if any.
    pub fn entered(&mut self, interrupted: Option<Injection>) {
        if self.exception.take().is_none() {
            self.asynchronous = None;
        }
        match interrupted {
            Some(event @ Injection::Exception { .. }) => self.exception = Some(event),
            // The slot is free: while something waits in it, the guest takes no other interrupt or NMI before the next exit,
            // except after an exception went first; then the waiting one is older and the guest's own cannot exist, because
            // virtual interrupts come from this queue only.
            Some(event) => self.asynchronous = Some(event),
            None => {}
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PF: Injection = Injection::Exception {
        vector: 14,
        error: Some(2),
    };
    const DF: Injection = Injection::Exception {
        vector: 8,
        error: Some(0),
    };

    #[test]
    fn an_interrupt_whose_delivery_faulted_comes_after_the_exception() {
        let mut queue = EventQueue::default();
        queue.push(Injection::Interrupt(0x40));
        queue.entered(Some(Injection::Interrupt(0x40)));
        assert!(queue.is_pending());
        queue.push(Injection::Exception {
            vector: 17,
            error: Some(0),
        });
        assert_eq!(
            queue.first(),
            Some(Injection::Exception {
                vector: 17,
                error: Some(0)
            })
        );
        queue.entered(None);
        assert_eq!(queue.first(), Some(Injection::Interrupt(0x40)));
        queue.entered(None);
        assert!(!queue.is_pending());
    }

    #[test]
    fn exceptions_combine_as_in_hardware() {
        let raise = |first, second| {
            let mut queue = EventQueue::default();
            queue.push(first);
            queue.entered(Some(first));
            queue.push(second);
            if queue.is_shutdown() {
                None
            } else {
                queue.first()
            }
        };
        assert_eq!(raise(PF, Injection::GP0), Some(DF));
        assert_eq!(raise(PF, PF), Some(DF));
        assert_eq!(raise(Injection::GP0, PF), Some(PF));
        assert_eq!(raise(Injection::GP0, Injection::GP0), Some(DF));
        assert_eq!(raise(DF, PF), None);
        assert_eq!(raise(Injection::UD, Injection::GP0), Some(Injection::GP0));
        let ac = Injection::Exception {
            vector: 17,
            error: Some(0),
        };
        assert_eq!(raise(PF, ac), Some(ac));
    }
}
