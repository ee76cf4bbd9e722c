//! `PASS`, `FAIL reason`, and the way out.
#![expect(unsafe_code, reason = "Xen is left by a hypercall")]

use super::{console, cpu};
use crate::host::Host;
use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

const EXIT_PORT: u16 = 0xf4;
/// On QEMU the exit status is this value doubled plus one: 33.
const PASSED: u8 = 0x10;
const FAILED: u8 = 0x11;

/// Set when the verdict is out: a second one must not follow.
static SPOKEN: AtomicBool = AtomicBool::new(false);
static ON_XEN: AtomicBool = AtomicBool::new(false);

pub(super) fn set_host(host: Host) {
    ON_XEN.store(host == Host::Xen, Ordering::Relaxed);
}

/// Prints `PASS`, and goes on: for kernels whose end is not a return.
pub fn pass() {
    if !SPOKEN.swap(true, Ordering::Relaxed) {
        console::line(format_args!("PASS"));
    }
}

/// Prints `FAIL` with the reason and ends the guest.
pub fn fail(reason: fmt::Arguments<'_>) -> ! {
    SPOKEN.store(true, Ordering::Relaxed);
    console::line(format_args!("FAIL {reason}"));
    leave(FAILED)
}

/// Ends the guest as passed, with `PASS` if that was not said yet.
pub fn end() -> ! {
    pass();
    leave(PASSED)
}

fn leave(code: u8) -> ! {
    if ON_XEN.load(Ordering::Relaxed) {
        shutdown_on_xen(code == PASSED);
    }
    cpu::outb(EXIT_PORT, code);
    cpu::stop()
}

/// SCHEDOP_shutdown (Xen public headers `sched.h`): reason 0 is "poweroff", 3 is "crash".
fn shutdown_on_xen(passed: bool) {
    const SCHED_OP: u64 = 29;
    const SHUTDOWN: u64 = 2;
    let reason: u32 = if passed { 0 } else { 3 };
    let at = &raw const reason as u64;
    if cpu::features().vmcall {
        // SAFETY: Xen reads the reason and does not come back; if it does, RAX and the arguments are all it changes.
        unsafe {
            asm!("vmcall", inout("rax") SCHED_OP => _, inout("rdi") SHUTDOWN => _, inout("rsi") at => _, options(nostack))
        };
    } else {
        // SAFETY: as above.
        unsafe {
            asm!("vmmcall", inout("rax") SCHED_OP => _, inout("rdi") SHUTDOWN => _, inout("rsi") at => _, options(nostack))
        };
    }
}

/// Ends the guest with `FAIL` unless the condition holds. The reason is a format string: say what was seen.
#[macro_export]
macro_rules! check {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            $crate::verdict::fail(format_args!($($reason)+));
        }
    };
}

/// Ends the guest with `FAIL` unless two values are equal, and shows both.
#[macro_export]
macro_rules! check_eq {
    ($left:expr, $right:expr, $what:expr) => {{
        let (left, right) = ($left, $right);
        if left != right {
            $crate::verdict::fail(format_args!("{}: {} instead of {}", $what, left, right));
        }
    }};
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    match info.location() {
        Some(at) => fail(format_args!(
            "panic at {}:{}: {}",
            at.file(),
            at.line(),
            info.message()
        )),
        None => fail(format_args!("panic: {}", info.message())),
    }
}
