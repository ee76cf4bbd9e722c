//! Threads of a model, whichever of the two checkers runs it.

use super::explore;

pub enum JoinHandle {
    Loom(loom::thread::JoinHandle<()>),
    Explored(usize),
}

pub fn spawn(body: impl FnOnce() + 'static) -> JoinHandle {
    if explore::is_on() {
        JoinHandle::Explored(explore::spawn(body))
    } else {
        JoinHandle::Loom(loom::thread::spawn(body))
    }
}

impl JoinHandle {
    pub fn join(self) {
        match self {
            Self::Loom(handle) => handle.join().unwrap(),
            Self::Explored(thread) => explore::join(thread),
        }
    }
}

/// Lets others go on. Under the explorer, until something has changed.
pub fn wait_for_change() {
    if explore::is_on() {
        explore::wait_for_change();
    } else {
        loom::thread::yield_now();
    }
}

/// A thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Id {
    Loom(loom::thread::ThreadId),
    Explored(usize),
}

/// The thread that runs this.
pub fn current() -> Id {
    if explore::is_on() {
        Id::Explored(explore::current())
    } else {
        Id::Loom(loom::thread::current().id())
    }
}
