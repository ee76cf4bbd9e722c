//! Exceptions and interrupts: the table, and what happens when one comes.
//!
//! An exception that nobody expects ends the guest with its name. One that is expected ([`crate::attempt!`]) is recorded, and
//! the CPU goes on behind the instruction that was tried. Interrupts come only while a CPU is halted or opens a window.
#![expect(unsafe_code, reason = "descriptor table, entry from assembly")]

use super::percpu::{self, NO_TRAP};
use super::{cpu, lapic, timer, verdict};
use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

/// What the assembly stub leaves on the stack, lowest address first.
#[repr(C)]
struct Frame {
    general: [u64; 15], // r15 .. rax
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

const _: () = assert!(size_of::<Frame>() == 22 * 8);

const NMI: u8 = 2;
const EXCEPTIONS: u8 = 32;

/// An exception that was expected and came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Its vector.
    pub vector: u8,
    /// Its error code; 0 where it has none.
    pub error: u32,
}

/// Called by the stubs of `boot.S`, interrupts off.
#[unsafe(no_mangle)]
extern "C" fn lull_guest_trap(frame: &mut Frame) {
    let vector = frame.vector as u8;
    match vector {
        NMI => nmi(frame),
        0..EXCEPTIONS => exception(frame, vector),
        timer::VECTOR => {
            timer::interrupt();
            lapic::eoi();
        }
        // No EOI: the LAPIC keeps no record of a spurious interrupt.
        lapic::SPURIOUS_VECTOR => {}
        _ => {
            unsafe extern "Rust" {
                fn lull_guest_interrupt(vector: u8);
            }
            // SAFETY: `guest_test!` defines it with this signature.
            unsafe { lull_guest_interrupt(vector) };
            lapic::eoi();
        }
    }
}

fn nmi(frame: &mut Frame) {
    percpu::here().nmis.fetch_add(1, Ordering::SeqCst);
    // The return from an NMI ends the shadow of STI: an interrupt taken between STI and HLT would be slept over. So a halt that
    // has begun is left, and the caller looks again.
    let halt = cpu::halt_range();
    if halt.contains(&frame.rip) {
        frame.rip = halt.end;
    }
}

fn exception(frame: &mut Frame, vector: u8) {
    let here = percpu::here();
    let resume = here.resume.swap(0, Ordering::Relaxed);
    if resume != 0 {
        here.trap_vector.store(u32::from(vector), Ordering::Relaxed);
        here.trap_error.store(frame.error as u32, Ordering::Relaxed);
        frame.rip = resume;
        return;
    }
    let cr2: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr2", out(reg) cr2, options(nomem, nostack, preserves_flags)) };
    verdict::fail(format_args!(
        "exception {vector} {} error {:#x} rip {:#x} cr2 {cr2:#x} rsp {:#x} rflags {:#x} on CPU {}",
        name(vector),
        frame.error,
        frame.rip,
        frame.rsp,
        frame.rflags,
        percpu::CpuIndex::current(),
    ));
}

/// The mnemonic of an exception (Intel SDM vol. 3, "Exceptions and Interrupts").
#[must_use]
pub const fn name(vector: u8) -> &'static str {
    match vector {
        0 => "#DE",
        1 => "#DB",
        3 => "#BP",
        4 => "#OF",
        5 => "#BR",
        6 => "#UD",
        7 => "#NM",
        8 => "#DF",
        10 => "#TS",
        11 => "#NP",
        12 => "#SS",
        13 => "#GP",
        14 => "#PF",
        16 => "#MF",
        17 => "#AC",
        18 => "#MC",
        19 => "#XM",
        21 => "#CP",
        _ => "(no name)",
    }
}

/// Forgets an earlier expected exception. For [`crate::attempt!`].
pub fn clear_attempt() {
    percpu::here().trap_vector.store(NO_TRAP, Ordering::Relaxed);
}

/// The exception that came during the last attempt. For [`crate::attempt!`].
#[must_use]
pub fn last_attempt() -> Option<Exception> {
    let here = percpu::here();
    let vector = here.trap_vector.load(Ordering::Relaxed);
    (vector != NO_TRAP).then(|| Exception {
        vector: vector as u8,
        error: here.trap_error.load(Ordering::Relaxed),
    })
}

/// Tries instructions that may fault; gives the exception that came, or `None`.
///
/// The operands follow the instructions as in `asm!`, in named registers other than R11; RAX, RCX, RDX, RSI, RDI and R8 to R11
/// count as changed, and what faults must find the stack pointer as it was. Must stand inside
/// `unsafe`, for the same reasons as `asm!`: if no exception comes, the instruction has done its work.
#[macro_export]
macro_rules! attempt {
    ($($code:literal),+ $(; $($operand:tt)*)?) => {{
        $crate::trap::clear_attempt();
        ::core::arch::asm!(
            // Offset 8 of the CPU's own area is where the trap handler looks for a place to go on.
            "lea r11, [rip + 77f]",
            "mov gs:[8], r11",
            $($code,)+
            "77:",
            "mov qword ptr gs:[8], 0",
            $($($operand)*,)?
            clobber_abi("sysv64"),
        );
        $crate::trap::last_attempt()
    }};
}

/// An interrupt gate (Intel SDM vol. 3, "64-Bit Mode IDT").
#[derive(Clone, Copy)]
#[repr(C)]
struct Gate {
    low: u64,
    high: u64,
}

impl Gate {
    const fn new(target: u64) -> Self {
        const CODE: u64 = 0x08;
        const INTERRUPT_GATE: u64 = 0x8e00;
        let low =
            target & 0xffff | CODE << 16 | INTERRUPT_GATE << 32 | (target >> 16 & 0xffff) << 48;
        Self {
            low,
            high: target >> 32,
        }
    }
}

#[repr(C, align(16))]
struct Idt(UnsafeCell<[Gate; 256]>);

// SAFETY: written once by the boot CPU in `init`, before any other CPU runs.
unsafe impl Sync for Idt {}

static IDT: Idt = Idt(UnsafeCell::new([Gate { low: 0, high: 0 }; 256]));

/// Operand of LIDT and SIDT.
#[repr(C, packed)]
pub struct IdtPointer {
    /// Size of the table minus one.
    pub limit: u16,
    /// Where it is.
    pub base: u64,
}

/// Fills the table. Once, on the boot CPU, before the others run.
pub(super) fn init() {
    unsafe extern "C" {
        static lull_guest_vectors: u8;
    }
    let stubs = &raw const lull_guest_vectors as u64;
    // SAFETY: only this CPU runs, and this is the only place that writes the table.
    let gates = unsafe { &mut *IDT.0.get() };
    for (gate, vector) in gates.iter_mut().zip(0u64..) {
        *gate = Gate::new(stubs + vector * 16);
    }
}

/// Makes this CPU use the table.
pub fn load() {
    let pointer = IdtPointer {
        limit: 256 * 16 - 1,
        base: IDT.0.get() as u64,
    };
    // SAFETY: all 256 gates lead to stubs that keep every register.
    unsafe {
        asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack, preserves_flags))
    };
}

/// Stops for good if an interrupt vector reached a CPU that does not use it. For kernels without interrupts of their own.
pub fn no_interrupts(vector: u8) {
    verdict::fail(format_args!(
        "interrupt {vector:#x} on CPU {} that nobody sent",
        percpu::CpuIndex::current()
    ));
}

/// For kernels that start no other CPU.
pub fn no_ap(cpu: percpu::CpuIndex) {
    let _ = cpu;
    cpu::stop();
}
