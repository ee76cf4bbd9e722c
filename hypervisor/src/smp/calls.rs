//! Cross-CPU calls of the running machine: a plain function and a word, run on another CPU by its dispatch loop.
//!
//! A CPU takes calls from [`open`] (it is about to turn its dispatch loop) to [`close`] (it has left it). The event CALL makes the
//! loop [`serve`] them, without a scheduling pass. Functions run with interrupts off, in the middle of whatever their CPU was
//! doing, and take no lock that somebody may hold who waits for a call. See [`lull_core::call`].
#![expect(unsafe_code, reason = "a function travels as its address")]

use lull_core::call::{CallError, CallHost, CallTable, Errand, Wait};
use lull_core::units::{CpuId, CpuSet};
use lull_core::wake::Events;
use spin::Once;

use crate::run::{self, Running};

/// What runs elsewhere.
#[derive(Clone, Copy, Debug)]
struct Function {
    run: fn(u64),
    word: u64,
}

impl Errand for Function {
    fn to_words(self) -> [u64; 2] {
        [self.run as usize as u64, self.word]
    }

    fn from_words([address, word]: [u64; 2]) -> Self {
        Self {
            // SAFETY: the call table gives only what `to_words` has made: the address of such a function.
            run: unsafe { core::mem::transmute::<usize, fn(u64)>(address as usize) },
            word,
        }
    }
}

static CALLS: Once<CallTable<Function>> = Once::new();

/// The CPU that runs this, among the others.
#[derive(Clone, Copy)]
struct Here {
    running: &'static Running,
    cpu: CpuId,
}

impl CallHost<Function> for Here {
    fn cpu(&self) -> CpuId {
        self.cpu
    }

    fn wake(&self, target: CpuId) {
        self.running.machine.post(target, Events::CALL);
    }

    fn wake_many(&self, targets: &CpuSet) {
        self.running.machine.post_many(targets, Events::CALL);
    }

    fn run(&self, function: Function) {
        (function.run)(function.word);
    }

    fn relax(&self) {
        core::hint::spin_loop();
    }
}

/// Makes the queues of CPUs 0 to `cpus - 1`. Once, before any CPU turns its dispatch loop.
pub fn init(cpus: usize) {
    CALLS.call_once(|| CallTable::new(cpus));
}

fn with<T>(act: impl FnOnce(&CallTable<Function>, &Here) -> T) -> Option<T> {
    let here = Here {
        running: run::running()?,
        cpu: crate::cpu::this().id(),
    };
    Some(act(CALLS.get()?, &here))
}

/// This CPU takes calls from now on.
pub fn open() {
    with(|calls, here| calls.open(here.cpu));
}

/// This CPU takes no more calls; runs those that it has been asked for.
pub fn close() {
    with(|calls, here| calls.close(here));
}

/// Runs what others have asked of this CPU. Called by its dispatch loop, for the event CALL.
pub fn serve() {
    with(|calls, here| calls.serve(here));
}

/// How many functions a CPU has run for others.
pub fn served(cpu: CpuId) -> u64 {
    CALLS.get().map_or(0, |calls| calls.served(cpu))
}

/// Runs `function(word)` on `cpu`; at once, if that is this CPU.
///
/// # Errors
/// It will not run: the CPU turns no dispatch loop, or this one may not wait now.
pub fn on(cpu: CpuId, function: fn(u64), word: u64, wait: Wait) -> Result<(), CallError> {
    let function = Function {
        run: function,
        word,
    };
    with(|calls, here| calls.single(here, cpu, function, wait))
        .unwrap_or(Err(CallError::Offline(cpu)))
}

/// Runs `function(word)` on all these CPUs at once. Gives those where it runs: the others turn no dispatch loop.
///
/// # Errors
/// It will run nowhere: this CPU may not wait now.
pub fn on_many(
    cpus: &CpuSet,
    function: fn(u64),
    word: u64,
    wait: Wait,
) -> Result<CpuSet, CallError> {
    let function = Function {
        run: function,
        word,
    };
    with(|calls, here| calls.many(here, cpus, function, wait)).unwrap_or(Ok(CpuSet::EMPTY))
}
