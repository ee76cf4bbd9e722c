//! NMI: register dumps on request, and the stop of a panicking machine. Nothing else sends NMIs.
//!
//! The handler takes no lock and prints nothing: it leaves its frame for whoever asked. The state of the
//! wake words is never touched from here.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::trap::TrapFrame;

/// What one CPU's NMI handler is asked, and what it answered.
pub struct NmiState {
    /// Sequence number of the last dump asked for.
    asked: AtomicU32,
    /// Sequence number of the dump in `frame`.
    answered: AtomicU32,
    frame: UnsafeCell<TrapFrame>,
    /// 1 once this CPU has stopped for a panic.
    stopped: AtomicU32,
    count: AtomicU64,
    unknown: AtomicU64,
}

impl NmiState {
    pub(super) const fn new() -> Self {
        Self {
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            frame: UnsafeCell::new(TrapFrame {
                r15: 0,
                r14: 0,
                r13: 0,
                r12: 0,
                r11: 0,
                r10: 0,
                r9: 0,
                r8: 0,
                rbp: 0,
                rdi: 0,
                rsi: 0,
                rbx: 0,
                rcx: 0,
                rdx: 0,
                rax: 0,
                vector: 0,
                error: 0,
                rip: 0,
                cs: 0,
                rflags: 0,
                rsp: 0,
                ss: 0,
            }),
            stopped: AtomicU32::new(0),
            count: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        }
    }

    /// NMIs taken so far, and how many of them nobody here had asked for.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (
            self.count.load(Ordering::Relaxed),
            self.unknown.load(Ordering::Relaxed),
        )
    }

    /// Asks for the registers at the next NMI. Gives the ticket for [`Self::answer`].
    #[must_use]
    pub fn ask(&self) -> u32 {
        self.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    /// The registers that answered `ticket`, or `None` as long as they are not there.
    ///
    /// One asker at a time: the console's lock upholds that.
    #[must_use]
    pub fn answer(&self, ticket: u32) -> Option<TrapFrame> {
        #![expect(unsafe_code, reason = "the frame is handed over by a sequence number")]
        if self.answered.load(Ordering::Acquire) != ticket {
            return None;
        }
        // SAFETY: the handler writes the frame only while `asked` differs from `answered`, and it wrote it
        // before it published this ticket; only the asker changes `asked`, and the asker is here.
        Some(unsafe { *self.frame.get() })
    }

    /// Has this CPU stopped for a panic?
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) != 0
    }

    #[cfg(target_os = "none")]
    pub(crate) fn set_stopped(&self) {
        self.stopped.store(1, Ordering::Release);
    }

    /// What the handler does, without the stop.
    pub(super) fn serve(&self, frame: &TrapFrame) {
        #![expect(unsafe_code, reason = "the frame is handed over by a sequence number")]
        self.count
            .store(self.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let asked = self.asked.load(Ordering::Acquire);
        if asked == self.answered.load(Ordering::Relaxed) {
            self.unknown
                .store(self.unknown.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return;
        }
        // SAFETY: only this CPU's handler writes the frame, NMIs do not nest, and the asker reads it only after
        // the ticket below.
        unsafe { *self.frame.get() = *frame };
        self.answered.store(asked, Ordering::Release);
    }
}

#[cfg(target_os = "none")]
pub(super) fn handle(frame: &mut TrapFrame) {
    let cpu = super::this();
    if crate::panic::in_progress() {
        cpu.nmi.set_stopped();
        super::sleep::stop_for_ever();
    }
    cpu.nmi.serve(frame);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_the_frame_of_its_own_ticket() {
        let state = NmiState::new();
        let ticket = state.ask();
        assert!(state.answer(ticket).is_none());
        state.serve(&TrapFrame {
            rip: 7,
            ..TrapFrame::default()
        });
        assert_eq!(state.answer(ticket).map(|f| f.rip), Some(7));
        let second = state.ask();
        assert!(
            state.answer(second).is_none(),
            "the old frame does not answer a new ticket"
        );
        assert_eq!(state.counts(), (1, 0));
    }

    #[test]
    fn an_nmi_that_nobody_asked_for_is_counted() {
        let state = NmiState::new();
        state.serve(&TrapFrame::default());
        assert_eq!(state.counts(), (1, 1));
    }
}
