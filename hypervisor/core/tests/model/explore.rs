//! An explorer of states: every order in which the threads' accesses can come, each state once.
//!
//! A state is the value of all atomics, and what each thread has seen of them so far: threads are deterministic, so that decides
//! where each of them is. Threads are coroutines, switched before each access; memory is sequentially consistent. What the weaker
//! orders of the memory model add is loom's to explore.
//!
//! An execution is repeated up to the last choice that has an alternative, and goes on from there. One that comes to a state that
//! was seen before runs to its end without further choices.
//!
//! A thread that waits gives its turn away until an atomic changes: with all waiting, none ever goes on, which is a deadlock.

#![expect(
    deprecated,
    reason = "they switch from anywhere on a coroutine's stack, as loom does"
)]

use super::check::property;
use generator::{Generator, Gn, yield_with};
use lull_core::sync::watched::{self, Explorer};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

type Coroutine = Generator<'static, (), ()>;

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    Runs,
    /// Until the memory is no longer as it was at this change.
    Yielded(u64),
    /// Until this thread has ended.
    Joins(usize),
    Ended,
}

#[derive(Default)]
struct Execution {
    memory: Vec<u64>,
    /// How often it has changed.
    changes: u64,
    threads: Vec<Thread>,
    /// What each thread has seen.
    seen: Vec<u64>,
    /// The change at which each thread last began to look for one.
    looked: Vec<u64>,
    /// How often each thread has changed the memory.
    own_changes: Vec<u64>,
    /// For each thread: its changes at the beginning of a wait, and what it had seen then.
    anchors: Vec<(u64, u64)>,
    running: usize,
    /// What each thread does, until it has begun.
    bodies: Vec<Option<Box<dyn FnOnce()>>>,
}

/// The explorer of this thread of the host, as the atomics know it.
struct Memory;

std::thread_local! {
    static EXECUTION: RefCell<Execution> = RefCell::default();
    static EXPLORES: Cell<bool> = const { Cell::new(false) };
}

fn with<T>(act: impl FnOnce(&mut Execution) -> T) -> T {
    EXECUTION.with_borrow_mut(act)
}

fn mix(hash: u64, with: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (hash, with).hash(&mut hasher);
    hasher.finish()
}

impl Explorer for Memory {
    fn atomic(&self, value: u64) -> usize {
        with(|execution| {
            execution.memory.push(value);
            execution.memory.len() - 1
        })
    }

    fn turn(&self, _atomic: usize) {
        yield_with(());
    }

    fn accessed(&self, atomic: usize, seen: u64, now: u64) {
        with(|execution| {
            let running = execution.running;
            execution.seen[running] = mix(execution.seen[running], (atomic, seen));
            if execution.memory[atomic] != now {
                execution.memory[atomic] = now;
                execution.changes += 1;
                execution.own_changes[running] += 1;
            }
        });
    }
}

/// Is the body of a model run by this explorer?
pub fn is_on() -> bool {
    EXPLORES.get()
}

/// The number of the thread that runs this.
pub fn current() -> usize {
    with(|execution| execution.running)
}

/// One more thread. Gives its number.
pub fn spawn(body: impl FnOnce() + 'static) -> usize {
    with(|execution| {
        execution.bodies.push(Some(Box::new(body)));
        execution.threads.push(Thread::Runs);
        execution.seen.push(0);
        execution.looked.push(0);
        execution.own_changes.push(0);
        execution.anchors.push((u64::MAX, 0));
        execution.threads.len() - 1
    })
}

/// Until that thread has ended.
pub fn join(thread: usize) {
    with(|execution| execution.threads[execution.running] = Thread::Joins(thread));
    yield_with(());
}

/// Until something has changed since this thread last called this.
pub fn wait_for_change() {
    let waits = with(|execution| {
        let (running, changes) = (execution.running, execution.changes);
        // A turn of a wait that changed nothing leaves the thread where it was before it.
        let (own, seen) = execution.anchors[running];
        if own == execution.own_changes[running] {
            execution.seen[running] = seen;
        } else {
            execution.anchors[running] = (execution.own_changes[running], execution.seen[running]);
        }
        // What it has looked at first may have changed before it looked at the last: it looks once more.
        let waits = execution.looked[running] == changes;
        execution.looked[running] = changes;
        if waits {
            execution.threads[running] = Thread::Yielded(changes);
        }
        waits
    });
    if waits {
        yield_with(());
    }
}

/// A thread that has not begun yet.
fn coroutine() -> Coroutine {
    Gn::new_opt(STACK, || {
        let body = with(|execution| execution.bodies[execution.running].take());
        if let Some(body) = body {
            body();
        }
        generator::done!();
    })
}

/// Of a thread, in words.
const STACK: usize = 0x4000;

struct Choice {
    options: Vec<usize>,
    taken: usize,
}

/// Explores all of `body`; `begin` comes before each execution. Gives the number of states.
pub fn explore(body: impl Fn() + Clone + 'static, begin: impl Fn()) -> u64 {
    let mut path: Vec<Choice> = Vec::new();
    let mut states = HashSet::new();
    EXPLORES.set(true);
    watched::set_explorer(Some(Rc::new(Memory)));
    loop {
        EXECUTION.replace(Execution::default());
        begin();
        spawn(body.clone());
        run(&mut path, &mut states);
        while let Some(last) = path.last_mut() {
            last.taken += 1;
            if last.taken < last.options.len() {
                break;
            }
            path.pop();
        }
        if path.is_empty() {
            break;
        }
    }
    leave();
    states.len() as u64
}

/// No more atomics of this explorer.
pub fn leave() {
    EXPLORES.set(false);
    watched::set_explorer(None);
}

/// One execution: along `path`, and then into the first of all that is new.
fn run(path: &mut Vec<Choice>, states: &mut HashSet<(u64, u64)>) {
    let mut coroutines: Vec<Coroutine> = Vec::new();
    let mut depth = 0;
    let mut known = false;
    loop {
        while coroutines.len() < with(|execution| execution.threads.len()) {
            coroutines.push(coroutine());
        }
        let runnable = with(|execution| execution.runnable());
        let next = match runnable[..] {
            [] => break,
            [only] => only,
            _ if known => runnable[0],
            _ => {
                if depth == path.len() {
                    if states.insert(with(|execution| execution.state())) {
                        path.push(Choice {
                            options: runnable,
                            taken: 0,
                        });
                    } else {
                        known = true;
                        continue;
                    }
                }
                let choice = &path[depth];
                depth += 1;
                choice.options[choice.taken]
            }
        };
        with(|execution| {
            execution.running = next;
            execution.threads[next] = Thread::Runs;
            // A step that makes no access (the first, or one that ends a wait) also leads to another state.
            execution.seen[next] = mix(execution.seen[next], ());
        });
        coroutines[next].resume();
        if coroutines[next].is_done() {
            with(|execution| execution.threads[next] = Thread::Ended);
        }
    }
    let stuck = with(|execution| {
        execution
            .threads
            .iter()
            .filter(|thread| !matches!(thread, Thread::Ended))
            .count()
    });
    property!(
        stuck == 0,
        "no deadlock",
        "{stuck} threads wait, and nobody gets on"
    );
}

impl Execution {
    fn is_runnable(&self, thread: usize) -> bool {
        match self.threads[thread] {
            Thread::Runs => true,
            Thread::Yielded(changes) => self.changes != changes,
            Thread::Joins(other) => matches!(self.threads[other], Thread::Ended),
            Thread::Ended => false,
        }
    }

    fn runnable(&self) -> Vec<usize> {
        (0..self.threads.len())
            .filter(|&thread| self.is_runnable(thread))
            .collect()
    }

    fn state(&self) -> (u64, u64) {
        let runnable: Vec<(bool, bool)> = (0..self.threads.len())
            .map(|thread| {
                (
                    self.is_runnable(thread),
                    self.looked[thread] == self.changes,
                )
            })
            .collect();
        let state = (&self.memory, &self.seen, runnable);
        (mix(1, &state), mix(2, &state))
    }
}
