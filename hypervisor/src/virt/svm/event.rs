//! Events on their way into a guest: the queue before entry, and what an exit interrupted (AMD APM vol. 2, 15.20 and 15.7.2).
//!
//! Invariant: an interrupt or NMI that was accepted is never dropped; it leaves the queue when an exit shows that it was
//! delivered. At most one of each kind waits; an exception goes first, as it belongs to the instruction at hand.

use crate::virt::{Exit, Injection};

const TYPE_SHIFT: u32 = 8;
const TYPE_INTERRUPT: u64 = 0;
const TYPE_NMI: u64 = 2;
const TYPE_EXCEPTION: u64 = 3;
const HAS_ERROR: u64 = 1 << 11;
const VALID: u64 = 1 << 31;
const ERROR_SHIFT: u32 = 32;

const DOUBLE_FAULT: u8 = 8;
const PAGE_FAULT: u8 = 14;

/// The form of EVENTINJ.
pub fn encode(event: Injection) -> u64 {
    match event {
        Injection::Interrupt(vector) => VALID | TYPE_INTERRUPT << TYPE_SHIFT | u64::from(vector),
        Injection::Nmi => VALID | TYPE_NMI << TYPE_SHIFT | 2,
        Injection::Exception { vector, error } => {
            let error = error.map_or(0, |code| HAS_ERROR | u64::from(code) << ERROR_SHIFT);
            VALID | TYPE_EXCEPTION << TYPE_SHIFT | u64::from(vector) | error
        }
    }
}

/// What of EXITINTINFO must be injected again. Software interrupts and #BP, #OF come of instructions that run again by themselves:
/// RIP still points to them. Without the valid bit the rest is stale.
pub fn interrupted_delivery(exit_int_info: u64) -> Option<Injection> {
    if exit_int_info & VALID == 0 {
        return None;
    }
    let vector = exit_int_info as u8;
    match exit_int_info >> TYPE_SHIFT & 0b111 {
        TYPE_INTERRUPT => Some(Injection::Interrupt(vector)),
        TYPE_NMI => Some(Injection::Nmi),
        TYPE_EXCEPTION if !matches!(vector, 3 | 4) => {
            let error =
                (exit_int_info & HAS_ERROR != 0).then_some((exit_int_info >> ERROR_SHIFT) as u32);
            Some(Injection::Exception { vector, error })
        }
        _ => None,
    }
}

/// What becomes of an exception raised while another was being delivered (AMD APM vol. 2, table 8-4).
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

    /// The event to put into EVENTINJ.
    pub fn first(&self) -> Option<Injection> {
        self.exception.or(self.asynchronous)
    }

    /// An entry with [`first`](Self::first) has taken place; `exit_int_info` tells whether its delivery was completed.
    pub fn entered(&mut self, exit_int_info: u64) {
        if self.exception.take().is_none() {
            self.asynchronous = None;
        }
        match interrupted_delivery(exit_int_info) {
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

/// The exit for an exception intercepted by vector.
pub fn intercepted(vector: u8, error: u64) -> Exit {
    Exit::Exception {
        vector,
        error: error as u32,
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
    fn encodes_as_the_manual_says() {
        assert_eq!(encode(Injection::Interrupt(0x31)), 0x8000_0031);
        assert_eq!(encode(Injection::Nmi), 0x8000_0202);
        assert_eq!(encode(Injection::UD), 0x8000_0306);
        assert_eq!(encode(PF), 0x0000_0002_8000_0b0e);
        for event in [
            Injection::Interrupt(0xff),
            Injection::Nmi,
            Injection::UD,
            Injection::GP0,
            PF,
        ] {
            assert_eq!(interrupted_delivery(encode(event)), Some(event));
        }
    }

    #[test]
    fn what_is_stale_or_runs_again_is_not_injected() {
        // QEMU leaves type and vector of a delivery that was completed.
        for stale in [0, 0x30, 0x331, 0x0000_0002_0000_0b0e] {
            assert_eq!(interrupted_delivery(stale), None, "{stale:#x}");
        }
        assert_eq!(interrupted_delivery(0x8000_0480), None, "INT 0x80");
        assert_eq!(interrupted_delivery(0x8000_0303), None, "#BP");
        assert_eq!(interrupted_delivery(0x8000_0304), None, "#OF");
    }

    #[test]
    fn an_interrupt_whose_delivery_faulted_comes_after_the_exception() {
        let mut queue = EventQueue::default();
        queue.push(Injection::Interrupt(0x40));
        queue.entered(encode(Injection::Interrupt(0x40)));
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
        queue.entered(0x311);
        assert_eq!(queue.first(), Some(Injection::Interrupt(0x40)));
        queue.entered(0x40);
        assert!(!queue.is_pending());
    }

    #[test]
    fn exceptions_combine_as_in_hardware() {
        let raise = |first, second| {
            let mut queue = EventQueue::default();
            queue.push(first);
            queue.entered(encode(first));
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
