//! Stopping: one owner, all others halted, everything printed once.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use super::{EndCode, backtrace, exit_port, symbols};
use crate::console;
use crate::console::port::MachinePorts;
use crate::console::{machine_channel, records};
use crate::cpu::safe;
use crate::cpu::sleep::stop_for_ever;
use crate::cpu::trap::{TrapFrame, exception_name};
use crate::cpu::{self, regs};

/// 0 = nobody; else the index of the owner + 1.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Address of a `fn()`, 0 = none.
static STOP_OTHERS: AtomicUsize = AtomicUsize::new(0);
/// The owner faulted while it reported.
static NESTED: AtomicBool = AtomicBool::new(false);

/// TSC ticks that the owner waits for the others to stop: some tens of milliseconds at usual rates.
const STOP_WAIT_TICKS: u64 = 200_000_000;

/// Gives the function that sends an NMI to all other CPUs.
pub fn set_stop_others(broadcast_nmi: fn()) {
    STOP_OTHERS.store(broadcast_nmi as usize, Ordering::Release);
}

/// Is the machine being stopped?
#[must_use]
pub fn in_progress() -> bool {
    OWNER.load(Ordering::Acquire) != 0
}

/// How many CPUs run Lull's code now, as far as their areas tell.
#[must_use]
pub fn online() -> usize {
    cpu::all().filter(|c| c.is_online()).count()
}

/// Leaves the machine: through the exit port, if there is one; else stops this CPU for ever.
pub fn leave(code: EndCode) -> ! {
    console::flush();
    exit_port::leave(&MachinePorts, code as u8);
    stop_for_ever()
}

/// An exception that nobody expected.
pub fn exception(frame: &TrapFrame) -> ! {
    let cr2 = regs::cr2();
    begin();
    let vector = frame.vector as u8;
    let name = exception_name(vector).unwrap_or("reserved exception");
    console::dump_line(format_args!(
        "*** {} on {}, error code {:#x}",
        name,
        cpu::this().id(),
        frame.error
    ));
    match vector {
        8 => explain_double_fault(frame),
        14 => console::dump_line(format_args!(
            "    {}",
            PageFault {
                error: frame.error,
                address: cr2
            }
        )),
        _ => {}
    }
    report(frame, true)
}

/// A double fault is nearly always a stack that ran into its guard page.
fn explain_double_fault(frame: &TrapFrame) {
    if let Some(stacks) = cpu::this().stacks()
        && let Some((name, stack)) = stacks
            .all()
            .into_iter()
            .find(|(_, s)| s.guards(regs::cr2()) || s.guards(frame.rsp.wrapping_sub(8)))
    {
        console::dump_line(format_args!(
            "    the {name} stack ({:#x}..{:#x}) has overflowed into its guard page",
            stack.bottom(),
            stack.top()
        ));
    }
}

struct PageFault {
    error: u64,
    address: u64,
}

impl fmt::Display for PageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.error & 0x10 != 0, self.error & 2 != 0) {
            (true, _) => "fetch",
            (false, true) => "write",
            (false, false) => "read",
        };
        let why = if self.error & 1 != 0 {
            "the page forbids it"
        } else {
            "nothing is mapped there"
        };
        write!(f, "{what} at {:#x}: {why}", self.address)
    }
}

/// Boot cannot go on: one line, no backtrace.
pub fn fatal_boot(what: fmt::Arguments<'_>) -> ! {
    log::error!("boot: {what}");
    machine_channel::problem(&records::Problem {
        place: records::Where::Firmware,
        name: "boot",
        why: what,
        expected: "a machine and a loader that Lull can start from",
    });
    machine_channel::end(&records::End {
        status: EndCode::BadInput.status(),
        code: EndCode::BadInput as u8,
    });
    leave(EndCode::BadInput)
}

/// Becomes the owner, or stops; takes the console; stops the others.
fn begin() {
    let me = cpu::this();
    match OWNER.compare_exchange(0, me.id().get() + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(owner) if owner == me.id().get() + 1 => {
            // The report itself failed: say that much, and leave.
            if !NESTED.swap(true, Ordering::AcqRel) {
                console::dump_line(format_args!("*** a second fault during the report"));
            }
            leave(EndCode::Panic)
        }
        Err(_) => {
            me.nmi.set_stopped();
            stop_for_ever()
        }
    }
    console::force();
    stop_others();
}

fn stop_others() {
    let me = cpu::this().id();
    if cpu::all().filter(|c| c.is_online() && c.id() != me).count() == 0 {
        return;
    }
    let address = STOP_OTHERS.load(Ordering::Acquire);
    if address == 0 {
        return;
    }
    #[expect(unsafe_code, reason = "a hook kept as an address")]
    // SAFETY: only `set_stop_others` writes it, and only the address of a `fn()`.
    let broadcast = unsafe { core::mem::transmute::<usize, fn()>(address) };
    broadcast();
    let start = regs::rdtsc();
    while regs::rdtsc().wrapping_sub(start) < STOP_WAIT_TICKS {
        if cpu::all()
            .filter(|c| c.is_online() && c.id() != me)
            .all(|c| c.nmi.has_stopped())
        {
            return;
        }
        core::hint::spin_loop();
    }
}

/// Registers, backtrace, who has stopped; then the end.
fn report(frame: &TrapFrame, registers: bool) -> ! {
    if registers {
        dump_frame(frame);
        console::dump_line(format_args!(
            "  cr0 {:016x}  cr2 {:016x}  cr3 {:016x}  cr4 {:016x}",
            regs::cr0(),
            regs::cr2(),
            regs::cr3(),
            regs::cr4()
        ));
    }
    console::dump_line(format_args!("backtrace:"));
    dump_backtrace(registers.then_some(frame.rip), frame.rbp);
    let me = cpu::this().id();
    let (mut stopped, mut running) = (1, 0);
    for other in cpu::all().filter(|c| c.is_online() && c.id() != me) {
        if other.nmi.has_stopped() {
            stopped += 1;
        } else {
            running += 1;
            console::dump_line(format_args!("{} has not stopped", other.id()));
        }
    }
    console::dump_line(format_args!(
        "{stopped} of {} CPUs stopped, the machine ends",
        stopped + running
    ));
    machine_channel::end(&records::End {
        status: EndCode::Panic.status(),
        code: EndCode::Panic as u8,
    });
    leave(EndCode::Panic)
}

/// Prints the registers of a frame, a line each.
pub fn dump_frame(frame: &TrapFrame) {
    let mut lines = Lines::new();
    let _ = fmt::write(&mut lines, format_args!("{frame}\n"));
}

/// Prints where `rip` (if given) is, and who called it.
pub fn dump_backtrace(rip: Option<u64>, rbp: u64) {
    let table = symbols::of_image();
    let mut lines = Lines::new();
    let mut depth = 0;
    if let Some(rip) = rip {
        let _ = backtrace::line(&mut lines, depth, rip, false, table.as_ref());
        depth += 1;
    }
    backtrace::walk(
        rbp,
        |address| safe::peek_u64(address).ok(),
        crate::mm::is_code,
        |address| {
            let _ = backtrace::line(&mut lines, depth, address, true, table.as_ref());
            depth += 1;
        },
    );
}

/// Collects text and prints it a line at a time.
struct Lines(arrayvec::ArrayString<200>);

impl Lines {
    fn new() -> Self {
        Self(arrayvec::ArrayString::new())
    }
}

impl fmt::Write for Lines {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if c == '\n' {
                console::dump_line(format_args!("{}", self.0));
                self.0.clear();
            } else {
                // A line that is too long is cut.
                let _ = self.0.try_push(c);
            }
        }
        Ok(())
    }
}

#[panic_handler]
fn panic_handler(info: &core::panic::PanicInfo<'_>) -> ! {
    crate::cage::panicked(info);
    begin();
    match info.location() {
        Some(at) => console::dump_line(format_args!(
            "*** panic on {} at {}:{}: {}",
            cpu::this().id(),
            at.file(),
            at.line(),
            info.message()
        )),
        None => console::dump_line(format_args!(
            "*** panic on {}: {}",
            cpu::this().id(),
            info.message()
        )),
    }
    report(
        &TrapFrame {
            rbp: regs::rbp(),
            ..TrapFrame::default()
        },
        false,
    )
}
