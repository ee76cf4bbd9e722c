//! Cross-CPU calls: run a function on another CPU, on several, or on all; wait for it or not.
//!
//! Each CPU has a queue that anybody may add to and that only it empties, and a few **slots** of its own, in which it hands out
//! its calls: a slot is linked into the target's queue by its number, so no call allocates, and none takes a lock. A call to
//! many is one descriptor of the caller with a bit for each target; a target finds it by its **doorbell**, a bit of its queue's
//! head. So memory is a constant for each CPU, and a bit for each pair.
//!
//! Invariants:
//! - The head of a queue is one word: the newest slot, the doorbell, and whether the queue is closed. Adding and ringing are
//!   read-modify-writes of it that release what was written before; taking is one that acquires it all.
//! - Whoever finds the queue **empty** owes the wake ([`CallHost::wake`]): the target takes the whole queue at once, so it finds
//!   what was added later, too.
//! - A slot belongs to its CPU while it is free or done, and to the target in between. A waiting call is done **after** its
//!   function has run; one that nobody waits for is free again **before** it runs, as soon as its contents are read.
//! - A target runs a broadcast if it was the one that cleared its bit; the caller clears the bits of targets whose queue it finds
//!   closed. Whoever accounts for the last bit hands the descriptor back.
//! - A CPU that waits serves its own queue meanwhile: two that call each other both get on. So functions run in the middle of
//!   whatever waits, and nobody waits with a lock held ([`held`]). A function may call others, but it never waits: so there is never
//!   more than one function inside of a wait.
//!
//! No lock is involved. Called with interrupts off, and not from interrupt or NMI handlers.

use crate::mutant::mutant;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::held;
use crate::units::{CpuId, CpuSet};
use alloc::boxed::Box;
use core::fmt;
// Of a CPU that nobody else looks at: nothing that the model has to try orders of.
use core::marker::PhantomData;
use core::sync::atomic::AtomicBool;

mod broadcast;
mod queue;

use broadcast::Broadcast;
use queue::{Head, Slot};

/// What is to be done elsewhere, as it travels: two words.
///
/// An `enum` of what a machine does on its CPUs, or a function and its argument.
pub trait Errand: Copy {
    /// As two words.
    fn to_words(self) -> [u64; 2];
    /// From what [`to_words`](Self::to_words) gave, on another CPU.
    fn from_words(words: [u64; 2]) -> Self;
}

/// What the calls ask of the CPU that they are made on, and that they are served on.
pub trait CallHost<E> {
    /// The CPU this runs on.
    fn cpu(&self) -> CpuId;
    /// Posts CALL to another CPU, and interrupts it if nothing less gets its attention.
    fn wake(&self, target: CpuId);
    /// The same for several, with as few interrupts as can be.
    fn wake_many(&self, targets: &CpuSet) {
        for target in targets.iter() {
            self.wake(target);
        }
    }
    /// Does what was asked for, here.
    fn run(&self, errand: E);
    /// One turn of a wait.
    fn relax(&self);
}

/// Whether the caller goes on before the function has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Until it has run, with everything that it has written visible.
    UntilDone,
    /// At once.
    No,
}

/// Why a call was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallError {
    /// The target is offline, or on its way there. Nothing will run.
    Offline(CpuId),
    /// There is no such CPU.
    Unknown(CpuId),
    /// It was made by a function that runs for a call: such a one may not wait.
    WouldNest,
    /// It was made by a function that runs for a call, and earlier calls of this CPU have not been taken yet.
    Busy,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offline(cpu) => write!(f, "{cpu} is offline"),
            Self::Unknown(cpu) => write!(f, "there is no {cpu}"),
            Self::WouldNest => f.write_str("a called function may not wait for another call"),
            Self::Busy => f.write_str("all call slots of this CPU are on their way"),
        }
    }
}

impl core::error::Error for CallError {}

/// Calls of one CPU that may be on their way at once.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 4 };

/// The queues and slots of all CPUs.
pub struct CallTable<E> {
    cpus: Box<[PerCpu]>,
    /// CPUs whose broadcast is under way: what a target looks at when its doorbell has rung.
    broadcasting: Box<[AtomicU64]>,
    errand: PhantomData<fn(E) -> E>,
}

#[repr(align(128))]
struct PerCpu {
    /// Written by callers, emptied by this CPU.
    queue: Head,
    /// Whether this CPU runs a function now. Its own.
    serving: AtomicBool,
    /// Functions that it has run. Its own; anybody reads it.
    served: AtomicU64,
    slots: [Slot; SLOTS],
    broadcast: Broadcast,
}

impl<E: Errand> CallTable<E> {
    /// Queues of CPUs 0 to `cpus - 1`, all of them closed.
    pub fn new(cpus: usize) -> Self {
        Self {
            cpus: (0..cpus)
                .map(|_| PerCpu {
                    queue: Head::closed(),
                    serving: AtomicBool::new(false),
                    served: AtomicU64::new(0),
                    slots: core::array::from_fn(|_| Slot::new()),
                    broadcast: Broadcast::new(cpus),
                })
                .collect(),
            broadcasting: broadcast::bits(cpus),
            errand: PhantomData,
        }
    }

    /// This CPU takes calls from now on. By itself, or before it runs.
    pub fn open(&self, cpu: CpuId) {
        if let Some(own) = self.cpus.get(cpu.index()) {
            own.queue.open();
        }
    }

    /// This CPU takes no more calls: runs what it was asked for until now. By itself; whoever calls it later is told.
    pub fn close(&self, host: &impl CallHost<E>) {
        let Some(own) = self.cpus.get(host.cpu().index()) else {
            return;
        };
        let taken = own.queue.close();
        if mutant!(CallCloseWithoutDrain) {
            return;
        }
        self.run_all(host, own, taken);
        // A caller that found the queue open has set its bit before, whether or not it has rung.
        self.run_broadcasts(host, own);
    }

    /// Has this CPU calls to serve, or a broadcast to look for?
    pub fn is_pending(&self, cpu: CpuId) -> bool {
        self.cpus
            .get(cpu.index())
            .is_some_and(|own| own.queue.is_pending())
    }

    /// How many functions this CPU has run for others.
    pub fn served(&self, cpu: CpuId) -> u64 {
        self.cpus
            .get(cpu.index())
            .map_or(0, |own| own.served.load(Ordering::Relaxed))
    }

    /// Runs what others have asked of this CPU, oldest first. `true` if there was anything.
    pub fn serve(&self, host: &impl CallHost<E>) -> bool {
        let Some(own) = self.cpus.get(host.cpu().index()) else {
            return false;
        };
        if !own.queue.is_pending() {
            return false;
        }
        let taken = own.queue.take();
        self.run_all(host, own, taken);
        if taken.doorbell {
            self.run_broadcasts(host, own);
        }
        true
    }

    /// Calls one CPU. On the own one it runs at once, here.
    ///
    /// # Errors
    /// It was not made, and nothing will run.
    pub fn single(
        &self,
        host: &impl CallHost<E>,
        target: CpuId,
        errand: E,
        wait: Wait,
    ) -> Result<(), CallError> {
        let (me, own) = self.caller(host, wait)?;
        if target.index() == me {
            self.run_here(host, own, errand);
            return Ok(());
        }
        let theirs = self
            .cpus
            .get(target.index())
            .ok_or(CallError::Unknown(target))?;
        let (number, slot) = self.claim(host, me, own)?;
        slot.fill(errand.to_words(), wait);
        match theirs.queue.push(number, slot) {
            Ok(was_empty) => {
                if was_empty {
                    host.wake(target);
                }
            }
            Err(queue::Closed) => {
                slot.give_back();
                return Err(CallError::Offline(target));
            }
        }
        if wait == Wait::UntilDone {
            self.wait(host, || slot.is_done());
            slot.give_back();
        }
        Ok(())
    }

    /// Calls all these CPUs at once; the own one, if it is among them, runs it here, after the others were called. Gives those that
    /// were called: the others are offline, or do not exist.
    ///
    /// # Errors
    /// It was not made, and nothing will run.
    pub fn many(
        &self,
        host: &impl CallHost<E>,
        targets: &CpuSet,
        errand: E,
        wait: Wait,
    ) -> Result<CpuSet, CallError> {
        let (me, own) = self.caller(host, wait)?;
        let mut others = *targets;
        let myself = others.remove(CpuId::new(me as u32));
        let mut called = CpuSet::EMPTY;
        if myself {
            called.insert(CpuId::new(me as u32));
        }
        let mut under_way = false;
        if others.len() == 1 {
            let reached = others
                .iter()
                .filter(|&target| self.single(host, target, errand, wait).is_ok());
            called = called.union(&reached.collect());
        } else if !others.is_empty() {
            self.until_claimed(host, own, || own.broadcast.claim())?;
            let sent = self.send(host, me, own, &others, errand, wait);
            called = called.union(&sent);
            under_way = true;
        }
        if myself {
            self.run_here(host, own, errand);
        }
        if under_way && wait == Wait::UntilDone {
            self.wait(host, || own.broadcast.is_done());
            own.broadcast.give_back();
        }
        Ok(called)
    }

    /// [`many`](Self::many) to every CPU that is online, the own one included.
    ///
    /// # Errors
    /// It was not made, and nothing will run.
    pub fn all(&self, host: &impl CallHost<E>, errand: E, wait: Wait) -> Result<CpuSet, CallError> {
        self.many(host, &CpuSet::first(self.cpus.len()), errand, wait)
    }

    /// The CPU that calls, if it may.
    fn caller(&self, host: &impl CallHost<E>, wait: Wait) -> Result<(usize, &PerCpu), CallError> {
        let me = host.cpu();
        let own = self.cpus.get(me.index()).ok_or(CallError::Unknown(me))?;
        if wait == Wait::UntilDone {
            if own.serving.load(Ordering::Relaxed) {
                return Err(CallError::WouldNest);
            }
            debug_assert!(
                held::count() == 0,
                "{me} waits for a call with {} locks held: what it serves meanwhile may want one of them",
                held::count()
            );
        }
        Ok((me.index(), own))
    }

    fn claim<'a>(
        &self,
        host: &impl CallHost<E>,
        me: usize,
        own: &'a PerCpu,
    ) -> Result<(u32, &'a Slot), CallError> {
        let index = self.until_claimed(host, own, || own.slots.iter().position(Slot::is_free))?;
        Ok((queue::number(me, index), &own.slots[index]))
    }

    /// Serves the own queue until `claim` gives something.
    fn until_claimed<T>(
        &self,
        host: &impl CallHost<E>,
        own: &PerCpu,
        mut claim: impl FnMut() -> Option<T>,
    ) -> Result<T, CallError> {
        loop {
            if let Some(claimed) = claim() {
                return Ok(claimed);
            }
            if own.serving.load(Ordering::Relaxed) {
                return Err(CallError::Busy);
            }
            self.turn(host);
        }
    }

    fn wait(&self, host: &impl CallHost<E>, is_over: impl Fn() -> bool) {
        while !is_over() {
            self.turn(host);
        }
    }

    /// One turn of a wait: whoever waits for this CPU gets on, too.
    fn turn(&self, host: &impl CallHost<E>) {
        let served = !mutant!(CallWaitsDeaf) && self.serve(host);
        if !served {
            host.relax();
        }
    }

    fn run_all(&self, host: &impl CallHost<E>, own: &PerCpu, taken: queue::Taken) {
        let slot_of = |number| {
            let (cpu, index) = queue::place(number);
            self.cpus.get(cpu).map(|cpu| &cpu.slots[index])
        };
        let mut next = queue::oldest_first(taken.newest, slot_of);
        while let Some(slot) = slot_of(next) {
            // The slot may be somebody else's as soon as it is handed back.
            next = slot.next();
            let (words, wait) = slot.contents();
            self.run(host, own, words, wait, || slot.hand_back(wait));
            if mutant!(CallServesOne) {
                return;
            }
        }
    }

    /// Runs a call to the own CPU. It is a function that runs for a call as any other: its caller's broadcast is under way, and
    /// will not be free before it returns.
    fn run_here(&self, host: &impl CallHost<E>, own: &PerCpu, errand: E) {
        let outer = own.serving.load(Ordering::Relaxed);
        own.serving.store(true, Ordering::Relaxed);
        host.run(errand);
        own.serving.store(outer, Ordering::Relaxed);
    }

    /// Runs one call; `hand_back` comes after it, if somebody waits, else before.
    fn run(
        &self,
        host: &impl CallHost<E>,
        own: &PerCpu,
        words: [u64; 2],
        wait: Wait,
        hand_back: impl FnOnce(),
    ) {
        let errand = E::from_words(words);
        let outer = own.serving.load(Ordering::Relaxed);
        own.serving.store(true, Ordering::Relaxed);
        if wait == Wait::No || mutant!(CallDoneBeforeRun) {
            hand_back();
            host.run(errand);
        } else {
            host.run(errand);
            hand_back();
        }
        own.serving.store(outer, Ordering::Relaxed);
        let served = own.served.load(Ordering::Relaxed);
        own.served.store(served.wrapping_add(1), Ordering::Relaxed);
    }
}

impl<E> fmt::Debug for CallTable<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallTable")
            .field("cpus", &self.cpus.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
