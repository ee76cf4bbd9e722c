//! Going in, and being thrown out.
#![expect(unsafe_code, reason = "stacks are switched, and contexts restored")]

use core::ffi::c_void;
use core::fmt::Write;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use lull_core::platform::OneShot;
use lull_core::units::Nanos;
use spin::Mutex;

use super::{Escape, Limits, Text, arena, file_name};
use crate::cpu::trap::TrapFrame;
use crate::cpu::{self, regs};
use crate::mm::frames::LARGE;
use crate::mm::paging::Access;
use crate::mm::stack::{GUARD, Stack};
use crate::mm::{self, Range};
use crate::time;

/// Index + 1 of the CPU that is inside; 0: none.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// The stack pointer to come back to.
static SAVED: AtomicU64 = AtomicU64::new(0);
/// The guard page of its stack: first address.
static GUARD_PAGE: AtomicU64 = AtomicU64::new(0);
/// The work is in a step that must not be cut in two.
static UNDISTURBED: AtomicBool = AtomicBool::new(false);
/// A panic is being written down: another one must not be.
static PANICKING: AtomicBool = AtomicBool::new(false);
/// Why it was thrown out. Locked with interrupts off only.
static REASON: Mutex<Option<Reason>> = Mutex::new(None);

enum Reason {
    Panic(Text),
    Exception { vector: u8, rip: u64 },
    StackOverflow,
    Time,
}

core::arch::global_asm!(
    include_str!("asm/switch.s"),
    saved = sym SAVED,
    options(att_syntax)
);

// SAFETY: defined in asm/switch.s with these signatures.
unsafe extern "C" {
    fn lull_cage_enter(
        stack_top: u64,
        work: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> u64;
    fn lull_cage_throw_out() -> !;
}

extern "C" fn start(argument: *mut c_void) {
    // SAFETY: `run` passes the address of its own `&mut dyn FnMut()`, which outlives the call.
    let work = unsafe { &mut *argument.cast::<&mut dyn FnMut()>() };
    work();
}

/// Is the CPU that asks in the cage?
#[inline]
#[must_use]
pub fn is_inside() -> bool {
    let inside = INSIDE.load(Ordering::Relaxed);
    inside != 0 && inside == cpu::this().id().get() + 1
}

/// Runs `work` in the cage. Interrupts are off before and after; `timer` is this CPU's, and nothing is armed.
///
/// # Errors
/// It did not come to its end.
///
/// # Safety
/// Nothing that `work` allocates may be reachable once it has ended or been thrown out: what it writes to the outside
/// holds no box, vector, string or anything else of the heap. It takes no lock but in [`undisturbed`], and only one CPU
/// runs.
pub unsafe fn run(
    limits: &Limits,
    timer: &impl OneShot,
    mut work: &mut dyn FnMut(),
) -> Result<(), Escape> {
    let Ok(stack) = mm::new_stack(limits.stack) else {
        return Err(Escape::NotStarted);
    };
    let Ok(heap) = mm::allocate_unzeroed(limits.heap, LARGE) else {
        give_back(stack);
        return Err(Escape::NotStarted);
    };
    // SAFETY: the block has just been allocated, and nobody is inside yet.
    unsafe { arena::open(heap) };
    GUARD_PAGE.store(stack.guard(), Ordering::Relaxed);
    UNDISTURBED.store(false, Ordering::Relaxed);
    PANICKING.store(false, Ordering::Relaxed);
    *REASON.lock() = None;
    let level = log::max_level();
    log::set_max_level(log::LevelFilter::Off);
    let limit = time::rate().ticks(Nanos::new(limits.time.get().saturating_mul(1000)));
    timer.arm(time::now() + limit);
    INSIDE.store(cpu::this().id().get() + 1, Ordering::SeqCst);

    // SAFETY: the stack is fresh and large enough for the first frame; `start` gets the pointer that it expects. When the
    // work is thrown out, the frames on that stack are never returned to, and what they own lies in the arena.
    let thrown_out = unsafe { lull_cage_enter(stack.top(), start, (&raw mut work).cast()) } != 0;

    INSIDE.store(0, Ordering::SeqCst);
    timer.cancel();
    log::set_max_level(level);
    let used_up = arena::used_up();
    arena::close();
    give_back(stack);
    if let Err(why) = mm::release(heap) {
        log::warn!("cage: its memory is lost: {why}");
    }
    if !thrown_out {
        return Ok(());
    }
    Err(match REASON.lock().take() {
        Some(Reason::Panic(_)) if used_up => Escape::HeapUsedUp(limits.heap),
        Some(Reason::Panic(what)) => Escape::Panic(what),
        Some(Reason::Exception { vector, rip }) => Escape::Exception { vector, rip },
        Some(Reason::StackOverflow) => Escape::StackOverflow,
        Some(Reason::Time) | None => Escape::OutOfTime(limits.time),
    })
}

fn give_back(stack: Stack) {
    let guard = Range::new(stack.guard(), GUARD);
    let whole = Range::new(stack.guard(), stack.top() - stack.guard());
    let given = mm::set_access(guard, Some(Access::Data)).is_ok() && mm::release(whole).is_ok();
    if !given {
        log::warn!("cage: its stack is lost");
    }
}

/// Runs `step` without being thrown out in the middle. Outside the cage: just runs it.
pub fn undisturbed<R>(step: impl FnOnce() -> R) -> R {
    if !is_inside() || UNDISTURBED.load(Ordering::Relaxed) {
        return step();
    }
    // SAFETY: interrupts are open inside the cage, and are opened again below.
    unsafe { core::arch::asm!("cli", options(nostack)) };
    UNDISTURBED.store(true, Ordering::SeqCst);
    let result = step();
    UNDISTURBED.store(false, Ordering::SeqCst);
    // SAFETY: as above: they were open.
    unsafe { core::arch::asm!("sti", options(nostack)) };
    result
}

fn may_throw_out() -> bool {
    is_inside() && !UNDISTURBED.load(Ordering::SeqCst)
}

/// Makes the return of `frame` throw the work out.
fn redirect(frame: &mut TrapFrame, reason: Reason) {
    *REASON.lock() = Some(reason);
    let throw_out: unsafe extern "C" fn() -> ! = lull_cage_throw_out;
    frame.rip = throw_out as usize as u64;
    frame.rsp = SAVED.load(Ordering::Relaxed);
    frame.rflags &= !(INTERRUPT_FLAG | DIRECTION_FLAG);
}

const INTERRUPT_FLAG: u64 = 1 << 9;
const DIRECTION_FLAG: u64 = 1 << 10;
const DOUBLE_FAULT: u64 = 8;
const MACHINE_CHECK: u64 = 18;

/// Takes an exception that the work raised, and tells whether it was one. Called by the exception handler, for exceptions
/// that no fix-up claims.
#[must_use]
pub fn catch(frame: &mut TrapFrame) -> bool {
    if frame.vector == MACHINE_CHECK || !may_throw_out() {
        return false;
    }
    // An exception on a stack without room is a double fault, taken on a stack of its own; CR2 tells what it was. What
    // the CPU saved of the work does not matter: it is not returned to.
    let guard = GUARD_PAGE.load(Ordering::Relaxed);
    let overflow = frame.vector == DOUBLE_FAULT && (guard..guard + GUARD).contains(&regs::cr2());
    let reason = if overflow {
        Reason::StackOverflow
    } else {
        Reason::Exception {
            vector: frame.vector as u8,
            rip: frame.rip,
        }
    };
    redirect(frame, reason);
    true
}

/// The deadline has come: called by the timer's handler during boot, after the interrupt has been ended.
pub fn out_of_time(frame: &mut TrapFrame) {
    if may_throw_out() {
        redirect(frame, Reason::Time);
    }
}

/// A panic: throws the work out if it was the work's, else returns. Called by the panic handler, first of all.
pub fn panicked(info: &PanicInfo<'_>) {
    if !may_throw_out() {
        return;
    }
    let mut what = Text::new();
    // The message is formatted by the work's own code: if that panics too, nothing more is asked of it.
    if !PANICKING.swap(true, Ordering::SeqCst) {
        let mut cut = Cut(&mut what);
        let _ = write!(cut, "{}", info.message());
        if let Some(at) = info.location() {
            let _ = write!(cut, " ({}:{})", file_name(at.file()), at.line());
        }
    }
    // SAFETY: interrupts were open; from here on nobody interrupts, and the context of `run` has them off.
    unsafe { core::arch::asm!("cli", options(nostack)) };
    *REASON.lock() = Some(Reason::Panic(what));
    // SAFETY: this CPU is inside, so there is a context to come back to; this stack is left for good.
    unsafe { lull_cage_throw_out() }
}

/// Takes text as long as there is room.
struct Cut<'a>(&'a mut Text);

impl Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for c in text.chars() {
            let _ = self.0.try_push(if c.is_control() { ' ' } else { c });
        }
        Ok(())
    }
}
