//! Console: COM1 for people, port 0xE9 for tools.
//!
//! - `logger`: log lines, through the `log` crate, and guest lines.
//! - [`machine_channel`], [`records`], [`json`]: one JSON object a line on port 0xE9.
//! - [`uart`], [`ring`]: the 16550 and the bytes received from it.
//!
//! Locks: one per output, both leaves. Whoever panics calls [`force`] first, and from then on no output waits.
//! Interrupt handlers print nothing: the receive handler fills a lock-free ring and calls one hook.
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};
use lull_core::units::DomId;
use spin::Once;

pub mod choice;
pub mod json;
mod lock;
mod logger;
pub mod machine_channel;
pub mod port;
pub mod records;
pub mod ring;
mod text;
pub mod uart;

pub use lock::force;

use lock::OutputLock;
use lull_core::options::LogLevel;
use port::MachinePorts;
use ring::RxRing;
use uart::{COM1, Uart};

/// COM1 raises ISA interrupt 4.
pub const COM1_ISA_IRQ: u8 = 4;

static UART: Uart<MachinePorts> = Uart::new(MachinePorts, COM1);
static PRESENT: AtomicBool = AtomicBool::new(false);
static LOCK: OutputLock = OutputLock::new();
static RX: RxRing = RxRing::new();
static RX_HOOK: Once<RxHook> = Once::new();

/// Who takes input.
#[derive(Clone, Copy)]
struct RxHook {
    /// Told that there is some.
    arrived: fn(),
    /// Is it the CPU that runs this?
    is_here: fn() -> bool,
}

/// Sets up COM1 and makes it the backend of the `log` crate. Returns whether there is a UART; without one, all
/// output to it is dropped. Called once, by the boot CPU, before anything is logged.
pub fn init() -> bool {
    crate::time::start();
    let present = UART.init();
    PRESENT.store(present, Ordering::Release);
    logger::install();
    present
}

/// Sets which log lines are shown (option `loglvl`).
pub fn set_level(level: LogLevel) {
    log::set_max_level(match level {
        LogLevel::Error => log::LevelFilter::Error,
        LogLevel::Warn => log::LevelFilter::Warn,
        LogLevel::Info => log::LevelFilter::Info,
        LogLevel::Debug => log::LevelFilter::Debug,
        LogLevel::Trace => log::LevelFilter::Trace,
    });
}

/// Writes raw bytes to COM1 as one undivided piece.
pub fn write_bytes(bytes: &[u8]) {
    if PRESENT.load(Ordering::Acquire) {
        LOCK.with(|_| UART.send_and_take(bytes, take_on_the_way));
    }
}

/// Prints `line` of a guest as `(d1) line`. Control characters in it become visible.
pub fn guest_line(domain: DomId, line: &str) {
    write_line(
        format_args!("{}", logger::GuestHead(domain)),
        format_args!("{line}"),
    );
}

/// Prints one line of a dump: `(LULL) text`, without a time. See [`dumpln!`](crate::dumpln).
pub fn dump_line(body: fmt::Arguments<'_>) {
    write_line(format_args!("(LULL) "), body);
}

/// [`dump_line`] for NMI handlers: gives up (`false`) if another CPU, or the interrupted code, is printing.
pub fn try_dump_line(body: fmt::Arguments<'_>) -> bool {
    if !PRESENT.load(Ordering::Acquire) {
        return true;
    }
    LOCK.try_with(|| {
        // The UART adaptor cannot fail.
        let _ = logger::format_line(
            &mut UartText { takes: false },
            format_args!("(LULL) "),
            body,
        );
    })
    .is_some()
}

/// Prints one line of a debug key's dump, behind `(LULL) `.
#[macro_export]
macro_rules! dumpln {
    () => { $crate::console::dump_line(::core::format_args!("")) };
    ($($arg:tt)*) => { $crate::console::dump_line(::core::format_args!($($arg)*)) };
}

fn write_line(head: fmt::Arguments<'_>, body: fmt::Arguments<'_>) {
    if PRESENT.load(Ordering::Acquire) {
        LOCK.with(|torn| {
            if torn {
                UART.send(b"\r\n");
            }
            // The UART adaptor cannot fail; a `Display` that reports an error only loses its own tail.
            let _ = logger::format_line(&mut UartText { takes: true }, head, body);
        });
    }
}

/// Waits until everything printed has left the machine: before power-off and reboot.
pub fn flush() {
    if PRESENT.load(Ordering::Acquire) {
        UART.drain();
    }
}

/// Sets what the receive handler calls when keys have arrived: it posts the CONSOLE event. `is_here`: is the CPU that runs
/// this the one that takes the interrupt? Only the first call counts.
pub fn set_rx_hook(arrived: fn(), is_here: fn() -> bool) {
    RX_HOOK.call_once(|| RxHook { arrived, is_here });
}

/// Output takes its time, with interrupts off: input that arrives meanwhile is taken by the CPU that would be interrupted.
fn take_on_the_way() {
    if RX_HOOK.get().is_some_and(|hook| (hook.is_here)()) {
        handle_rx();
    }
}

/// Takes the next received byte. May be called by any CPU.
pub fn read_byte() -> Option<u8> {
    RX.pop()
}

/// Lets COM1 interrupt on received bytes. The caller has routed [`COM1_ISA_IRQ`] to a handler that calls
/// [`handle_rx`] and ends the interrupt.
pub fn enable_rx_interrupt() {
    if PRESENT.load(Ordering::Acquire) {
        // What arrived before raised no edge.
        handle_rx();
        UART.enable_rx_interrupt();
        handle_rx();
    }
}

/// Moves received bytes to the ring and calls the hook if there were any. Called by the interrupt handler of
/// COM1's CPU, or by a poll of that same CPU with interrupts off: the ring has one producer. Takes no lock.
pub fn handle_rx() {
    if !PRESENT.load(Ordering::Acquire) {
        return;
    }
    let mut any = false;
    // Bounded: a UART that always claims to have data must not hold the CPU.
    for _ in 0..64 {
        let Some(byte) = UART.receive() else { break };
        RX.push(byte);
        any = true;
    }
    if any && let Some(hook) = RX_HOOK.get() {
        (hook.arrived)();
    }
}

/// COM1 as a place for formatted text. Used under the lock.
struct UartText {
    /// Not from an NMI handler, which may have interrupted the one producer of the ring.
    takes: bool,
}

impl Write for UartText {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.takes {
            UART.send_and_take(s.as_bytes(), take_on_the_way);
        } else {
            UART.send(s.as_bytes());
        }
        Ok(())
    }
}
