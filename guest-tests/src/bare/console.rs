//! Output: port 0xE9, or COM1 with `console=com1`.

use super::cpu;
use crate::text::Text;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

const DEBUG_PORT: u16 = 0xe9;
const COM1: u16 = 0x3f8;

static USE_COM1: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicBool = AtomicBool::new(false);

/// Sends all further lines to COM1.
pub fn use_com1() {
    USE_COM1.store(true, Ordering::Relaxed);
}

/// Prints one line. A line is put together first and then written in one piece; what exceeds 240 bytes is cut.
pub fn line(arguments: fmt::Arguments<'_>) {
    let mut text = Text::<240>::new();
    // `Text` cuts instead of failing.
    let _ = text.write_fmt(arguments);
    // A CPU that fails while another prints must still be heard: after a while it prints without the lock.
    for _ in 0..1_000_000 {
        if !BUSY.swap(true, Ordering::Acquire) {
            break;
        }
        cpu::pause();
    }
    text.as_str().bytes().chain([b'\n']).for_each(byte);
    BUSY.store(false, Ordering::Release);
}

fn byte(value: u8) {
    if !USE_COM1.load(Ordering::Relaxed) {
        return cpu::outb(DEBUG_PORT, value);
    }
    // Transmitter empty is bit 5 of the line status; a UART that never says so must not stop the guest.
    for _ in 0..100_000 {
        if cpu::inb(COM1 + 5) & 0x20 != 0 {
            break;
        }
        cpu::pause();
    }
    cpu::outb(COM1, value);
}

/// Prints a line.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => { $crate::console::line(format_args!($($argument)*)) };
}

/// Prints a remark: something that is not as it could be, but no reason to fail.
#[macro_export]
macro_rules! note {
    ($($argument:tt)*) => { $crate::console::line(format_args!("note: {}", format_args!($($argument)*))) };
}

/// Prints a figure: `FIG name value unit`. `value` is an integer.
#[macro_export]
macro_rules! figure {
    ($name:expr, $value:expr, $unit:expr) => {
        $crate::console::line(format_args!("FIG {} {} {}", $name, $value, $unit))
    };
}
