//! The ways to wake a thread: the wake word, and what standard library and system offer.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    sync::{
        Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, Thread},
};

use anyhow::{Context, Result};
use lull_core::wake::{Events, SleepState, WakeWord};
use nix::{
    sys::eventfd::{EfdFlags, EventFd},
    unistd::{Pid, gettid},
};

use super::cores::Cores;

/// Who sleeps.
#[derive(Clone)]
pub struct Known {
    pub id: Pid,
    pub thread: Thread,
}

/// The sleeper, once it has told who it is.
#[derive(Default)]
pub struct Sleeper(OnceLock<Known>);

impl Sleeper {
    /// The calling thread is it.
    pub fn introduce(&self) {
        self.0.get_or_init(|| Known {
            id: gettid(),
            thread: thread::current(),
        });
    }

    /// Waits until it has told.
    pub fn wait(&self, cores: &Cores) -> Known {
        loop {
            if let Some(known) = self.0.get() {
                return known.clone();
            }
            cores.relax();
        }
    }
}

/// Says whether the sleeper of a bell sleeps.
pub type Watcher<B> = Box<dyn FnMut(&B) -> Result<bool>>;

/// A way to wake one thread.
pub trait Bell: Sync {
    const NAME: &'static str;
    /// What the sleeper does until then.
    const SLEEPS: &'static str;

    /// Sleeps until it is rung.
    fn sleep(&self, cores: &Cores);

    /// Rings it.
    fn wake(&self, sleeper: &Thread);

    /// What says whether the thread with this id sleeps.
    ///
    /// # Errors
    /// The system does not say.
    fn watcher(&self, id: Pid) -> Result<Watcher<Self>> {
        let stat = Stat::of(id)?;
        Ok(Box::new(move |_| stat.sleeps()))
    }
}

/// What the kernel knows of a thread.
struct Stat(File);

impl Stat {
    fn of(id: Pid) -> Result<Self> {
        let path = format!("/proc/self/task/{id}/stat");
        let file = File::open(&path).with_context(|| format!("cannot read {path}"))?;
        Ok(Self(file))
    }

    fn sleeps(&self) -> Result<bool> {
        let mut text = [0; 512];
        let length = self
            .0
            .read_at(&mut text, 0)
            .context("the state of the sleeping thread cannot be read")?;
        Ok(is_asleep(text.get(..length).unwrap_or_default()))
    }
}

/// Is the state in a line of `/proc/PID/stat` (proc_pid_stat(5): after the name in parentheses) an interruptible sleep?
fn is_asleep(stat: &[u8]) -> bool {
    let name_ends = stat.iter().rposition(|&byte| byte == b')');
    name_ends.is_some_and(|end| stat.get(end + 1..end + 3) == Some(b" S"))
}

/// The wake word, watched: as by MWAIT or POLL.
pub struct Watched(WakeWord);

impl Watched {
    pub fn new() -> Self {
        Self(WakeWord::new())
    }
}

impl Bell for Watched {
    const NAME: &'static str = "wake word, watched";
    const SLEEPS: &'static str = "looks at its word";

    fn sleep(&self, cores: &Cores) {
        if self.0.publish(SleepState::Watching).is_ok() {
            while !self.0.is_pending() {
                cores.relax();
            }
        }
        self.0.take();
    }

    fn wake(&self, sleeper: &Thread) {
        if self.0.post(Events::CALL).needs_ipi() {
            sleeper.unpark();
        }
    }

    fn watcher(&self, _: Pid) -> Result<Watcher<Self>> {
        Ok(Box::new(|bell| {
            Ok(bell.0.state() == SleepState::Watching && !bell.0.is_pending())
        }))
    }
}

/// The least that a wake can be: a number in a line of its own, and no word of who sleeps how.
#[repr(align(128))]
pub struct Line(AtomicU64);

/// A store that is watched.
pub struct Flag {
    rung: Line,
    /// The number that the sleeper waits for next.
    awaited: Line,
}

impl Flag {
    pub fn new() -> Self {
        Self {
            rung: Line(AtomicU64::new(0)),
            awaited: Line(AtomicU64::new(0)),
        }
    }
}

impl Bell for Flag {
    const NAME: &'static str = "bare store, watched";
    const SLEEPS: &'static str = "looks at a number";

    fn sleep(&self, cores: &Cores) {
        let next = self.rung.0.load(Ordering::Acquire) + 1;
        self.awaited.0.store(next, Ordering::Release);
        while self.rung.0.load(Ordering::Acquire) < next {
            cores.relax();
        }
    }

    fn wake(&self, _: &Thread) {
        let next = self.awaited.0.load(Ordering::Relaxed);
        self.rung.0.store(next, Ordering::Release);
    }

    fn watcher(&self, _: Pid) -> Result<Watcher<Self>> {
        Ok(Box::new(|bell| {
            Ok(bell.awaited.0.load(Ordering::Acquire) > bell.rung.0.load(Ordering::Relaxed))
        }))
    }
}

/// The wake word, halted: the interrupt is an `unpark`.
pub struct WordOverPark(WakeWord);

impl WordOverPark {
    pub fn new() -> Self {
        Self(WakeWord::new())
    }
}

impl Bell for WordOverPark {
    const NAME: &'static str = "wake word, halted";
    const SLEEPS: &'static str = "in the kernel (park)";

    fn sleep(&self, _: &Cores) {
        if self.0.publish(SleepState::Halted).is_ok() {
            while !self.0.is_pending() {
                thread::park();
            }
        }
        self.0.take();
    }

    fn wake(&self, sleeper: &Thread) {
        if self.0.post(Events::CALL).needs_ipi() {
            sleeper.unpark();
        }
    }
}

/// `thread::park` and `unpark`.
pub struct Park(AtomicU64);

impl Park {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Bell for Park {
    const NAME: &'static str = "park, unpark";
    const SLEEPS: &'static str = "in the kernel (park)";

    fn sleep(&self, _: &Cores) {
        while self.0.swap(0, Ordering::Acquire) == 0 {
            thread::park();
        }
    }

    fn wake(&self, sleeper: &Thread) {
        self.0.store(1, Ordering::Release);
        sleeper.unpark();
    }
}

/// A condition variable.
pub struct Condition {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Condition {
    pub fn new() -> Self {
        Self {
            rung: Mutex::new(false),
            changed: Condvar::new(),
        }
    }
}

impl Bell for Condition {
    const NAME: &'static str = "mutex and condvar";
    const SLEEPS: &'static str = "in the kernel (futex)";

    fn sleep(&self, _: &Cores) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(rung, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner) = false;
    }

    fn wake(&self, _: &Thread) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

/// An eventfd.
pub struct Counter(EventFd);

impl Counter {
    /// # Errors
    /// The system gives out none.
    pub fn new() -> Result<Self> {
        let counter = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC);
        Ok(Self(counter.context("the system offers no eventfd")?))
    }
}

impl Bell for Counter {
    const NAME: &'static str = "eventfd";
    const SLEEPS: &'static str = "in the kernel (read)";

    fn sleep(&self, _: &Cores) {
        // A signal may end it early.
        while self.0.read().is_err() {}
    }

    fn wake(&self, _: &Thread) {
        // It can only fail where the counter is full, and then wakes as well.
        let _: nix::Result<usize> = self.0.write(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_behind_the_name_whatever_that_has_in_it() {
        assert!(is_asleep(b"17 (a thread) S 1 2 3"));
        assert!(is_asleep(b"17 (a) R (b) S 1 2 3"));
        assert!(!is_asleep(b"17 (S) R 1 2 3"));
        assert!(!is_asleep(b"17 (a) D 1"));
        assert!(!is_asleep(b"") && !is_asleep(b"17 (a)"));
    }
}
