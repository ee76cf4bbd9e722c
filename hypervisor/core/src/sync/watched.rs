//! loom's atomics, which tell the model of every access before it is made.
//!
//! So a model can let anything happen there that a machine could let happen there: an NMI, above all.

pub use loom::sync::atomic::{Ordering, fence};
use std::cell::RefCell;
use std::rc::Rc;

/// What is called before every access.
pub type Hook = Rc<dyn Fn()>;

std::thread_local! {
    // All threads of one execution of a model are coroutines of one thread of the host.
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Sets what is called before every access, for this thread of the host.
pub fn set_hook(hook: Option<Hook>) {
    HOOK.replace(hook);
}

/// Something that an access could be is about to happen.
pub fn point() {
    // Out of the cell first: the hook may access, too.
    let hook = HOOK.with_borrow(Clone::clone);
    if let Some(hook) = hook {
        hook();
    }
}

macro_rules! watched {
    ($name:ident, $value:ty, { $($arithmetic:tt)* }) => {
        /// As `core`'s.
        #[derive(Debug, Default)]
        pub struct $name(loom::sync::atomic::$name);

        #[expect(missing_docs, reason = "as core's")]
        impl $name {
            pub fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }
            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }
            pub fn compare_exchange(&self, old: $value, new: $value, success: Ordering, failure: Ordering) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(old, new, success, failure)
            }
            pub fn compare_exchange_weak(&self, old: $value, new: $value, success: Ordering, failure: Ordering) -> Result<$value, $value> {
                point();
                self.0.compare_exchange_weak(old, new, success, failure)
            }
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.fetch_or(value, order)
            }
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.fetch_and(value, order)
            }
            pub fn fetch_update(&self, success: Ordering, failure: Ordering, f: impl FnMut($value) -> Option<$value>) -> Result<$value, $value> {
                point();
                self.0.fetch_update(success, failure, f)
            }
            $($arithmetic)*
        }
    };
    ($name:ident, $value:ty) => {
        watched!($name, $value, {
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.fetch_add(value, order)
            }
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.fetch_sub(value, order)
            }
            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.fetch_max(value, order)
            }
        });
    };
}

watched!(AtomicBool, bool, {});
watched!(AtomicU32, u32);
watched!(AtomicU64, u64);
watched!(AtomicUsize, usize);
