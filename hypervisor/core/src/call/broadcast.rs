//! A call to many: one descriptor, and a bit for each target.

use super::{CallHost, CallTable, Errand, PerCpu, Wait};
use crate::mutant::mutant;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::CpuSet;
use alloc::boxed::Box;

/// The one broadcast that a CPU may have under way.
pub struct Broadcast {
    state: AtomicU32,
    /// Targets whose bit nobody has accounted for yet.
    left: AtomicU32,
    words: [AtomicU64; 2],
    /// A bit for each CPU that has it to run.
    targets: Box<[AtomicU64]>,
}

const FREE: u32 = 0;
/// Under way, and somebody waits.
const AWAITED: u32 = 1;
/// Under way, and nobody waits.
const SENT: u32 = 2;
const DONE: u32 = 3;

/// A bit for each CPU, all clear.
pub fn bits(cpus: usize) -> Box<[AtomicU64]> {
    (0..cpus.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

const fn bit_of(cpu: usize) -> (usize, u64) {
    (cpu / 64, 1 << (cpu % 64))
}

impl Broadcast {
    pub fn new(cpus: usize) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            left: AtomicU32::new(0),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            targets: bits(cpus),
        }
    }

    /// The caller's side: it is its own, if it is free. Acquires: all targets have read what was in it.
    pub fn claim(&self) -> Option<()> {
        (self.state.load(Ordering::Acquire) == FREE).then_some(())
    }

    /// The caller's side: have all run it? Acquires what they have written.
    pub fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    /// The caller's side: it is its own again.
    pub fn give_back(&self) {
        self.state.store(FREE, Ordering::Relaxed);
    }

    fn fill(&self, words: [u64; 2], wait: Wait, targets: u32) {
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.left.store(targets, Ordering::Relaxed);
        let state = match wait {
            Wait::UntilDone => AWAITED,
            Wait::No => SENT,
        };
        self.state.store(state, Ordering::Relaxed);
    }

    /// Releases what was filled in to these targets: from here on they may run it.
    fn set_targets(&self, targets: &CpuSet) {
        for (index, word) in self.targets.iter().enumerate() {
            word.store(targets.word(index), Ordering::Release);
        }
    }

    /// Clears a target's bit. `true` if this call did: then the caller accounts for it. Acquires what was filled in.
    fn claim_target(&self, cpu: usize) -> bool {
        let (word, bit) = bit_of(cpu);
        let Some(targets) = self.targets.get(word) else {
            return false;
        };
        // The common case of a broadcast to others costs no write.
        if targets.load(Ordering::Relaxed) & bit == 0 {
            return false;
        }
        if mutant!(BroadcastClaimsLate) {
            targets.load(Ordering::Acquire);
            return true;
        }
        targets.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }
}

impl<E: Errand> CallTable<E> {
    /// Sends the caller's broadcast, which it has claimed. Gives the targets that were reached.
    pub(super) fn send(
        &self,
        host: &impl CallHost<E>,
        me: usize,
        own: &PerCpu,
        targets: &CpuSet,
        errand: E,
        wait: Wait,
    ) -> CpuSet {
        let mut reached = targets.intersection(&CpuSet::first(self.cpus.len()));
        own.broadcast
            .fill(errand.to_words(), wait, reached.len() as u32);
        let (word, bit) = bit_of(me);
        self.broadcasting[word].fetch_or(bit, Ordering::Relaxed);
        if !mutant!(BroadcastRingsFirst) {
            own.broadcast.set_targets(&reached);
        }
        let mut to_wake = CpuSet::EMPTY;
        let mut closed = CpuSet::EMPTY;
        for target in reached.iter() {
            match self.cpus[target.index()].queue.ring() {
                Ok(true) => {
                    to_wake.insert(target);
                }
                Ok(false) => {}
                Err(_) => {
                    closed.insert(target);
                }
            }
        }
        if mutant!(BroadcastRingsFirst) {
            own.broadcast.set_targets(&reached);
        }
        host.wake_many(&to_wake);
        for target in closed.iter() {
            // It may have run it in its last look, after all.
            if own.broadcast.claim_target(target.index()) {
                reached.remove(target);
                self.account(me, own);
            }
        }
        if reached.is_empty() && targets_never_existed(targets, self.cpus.len()) {
            self.finish(me, own);
        }
        reached
    }

    /// Runs all broadcasts that this CPU is a target of.
    pub(super) fn run_broadcasts(&self, host: &impl CallHost<E>, own: &PerCpu) {
        let me = host.cpu().index();
        for (index, word) in self.broadcasting.iter().enumerate() {
            let mut callers = word.load(Ordering::Relaxed);
            while callers != 0 {
                let caller = index * 64 + callers.trailing_zeros() as usize;
                callers &= callers - 1;
                if let Some(from) = self.cpus.get(caller)
                    && from.broadcast.claim_target(me)
                {
                    self.run_broadcast(host, own, caller, from);
                }
            }
        }
    }

    fn run_broadcast(&self, host: &impl CallHost<E>, own: &PerCpu, caller: usize, from: &PerCpu) {
        let broadcast = &from.broadcast;
        let words = core::array::from_fn(|word| broadcast.words[word].load(Ordering::Relaxed));
        let wait = match broadcast.state.load(Ordering::Relaxed) {
            AWAITED => Wait::UntilDone,
            _ => Wait::No,
        };
        self.run(host, own, words, wait, || {
            if mutant!(BroadcastClaimsLate) {
                let (word, bit) = bit_of(host.cpu().index());
                broadcast.targets[word].fetch_and(!bit, Ordering::AcqRel);
            }
            self.account(caller, from)
        });
    }

    /// One target less. Whoever accounts for the last hands the descriptor back.
    fn account(&self, caller: usize, from: &PerCpu) {
        // Acquires what the other targets have written, to release it together with the own.
        if from.broadcast.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish(caller, from);
        }
    }

    fn finish(&self, caller: usize, from: &PerCpu) {
        let (word, bit) = bit_of(caller);
        self.broadcasting[word].fetch_and(!bit, Ordering::Relaxed);
        let state = match from.broadcast.state.load(Ordering::Relaxed) {
            AWAITED => DONE,
            _ => FREE,
        };
        from.broadcast.state.store(state, Ordering::Release);
    }
}

/// Is none of them a CPU of this machine? Then nobody accounts for the last.
fn targets_never_existed(targets: &CpuSet, cpus: usize) -> bool {
    targets.intersection(&CpuSet::first(cpus)).is_empty()
}
