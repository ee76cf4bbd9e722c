//! Many posts, and their interrupts together.

use super::{Events, Origin, Wake, WakeWord};
use crate::mutant::mutant;
use crate::units::{CpuId, CpuSet};

/// The CPUs that posts of one batch owe an interrupt. From the first [`post`](Self::post) to the sending of what
/// [`due`](Self::due) gives, interrupts are off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    owed: CpuSet,
}

impl Batch {
    /// No posts yet.
    pub const fn new() -> Self {
        Self {
            owed: CpuSet::EMPTY,
        }
    }

    /// Posts to one CPU, and keeps in mind what it owes.
    pub fn post(&mut self, cpu: CpuId, word: &WakeWord, events: Events, origin: Origin) -> Wake {
        let wake = word.post_batched(events, origin);
        if wake.needs_ipi() {
            self.owed.insert(cpu);
        }
        wake
    }

    /// The CPUs to interrupt now. Those that took their events meanwhile are left out: they have seen them all.
    #[must_use = "these CPUs are owed an interrupt"]
    pub fn due<'a>(self, word_of: impl Fn(CpuId) -> Option<&'a WakeWord>) -> CpuSet {
        let pending = |&cpu: &CpuId| word_of(cpu).is_some_and(WakeWord::is_pending);
        let due: CpuSet = self.owed.iter().filter(pending).collect();
        if mutant!(BatchForgets) {
            let kept = due.len().saturating_sub(1);
            return due.iter().take(kept).collect();
        }
        due
    }
}
