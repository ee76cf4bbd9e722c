//! Stackful coroutines: each simulated CPU runs on a stack of its own, and gives way inside of any platform call.
//!
//! A panic on a fiber passes through [`Fiber::resume`] as through any call. A fiber that never came to its end is leaked,
//! with what it owns: unwinding it would run code of the core in the middle of a platform call.
#![expect(
    unsafe_code,
    reason = "the running fiber is reached by a pointer to its own stack"
)]

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr;

thread_local! {
    /// How the fiber that runs on this thread gives way; null while none runs.
    static RUNNING: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// One coroutine.
pub struct Fiber {
    coroutine: ManuallyDrop<Coroutine<(), (), ()>>,
}

impl Fiber {
    /// A fiber that has not begun. Its stack is taken from the system page by page, as it is used.
    ///
    /// # Errors
    /// There is no address space for the stack.
    pub fn new(stack_bytes: usize, body: impl FnOnce() + 'static) -> io::Result<Self> {
        let stack = DefaultStack::new(stack_bytes)?;
        // What a fiber begins with must be small: it is moved to its stack by hand.
        let body = Box::new(body);
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            RUNNING.set(yielder);
            body();
        });
        Ok(Self {
            coroutine: ManuallyDrop::new(coroutine),
        })
    }

    /// Runs it until it gives way, or ends.
    pub fn resume(&mut self) {
        if !self.is_done() {
            let outer = RUNNING.replace(ptr::null());
            let (CoroutineResult::Yield(()) | CoroutineResult::Return(())) =
                self.coroutine.resume(());
            RUNNING.set(outer);
        }
    }

    /// Has it come to its end?
    pub fn is_done(&self) -> bool {
        self.coroutine.done()
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if self.is_done() {
            // SAFETY: dropped here only, once, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.coroutine) }
        }
    }
}

/// Does the caller run on a fiber?
pub fn is_inside() -> bool {
    !RUNNING.get().is_null()
}

/// Gives way to whoever resumed this fiber, until it is resumed again. Nothing, outside of fibers.
pub fn suspend() {
    let own = RUNNING.get();
    if own.is_null() {
        return;
    }
    // SAFETY: only `Fiber::new` sets the pointer, to the yielder of the coroutine that begins to run, and `suspend` puts
    // it back after others have run; `resume` takes it away before another runs, and when this one gave way or ended.
    // So it is the one of the coroutine that runs this very code, and lives on its stack.
    unsafe { (*own).suspend(()) };
    RUNNING.set(own);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn fibers_take_turns_where_they_give_way() {
        let said = Rc::new(RefCell::new(Vec::new()));
        let mut fibers: Vec<_> = (0..3)
            .map(|number| {
                let said = said.clone();
                Fiber::new(64 << 10, move || {
                    for step in 0..2 {
                        said.borrow_mut().push((number, step));
                        suspend();
                    }
                })
                .unwrap()
            })
            .collect();
        assert!(!is_inside());
        for _ in 0..3 {
            fibers.iter_mut().for_each(Fiber::resume);
        }
        assert!(fibers.iter().all(Fiber::is_done) && !is_inside());
        assert_eq!(
            *said.borrow(),
            [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
        );
    }
}
