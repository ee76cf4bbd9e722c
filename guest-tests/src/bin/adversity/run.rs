//! Runs a few instructions, and records every exception and interrupt on the way.
//!
//! The instructions lie in a code area of three pages, so that they can cross the border between two, and run in 64-, 32-
//! or 16-bit code. Behind them stands UD2: the #UD there is how they end. What happens before is the *trace*:
//! `#BP+1` is a #BP whose frame points one byte behind the start; `#DBs+2` a #DB with DR6.BS (`0` to `3`: breakpoints).
#![expect(
    unsafe_code,
    reason = "descriptor tables, and instructions that fault on purpose"
)]

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::fmt::Write;
use guest_tests::text::Text;
use guest_tests::trap::{self, IdtPointer};
use guest_tests::{lapic, verdict};

global_asm!(
    ".pushsection .text.adversity, \"ax\", @progbits",
    ".balign 16",
    ".globl adversity_vectors",
    "adversity_vectors:",
    ".set adversity_vector, 0",
    ".rept 256",
    ".balign 16",
    ".if (adversity_vector == 8) || ((adversity_vector >= 10) && (adversity_vector <= 14)) || (adversity_vector == 17) || (adversity_vector == 21)",
    ".else",
    "push 0",
    ".endif",
    "push adversity_vector",
    "jmp adversity_common",
    ".set adversity_vector, adversity_vector + 1",
    ".endr",
    "adversity_common:",
    "push rax",
    "push rbx",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rbp",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov rdi, rsp",
    "cld",
    "call adversity_trap",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rbp",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rbx",
    "pop rax",
    "add rsp, 16",
    "iretq",
    // RDI: a `Start`.
    ".globl adversity_enter, adversity_return",
    "adversity_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [adversity_rsp], rsp",
    "mov rax, rsp",
    "push 0x10",
    "push rax",
    "push [rdi + 0x40]",
    "push [rdi + 0x38]",
    "push [rdi + 0x30]",
    "mov rax, [rdi]",
    "mov rcx, [rdi + 0x08]",
    "mov rdx, [rdi + 0x10]",
    "mov rbx, [rdi + 0x18]",
    "mov rsi, [rdi + 0x20]",
    "mov rdi, [rdi + 0x28]",
    "iretq",
    "adversity_return:",
    "mov rsp, [adversity_rsp]",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    ".popsection",
    ".pushsection .data.adversity, \"aw\", @progbits",
    ".balign 8",
    "adversity_rsp: .quad 0",
    ".popsection",
);

/// What the stubs leave on the stack, lowest address first.
#[repr(C)]
pub struct Frame {
    general: [u64; 15], // r15 .. rax
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// General registers before and after: RAX, RCX, RDX, RBX, RSI, RDI.
pub type Registers = [u64; 6];

#[repr(C)]
struct Start {
    registers: Registers,
    rip: u64,
    cs: u64,
    rflags: u64,
}

const _: () = assert!(core::mem::offset_of!(Start, rflags) == 0x40);

/// An exception or interrupt that came.
#[derive(Clone, Copy)]
pub struct Event {
    pub vector: u8,
    pub error: u32,
    pub rip: u64,
    pub dr6: u64,
}

const MOST_EVENTS: usize = 64;

struct State {
    events: [Event; MOST_EVENTS],
    count: usize,
    registers: Registers,
    in_nmi: Option<fn()>,
    running: bool,
}

/// A value that only this kernel's one CPU touches.
#[repr(C, align(4096))]
struct Own<T>(UnsafeCell<T>);

// SAFETY: the kernel starts no other CPU; handlers run only while `execute` waits for them, or touch what nobody holds.
unsafe impl<T> Sync for Own<T> {}

static STATE: Own<State> = Own(UnsafeCell::new(State {
    events: [Event {
        vector: 0,
        error: 0,
        rip: 0,
        dr6: 0,
    }; MOST_EVENTS],
    count: 0,
    registers: [0; 6],
    in_nmi: None,
    running: false,
}));

const CODE_SIZE: usize = 3 * 4096;
static CODE: Own<[u8; CODE_SIZE]> = Own(UnsafeCell::new([0xcc; CODE_SIZE]));
static IDT: Own<[[u64; 2]; 256]> = Own(UnsafeCell::new([[0; 2]; 256]));
static GDT: Own<[u64; 8]> = Own(UnsafeCell::new([
    0,
    0x00af_9b00_0000_ffff, // 08: code, 64 bit
    0x00cf_9300_0000_ffff, // 10: data
    0x00cf_9b00_0000_ffff, // 18: code, 32 bit
    0,                     // 20: code, 16 bit, at the code area
    0x0000_9b00_8000_ffff, // 28: code, 16 bit, at 0x8000
    0x0000_9300_8000_ffff, // 30: data, 64 KiB, at 0x8000
    0,
]));

const NMI: u8 = 2;
const DR6_CLEAR: u64 = 0xffff_0ff0;
const TF: u64 = 1 << 8;
const RF: u64 = 1 << 16;

/// In what code the instructions run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    B64,
    B32,
    B16,
}

impl Bits {
    pub const ALL: [Self; 3] = [Self::B64, Self::B32, Self::B16];

    pub const fn name(self) -> &'static str {
        match self {
            Self::B64 => "64",
            Self::B32 => "32",
            Self::B16 => "16",
        }
    }

    const fn selector(self) -> u64 {
        match self {
            Self::B64 => 0x08,
            Self::B32 => 0x18,
            Self::B16 => 0x20,
        }
    }
}

/// The address of the code area.
pub fn code_area() -> u64 {
    CODE.0.get() as u64
}

/// Takes the descriptor tables over. Once.
pub fn init() {
    unsafe extern "C" {
        static adversity_vectors: u8;
    }
    let stubs = &raw const adversity_vectors as u64;
    // SAFETY: only this CPU runs, and no handler is in place yet.
    unsafe {
        for (gate, vector) in (&mut *IDT.0.get()).iter_mut().zip(0u64..) {
            let target = stubs + 16 * vector;
            *gate = [
                target & 0xffff | 0x08 << 16 | 0x8e00 << 32 | (target >> 16 & 0xffff) << 48,
                target >> 32,
            ];
        }
        let base = code_area();
        if let Some(code16) = (&mut *GDT.0.get()).get_mut(4) {
            *code16 = 0x0000_9b00_0000_ffff | (base & 0xff_ffff) << 16 | (base >> 24 & 0xff) << 56;
        }
        let gdt = IdtPointer {
            limit: 8 * 8 - 1,
            base: GDT.0.get() as u64,
        };
        asm!("lgdt [{}]", in(reg) &raw const gdt, options(readonly, nostack, preserves_flags));
    }
    load_table();
}

/// Makes this kernel's own table the one of the CPU.
pub fn load_table() {
    let pointer = IdtPointer {
        limit: 256 * 16 - 1,
        base: IDT.0.get() as u64,
    };
    // SAFETY: all gates lead to stubs that keep every register.
    unsafe {
        asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack, preserves_flags))
    };
}

/// Sets what an NMI does inside of its handler.
pub fn in_nmi(action: Option<fn()>) {
    // SAFETY: a plain write; an NMI comes only when this kernel sends it.
    unsafe { (*STATE.0.get()).in_nmi = action };
}

/// How many events came since [`forget`].
pub fn event_count() -> usize {
    // SAFETY: a volatile read of a plain number, which a handler may just have changed.
    unsafe { (&raw const (*STATE.0.get()).count).read_volatile() }
}

/// Forgets all events.
pub fn forget() {
    // SAFETY: a plain write; no handler runs.
    unsafe { (*STATE.0.get()).count = 0 };
}

#[unsafe(no_mangle)]
extern "C" fn adversity_trap(frame: &mut Frame) {
    let vector = frame.vector as u8;
    let dr6 = if vector == 1 { take_dr6() } else { 0 };
    let state = STATE.0.get();
    // SAFETY: `execute` does not touch the state while instructions run. A handler that interrupts this one (an exception in
    // the action of an NMI) finds the state whole: no reference is held over the call of that action.
    unsafe {
        let at = (*state).count;
        let event = Event {
            vector,
            error: frame.error as u32,
            rip: frame.rip,
            dr6,
        };
        let place = if at < MOST_EVENTS {
            at
        } else {
            MOST_EVENTS - 1
        };
        (&raw mut (*state).events)
            .cast::<Event>()
            .add(place)
            .write(event);
        (*state).count = at + 1;
        let too_many = at + 4 >= MOST_EVENTS;
        match vector {
            NMI => {
                let action = (*state).in_nmi;
                if let Some(action) = action {
                    action();
                }
                return;
            }
            1 | 3 | 4 if !too_many => {
                if vector == 1 && is_instruction_breakpoint(dr6) {
                    frame.rflags |= RF;
                }
                return;
            }
            32.. if !too_many => {
                if vector != lapic::SPURIOUS_VECTOR && lapic::is_in_service(vector) {
                    lapic::eoi();
                }
                return;
            }
            _ => {}
        }
        if !(*state).running {
            verdict::fail(format_args!(
                "exception {vector} {} error {:#x} at rip {:#x}, cs {:#x}",
                trap::name(vector),
                frame.error,
                frame.rip,
                frame.cs
            ));
        }
        unsafe extern "C" {
            fn adversity_return();
        }
        let [.., rdi, rsi, rdx, rcx, rbx, rax] = frame.general;
        (*state).registers = [rax, rcx, rdx, rbx, rsi, rdi];
        frame.rip = adversity_return as *const () as u64;
        (frame.cs, frame.ss, frame.rflags) = (0x08, 0x10, 2);
    }
}

fn take_dr6() -> u64 {
    let dr6: u64;
    // SAFETY: reads and clears what the last #DB left.
    unsafe {
        asm!("mov {0}, dr6", "mov dr6, {1}", out(reg) dr6, in(reg) DR6_CLEAR, options(nomem, nostack, preserves_flags))
    };
    dr6
}

/// DR7 says that a breakpoint which DR6 reports is one on instructions.
fn is_instruction_breakpoint(dr6: u64) -> bool {
    let dr7: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {0}, dr7", out(reg) dr7, options(nomem, nostack, preserves_flags)) };
    (0..4).any(|n| dr6 >> n & 1 != 0 && dr7 >> (16 + 4 * n) & 3 == 0)
}

/// Instructions to be run.
pub struct Snippet<'a> {
    pub bytes: &'a [u8],
    pub bits: Bits,
    /// Where they begin in the code area.
    pub at: usize,
    pub registers: Registers,
    /// Further bits of RFLAGS: TF, IF, OF.
    pub rflags: u64,
}

impl<'a> Snippet<'a> {
    /// In 64-bit code, at the beginning of the area, interrupts off.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            bits: Bits::B64,
            at: 0x100,
            registers: [0; 6],
            rflags: 0,
        }
    }

    pub const fn bits(mut self, bits: Bits) -> Self {
        self.bits = bits;
        self
    }

    pub const fn at(mut self, at: usize) -> Self {
        self.at = at;
        self
    }

    /// RAX, RCX, RDX.
    pub const fn with(mut self, rax: u64, rcx: u64, rdx: u64) -> Self {
        let [_, _, _, rbx, rsi, rdi] = self.registers;
        self.registers = [rax, rcx, rdx, rbx, rsi, rdi];
        self
    }

    /// RBX, RSI, RDI.
    pub const fn and(mut self, rbx: u64, rsi: u64, rdi: u64) -> Self {
        let [rax, rcx, rdx, ..] = self.registers;
        self.registers = [rax, rcx, rdx, rbx, rsi, rdi];
        self
    }

    pub const fn stepped(mut self) -> Self {
        self.rflags |= TF;
        self
    }

    pub const fn rflags(mut self, bits: u64) -> Self {
        self.rflags |= bits;
        self
    }

    /// Puts them into the code area and runs them there.
    pub fn run(&self) -> Ran {
        const UD2: [u8; 2] = [0x0f, 0x0b];
        let end = self.at + self.bytes.len() + 2;
        if end > CODE_SIZE {
            verdict::fail(format_args!("a snippet of {end} bytes"));
        }
        let code = CODE.0.get().cast::<u8>();
        for (offset, &byte) in self.bytes.iter().chain(&UD2).enumerate() {
            // SAFETY: inside the area, as checked.
            unsafe { code.add(self.at + offset).write_volatile(byte) };
        }
        let base = if self.bits == Bits::B16 {
            0
        } else {
            code_area()
        };
        self.execute(base + self.at as u64)
    }

    /// Runs what lies at `rip` already; it must end like the bytes of the snippet, behind them.
    pub fn execute(&self, rip: u64) -> Ran {
        unsafe extern "C" {
            fn adversity_enter(start: *const Start);
        }
        let start = Start {
            registers: self.registers,
            rip,
            cs: self.bits.selector(),
            rflags: self.rflags | 2,
        };
        let state = STATE.0.get();
        // SAFETY: the code ends at UD2 or at an exception before, whose handler returns here with the registers that the
        // calling convention keeps; what it writes is the caller's choice.
        unsafe {
            (*state).count = 0;
            (*state).running = true;
            asm!("call {}", sym adversity_enter, in("rdi") &raw const start, clobber_abi("sysv64"));
            (*state).running = false;
        }
        // SAFETY: no handler runs any more.
        let state = unsafe { &*state };
        Ran {
            events: state.events,
            count: state.count.min(MOST_EVENTS),
            registers: state.registers,
            start: rip,
            len: self.bytes.len() as u64,
        }
    }
}

/// What happened.
pub struct Ran {
    events: [Event; MOST_EVENTS],
    count: usize,
    pub registers: Registers,
    start: u64,
    len: u64,
}

/// The longest trace that is kept.
pub type Trace = Text<120>;

impl Ran {
    pub fn events(&self) -> &[Event] {
        self.events.get(..self.count).unwrap_or(&[])
    }

    /// Whether nothing happened but the end.
    pub fn is_plain(&self) -> bool {
        self.count == 1 && self.events.first().is_some_and(|event| self.is_end(event))
    }

    fn is_end(&self, event: &Event) -> bool {
        event.vector == 6 && event.rip == self.start + self.len
    }

    /// All that happened before the end; `nothing` if it was nothing.
    pub fn trace(&self) -> Trace {
        let mut trace = Trace::new();
        let mut any = false;
        for event in self.events().iter().filter(|event| !self.is_end(event)) {
            let space = if any { " " } else { "" };
            any = true;
            let _ = match event.vector {
                NMI => write!(trace, "{space}NMI"),
                32.. => write!(trace, "{space}INT{:x}", event.vector),
                vector => write!(trace, "{space}{}", trap::name(vector)),
            };
            if event.vector == 1 {
                if event.dr6 >> 14 & 1 != 0 {
                    let _ = write!(trace, "s");
                }
                for n in (0..4).filter(|n| event.dr6 >> n & 1 != 0) {
                    let _ = write!(trace, "{n}");
                }
            }
            if event.error != 0 {
                let _ = write!(trace, "({:x})", event.error);
            }
            let offset = event.rip.wrapping_sub(self.start).cast_signed();
            let _ = if offset.unsigned_abs() < 0x1000 {
                write!(trace, "{offset:+}")
            } else {
                write!(trace, "+far")
            };
        }
        if !any {
            let _ = write!(trace, "nothing");
        }
        trace
    }
}
