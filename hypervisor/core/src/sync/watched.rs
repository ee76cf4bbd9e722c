//! The atomics of the build for the model checkers: loom's, or those of an explorer of states.
//!
//! Both tell the model of every access before it is made ([`set_hook`]), so a model can let anything happen there that a machine
//! could let happen there: an NMI, above all.
//!
//! An atomic that is made while an [`Explorer`] is set belongs to that: a sequentially consistent cell, whose every access is a
//! step of the explorer's. Any other is loom's, with all that the memory model allows.

pub use loom::sync::atomic::Ordering;
use std::cell::RefCell;
use std::rc::Rc;

/// What is called before every access.
pub type Hook = Rc<dyn Fn()>;

/// Who decides which thread makes the next access, and remembers which states there were.
pub trait Explorer {
    /// There is one more atomic, of this value. Gives its number.
    fn atomic(&self, value: u64) -> usize;
    /// The running thread is about to access an atomic: comes back when it is its turn.
    fn turn(&self, atomic: usize);
    /// It has, and saw `seen`; the atomic has the value `now`.
    fn accessed(&self, atomic: usize, seen: u64, now: u64);
}

std::thread_local! {
    // All threads of one execution of a model are coroutines of one thread of the host.
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static EXPLORER: RefCell<Option<Rc<dyn Explorer>>> = const { RefCell::new(None) };
}

/// Sets what is called before every access, for this thread of the host.
pub fn set_hook(hook: Option<Hook>) {
    HOOK.replace(hook);
}

/// Sets whom the atomics that are made from now on belong to, for this thread of the host. `None`: loom.
pub fn set_explorer(explorer: Option<Rc<dyn Explorer>>) {
    EXPLORER.replace(explorer);
}

/// Something that an access could be is about to happen.
pub fn point() {
    // Out of the cell first: the hook may access, too.
    let hook = HOOK.with_borrow(Clone::clone);
    if let Some(hook) = hook {
        hook();
    }
}

/// A fence of loom's. An explorer has no use for one.
pub fn fence(order: Ordering) {
    if EXPLORER.with_borrow(Option::is_none) {
        loom::sync::atomic::fence(order);
    }
}

/// Makes the access by `plain`, in the explorer's order; `seen` and `now` are for its memory.
fn explored<T>(number: usize, access: impl FnOnce() -> (T, u64, u64)) -> T {
    let explorer = EXPLORER.with_borrow(Clone::clone);
    let Some(explorer) = explorer else {
        // What is dropped after the end.
        return access().0;
    };
    explorer.turn(number);
    let (result, seen, now) = access();
    explorer.accessed(number, seen, now);
    result
}

macro_rules! watched {
    ($name:ident, $value:ty, { $($arithmetic:tt)* }) => {
        /// As `core`'s.
        #[derive(Debug)]
        pub struct $name {
            loom: Option<loom::sync::atomic::$name>,
            plain: core::sync::atomic::$name,
            number: usize,
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(<$value>::default())
            }
        }

        impl $name {
            /// As `core`'s.
            pub fn new(value: $value) -> Self {
                let number = EXPLORER.with_borrow(|explorer| explorer.as_ref().map(|explorer| explorer.atomic(value as u64)));
                Self {
                    loom: number.is_none().then(|| loom::sync::atomic::$name::new(value)),
                    plain: core::sync::atomic::$name::new(value),
                    number: number.unwrap_or(0),
                }
            }

            fn update(&self, change: impl FnOnce($value) -> Option<$value>) -> Result<$value, $value> {
                explored(self.number, || {
                    let seen = self.plain.load(Ordering::Relaxed);
                    match change(seen) {
                        Some(now) => {
                            self.plain.store(now, Ordering::Relaxed);
                            (Ok(seen), seen as u64, now as u64)
                        }
                        None => (Err(seen), seen as u64, seen as u64),
                    }
                })
            }

            fn change(&self, change: impl FnOnce($value) -> $value) -> $value {
                match self.update(|value| Some(change(value))) {
                    Ok(seen) | Err(seen) => seen,
                }
            }
        }

        #[expect(missing_docs, reason = "as core's")]
        impl $name {
            pub fn load(&self, order: Ordering) -> $value {
                point();
                match &self.loom {
                    Some(loom) => loom.load(order),
                    None => self.change(|value| value),
                }
            }
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                match &self.loom {
                    Some(loom) => loom.store(value, order),
                    // A store sees nothing.
                    None => explored(self.number, || {
                        self.plain.store(value, Ordering::Relaxed);
                        ((), 0, value as u64)
                    }),
                }
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                match &self.loom {
                    Some(loom) => loom.swap(value, order),
                    None => self.change(|_| value),
                }
            }
            pub fn compare_exchange(&self, old: $value, new: $value, success: Ordering, failure: Ordering) -> Result<$value, $value> {
                point();
                match &self.loom {
                    Some(loom) => loom.compare_exchange(old, new, success, failure),
                    None => self.update(|value| (value == old).then_some(new)),
                }
            }
            pub fn compare_exchange_weak(&self, old: $value, new: $value, success: Ordering, failure: Ordering) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }
            pub fn fetch_or(&self, with: $value, order: Ordering) -> $value {
                point();
                match &self.loom {
                    Some(loom) => loom.fetch_or(with, order),
                    None => self.change(|value| value | with),
                }
            }
            pub fn fetch_and(&self, with: $value, order: Ordering) -> $value {
                point();
                match &self.loom {
                    Some(loom) => loom.fetch_and(with, order),
                    None => self.change(|value| value & with),
                }
            }
            pub fn fetch_update(&self, success: Ordering, failure: Ordering, mut f: impl FnMut($value) -> Option<$value>) -> Result<$value, $value> {
                point();
                match &self.loom {
                    Some(loom) => loom.fetch_update(success, failure, f),
                    None => self.update(|value| f(value)),
                }
            }
            $($arithmetic)*
        }
    };
    ($name:ident, $value:ty) => {
        watched!($name, $value, {
            pub fn fetch_add(&self, with: $value, order: Ordering) -> $value {
                point();
                match &self.loom {
                    Some(loom) => loom.fetch_add(with, order),
                    None => self.change(|value| value.wrapping_add(with)),
                }
            }
            pub fn fetch_sub(&self, with: $value, order: Ordering) -> $value {
                point();
                match &self.loom {
                    Some(loom) => loom.fetch_sub(with, order),
                    None => self.change(|value| value.wrapping_sub(with)),
                }
            }
            pub fn fetch_max(&self, with: $value, order: Ordering) -> $value {
                point();
                match &self.loom {
                    Some(loom) => loom.fetch_max(with, order),
                    None => self.change(|value| value.max(with)),
                }
            }
        });
    };
}

watched!(AtomicBool, bool, {});
watched!(AtomicU32, u32);
watched!(AtomicU64, u64);
watched!(AtomicUsize, usize);
