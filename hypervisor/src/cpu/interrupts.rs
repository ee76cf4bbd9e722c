//! Interrupt vectors 32..=255: one table of handlers for all CPUs.
//!
//! Handlers run with interrupts off, inside a sleep or an interrupt window. They take no lock, post
//! events, and end the interrupt at the local APIC themselves. The entry has stamped the time already.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::trap::{FIRST_INTERRUPT, TrapFrame};

/// What a handler is given.
pub type IrqContext = TrapFrame;

/// A handler of one vector.
pub type Handler = fn(&mut IrqContext);

const VECTORS: usize = 256;

/// 0 = none. A `fn` pointer is kept as its address, so that it can be read without a lock.
static HANDLERS: [AtomicUsize; VECTORS] = [const { AtomicUsize::new(0) }; VECTORS];

/// Handlers that serve until [`register`] gives the vector a real one.
static PROVISIONAL: [AtomicUsize; VECTORS] = [const { AtomicUsize::new(0) }; VECTORS];

/// Why a handler could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// Vectors below 32 are exceptions.
    Exception(u8),
    /// The vector has a handler already.
    Taken(u8),
}

impl core::fmt::Display for RegisterError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Exception(v) => write!(f, "vector {v} is an exception: 32..=255 are interrupts"),
            Self::Taken(v) => write!(f, "vector {v:#x} has a handler already"),
        }
    }
}

/// Makes `handler` the handler of `vector` on every CPU.
///
/// # Errors
/// The vector is an exception, or another handler has it.
pub fn register(vector: u8, handler: Handler) -> Result<(), RegisterError> {
    if vector < FIRST_INTERRUPT {
        return Err(RegisterError::Exception(vector));
    }
    match HANDLERS[usize::from(vector)].compare_exchange(
        0,
        handler as usize,
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => Ok(()),
        Err(old) if old == handler as usize => Ok(()),
        Err(_) => Err(RegisterError::Taken(vector)),
    }
}

/// Makes `handler` serve `vector` as long as nobody has registered another. Used during boot, when the timer must
/// already be answered but there is no wake word to post to.
pub fn register_provisional(vector: u8, handler: Handler) {
    PROVISIONAL[usize::from(vector)].store(handler as usize, Ordering::Release);
}

/// Address of the handler of `vector`; 0 if it has none.
#[cfg(any(target_os = "none", test))]
fn handler_of(vector: u8) -> usize {
    match HANDLERS[usize::from(vector)].load(Ordering::Acquire) {
        0 => PROVISIONAL[usize::from(vector)].load(Ordering::Acquire),
        address => address,
    }
}

#[cfg(target_os = "none")]
pub(super) fn dispatch(vector: u8, context: &mut IrqContext) {
    #![expect(unsafe_code, reason = "the table keeps fn pointers as addresses")]
    let cpu = super::this();
    cpu.count_interrupt();
    match handler_of(vector) {
        0 => cpu.count_unexpected(vector),
        address => {
            // SAFETY: only the two functions above write the tables, and only addresses of `Handler`s.
            let handler: Handler = unsafe { core::mem::transmute::<usize, Handler>(address) };
            handler(context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(_: &mut IrqContext) {}
    fn two(context: &mut IrqContext) {
        context.rax = 2;
    }

    #[test]
    fn a_provisional_handler_gives_way() {
        assert_eq!(handler_of(0x60), 0);
        register_provisional(0x60, one);
        assert_eq!(handler_of(0x60), one as Handler as usize);
        assert_eq!(register(0x60, two), Ok(()));
        assert_eq!(handler_of(0x60), two as Handler as usize);
        register_provisional(0x60, one);
        assert_eq!(handler_of(0x60), two as Handler as usize);
    }

    #[test]
    fn a_vector_has_one_handler() {
        assert_eq!(register(0x50, one), Ok(()));
        assert_eq!(
            register(0x50, one),
            Ok(()),
            "registering the same handler twice is harmless"
        );
        assert_eq!(register(0x50, two), Err(RegisterError::Taken(0x50)));
        assert_eq!(register(14, one), Err(RegisterError::Exception(14)));
    }
}
