//! From the last check to the edge of the sleep: the part of the idle path whose order is what makes it right.

use super::{Events, SleepState, WakeWord};
use crate::cstate::CStateFlags;
use crate::mutant::mutant;
use crate::platform::Sleeper;

/// Why a CPU must not sleep now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAsleep {
    /// Events were pending at the last check: nothing was published, nothing prepared.
    Pending(Events),
    /// An event came between the last check and the arming of the monitor. What was prepared has been undone; the word
    /// still says that the CPU sleeps, until it is taken.
    Armed,
}

impl WakeWord {
    /// Publishes `state`, prepares, and (if `monitored`) arms the monitor on this word and looks once more. With interrupts off.
    ///
    /// After `Ok` the caller sleeps at once, by an instruction that opens interrupts only together with the sleep; whatever it
    /// comes to, [`take`](Self::take) follows.
    ///
    /// # Errors
    /// An event is pending: the CPU must not sleep, and must take and handle it.
    #[inline]
    pub fn commit<S: Sleeper>(
        &self,
        sleeper: &S,
        state: SleepState,
        flags: CStateFlags,
        monitored: bool,
    ) -> Result<(), NotAsleep> {
        let state = if mutant!(WatchingWhateverItDoes) {
            SleepState::Watching
        } else {
            state
        };
        self.publish(state).map_err(NotAsleep::Pending)?;
        sleeper.prepare(flags);
        if monitored {
            if mutant!(CheckBeforeArming) && self.is_pending() {
                sleeper.recover(flags);
                return Err(NotAsleep::Armed);
            }
            if mutant!(InterruptsOpenBeforeMonitor) {
                sleeper.interrupt_window();
            }
            sleeper.arm_monitor(self);
            let blind =
                mutant!(NoCheckAfterArming | CheckBeforeArming | InterruptsOpenBeforeMonitor);
            if !blind && self.is_pending() {
                sleeper.recover(flags);
                return Err(NotAsleep::Armed);
            }
        }
        Ok(())
    }
}
